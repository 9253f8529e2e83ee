/* Fuzz target: a hostile client's bytes. However a stream is cut, the parser must take the same
   bytes and come to the same verdict; it never takes more than it was given; what it accepts holds
   the limits; and a second, much simpler reader of the body must agree with it. The first input byte
   chooses the cuts. */
#include "src/api/http.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define BODY_MAX     1024u
#define REQUESTS_MAX 8u

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

/* Stops the run if `condition` does not hold; the fuzzer keeps the input. */
static void
require(bool condition)
{
    if (!condition) {
        abort();
    }
}

/* Feed until a verdict or the end of the data, in pieces of 1 up to `step` bytes. */
static enum bh_status
feed(struct bh_http *http, const char *data, size_t len, size_t step, size_t *used)
{
    enum bh_status status = BH_AGAIN;
    *used = 0;
    for (size_t turn = 0; status == BH_AGAIN && *used < len; turn++) {
        size_t piece = 1 + turn * 7 % step;
        piece = piece < len - *used ? piece : len - *used;
        char *copy = malloc(piece); /* exact, so that a sanitizer sees one byte more */
        require(copy != NULL);
        memcpy(copy, data + *used, piece);
        size_t consumed = 0;
        status = bh_http_feed(http, copy, piece, &consumed);
        free(copy);
        require(consumed <= piece && (status != BH_AGAIN || consumed == piece));
        *used += consumed;
    }
    return status;
}

static void
require_sound(const struct bh_http_request *request, enum bh_status status)
{
    require(status == BH_AGAIN || status == BH_OK || status == BH_EINVAL);
    require(request->body_len <= BODY_MAX);
    if (status == BH_OK) {
        require(request->route > BH_ROUTE_NONE && request->route < BH_ROUTE_CNT);
        require(request->fault.error == BH_ERROR_NONE && request->head_done);
    }
    if (status == BH_EINVAL) {
        require(request->fault.error > BH_ERROR_NONE && request->fault.error < BH_ERROR_CNT);
        struct bh_bytes json;
        bh_bytes_init(&json, 4096);
        bh_fault_json(&json, &request->fault);
        require(bh_bytes_status(&json) == BH_OK);
        bh_bytes_free(&json);
    }
    require(!(request->http10 && request->keep_alive));
}

static bool
says_chunked(const char *data, size_t used)
{
    static const char word[] = "chunked";
    for (size_t i = 0; i + sizeof(word) - 1 <= used; i++) {
        if (strncasecmp(data + i, word, sizeof(word) - 1) == 0) {
            return true;
        }
    }
    return false;
}

/* A body sent with Content-Length must be the bytes right behind the head. */
static void
require_body(const struct bh_http_request *request, const char *data, size_t used)
{
    /* The body of a chunked request lies in pieces; the word anywhere is enough to look no further. */
    if (request->body_len == 0 || says_chunked(data, used)) {
        return;
    }
    require(used >= request->body_len);
    require(memcmp(data + used - request->body_len, request->body, request->body_len) == 0);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
    if (len == 0) {
        return 0;
    }
    const char *text = (const char *)data + 1;
    size_t left = len - 1;
    size_t step = 1 + data[0] % 64;
    struct bh_http *whole = bh_http_new(BODY_MAX);
    struct bh_http *cut = bh_http_new(BODY_MAX);
    require(whole != NULL && cut != NULL);
    for (uint32_t i = 0; i < REQUESTS_MAX && left > 0; i++) {
        size_t used = 0;
        size_t used_cut = 0;
        enum bh_status status = bh_http_feed(whole, text, left, &used);
        enum bh_status status_cut = feed(cut, text, left, step, &used_cut);
        const struct bh_http_request *a = bh_http_request(whole);
        const struct bh_http_request *b = bh_http_request(cut);
        require(status == status_cut && used <= left);
        require_sound(a, status);
        require(a->route == b->route && a->keep_alive == b->keep_alive);
        require(a->fault.error == b->fault.error && a->body_len == b->body_len);
        require(a->body_len == 0 || memcmp(a->body, b->body, a->body_len) == 0);
        require(status != BH_OK || used == used_cut);
        if (status != BH_OK) {
            break;
        }
        require_body(a, text, used);
        text += used;
        left -= used;
        bh_http_reset(whole);
        bh_http_reset(cut);
    }
    bh_http_delete(whole);
    bh_http_delete(cut);
    return 0;
}
