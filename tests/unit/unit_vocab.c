/* The vocabulary: what tokens print, ids, and every lie that a file can tell about itself. */
#include <string.h>

#include <criterion/criterion.h>

#include "tests/unit/make_vocab.h"

#define KEY "tokenizer.ggml."

/* A file that is right in everything; a test changes one field of it. */
struct plan {
    const char *model;
    const char *tokens[320];
    int32_t kinds[320];
    size_t token_cnt;
    size_t kind_cnt;
    const char *merges[8];
    size_t merge_cnt;
    uint32_t eos;
    const char *pre;
};

enum { AB = 256, ABC, CONTROL, USER, USER_LONG, ODD, EMPTY, IM_END, MORE_CNT = 8 };

static struct plan
right(void)
{
    static const char *const more[MORE_CNT] = {
        "ab", "ab\xc4\xa0", "<|x|>", "<t>", "<t><t>", "\xe6\xbc\xa2", "", "<|im_end|>"};
    struct plan plan = {.model = "gpt2",
                        .token_cnt = 256 + MORE_CNT,
                        .kind_cnt = 256 + MORE_CNT,
                        .merges = {"a b", "ab \xc4\xa0"},
                        .merge_cnt = 2,
                        .eos = CONTROL};
    make_byte_tokens(plan.tokens, more, MORE_CNT);
    for (size_t i = 0; i < BH_COUNT(plan.kinds); i++) {
        plan.kinds[i] = BH_VOCAB_NORMAL;
    }
    plan.kinds[CONTROL] = BH_VOCAB_CONTROL;
    plan.kinds[IM_END] = BH_VOCAB_CONTROL;
    plan.kinds[USER] = BH_VOCAB_USER;
    plan.kinds[USER_LONG] = BH_VOCAB_USER;
    return plan;
}

static char error[BH_TEXT_ERROR_MAX];

static enum bh_status
open_plan(const struct plan *plan, struct bh_vocab **vocab)
{
    static struct make_vocab make;
    make_begin(&make);
    if (plan->model != NULL) {
        make_key_text(&make, KEY "model", plan->model);
    }
    if (plan->pre != NULL) {
        make_key_text(&make, KEY "pre", plan->pre);
    }
    if (plan->token_cnt != 0) {
        make_key_texts(&make, KEY "tokens", plan->tokens, plan->token_cnt);
    }
    if (plan->kind_cnt != 0) {
        make_key_ints(&make, KEY "token_type", plan->kinds, plan->kind_cnt);
    }
    make_key_texts(&make, KEY "merges", plan->merges, plan->merge_cnt);
    make_key_u32(&make, KEY "eos_token_id", plan->eos);
    make_key_u32(&make, KEY "bos_token_id", CONTROL);
    make_key_text(&make, "tokenizer.chat_template", "{{ 1 }}");
    error[0] = 0;
    return make_open(&make, error, vocab);
}

static void
expect_refusal(const struct plan *plan, enum bh_status status, const char *field)
{
    struct bh_vocab *vocab = NULL;
    enum bh_status got = open_plan(plan, &vocab);
    cr_expect(got == status && vocab == NULL, "%s: status %d, %s", field, (int)got, error);
    cr_expect(strstr(error, field) != NULL, "the error names %s: %s", field, error);
}

Test(vocab, prints_bytes)
{
    struct plan plan = right();
    struct bh_vocab *vocab = NULL;
    cr_assert(open_plan(&plan, &vocab) == BH_OK, "%s", error);
    size_t len = 0;
    for (uint32_t byte = 0; byte < 256; byte++) {
        const uint8_t *bytes = bh_vocab_bytes(vocab, byte, &len);
        cr_expect(len == 1 && bytes[0] == byte);
        cr_expect(bh_vocab_byte(vocab, (uint8_t)byte) == byte);
    }
    cr_expect(memcmp(bh_vocab_bytes(vocab, ABC, &len), "ab ", 3) == 0 && len == 3);
    cr_expect(memcmp(bh_vocab_bytes(vocab, ODD, &len), "\xe6\xbc\xa2", 3) == 0 && len == 3);
    cr_expect(bh_vocab_bytes(vocab, EMPTY, &len) != NULL && len == 0);
    cr_expect(bh_vocab_bytes(vocab, bh_vocab_cnt(vocab), &len) == NULL && len == 0);
    cr_expect(bh_vocab_find(vocab, (const uint8_t *)"ab ", 3) == ABC);
    cr_expect(bh_vocab_find(vocab, (const uint8_t *)"<|x|>", 5) == BH_VOCAB_NONE);
    cr_expect(strcmp(bh_vocab_chat_template(vocab, &len), "{{ 1 }}") == 0 && len == 7);
    bh_vocab_close(vocab);
}

Test(vocab, knows_kinds_ids_and_ends)
{
    struct plan plan = right();
    struct bh_vocab *vocab = NULL;
    cr_assert(open_plan(&plan, &vocab) == BH_OK, "%s", error);
    cr_expect(bh_vocab_is_control(vocab, CONTROL) && !bh_vocab_is_control(vocab, USER));
    cr_expect(!bh_vocab_is_control(vocab, UINT32_MAX));
    cr_expect(bh_vocab_kind(vocab, USER) == BH_VOCAB_USER);
    cr_expect(bh_vocab_is_eog(vocab, CONTROL) && bh_vocab_is_eog(vocab, IM_END));
    cr_expect(!bh_vocab_is_eog(vocab, AB) && !bh_vocab_is_eog(vocab, UINT32_MAX));
    cr_expect(bh_vocab_eos(vocab) == CONTROL && bh_vocab_bos(vocab) == CONTROL);
    cr_expect(bh_vocab_eot(vocab) == IM_END, "by its text");
    cr_expect(bh_vocab_unk(vocab) == BH_VOCAB_NONE && bh_vocab_pad(vocab) == BH_VOCAB_NONE);
    cr_expect(!bh_vocab_add_bos(vocab) && strcmp(bh_vocab_pre(vocab), "default") == 0);
    bh_vocab_close(vocab);
    plan.pre = "llama-bpe";
    plan.kinds[IM_END] = BH_VOCAB_NORMAL;
    cr_assert(open_plan(&plan, &vocab) == BH_OK, "%s", error);
    cr_expect(bh_vocab_add_bos(vocab), "as llama-bpe does when the file does not say");
    cr_expect(!bh_vocab_is_eog(vocab, IM_END), "ordinary text of the same spelling ends nothing");
    bh_vocab_close(vocab);
}

