/* The encoder against the definition of byte-pair merging, its modes and its limits, and the marks
   that keep control tokens out of a client's text. */
#include <string.h>
#include <time.h>

#include <criterion/criterion.h>

#include "src/text/bpe.h"
#include "tests/unit/make_vocab.h"

#define KEY      "tokenizer.ggml."
#define TEXT_MAX ((size_t)1 << 20)

static const char *const MORE[] = {
    "ab",
    "bc",
    "abc",
    "aa",
    "aaaa",
    "\xc4\xa0\x61",
    "ca",
    "abab", /* ordinary, 256.. */
    "<|s|>",
    "<sop>",
    "<t>",
    "<t>>", /* special, 264.. */
};
enum { ORDINARY_CNT = 8, CONTROL = 264, SOP, USER, USER_CONTROL, TOKEN_CNT };

static const char *const MERGES[] = {
    "b c", "a b", "a bc", "a a", "aa aa", "c a", "\xc4\xa0 a", "ab ab"};

/* left, right, joined of MERGES, in the order of their ranks: the oracle's own copy. */
static const uint32_t PAIRS[][3] = {
    {'b', 'c', 257},
    {'a', 'b', 256},
    {'a', 257, 258},
    {'a', 'a', 259},
    {259, 259, 260},
    {'c', 'a', 262},
    {' ', 'a', 261},
    {256, 256, 263},
};

static struct bh_vocab *vocab;
static struct bh_bpe *bpe;
static uint32_t *ids;
static char error[BH_TEXT_ERROR_MAX];

/* missing: a byte whose token prints something else, so that no token has it; -1 none. */
static void
open_pre(const char *pre, int missing)
{
    static struct make_vocab make;
    const char *tokens[TOKEN_CNT];
    int32_t kinds[TOKEN_CNT];
    make_byte_tokens(tokens, MORE, BH_COUNT(MORE));
    if (missing >= 0) {
        tokens[missing] = "missing";
    }
    for (uint32_t id = 0; id < TOKEN_CNT; id++) {
        kinds[id] = id < CONTROL ? BH_VOCAB_NORMAL : BH_VOCAB_CONTROL;
    }
    kinds[USER] = BH_VOCAB_USER;
    make_begin(&make);
    make_key_text(&make, KEY "model", "gpt2");
    make_key_text(&make, KEY "pre", pre);
    make_key_texts(&make, KEY "tokens", tokens, TOKEN_CNT);
    make_key_ints(&make, KEY "token_type", kinds, TOKEN_CNT);
    make_key_texts(&make, KEY "merges", MERGES, BH_COUNT(MERGES));
    cr_assert(make_open(&make, error, &vocab) == BH_OK, "%s", error);
    cr_assert(bh_bpe_open(vocab, TEXT_MAX, true, error, &bpe) == BH_OK, "%s", error);
    ids = calloc(TEXT_MAX, sizeof(*ids));
}

static void
set_up(void)
{
    open_pre("gpt-2", -1);
}

static void
tear_down(void)
{
    bh_bpe_close(bpe);
    bh_vocab_close(vocab);
    free(ids);
}

TestSuite(bpe, .init = set_up, .fini = tear_down);

static void
expect_ids(const char *text, enum bh_bpe_mode mode, const uint32_t *wanted, size_t wanted_cnt)
{
    size_t cnt = 0;
    enum bh_status status = bh_bpe_encode(bpe, text, strlen(text), mode, ids, TEXT_MAX, &cnt);
    cr_expect(status == BH_OK && cnt == wanted_cnt, "\"%s\": %d, %zu ids", text, (int)status, cnt);
    for (size_t i = 0; i < wanted_cnt; i++) {
        cr_expect(ids[i] == wanted[i], "\"%s\"", text);
    }
}

#define EXPECT_IDS(text, mode, ...)                                                                \
    expect_ids(text, mode, (const uint32_t[]){__VA_ARGS__}, sizeof((uint32_t[]){__VA_ARGS__}) / 4)

