/* The tokenizer of a made model: byte-level BPE in the alphabet of GPT-2, with the control tokens
   and ids of SmolLM2, so that the engine's tokenizer and templates work on it unchanged. */
#include "tools/mkmodel.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum {
    TOKEN_NORMAL = 1,
    TOKEN_CONTROL = 3,
    TEXT_BYTES_MAX = 20,
    MERGED_BYTES_MAX = 16, /* a merged token longer than this would match no text anyway */
    SHORT_CNT = 768, /* early tokens are short: only they are appended, or all would grow long */
    DRAWS_MAX = 1 << 28, /* far above what 2^20 tokens need; the search must end */
};

static const char chat_template[] =
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] "
    "+ "
    "'<|im_end|>' + '\\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' "
    "}}{% endif %}";

static const char *const control_tokens[BH_MK_CONTROL_CNT] = {
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
};

/* Pieces of common English words, so that even a small vocabulary merges something in real text.
   Every part is a byte or the result of an earlier line. SPACE is the space of the alphabet. */
/* clang-format off */
#define SPACE "\304\240"
static const char *const first_merges[][2] = {
    {SPACE, "t"},         {SPACE, "a"},         {"h", "e"},           {"i", "n"},
    {"r", "e"},           {"o", "n"},           {SPACE "t", "he"},    {"e", "r"},
    {SPACE, "s"},         {"a", "t"},           {SPACE, "w"},         {SPACE, "o"},
    {"e", "n"},           {SPACE, "c"},         {"i", "t"},           {"i", "s"},
    {"a", "n"},           {"o", "r"},           {"e", "s"},           {SPACE, "b"},
    {"e", "d"},           {"in", "g"},          {SPACE, "p"},         {"o", "u"},
    {SPACE "a", "n"},     {"a", "l"},           {SPACE "o", "f"},     {"a", "r"},
    {SPACE, "m"},         {SPACE "an", "d"},
};
/* clang-format on */

struct token {
    char text[TEXT_BYTES_MAX];
    uint32_t left; /* the two tokens it was merged from, if it was */
    uint32_t right;
};

struct vocab {
    struct token *tokens;
    uint32_t *slots; /* token + 1 by hash of its text, 0 when free */
    uint32_t slot_mask;
    uint32_t cnt;
};

static uint32_t *
vocab_slot(const struct vocab *vocab, const char *text)
{
    uint32_t at = (uint32_t)XXH3_64bits(text, strlen(text)) & vocab->slot_mask;
    while (vocab->slots[at] != 0 && strcmp(vocab->tokens[vocab->slots[at] - 1].text, text) != 0) {
        at = (at + 1) & vocab->slot_mask;
    }
    return &vocab->slots[at];
}

static bool
vocab_add(struct vocab *vocab, const char *text, uint32_t left, uint32_t right)
{
    uint32_t *slot = vocab_slot(vocab, text);
    if (*slot != 0) {
        return false;
    }
    size_t len = strlen(text);
    BH_CHECK(len < TEXT_BYTES_MAX);
    struct token *token = &vocab->tokens[vocab->cnt];
    memcpy(token->text, text, len + 1);
    token->left = left;
    token->right = right;
    vocab->cnt++;
    *slot = vocab->cnt;
    return true;
}

/* A byte in the printable alphabet, as UTF-8: 0x21..0x7E, 0xA1..0xAC and 0xAE..0xFF are themselves,
   the other 68 follow from U+0100 on. */
