/* Choosing, setting, comparing and removing marks. */
#include "src/text/marks.h"

#include <stdio.h>

#include "src/text/utf8.h"

/* How good a character is to mark: the better, the less likely it is that a template looks for it in
   a message ("</think>" is looked for, so angle brackets and slashes are second best; letters would
   break comparisons with names). Characters of four bytes would grow when marks are removed. */
static int
preference(uint32_t code)
{
    if (code > 0xffff || (code >= BH_MARK_FIRST && code < BH_MARK_FIRST + BH_MARK_MAX)) {
        return 0;
    }
    bool alnum = (code >= '0' && code <= '9') || (code >= 'A' && code <= 'Z') ||
                 (code >= 'a' && code <= 'z');
    if (alnum || code == '_' || code == ' ' || code == '\n') {
        return 1;
    }
    bool bracket = code == '<' || code == '>' || code == '[' || code == ']' || code == '/';
    return bracket ? 2 : 3;
}

/* Index of the mark that stands for `code`, or marks->cnt. */
static uint32_t
mark_of(const struct bh_marks *marks, uint32_t code)
{
    uint32_t i = 0;
    while (i < marks->cnt && marks->plain[i] != code) {
        i++;
    }
    return i;
}

/* The best character of a text, the first of them; 0 when it has none. */
static uint32_t
best_code(const uint8_t *bytes, size_t len)
{
    uint32_t best = 0;
    int best_preference = 0;
    size_t used = 0;
    for (size_t at = 0; at < len; at += used) {
        uint32_t code = 0;
        (void)bh_utf8_next(bytes + at, len - at, &used, &code);
        if (preference(code) > best_preference) {
            best_preference = preference(code);
            best = code;
        }
    }
    return best;
}

enum bh_status
bh_marks_init(const struct bh_vocab *vocab, char error[BH_TEXT_ERROR_MAX], struct bh_marks *marks)
{
    struct bh_marks made = {.cnt = 0};
    for (uint32_t id = 0; id < bh_vocab_cnt(vocab); id++) {
        size_t len = 0;
        const uint8_t *bytes = bh_vocab_bytes(vocab, id, &len);
        if (!bh_vocab_is_control(vocab, id) || len == 0) {
            continue;
        }
        uint32_t code = best_code(bytes, len);
        if (code != 0 && mark_of(&made, code) < made.cnt) {
            continue;
        }
        if (code == 0 || made.cnt == BH_MARK_MAX) {
            (void)snprintf(
                error,
                BH_TEXT_ERROR_MAX,
                "tokenizer.ggml.tokens[%u]: no character left to mark this control token "
                "with (at most %u different ones, of at most three bytes)",
                id,
                BH_MARK_MAX);
            return BH_ELIMIT;
        }
        made.plain[made.cnt] = code;
        made.cnt++;
    }
    *marks = made;
    return BH_OK;
}

size_t
bh_marks_apply(const struct bh_marks *marks,
               const struct bh_vocab *vocab,
               enum bh_marks_reach reach,
               const uint8_t *text,
               size_t len,
               uint8_t *out)
{
    size_t written = 0;
    size_t token_end = 0; /* of the control token that `at` is in */
    size_t used = 0;
    for (size_t at = 0; at < len; at += used) {
        if (at >= token_end) {
            uint32_t id = bh_vocab_special_at(vocab, text + at, len - at, true);
            if (id != BH_VOCAB_NONE && bh_vocab_is_control(vocab, id)) {
                size_t token_len = 0;
                (void)bh_vocab_bytes(vocab, id, &token_len);
                token_end = at + token_len;
            }
        }
        uint32_t code = 0;
        (void)bh_utf8_next(text + at, len - at, &used, &code);
        uint32_t mark = mark_of(marks, code);
        if (code >= BH_MARK_FIRST && code < BH_MARK_FIRST + BH_MARK_MAX) {
            code = 0xfffd;
        } else if (mark < marks->cnt && (reach == BH_MARKS_ALL || at < token_end)) {
            code = BH_MARK_FIRST + mark;
        }
        written += bh_utf8_put(code, out + written);
    }
    return written;
}

/* The next control token at or after *at; *at moves behind it. BH_VOCAB_NONE at the end. */
static uint32_t
next_control(const struct bh_vocab *vocab, const uint8_t *text, size_t len, size_t *at)
{
    while (*at < len) {
        uint32_t id = bh_vocab_special_at(vocab, text + *at, len - *at, true);
        size_t token_len = 1;
        if (id != BH_VOCAB_NONE) {
            (void)bh_vocab_bytes(vocab, id, &token_len);
        }
        *at += token_len;
        if (id != BH_VOCAB_NONE && bh_vocab_is_control(vocab, id)) {
            return id;
        }
    }
    return BH_VOCAB_NONE;
}

bool
bh_marks_same_control(
    const struct bh_vocab *vocab, const uint8_t *a, size_t a_len, const uint8_t *b, size_t b_len)
{
    size_t a_at = 0;
    size_t b_at = 0;
    for (;;) {
        uint32_t a_id = next_control(vocab, a, a_len, &a_at);
        uint32_t b_id = next_control(vocab, b, b_len, &b_at);
        if (a_id != b_id) {
            return false;
        }
        if (a_id == BH_VOCAB_NONE) {
            return true;
        }
    }
}

size_t
bh_marks_remove(
    const struct bh_marks *marks, const uint8_t *text, size_t len, uint8_t *out, uint8_t *marked)
{
    size_t written = 0;
    if (marked != NULL) {
        for (size_t i = 0; i < (len + 7) / 8; i++) {
            marked[i] = 0;
        }
    }
    for (size_t at = 0; at < len;) {
        /* U+FDD0..U+FDEF is EF B7 90..AF. */
        bool mark = text[at] == 0xef && len - at >= 3 && text[at + 1] == 0xb7 &&
                    text[at + 2] >= 0x90 && text[at + 2] - 0x90u < marks->cnt;
        if (!mark) {
            out[written] = text[at];
            written++;
            at++;
            continue;
        }
        size_t used = bh_utf8_put(marks->plain[text[at + 2] - 0x90u], out + written);
        for (size_t i = 0; marked != NULL && i < used; i++) {
            marked[(written + i) / 8] |= (uint8_t)(1u << (written + i) % 8);
        }
        written += used;
        at += 3;
    }
    return written;
}
