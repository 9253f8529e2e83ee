/* UTF-8, the detokenizer and the stop strings. Oracles: the standard's own table of well-formed byte
   sequences, glibc's converter, and searching the whole text at once. */
#include <string.h>

#include <criterion/criterion.h>
#include <iconv.h>

#include "src/text/detok.h"
#include "src/text/utf8.h"

static uint32_t
draw(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 33);
}

Test(utf8, every_scalar_round_trips)
{
    for (uint32_t code = 0; code <= 0x10ffff; code++) {
        uint8_t bytes[4];
        if (code >= 0xd800 && code <= 0xdfff) {
            continue;
        }
        size_t len = bh_utf8_put(code, bytes);
        size_t used = 0;
        uint32_t read = 0;
        cr_assert(bh_utf8_next(bytes, len, &used, &read) == BH_UTF8_CHAR);
        cr_assert(read == code && used == len);
        for (size_t cut = 1; cut < len; cut++) {
            cr_assert(bh_utf8_next(bytes, cut, &used, &read) == BH_UTF8_SHORT && used == cut);
        }
    }
}

Test(utf8, broken_parts_are_maximal)
{
    /* Unicode 15, table 3-8 and its neighbours: bytes, and the length of the first part. */
    const struct {
        const char *bytes;
        size_t used;
        enum bh_utf8_part part;
    } rows[] = {
        {"\x80", 1, BH_UTF8_BROKEN},
        {"\xc0\xaf", 1, BH_UTF8_BROKEN},
        {"\xc1\xbf", 1, BH_UTF8_BROKEN},
        {"\xe0\x80\xbf", 1, BH_UTF8_BROKEN},
        {"\xe0\x9f\xbf", 1, BH_UTF8_BROKEN},
        {"\xed\xa0\x80", 1, BH_UTF8_BROKEN},
        {"\xed\xbf\xbf", 1, BH_UTF8_BROKEN},
        {"\xf0\x80\x80\x41", 1, BH_UTF8_BROKEN},
        {"\xf4\x90\x80\x80", 1, BH_UTF8_BROKEN},
        {"\xf5\x80\x80\x80", 1, BH_UTF8_BROKEN},
        {"\xff", 1, BH_UTF8_BROKEN},
        {"\xe1\x80\xe2", 2, BH_UTF8_BROKEN},
        {"\xf0\x91\x92\xf1", 3, BH_UTF8_BROKEN},
        {"\xf1\xbf\x41", 2, BH_UTF8_BROKEN},
        {"\xed\x9f\xbf", 3, BH_UTF8_CHAR},
        {"\xf4\x8f\xbf\xbf", 4, BH_UTF8_CHAR},
        {"\xf1\xbf", 2, BH_UTF8_SHORT},
    };
    for (size_t i = 0; i < BH_COUNT(rows); i++) {
        size_t used = 0;
        uint32_t code = 0;
        enum bh_utf8_part part =
            bh_utf8_next((const uint8_t *)rows[i].bytes, strlen(rows[i].bytes), &used, &code);
        cr_expect(part == rows[i].part && used == rows[i].used, "row %zu", i);
    }
}

Test(utf8, validity_is_glibcs)
{
    uint64_t seed = 1;
    for (unsigned round = 0; round < 200000; round++) {
        char bytes[6];
        for (size_t i = 0; i < sizeof(bytes); i++) {
            uint32_t r = draw(&seed);
            bytes[i] = (char)(r % 4 == 0 ? r >> 8 & 0x7f : 0x80 | (r >> 8 & 0x7f));
        }
        iconv_t to = iconv_open("UTF-32LE", "UTF-8");
        char *in = bytes;
        size_t in_len = sizeof(bytes);
        char out[64];
        char *out_at = out;
        size_t out_len = sizeof(out);
        (void)iconv(to, &in, &in_len, &out_at, &out_len);
        (void)iconv_close(to);
        cr_assert(bh_utf8_valid((const uint8_t *)bytes, sizeof(bytes)) == sizeof(bytes) - in_len);
    }
}

