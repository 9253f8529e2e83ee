/* Characters and stop strings, both byte by byte: what the pieces of text were does not matter. */
#include "src/text/detok.h"

#include <string.h>

#include "src/text/utf8.h"

void
bh_detok_init(struct bh_detok *detok)
{
    *detok = (struct bh_detok){.held_len = 0};
}

/* Decide as much of bytes[0..len) as can be; an unfinished character at the end stays in held. */
static size_t
decide(struct bh_detok *detok, const uint8_t *bytes, size_t len, uint8_t *out)
{
    size_t written = 0;
    size_t at = 0;
    while (at < len) {
        size_t used = 0;
        uint32_t code = 0;
        if (bh_utf8_next(bytes + at, len - at, &used, &code) == BH_UTF8_SHORT) {
            break;
        }
        written += bh_utf8_put(code, out + written);
        at += used;
    }
    uint8_t rest[4];
    detok->held_len = (uint32_t)(len - at);
    BH_CHECK(detok->held_len < sizeof(rest));
    memcpy(rest, bytes + at, detok->held_len); /* bytes may be in held itself */
    memcpy(detok->held, rest, detok->held_len);
    return written;
}

size_t
bh_detok_push(struct bh_detok *detok, const uint8_t *bytes, size_t len, uint8_t *out)
{
    size_t written = 0;
    size_t at = 0;
    /* While a character is unfinished, bytes join it one at a time: four at most, then it is
       decided. */
    while (detok->held_len != 0 && at < len) {
        uint8_t joined[4];
        memcpy(joined, detok->held, sizeof(joined));
        joined[detok->held_len] = bytes[at];
        at++;
        written += decide(detok, joined, detok->held_len + 1, out + written);
    }
    if (at < len) {
        written += decide(detok, bytes + at, len - at, out + written);
    }
    return written;
}

size_t
bh_detok_token(struct bh_detok *detok,
               const struct bh_vocab *vocab,
               uint32_t id,
               bool show_control,
               uint8_t *out)
{
    size_t len = 0;
    const uint8_t *bytes = bh_vocab_bytes(vocab, id, &len);
    if (bytes == NULL || (!show_control && bh_vocab_is_control(vocab, id))) {
        return 0;
    }
    return bh_detok_push(detok, bytes, len, out);
}

size_t
bh_detok_finish(struct bh_detok *detok, uint8_t out[4])
{
    if (detok->held_len == 0) {
        return 0;
    }
    detok->held_len = 0;
    return bh_utf8_put(0xfffd, out);
}

enum bh_status
bh_stopper_init(struct bh_stopper *stopper,
                uint32_t cnt,
                const uint16_t end[BH_STOP_MAX],
                const char bytes[BH_STOP_BYTES_MAX])
{
    *stopper = (struct bh_stopper){.hit = -1};
    if (cnt > BH_STOP_MAX) {
        return BH_EINVAL;
    }
    uint16_t start = 0;
    for (uint32_t i = 0; i < cnt; i++) {
        if (end[i] <= start || end[i] > BH_STOP_BYTES_MAX) {
            return BH_EINVAL;
        }
        stopper->start[i] = start;
        stopper->len[i] = (uint16_t)(end[i] - start);
        start = end[i];
    }
    memcpy(stopper->bytes, bytes, start);
    for (uint32_t i = 0; i < cnt; i++) {
        const uint8_t *string = stopper->bytes + stopper->start[i];
        uint16_t *fallback = stopper->fallback + stopper->start[i];
        uint16_t k = 0;
        for (uint16_t at = 1; at < stopper->len[i]; at++) {
            while (k > 0 && string[k] != string[at]) {
                k = fallback[k - 1];
            }
            if (string[k] == string[at]) {
                k++;
            }
            fallback[at] = k;
        }
    }
    stopper->cnt = cnt;
    return BH_OK;
}

/* Advance every string's automaton by one byte. Returns how much of the newest text must be held
   back; *hit is the longest string complete at this byte, or -1. */
static uint32_t
advance(struct bh_stopper *stopper, uint8_t byte, int32_t *hit)
{
    uint32_t hold = 0;
    uint32_t hit_len = 0;
    *hit = -1;
    for (uint32_t i = 0; i < stopper->cnt; i++) {
        const uint8_t *string = stopper->bytes + stopper->start[i];
        const uint16_t *fallback = stopper->fallback + stopper->start[i];
        uint16_t k = stopper->state[i];
        while (k > 0 && string[k] != byte) {
            k = fallback[k - 1];
        }
        if (string[k] == byte) {
            k++;
        }
        stopper->state[i] = k;
        hold = k > hold ? k : hold;
        if (k == stopper->len[i] && k > hit_len) {
            hit_len = k;
            *hit = (int32_t)i;
        }
    }
    return hold;
}

size_t
bh_stopper_push(struct bh_stopper *stopper, const uint8_t *text, size_t len, uint8_t *out)
{
    size_t written = 0;
    for (size_t i = 0; i < len && stopper->hit < 0; i++) {
        int32_t hit = -1;
        uint32_t hold = advance(stopper, text[i], &hit);
        stopper->seen++;
        if (hit >= 0) {
            /* All of the string but its last byte is held; what is held before it may go. */
            size_t send = stopper->held_len + 1 - stopper->len[hit];
            memcpy(out + written, stopper->held, send);
            written += send;
            stopper->held_len = 0;
            stopper->hit = hit;
            break;
        }
        if (hold == 0 && stopper->held_len == 0) {
            out[written] = text[i];
            written++;
            continue;
        }
        size_t have = stopper->held_len + 1;
        size_t send = have - hold;
        if (send == have) {
            memcpy(out + written, stopper->held, have - 1);
            out[written + have - 1] = text[i];
            stopper->held_len = 0;
        } else {
            memcpy(out + written, stopper->held, send);
            memmove(stopper->held, stopper->held + send, stopper->held_len - send);
            stopper->held[hold - 1] = text[i];
            stopper->held_len = hold;
        }
        written += send;
    }
    return written;
}

size_t
bh_stopper_finish(struct bh_stopper *stopper, uint8_t *out)
{
    size_t written = stopper->held_len;
    memcpy(out, stopper->held, written);
    stopper->held_len = 0;
    return written;
}
