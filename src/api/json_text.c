/* Strings and numbers in JSON's text form. */
#include "src/api/json_text.h"

#include "src/text/utf8.h"

#define REPLACEMENT "\xef\xbf\xbd" /* U+FFFD */

/* Write the escape of a byte that may not stand in a JSON string as itself. */
static void
put_escape(struct bh_bytes *out, uint32_t byte)
{
    switch (byte) {
    case '"':
        bh_bytes_text(out, "\\\"");
        return;
    case '\\':
        bh_bytes_text(out, "\\\\");
        return;
    case '\b':
        bh_bytes_text(out, "\\b");
        return;
    case '\f':
        bh_bytes_text(out, "\\f");
        return;
    case '\n':
        bh_bytes_text(out, "\\n");
        return;
    case '\r':
        bh_bytes_text(out, "\\r");
        return;
    case '\t':
        bh_bytes_text(out, "\\t");
        return;
    default:
        bh_bytes_format(out, "\\u%04x", byte);
        return;
    }
}

void
bh_json_string(struct bh_bytes *out, const char *text, size_t len)
{
    const uint8_t *bytes = (const uint8_t *)text;
    bh_bytes_put(out, "\"", 1);
    size_t at = 0;
    size_t plain = 0; /* start of the run that is copied as it is */
    while (at < len) {
        size_t used = 0;
        uint32_t code = 0;
        bool whole = bh_utf8_next(bytes + at, len - at, &used, &code) == BH_UTF8_CHAR;
        if (!whole || code < 0x20 || code == '"' || code == '\\') {
            bh_bytes_put(out, text + plain, at - plain);
            if (whole) {
                put_escape(out, code);
            } else {
                bh_bytes_text(out, REPLACEMENT);
            }
            plain = at + used;
        }
        at += used;
    }
    bh_bytes_put(out, text + plain, len - plain);
    bh_bytes_put(out, "\"", 1);
}

void
bh_json_logprob(struct bh_bytes *out, float logprob)
{
    /* Written so that NaN, which compares false with everything, takes the stand-in too. */
    float value =
        logprob >= BH_LOGPROB_MIN && logprob <= -BH_LOGPROB_MIN ? logprob : BH_LOGPROB_MIN;
    bh_bytes_format(out, "%.9g", (double)value);
}