/* Whatever the pieces, the text is that of the whole. */
Test(detok, pieces_do_not_matter)
{
    uint64_t seed = 2;
    for (unsigned round = 0; round < 20000; round++) {
        uint8_t bytes[24];
        for (size_t i = 0; i < sizeof(bytes); i++) {
            static const uint8_t pool[] = {
                0x41, 0xc3, 0xa9, 0xe2, 0x82, 0xac, 0xf0, 0x9f, 0x98, 0x80, 0xff};
            bytes[i] = pool[draw(&seed) % sizeof(pool)];
        }
        uint8_t whole[BH_DETOK_OUT(sizeof(bytes))];
        struct bh_detok detok;
        bh_detok_init(&detok);
        size_t whole_len = bh_detok_push(&detok, bytes, sizeof(bytes), whole);
        whole_len += bh_detok_finish(&detok, whole + whole_len);
        cr_assert(bh_utf8_valid(whole, whole_len) == whole_len);

        uint8_t parts[BH_DETOK_OUT(sizeof(bytes))];
        size_t parts_len = 0;
        bh_detok_init(&detok);
        for (size_t at = 0; at < sizeof(bytes);) {
            size_t step = 1 + draw(&seed) % 5;
            step = step < sizeof(bytes) - at ? step : sizeof(bytes) - at;
            parts_len += bh_detok_push(&detok, bytes + at, step, parts + parts_len);
            cr_assert(bh_utf8_valid(parts, parts_len) == parts_len);
            at += step;
        }
        parts_len += bh_detok_finish(&detok, parts + parts_len);
        cr_assert(parts_len == whole_len && memcmp(parts, whole, whole_len) == 0);
    }
}

Test(detok, unfinished_character_waits_and_ends_as_replacement)
{
    struct bh_detok detok;
    uint8_t out[64];
    bh_detok_init(&detok);
    cr_assert(bh_detok_push(&detok, (const uint8_t *)"a\xf0\x9f", 3, out) == 1 && out[0] == 'a');
    cr_assert(bh_detok_push(&detok, (const uint8_t *)"\x98", 1, out) == 0);
    cr_assert(bh_detok_push(&detok, (const uint8_t *)"\x80", 1, out) == 4);
    cr_assert(bh_detok_push(&detok, (const uint8_t *)"\xe2\x82", 2, out) == 0);
    cr_assert(bh_detok_finish(&detok, out) == 3 && memcmp(out, "\xef\xbf\xbd", 3) == 0);
    cr_assert(bh_detok_finish(&detok, out) == 0);
}

struct stops {
    uint32_t cnt;
    uint16_t end[BH_STOP_MAX];
    char bytes[BH_STOP_BYTES_MAX];
};

static void
add_stop(struct stops *stops, const char *text)
{
    uint16_t start = stops->cnt != 0 ? stops->end[stops->cnt - 1] : 0;
    memcpy(stops->bytes + start, text, strlen(text));
    stops->end[stops->cnt] = (uint16_t)(start + strlen(text));
    stops->cnt++;
}

/* The definition: the smallest end, then the smallest start. Returns the start, or len. */
static size_t
search(const struct stops *stops, const char *text, size_t len, int32_t *hit)
{
    *hit = -1;
    for (size_t end = 1; end <= len; end++) {
        size_t best = 0;
        for (uint32_t i = 0; i < stops->cnt; i++) {
            size_t start = i != 0 ? stops->end[i - 1] : 0;
            size_t size = stops->end[i] - start;
            if (size <= end && size > best &&
                memcmp(text + end - size, stops->bytes + start, size) == 0) {
                best = size;
                *hit = (int32_t)i;
            }
        }
        if (best != 0) {
            return end - best;
        }
    }
    return len;
}