/* Merging as it is defined: again and again the pair of lowest rank, the leftmost of its kind. */
static size_t
merge_plainly(uint32_t *list, size_t cnt)
{
    for (;;) {
        size_t best = BH_COUNT(PAIRS);
        size_t at = 0;
        for (size_t i = 0; i + 1 < cnt; i++) {
            for (size_t rank = 0; rank < best; rank++) {
                if (PAIRS[rank][0] == list[i] && PAIRS[rank][1] == list[i + 1]) {
                    best = rank;
                    at = i;
                }
            }
        }
        if (best == BH_COUNT(PAIRS)) {
            return cnt;
        }
        list[at] = PAIRS[best][2];
        memmove(list + at + 1, list + at + 2, (cnt - at - 2) * sizeof(*list));
        cnt--;
    }
}

Test(bpe, merges_as_defined)
{
    uint64_t state = 1;
    for (unsigned round = 0; round < 20000; round++) {
        char text[33] = "";
        uint32_t plain[32];
        size_t len = 1 + round % 32;
        for (size_t i = 0; i < len; i++) {
            state = state * 6364136223846793005u + 1442695040888963407u;
            text[i] = "aaabbc"[(state >> 33) % 6];
            plain[i] = (uint32_t)text[i];
        }
        expect_ids(text, BH_BPE_PLAIN, plain, merge_plainly(plain, len));
    }
}

Test(bpe, the_heap_takes_the_leftmost)
{
    EXPECT_IDS("aaa", BH_BPE_PLAIN, 259, 'a');
    EXPECT_IDS("aaaaaaa", BH_BPE_PLAIN, 260, 259, 'a');
    EXPECT_IDS("abc", BH_BPE_PLAIN, 258);
    EXPECT_IDS("aab", BH_BPE_PLAIN, 'a', 256);
    EXPECT_IDS("ab abab", BH_BPE_PLAIN, 256, ' ', 263);
    EXPECT_IDS("c aa", BH_BPE_PLAIN, 'c', ' ', 259);
    EXPECT_IDS("c ac", BH_BPE_PLAIN, 'c', 261, 'c');
}

Test(bpe, special_tokens_by_mode)
{
    EXPECT_IDS("a<|s|>b", BH_BPE_SPECIAL, 'a', CONTROL, 'b');
    EXPECT_IDS("a<|s|>b", BH_BPE_PLAIN, 'a', '<', '|', 's', '|', '>', 'b');
    EXPECT_IDS("a<t>b", BH_BPE_PLAIN, 'a', USER, 'b');
    EXPECT_IDS("<t>>", BH_BPE_PLAIN, USER, '>');
    EXPECT_IDS("<t>>", BH_BPE_SPECIAL, USER_CONTROL);
    EXPECT_IDS("<|s|><|s|>", BH_BPE_SPECIAL, CONTROL, CONTROL);
    EXPECT_IDS("<|s|", BH_BPE_SPECIAL, '<', '|', 's', '|');
}

Test(bpe, marked_control_is_text_and_cut_out)
{
    /* U+FDD0 stands for the bar: the first control token asks for it. */
    const struct bh_marks *marks = bh_bpe_marks(bpe);
    cr_assert(marks->cnt == 2 && marks->plain[0] == '|' && marks->plain[1] == '<');
    EXPECT_IDS("a<\xef\xb7\x90s|>b", BH_BPE_MARKED, 'a', '<', '|', 's', '|', '>', 'b');
    EXPECT_IDS("<|s|>\xef\xb7\x91sop>", BH_BPE_MARKED, CONTROL, '<', 's', 'o', 'p', '>');
    EXPECT_IDS("x\xef\xb7\x90y", BH_BPE_MARKED, 'x', '|', 'y');
    EXPECT_IDS("\xef\xb7\xaf", BH_BPE_MARKED, 0xef, 0xb7, 0xaf);
}