static void
byte_text(uint32_t byte, uint32_t *other, char out[4])
{
    bool itself = (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
    uint32_t point = itself ? byte : 0x100 + (*other)++;
    if (point < 0x80) {
        snprintf(out, 4, "%c", (char)point);
    } else {
        snprintf(out, 4, "%c%c", (char)(0xc0 | point >> 6), (char)(0x80 | (point & 0x3f)));
    }
}

static void
merge(struct vocab *vocab, uint32_t left, uint32_t right)
{
    char text[2 * TEXT_BYTES_MAX];
    snprintf(text, sizeof(text), "%s%s", vocab->tokens[left].text, vocab->tokens[right].text);
    if (strlen(text) <= MERGED_BYTES_MAX) {
        (void)vocab_add(vocab, text, left, right);
    }
}

/* Merges of the list first, then of random earlier tokens that begin with a letter or a space. */
static void
vocab_merge(struct vocab *vocab, uint32_t vocab_max, uint64_t seed)
{
    for (size_t i = 0; i < BH_COUNT(first_merges) && vocab->cnt < vocab_max; i++) {
        uint32_t left = *vocab_slot(vocab, first_merges[i][0]);
        uint32_t right = *vocab_slot(vocab, first_merges[i][1]);
        BH_CHECK(left != 0 && right != 0);
        merge(vocab, left - 1, right - 1);
    }
    for (uint64_t draw = 0; vocab->cnt < vocab_max; draw++) {
        BH_CHECK(draw < DRAWS_MAX);
        uint64_t random = bh_mk_random(seed, draw);
        uint32_t left_cnt = vocab->cnt - BH_MK_CONTROL_CNT;
        uint32_t right_cnt = left_cnt < SHORT_CNT ? left_cnt : SHORT_CNT;
        uint32_t left = BH_MK_CONTROL_CNT + (uint32_t)(random & 0xffffffffu) % left_cnt;
        uint32_t right = BH_MK_CONTROL_CNT + (uint32_t)(random >> 32) % right_cnt;
        char first = vocab->tokens[left].text[0];
        char second = vocab->tokens[right].text[0];
        bool left_fits =
            (first >= 'a' && first <= 'z') || strncmp(vocab->tokens[left].text, SPACE, 2) == 0;
        if (left_fits && second >= 'a' && second <= 'z') {
            merge(vocab, left, right);
        }
    }
}

static void
vocab_new(struct vocab *vocab, uint32_t vocab_max, uint64_t seed)
{
    uint32_t slot_cnt = 1024;
    while (slot_cnt < 2 * vocab_max) {
        slot_cnt *= 2;
    }
    *vocab = (struct vocab){
        .tokens = calloc(vocab_max, sizeof(struct token)),
        .slots = calloc(slot_cnt, sizeof(uint32_t)),
        .slot_mask = slot_cnt - 1,
    };
    if (vocab->tokens == NULL || vocab->slots == NULL) {
        fprintf(stderr, "mkmodel: no memory for %u tokens; use a smaller --vocab\n", vocab_max);
        exit(1);
    }
    for (uint32_t i = 0; i < BH_MK_CONTROL_CNT; i++) {
        (void)vocab_add(vocab, control_tokens[i], 0, 0);
    }
    uint32_t other = 0;
    for (uint32_t byte = 0; byte < 256; byte++) {
        char text[4];
        byte_text(byte, &other, text);
        (void)vocab_add(vocab, text, 0, 0);
    }
    BH_CHECK(vocab->cnt == BH_MK_VOCAB_MIN);
    vocab_merge(vocab, vocab_max, seed);
}

void
bh_mk_vocab_put(struct bh_mk_buffer *buffer, const struct bh_mk_vocab *options)
{
    struct vocab vocab;
    const char *template = options->chat_template != NULL ? options->chat_template : chat_template;
    vocab_new(&vocab, options->tokens, options->seed);
    bh_mk_key_str(buffer, "tokenizer.ggml.model", "gpt2");
    bh_mk_key_str(buffer, "tokenizer.ggml.pre", options->pre);
    bh_mk_key_array(buffer, "tokenizer.ggml.tokens", BH_MK_TYPE_STR, vocab.cnt);
    for (uint32_t i = 0; i < vocab.cnt; i++) {
        bh_mk_put_str(buffer, vocab.tokens[i].text);
    }
    bh_mk_key_array(buffer, "tokenizer.ggml.token_type", BH_MK_TYPE_I32, vocab.cnt);
    for (uint32_t i = 0; i < vocab.cnt; i++) {
        bh_mk_put_u32(buffer, i < BH_MK_CONTROL_CNT ? TOKEN_CONTROL : TOKEN_NORMAL);
    }
    bh_mk_key_array(buffer, "tokenizer.ggml.merges", BH_MK_TYPE_STR, vocab.cnt - BH_MK_VOCAB_MIN);
    for (uint32_t i = BH_MK_VOCAB_MIN; i < vocab.cnt; i++) {
        char text[2 * TEXT_BYTES_MAX + 2];
        const struct token *token = &vocab.tokens[i];
        snprintf(text,
                 sizeof(text),
                 "%s %s",
                 vocab.tokens[token->left].text,
                 vocab.tokens[token->right].text);
        bh_mk_put_str(buffer, text);
    }
    bh_mk_key_u32(buffer, "tokenizer.ggml.bos_token_id", 1);
    bh_mk_key_u32(buffer, "tokenizer.ggml.eos_token_id", 2);
    bh_mk_key_u32(buffer, "tokenizer.ggml.unknown_token_id", 0);
    bh_mk_key_u32(buffer, "tokenizer.ggml.padding_token_id", 2);
    bh_mk_key_bool(buffer, "tokenizer.ggml.add_bos_token", false);
    bh_mk_key_bool(buffer, "tokenizer.ggml.add_space_prefix", false);
    if (template[0] != '\0') {
        bh_mk_key_str(buffer, "tokenizer.chat_template", template);
    }
    free(vocab.slots);
    free(vocab.tokens);
}
