/* The growable buffer: doubling growth under a limit, with one sticky failure. */
#include "src/api/bytes.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GROW_MIN   256u
#define FORMAT_MAX 512

void
bh_bytes_init(struct bh_bytes *bytes, size_t max_bytes)
{
    *bytes = (struct bh_bytes){.max = max_bytes};
}

void
bh_bytes_free(struct bh_bytes *bytes)
{
    free(bytes->data);
    bh_bytes_init(bytes, bytes->max);
}

void
bh_bytes_clear(struct bh_bytes *bytes)
{
    bytes->len = 0;
    bytes->failed = false;
}

void
bh_bytes_cut(struct bh_bytes *bytes, size_t len)
{
    if (len >= bytes->len) {
        bytes->len = 0;
        return;
    }
    if (len > 0) {
        memmove(bytes->data, bytes->data + len, bytes->len - len);
        bytes->len -= len;
    }
}

/* Make room for len more bytes; false leaves everything as it was. */
static bool
grow(struct bh_bytes *bytes, size_t len)
{
    if (len > bytes->max - bytes->len) {
        return false;
    }
    size_t need = bytes->len + len;
    if (need <= bytes->cap) {
        return true;
    }
    size_t cap = bytes->cap < GROW_MIN ? GROW_MIN : bytes->cap;
    while (cap < need) {
        cap = cap > bytes->max / 2 ? bytes->max : cap * 2;
    }
    char *data = realloc(bytes->data, cap);
    if (data == NULL) {
        return false;
    }
    bytes->data = data;
    bytes->cap = cap;
    return true;
}

void
bh_bytes_put(struct bh_bytes *bytes, const void *data, size_t len)
{
    if (len == 0 || bytes->failed) {
        return;
    }
    if (!grow(bytes, len)) {
        bytes->failed = true;
        return;
    }
    memcpy(bytes->data + bytes->len, data, len);
    bytes->len += len;
}

void
bh_bytes_text(struct bh_bytes *bytes, const char *text)
{
    bh_bytes_put(bytes, text, strlen(text));
}

void
bh_bytes_format(struct bh_bytes *bytes, const char *format, ...)
{
    char text[FORMAT_MAX + 1];
    va_list args;
    va_start(args, format);
    int len = vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    if (len < 0 || len > FORMAT_MAX) {
        bytes->failed = true;
        return;
    }
    bh_bytes_put(bytes, text, (size_t)len);
}

enum bh_status
bh_bytes_status(const struct bh_bytes *bytes)
{
    return bytes->failed ? BH_ELIMIT : BH_OK;
}