Test(bpe, statuses)
{
    size_t cnt = 77;
    cr_expect(bh_bpe_encode(bpe, "", 0, BH_BPE_PLAIN, ids, 0, &cnt) == BH_OK && cnt == 0);
    cr_expect(bh_bpe_encode(bpe, "xyz", 3, BH_BPE_PLAIN, ids, 3, &cnt) == BH_OK && cnt == 3);
    ids[2] = 1234;
    cr_expect(bh_bpe_encode(bpe, "xyz", 3, BH_BPE_PLAIN, ids, 2, &cnt) == BH_FULL && cnt == 3);
    cr_expect(ids[2] == 1234, "nothing is written beyond cap");
    cr_expect(bh_bpe_encode(bpe, "a\xff", 2, BH_BPE_PLAIN, ids, 9, &cnt) == BH_ECORRUPT);
    cr_expect(bh_bpe_encode(bpe, "\xed\xa0\x80", 3, BH_BPE_PLAIN, ids, 9, &cnt) == BH_ECORRUPT);
    cr_expect(bh_bpe_encode(bpe, "a\xe2\x82", 3, BH_BPE_PLAIN, ids, 9, &cnt) == BH_ECORRUPT);
    char *text = calloc(1, TEXT_MAX + 1);
    cr_expect(bh_bpe_encode(bpe, text, TEXT_MAX, BH_BPE_PLAIN, ids, TEXT_MAX, &cnt) == BH_OK);
    cr_expect(cnt == TEXT_MAX);
    cr_expect(bh_bpe_encode(bpe, text, TEXT_MAX + 1, BH_BPE_PLAIN, ids, 9, &cnt) == BH_ELIMIT);
    cr_expect(bh_bpe_split(bpe, "", 0, ids, 9, &cnt) == BH_ELIMIT);
    cr_expect(bh_bpe_split(bpe, "a b", 3, ids, 1, &cnt) == BH_FULL);
    cr_expect(bh_bpe_split(bpe, "\xff", 1, ids, 1, &cnt) == BH_ECORRUPT);
    struct bh_bpe *other = NULL;
    cr_expect(bh_bpe_open(vocab, 0, true, error, &other) == BH_EINVAL);
    cr_expect(bh_bpe_open(vocab, ((size_t)1 << 30) + 1, true, error, &other) == BH_EINVAL);
    free(text);
}

/* A piece of a megabyte must not cost the square of its length: generous bound, since machines
   differ; a quadratic encoder would take hours. */
Test(bpe, a_megabyte_in_one_piece_is_fast)
{
    static const char *const units[] = {"a", "abc", " ", "<|s"};
    const char *const pres[] = {"gpt-2", "llama-bpe", "smollm", "qwen2", "default"};
    char *text = malloc((size_t)1 << 20);
    for (size_t p = 0; p < BH_COUNT(pres); p++) {
        tear_down();
        open_pre(pres[p], -1);
        for (size_t u = 0; u < BH_COUNT(units); u++) {
            size_t unit_len = strlen(units[u]);
            size_t len = 0;
            for (; len + unit_len <= (size_t)1 << 20; len += unit_len) {
                memcpy(text + len, units[u], unit_len);
            }
            struct timespec start;
            struct timespec end;
            size_t cnt = 0;
            cr_assert(clock_gettime(CLOCK_MONOTONIC, &start) == 0);
            cr_expect(bh_bpe_encode(bpe, text, len, BH_BPE_SPECIAL, ids, TEXT_MAX, &cnt) == BH_OK);
            cr_assert(clock_gettime(CLOCK_MONOTONIC, &end) == 0);
            cr_expect(end.tv_sec - start.tv_sec < 10, "%s, \"%s\"", pres[p], units[u]);
        }
    }
    free(text);
}

Test(bpe, ignore_merges_takes_whole_pieces)
{
    /* "aaaa" is a token; merging " aaaa" makes others of it. */
    tear_down();
    open_pre("llama-bpe", -1);
    EXPECT_IDS("caab", BH_BPE_PLAIN, 262, 256);
    EXPECT_IDS("abab", BH_BPE_PLAIN, 263);
    EXPECT_IDS("12345", BH_BPE_PLAIN, '1', '2', '3', '4', '5');
}

