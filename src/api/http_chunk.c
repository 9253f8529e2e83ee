/* The strict grammar of a chunked body as a small machine. */
#include "src/api/http_chunk.h"

static enum bh_status
refuse(struct bh_fault *fault, const char *why)
{
    bh_fault_say(fault, BH_ERROR_MALFORMED, NULL, "The chunked body is malformed: %s.", why);
    return BH_EINVAL;
}

/* The value of a hexadecimal digit, or 16. */
static uint32_t
digit_of(char c)
{
    if (c >= '0' && c <= '9') {
        return (uint32_t)(c - '0');
    }
    char lower = (char)(c | 0x20);
    return lower >= 'a' && lower <= 'f' ? (uint32_t)(lower - 'a') + 10 : 16;
}

/* A byte of the line that holds the size. */
static enum bh_status
take_size(struct bh_chunk_scan *scan, char c, struct bh_fault *fault)
{
    uint32_t digit = digit_of(c);
    if (digit < 16) {
        scan->left = scan->left * 16 + digit;
        scan->digit_cnt++;
        return scan->digit_cnt <= BH_CHUNK_DIGITS_MAX ? BH_OK
                                                      : refuse(fault, "a size has too many digits");
    }
    if (scan->digit_cnt == 0 || (c != ';' && c != '\r')) {
        return refuse(fault, "a size must be hexadecimal digits");
    }
    scan->place = c == ';' ? BH_CHUNK_EXTENSION : BH_CHUNK_SIZE_LF;
    return BH_OK;
}

static enum bh_status
take_extension(struct bh_chunk_scan *scan, char c, struct bh_fault *fault)
{
    if (c == '\r') {
        scan->place = BH_CHUNK_SIZE_LF;
        return BH_OK;
    }
    scan->extension_bytes++;
    if ((unsigned char)c < 0x20 || c == 0x7f) {
        return refuse(fault, "an extension holds a control byte");
    }
    return scan->extension_bytes <= BH_HTTP_EXTENSIONS_MAX
               ? BH_OK
               : refuse(fault, "the extensions are too long");
}

/* The size line is complete: either data follow, or the end. */
static enum bh_status
begin_data(struct bh_chunk_scan *scan, uint64_t body_max, struct bh_fault *fault)
{
    scan->digit_cnt = 0;
    scan->body_bytes += scan->left;
    scan->place = scan->left > 0 ? BH_CHUNK_DATA : BH_CHUNK_END_CR;
    if (scan->body_bytes > body_max) {
        bh_fault_set(fault, BH_ERROR_BODY_TOO_LARGE, NULL);
        return BH_EINVAL;
    }
    return BH_OK;
}

/* A byte that can only be `expected`. */
static enum bh_status
take_mark(struct bh_chunk_scan *scan,
          char c,
          char expected,
          enum bh_chunk_place next,
          struct bh_fault *fault)
{
    scan->place = next;
    if (c != expected) {
        return refuse(fault,
                      "CRLF is missing where a line or the data must end, or there are trailers");
    }
    return BH_OK;
}

static enum bh_status
take_byte(struct bh_chunk_scan *scan, char c, uint64_t body_max, struct bh_fault *fault)
{
    enum bh_status status = BH_OK;
    switch (scan->place) {
    case BH_CHUNK_SIZE:
        return take_size(scan, c, fault);
    case BH_CHUNK_EXTENSION:
        return take_extension(scan, c, fault);
    case BH_CHUNK_SIZE_LF:
        status = take_mark(scan, c, '\n', BH_CHUNK_DATA, fault);
        return status == BH_OK ? begin_data(scan, body_max, fault) : status;
    case BH_CHUNK_DATA_CR:
        return take_mark(scan, c, '\r', BH_CHUNK_DATA_LF, fault);
    case BH_CHUNK_DATA_LF:
        return take_mark(scan, c, '\n', BH_CHUNK_SIZE, fault);
    case BH_CHUNK_END_CR:
        return take_mark(scan, c, '\r', BH_CHUNK_END_LF, fault);
    case BH_CHUNK_END_LF:
        return take_mark(scan, c, '\n', BH_CHUNK_DONE, fault);
    case BH_CHUNK_DATA:
    case BH_CHUNK_DONE:
    default:
        return BH_OK;
    }
}

enum bh_status
bh_chunk_scan(struct bh_chunk_scan *scan,
              const char *data,
              size_t len,
              uint64_t body_max,
              size_t *good,
              struct bh_fault *fault)
{
    *good = 0;
    while (*good < len && scan->place != BH_CHUNK_DONE) {
        if (scan->place == BH_CHUNK_DATA) {
            size_t run = (size_t)bh_min_u64(scan->left, len - *good);
            scan->left -= run;
            *good += run;
            scan->place = scan->left == 0 ? BH_CHUNK_DATA_CR : BH_CHUNK_DATA;
            continue;
        }
        enum bh_status status = take_byte(scan, data[*good], body_max, fault);
        if (status != BH_OK) {
            return status;
        }
        (*good)++;
    }
    return BH_OK;
}