Test(vocab, finds_the_longest_special)
{
    struct plan plan = right();
    struct bh_vocab *vocab = NULL;
    cr_assert(open_plan(&plan, &vocab) == BH_OK, "%s", error);
    const struct {
        const char *text;
        bool control;
        uint32_t id;
    } rows[] = {
        {"<|x|>", true, CONTROL},
        {"<|x|>", false, BH_VOCAB_NONE},
        {"<|x|", true, BH_VOCAB_NONE},
        {"<t>x", false, USER},
        {"<t><t>", true, USER_LONG},
        {"<t><t", true, USER},
        {"t>", true, BH_VOCAB_NONE},
        {"", true, BH_VOCAB_NONE},
    };
    for (size_t i = 0; i < BH_COUNT(rows); i++) {
        cr_expect(bh_vocab_special_at(vocab,
                                      (const uint8_t *)rows[i].text,
                                      strlen(rows[i].text),
                                      rows[i].control) == rows[i].id,
                  "row %zu",
                  i);
    }
    bh_vocab_close(vocab);
}

Test(vocab, merges_are_by_pair)
{
    struct plan plan = right();
    struct bh_vocab *vocab = NULL;
    cr_assert(open_plan(&plan, &vocab) == BH_OK, "%s", error);
    uint32_t rank = 0;
    uint32_t joined = 0;
    cr_expect(bh_vocab_merge(vocab, 'a', 'b', &rank, &joined) && rank == 0 && joined == AB);
    cr_expect(bh_vocab_merge(vocab, AB, ' ', &rank, &joined) && rank == 1 && joined == ABC);
    cr_expect(!bh_vocab_merge(vocab, 'b', 'a', &rank, &joined));
    bh_vocab_close(vocab);
}

Test(vocab, lies_about_tokens_are_refused)
{
    struct plan plan = right();
    plan.model = NULL;
    expect_refusal(&plan, BH_ECORRUPT, KEY "model");
    plan.model = "llama";
    expect_refusal(&plan, BH_ELIMIT, KEY "model");
    plan = right();
    plan.token_cnt = 0;
    expect_refusal(&plan, BH_ECORRUPT, KEY "tokens");
    plan = right();
    plan.tokens[7] = plan.tokens[9];
    expect_refusal(&plan, BH_ECORRUPT, KEY "tokens[9]");
    plan = right();
    plan.kind_cnt--;
    expect_refusal(&plan, BH_ECORRUPT, KEY "token_type");
    plan = right();
    plan.kinds[3] = 7;
    expect_refusal(&plan, BH_ECORRUPT, KEY "token_type[3]");
    plan.kinds[3] = 0;
    expect_refusal(&plan, BH_ECORRUPT, KEY "token_type[3]");
    plan = right();
    plan.tokens[CONTROL] = "<\xff>";
    expect_refusal(&plan, BH_ECORRUPT, KEY "tokens[258]");
    plan = right();
    plan.eos = (uint32_t)plan.token_cnt;
    expect_refusal(&plan, BH_ECORRUPT, KEY "eos_token_id");
    plan = right();
    plan.pre = "a name of more than sixty-three bytes, which nobody would give to a tokenizer";
    expect_refusal(&plan, BH_ECORRUPT, KEY "pre");
}

Test(vocab, a_token_has_a_longest_length)
{
    static char text[BH_VOCAB_BYTES_MAX + 2];
    memset(text, 'q', BH_VOCAB_BYTES_MAX);
    struct plan plan = right();
    plan.tokens[ODD] = text;
    struct bh_vocab *vocab = NULL;
    cr_assert(open_plan(&plan, &vocab) == BH_OK, "%s", error);
    bh_vocab_close(vocab);
    text[BH_VOCAB_BYTES_MAX] = 'q';
    expect_refusal(&plan, BH_ELIMIT, KEY "tokens[261]");
}

Test(vocab, lies_about_merges_are_refused)
{
    static const struct {
        const char *merge;
        const char *why;
    } rows[] = {
        {"ab", "blank between"},
        {" ab", "blank between"},
        {"ab ", "blank between"},
        {"", "blank between"},
        {"zz a", "not one of"},
        {"b a", "not one of"},
        {"a b", "repeats merges[0]"},
        {"<|x| >", "not one of"},
        {"<|x|> a", "control token 258"},
    };
    for (size_t i = 0; i < BH_COUNT(rows); i++) {
        struct plan plan = right();
        plan.merges[1] = rows[i].merge;
        expect_refusal(&plan, BH_ECORRUPT, "merges[1]");
        cr_expect(strstr(error, rows[i].why) != NULL, "%s", error);
    }
    /* A merge that makes a control token would let ordinary text become one. */
    struct plan plan = right();
    plan.tokens[ODD] = "<|x";
    plan.tokens[EMPTY] = "|>";
    plan.merges[1] = "<|x |>";
    expect_refusal(&plan, BH_ECORRUPT, "control token 258");
}
