/* One decoder for everything here that looks at characters. */
#include "src/text/utf8.h"

/* Length that a lead byte announces and the range of its second byte, which is where overlong forms,
   surrogates and code points above U+10FFFF show. 0: no character begins so. */
static size_t
lead_length(uint8_t lead, uint8_t *second_min, uint8_t *second_max)
{
    *second_min = 0x80;
    *second_max = 0xbf;
    if (lead < 0x80) {
        return 1;
    }
    if (lead < 0xc2 || lead > 0xf4) {
        return 0;
    }
    if (lead == 0xe0) {
        *second_min = 0xa0;
    } else if (lead == 0xed) {
        *second_max = 0x9f;
    } else if (lead == 0xf0) {
        *second_min = 0x90;
    } else if (lead == 0xf4) {
        *second_max = 0x8f;
    }
    return lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
}

enum bh_utf8_part
bh_utf8_next(const uint8_t *bytes, size_t len, size_t *used, uint32_t *code)
{
    uint8_t min = 0;
    uint8_t max = 0;
    size_t want = lead_length(bytes[0], &min, &max);
    *code = 0xfffd;
    *used = 1;
    if (want == 0) {
        return BH_UTF8_BROKEN;
    }
    if (want == 1) {
        *code = bytes[0];
        return BH_UTF8_CHAR;
    }
    uint32_t value = bytes[0] & (0x7fu >> want);
    while (*used < want) {
        if (*used == len) {
            return BH_UTF8_SHORT;
        }
        uint8_t byte = bytes[*used];
        if (byte < min || byte > max) {
            return BH_UTF8_BROKEN;
        }
        value = value << 6 | (byte & 0x3fu);
        min = 0x80;
        max = 0xbf;
        (*used)++;
    }
    *code = value;
    return BH_UTF8_CHAR;
}

size_t
bh_utf8_valid(const uint8_t *bytes, size_t len)
{
    size_t at = 0;
    while (at < len) {
        if (bytes[at] < 0x80) {
            at++;
            continue;
        }
        size_t used = 0;
        uint32_t code = 0;
        if (bh_utf8_next(bytes + at, len - at, &used, &code) != BH_UTF8_CHAR) {
            break;
        }
        at += used;
    }
    return at;
}

size_t
bh_utf8_put(uint32_t code, uint8_t out[4])
{
    if (code < 0x80) {
        out[0] = (uint8_t)code;
        return 1;
    }
    if (code < 0x800) {
        out[0] = (uint8_t)(0xc0 | code >> 6);
        out[1] = (uint8_t)(0x80 | (code & 0x3f));
        return 2;
    }
    if (code < 0x10000) {
        out[0] = (uint8_t)(0xe0 | code >> 12);
        out[1] = (uint8_t)(0x80 | (code >> 6 & 0x3f));
        out[2] = (uint8_t)(0x80 | (code & 0x3f));
        return 3;
    }
    out[0] = (uint8_t)(0xf0 | code >> 18);
    out[1] = (uint8_t)(0x80 | (code >> 12 & 0x3f));
    out[2] = (uint8_t)(0x80 | (code >> 6 & 0x3f));
    out[3] = (uint8_t)(0x80 | (code & 0x3f));
    return 4;
}