Test(stopper, is_the_search_over_the_whole_text)
{
    uint64_t seed = 3;
    unsigned hits = 0;
    for (unsigned round = 0; round < 20000; round++) {
        struct stops stops = {.cnt = 0};
        uint32_t cnt = draw(&seed) % 4;
        for (uint32_t i = 0; i < cnt; i++) {
            char text[8] = "";
            uint32_t len = 1 + draw(&seed) % 6;
            for (uint32_t k = 0; k < len; k++) {
                text[k] = (char)('a' + draw(&seed) % 2);
            }
            add_stop(&stops, text);
        }
        char text[40];
        for (size_t i = 0; i < sizeof(text); i++) {
            text[i] = (char)('a' + draw(&seed) % 3);
        }
        struct bh_stopper stopper;
        uint8_t out[sizeof(text) + BH_STOP_BYTES_MAX];
        size_t out_len = 0;
        cr_assert(bh_stopper_init(&stopper, stops.cnt, stops.end, stops.bytes) == BH_OK);
        int32_t hit = -1;
        size_t wanted = search(&stops, text, sizeof(text), &hit);
        for (size_t at = 0; at < sizeof(text);) {
            size_t step = 1 + draw(&seed) % 7;
            step = step < sizeof(text) - at ? step : sizeof(text) - at;
            out_len += bh_stopper_push(&stopper, (const uint8_t *)text + at, step, out + out_len);
            at += step;
            cr_assert(out_len <= wanted, "text of the stop string was sent");
        }
        cr_assert(stopper.hit == hit);
        out_len += bh_stopper_finish(&stopper, out + out_len);
        cr_assert(out_len == wanted && memcmp(out, text, wanted) == 0);
        hits += hit >= 0 ? 1 : 0;
    }
    cr_assert(hits > 5000 && hits < 20000);
}

Test(stopper, holds_back_only_what_could_match)
{
    struct stops stops = {.cnt = 0};
    add_stop(&stops, "STOP");
    struct bh_stopper stopper;
    uint8_t out[BH_STOP_BYTES_MAX + 16];
    cr_assert(bh_stopper_init(&stopper, stops.cnt, stops.end, stops.bytes) == BH_OK);
    cr_assert(bh_stopper_push(&stopper, (const uint8_t *)"go ST", 5, out) == 3);
    cr_assert(bh_stopper_push(&stopper, (const uint8_t *)"ST", 2, out) == 2);
    cr_assert(bh_stopper_push(&stopper, (const uint8_t *)"x", 1, out) == 3 &&
              memcmp(out, "STx", 3) == 0);
    cr_assert(bh_stopper_push(&stopper, (const uint8_t *)"ySTOPz", 6, out) == 1 &&
              stopper.hit == 0);
    cr_assert(bh_stopper_push(&stopper, (const uint8_t *)"more", 4, out) == 0);
    cr_assert(bh_stopper_finish(&stopper, out) == 0);
}

Test(stopper, refuses_lying_lengths)
{
    struct bh_stopper stopper;
    char bytes[BH_STOP_BYTES_MAX];
    memset(bytes, 'x', sizeof(bytes));
    uint16_t end[BH_STOP_MAX] = {1, 1};
    cr_assert(bh_stopper_init(&stopper, BH_STOP_MAX + 1, end, bytes) == BH_EINVAL);
    cr_assert(bh_stopper_init(&stopper, 2, end, bytes) == BH_EINVAL);
    end[1] = BH_STOP_BYTES_MAX + 1;
    cr_assert(bh_stopper_init(&stopper, 2, end, bytes) == BH_EINVAL);
    end[1] = BH_STOP_BYTES_MAX;
    cr_assert(bh_stopper_init(&stopper, 2, end, bytes) == BH_OK);
    uint8_t out[BH_STOP_BYTES_MAX + 1];
    cr_assert(bh_stopper_push(&stopper, (const uint8_t *)bytes, 1, out) == 0 && stopper.hit == 0);
}