Test(bpe, bytes_without_a_token_go_before_merging)
{
    tear_down();
    open_pre("gpt-2", 'x');
    EXPECT_IDS("axb", BH_BPE_PLAIN, 256);
    expect_ids("xx", BH_BPE_PLAIN, NULL, 0);
}

Test(bpe, an_unknown_pre_tokenizer_is_refused)
{
    static struct make_vocab make;
    const char *tokens[256];
    struct bh_vocab *other = NULL;
    struct bh_bpe *made = NULL;
    make_byte_tokens(tokens, NULL, 0);
    make_begin(&make);
    make_key_text(&make, KEY "model", "gpt2");
    make_key_text(&make, KEY "pre", "nobody");
    make_key_texts(&make, KEY "tokens", tokens, 256);
    make_key_texts(&make, KEY "merges", NULL, 0);
    cr_assert(make_open(&make, error, &other) == BH_OK, "%s", error);
    cr_expect(bh_bpe_open(other, 100, true, error, &made) == BH_ELIMIT);
    cr_expect(strstr(error, "nobody") != NULL && strstr(error, "pretok.def") != NULL);
    bh_vocab_close(other);
}

static size_t
apply(enum bh_marks_reach reach, const char *text, uint8_t *out)
{
    return bh_marks_apply(
        bh_bpe_marks(bpe), vocab, reach, (const uint8_t *)text, strlen(text), out);
}

Test(bpe, marks_go_on_and_come_off)
{
    uint8_t out[256];
    uint8_t back[256];
    uint8_t bits[32];
    static const char *const texts[] = {
        "", "plain", "a|b<c", "<|s|>", "<|s|><sop>|", "é|漢<|s|>", "<|s", "\xef\xbf\xbd"};
    for (size_t i = 0; i < BH_COUNT(texts); i++) {
        for (int reach = BH_MARKS_TOKENS; reach <= BH_MARKS_ALL; reach++) {
            size_t len = apply((enum bh_marks_reach)reach, texts[i], out);
            size_t back_len = bh_marks_remove(bh_bpe_marks(bpe), out, len, back, bits);
            cr_expect(back_len == strlen(texts[i]) && memcmp(back, texts[i], back_len) == 0);
        }
    }
    cr_expect(apply(BH_MARKS_TOKENS, "a|b<c", out) == 5, "no whole token: untouched");
    cr_expect(apply(BH_MARKS_ALL, "a|b<c", out) == 9);
    size_t len = apply(BH_MARKS_TOKENS, "|<sop>", out);
    (void)bh_marks_remove(bh_bpe_marks(bpe), out, len, back, bits);
    cr_expect(bits[0] == 1u << 1, "the bracket, not the bar outside");
    /* What looks like a mark cannot come from a client. */
    cr_expect(apply(BH_MARKS_TOKENS, "\xef\xb7\x90", out) == 3 &&
              memcmp(out, "\xef\xbf\xbd", 3) == 0);
}

Test(bpe, marks_compare_control_tokens)
{
    const struct {
        const char *a;
        const char *b;
        bool same;
    } rows[] = {
        {"x<|s|>y<sop>", "<|s|><sop>", true},
        {"", "", true},
        {"<t>", "", true},
        {"<|s|>", "", false},
        {"<|s|><sop>", "<sop><|s|>", false},
        {"<|s|>", "<\xef\xb7\x90s|>", false},
    };
    for (size_t i = 0; i < BH_COUNT(rows); i++) {
        cr_expect(bh_marks_same_control(vocab,
                                        (const uint8_t *)rows[i].a,
                                        strlen(rows[i].a),
                                        (const uint8_t *)rows[i].b,
                                        strlen(rows[i].b)) == rows[i].same,
                  "row %zu",
                  i);
    }
}
