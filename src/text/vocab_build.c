/* From GGUF metadata to tables, believing nothing. */
#include "src/text/vocab.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

#include "src/text/utf8.h"
#include "src/text/vocab_tables.h"

#define KEY "tokenizer.ggml."

/* What only the construction needs: the tokens as the file spells them, and a table over them. */
struct draft {
    const struct bh_gguf *gguf;
    char *error;
    struct bh_gguf_str *raw;
    uint32_t *by_raw;
    uint32_t by_raw_mask;
};

static enum bh_status
refuse(const struct draft *draft, enum bh_status status, const char *format, ...) BH_PRINTF(3, 4);

static enum bh_status
refuse(const struct draft *draft, enum bh_status status, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    (void)vsnprintf(draft->error, BH_TEXT_ERROR_MAX, format, args);
    va_end(args);
    return status;
}

static enum bh_status
no_memory(const struct draft *draft)
{
    return refuse(draft, BH_ESYS, "no memory for the vocabulary");
}

/* A mask for a table of at least twice `cnt` slots. cnt is at most 2^22 (vocab.h). */
static uint32_t
table_mask(uint32_t cnt)
{
    uint32_t size = 16;
    while (size < 2 * cnt) {
        size *= 2;
    }
    return size - 1;
}

static uint32_t *
table_new(uint32_t mask)
{
    uint32_t *table = malloc(((size_t)mask + 1) * sizeof(*table));
    if (table != NULL) {
        memset(table, 0xff, ((size_t)mask + 1) * sizeof(*table));
    }
    return table;
}

static bool
raw_equal(const struct bh_gguf_str *a, const char *bytes, size_t len)
{
    return a->len == len && memcmp(a->bytes, bytes, len) == 0;
}

/* The slot of by_raw that holds this text, or the empty slot where it belongs. */
static uint32_t
raw_slot(const struct draft *draft, const char *bytes, size_t len)
{
    uint32_t slot = (uint32_t)XXH3_64bits(bytes, len) & draft->by_raw_mask;
    while (draft->by_raw[slot] != BH_VOCAB_NONE &&
           !raw_equal(&draft->raw[draft->by_raw[slot]], bytes, len)) {
        slot = (slot + 1) & draft->by_raw_mask;
    }
    return slot;
}

/* Code point of GPT-2's alphabet to the byte it stands for, or -1. Printable Latin-1 stands for
   itself; the 68 other bytes are U+0100 onwards, in ascending order. */
static int
alphabet_byte(uint32_t code)
{
    if ((code >= 0x21 && code <= 0x7e) || (code >= 0xa1 && code <= 0xac) ||
        (code >= 0xae && code <= 0xff)) {
        return (int)code;
    }
    if (code >= 0x100 && code <= 0x120) {
        return (int)(code - 0x100);
    }
    if (code >= 0x121 && code <= 0x142) {
        return (int)(code - 0x121 + 0x7f);
    }
    return code == 0x143 ? 0xad : -1;
}

/* Undo the alphabet; returns the length, or 0 when some character is not in it. Only one- and
   two-byte UTF-8 can be. */
static size_t
alphabet_decode(const struct bh_gguf_str *raw, uint8_t *out)
{
    size_t len = 0;
    for (size_t i = 0; i < raw->len; len++) {
        uint8_t lead = (uint8_t)raw->bytes[i];
        uint32_t code = lead;
        if (lead >= 0x80) {
            if (lead < 0xc2 || lead > 0xdf || i + 1 == raw->len ||
                ((uint8_t)raw->bytes[i + 1] & 0xc0) != 0x80) {
                return 0;
            }
            code = (uint32_t)(lead & 0x1f) << 6 | ((uint8_t)raw->bytes[i + 1] & 0x3f);
        }
        int byte = alphabet_byte(code);
        if (byte < 0) {
            return 0;
        }
        out[len] = (uint8_t)byte;
        i += lead >= 0x80 ? 2 : 1;
    }
    return len;
}

static bool
is_ordinary(uint8_t kind)
{
    return kind == BH_VOCAB_NORMAL || kind == BH_VOCAB_BYTE;
}

static enum bh_status
read_kind(const struct draft *draft, uint32_t id, bool have_kinds, uint8_t *kind)
{
    int32_t value = BH_VOCAB_NORMAL;
    if (have_kinds && !bh_gguf_array_i32(draft->gguf, KEY "token_type", id, &value)) {
        return refuse(draft, BH_ECORRUPT, KEY "token_type: must be an array of 32-bit integers");
    }
    if (value < BH_VOCAB_NORMAL || value > BH_VOCAB_BYTE) {
        return refuse(draft, BH_ECORRUPT, KEY "token_type[%u] is %d, expected 1 to 6", id, value);
    }
    *kind = (uint8_t)value;
    return BH_OK;
}

/* Copy one token: ordinary ones with the alphabet undone, others as they stand. A token that has a
   character outside the alphabet prints itself, as the published decoder does. */
static uint32_t
copy_token(struct bh_vocab *vocab, uint32_t id, const struct bh_gguf_str *raw, uint32_t used)
{
    struct bh_vocab_token *token = &vocab->tokens[id];
    size_t len = is_ordinary(token->kind) ? alphabet_decode(raw, vocab->arena + used) : 0;
    if (len == 0 && raw->len != 0) {
        memcpy(vocab->arena + used, raw->bytes, raw->len);
        len = raw->len;
    }
    token->offset = used;
    token->len = (uint16_t)len;
    return used + (uint32_t)len;
}

/* Fill draft->raw and draft->by_raw; the sum of the lengths goes to *bytes. */
static enum bh_status
read_raw(struct draft *draft, uint32_t cnt, size_t *bytes)
{
    draft->by_raw_mask = table_mask(cnt);
    draft->by_raw = table_new(draft->by_raw_mask);
    draft->raw = calloc(cnt, sizeof(*draft->raw));
    if (draft->by_raw == NULL || draft->raw == NULL) {
        return no_memory(draft);
    }
    size_t cursor = 0;
    *bytes = 0;
    for (uint32_t id = 0; id < cnt; id++) {
        struct bh_gguf_str *raw = &draft->raw[id];
        if (!bh_gguf_array_str(draft->gguf, KEY "tokens", &cursor, raw)) {
            return refuse(draft, BH_ECORRUPT, KEY "tokens[%u]: must be a string", id);
        }
        if (raw->len > BH_VOCAB_BYTES_MAX) {
            return refuse(draft,
                          BH_ELIMIT,
                          KEY "tokens[%u] has %zu bytes, supported are %u",
                          id,
                          raw->len,
                          BH_VOCAB_BYTES_MAX);
        }
        *bytes += raw->len;
        if (raw->len == 0) {
            continue; /* prints nothing and nothing becomes it: harmless, and some files have it */
        }
        uint32_t slot = raw_slot(draft, raw->bytes, raw->len);
        if (draft->by_raw[slot] != BH_VOCAB_NONE) {
            return refuse(draft,
                          BH_ECORRUPT,
                          KEY "tokens[%u] is the same text as tokens[%u]; ids must be unique",
                          id,
                          draft->by_raw[slot]);
        }
        draft->by_raw[slot] = id;
    }
    return BH_OK;
}

static enum bh_status
read_tokens(struct draft *draft, struct bh_vocab *vocab)
{
    uint64_t cnt = 0;
    if (!bh_gguf_array_cnt(draft->gguf, KEY "tokens", &cnt) || cnt == 0) {
        return refuse(draft, BH_ECORRUPT, KEY "tokens: must be a non-empty array of strings");
    }
    if (cnt > BH_VOCAB_CNT_MAX) {
        return refuse(draft,
                      BH_ELIMIT,
                      KEY "tokens has %llu entries, supported are %u",
                      (unsigned long long)cnt,
                      BH_VOCAB_CNT_MAX);
    }
    uint64_t kind_cnt = 0;
    bool have_kinds = bh_gguf_array_cnt(draft->gguf, KEY "token_type", &kind_cnt);
    if (have_kinds && kind_cnt != cnt) {
        return refuse(draft,
                      BH_ECORRUPT,
                      KEY "token_type has %llu entries, tokens has %llu; they must agree",
                      (unsigned long long)kind_cnt,
                      (unsigned long long)cnt);
    }
    size_t bytes = 0;
    enum bh_status status = read_raw(draft, (uint32_t)cnt, &bytes);
    if (status != BH_OK) {
        return status;
    }
    if (bytes > UINT32_MAX) {
        return refuse(draft, BH_ELIMIT, KEY "tokens: more than 4 GiB of text");
    }
    vocab->cnt = (uint32_t)cnt;
    vocab->tokens = calloc(vocab->cnt, sizeof(*vocab->tokens));
    vocab->arena = malloc(bytes + 1);
    if (vocab->tokens == NULL || vocab->arena == NULL) {
        return no_memory(draft);
    }
    uint32_t used = 0;
    for (uint32_t id = 0; id < vocab->cnt; id++) {
        status = read_kind(draft, id, have_kinds, &vocab->tokens[id].kind);
        if (status != BH_OK) {
            return status;
        }
        used = copy_token(vocab, id, &draft->raw[id], used);
    }
    return BH_OK;
}

static enum bh_status
index_bytes(const struct draft *draft, struct bh_vocab *vocab)
{
    vocab->by_bytes_mask = table_mask(vocab->cnt);
    vocab->by_bytes = table_new(vocab->by_bytes_mask);
    if (vocab->by_bytes == NULL) {
        return no_memory(draft);
    }
    memset(vocab->byte, 0xff, sizeof(vocab->byte));
    for (uint32_t id = 0; id < vocab->cnt; id++) {
        const struct bh_vocab_token *token = &vocab->tokens[id];
        if (!is_ordinary(token->kind) || token->len == 0) {
            continue;
        }
        const uint8_t *bytes = vocab->arena + token->offset;
        uint32_t slot = bh_vocab_bytes_slot(vocab, bytes, token->len);
        if (vocab->by_bytes[slot] != BH_VOCAB_NONE) {
            continue; /* spelled outside the alphabet, prints the same: the first one is made */
        }
        vocab->by_bytes[slot] = id;
        if (token->len == 1) {
            vocab->byte[bytes[0]] = id;
        }
    }
    return BH_OK;
}

static int
compare_special(const void *a, const void *b, void *arg)
{
    const struct bh_vocab *vocab = arg;
    const struct bh_vocab_token *x = &vocab->tokens[*(const uint32_t *)a];
    const struct bh_vocab_token *y = &vocab->tokens[*(const uint32_t *)b];
    size_t shorter = x->len < y->len ? x->len : y->len;
    int order = memcmp(vocab->arena + x->offset, vocab->arena + y->offset, shorter);
    return order != 0 ? order : (int)x->len - (int)y->len;
}

static enum bh_status
index_special(const struct draft *draft, struct bh_vocab *vocab)
{
    vocab->special = malloc(vocab->cnt * sizeof(*vocab->special));
    if (vocab->special == NULL) {
        return no_memory(draft);
    }
    for (uint32_t id = 0; id < vocab->cnt; id++) {
        const struct bh_vocab_token *token = &vocab->tokens[id];
        if ((bh_vocab_is_control(vocab, id) || token->kind == BH_VOCAB_USER) && token->len != 0) {
            if (bh_utf8_valid(vocab->arena + token->offset, token->len) != token->len) {
                return refuse(draft, BH_ECORRUPT, KEY "tokens[%u] is special and not UTF-8", id);
            }
            vocab->special[vocab->special_cnt] = id;
            vocab->special_cnt++;
            vocab->special_first[vocab->arena[token->offset]] = true;
        }
    }
    qsort_r(vocab->special, vocab->special_cnt, sizeof(*vocab->special), compare_special, vocab);
    return BH_OK;
}

/* The ordinary token with this spelling. A merge must not lead to or from a control token: then
   ordinary text could become one. */
static enum bh_status
merge_token(const struct draft *draft,
            const struct bh_vocab *vocab,
            uint32_t rank,
            const char *bytes,
            size_t len,
            uint32_t *id)
{
    *id = draft->by_raw[raw_slot(draft, bytes, len)];
    if (*id == BH_VOCAB_NONE) {
        return refuse(draft,
                      BH_ECORRUPT,
                      KEY "merges[%u]: \"%.*s\" is not one of tokenizer.ggml.tokens",
                      rank,
                      (int)(len < 64 ? len : 64),
                      bytes);
    }
    if (bh_vocab_is_control(vocab, *id)) {
        return refuse(draft,
                      BH_ECORRUPT,
                      KEY "merges[%u] concerns the control token %u; merges are for ordinary text",
                      rank,
                      *id);
    }
    return BH_OK;
}

static enum bh_status
read_merge(const struct draft *draft,
           struct bh_vocab *vocab,
           uint32_t rank,
           const struct bh_gguf_str *raw)
{
    char joined[2 * BH_VOCAB_BYTES_MAX];
    const char *space = raw->len > 2 ? memchr(raw->bytes + 1, ' ', raw->len - 2) : NULL;
    if (space == NULL || raw->len > sizeof(joined)) {
        return refuse(
            draft, BH_ECORRUPT, KEY "merges[%u] must be two tokens with a blank between", rank);
    }
    size_t left_len = (size_t)(space - raw->bytes);
    size_t right_len = raw->len - left_len - 1;
    memcpy(joined, raw->bytes, left_len);
    memcpy(joined + left_len, space + 1, right_len);
    uint32_t left = 0;
    uint32_t right = 0;
    uint32_t made = 0;
    enum bh_status status = merge_token(draft, vocab, rank, joined, left_len, &left);
    if (status == BH_OK) {
        status = merge_token(draft, vocab, rank, joined + left_len, right_len, &right);
    }
    if (status == BH_OK) {
        status = merge_token(draft, vocab, rank, joined, left_len + right_len, &made);
    }
    if (status != BH_OK) {
        return status;
    }
    struct bh_vocab_merge *merge = bh_vocab_merge_slot(vocab, (uint64_t)left << 32 | right);
    if (merge->pair != BH_VOCAB_EMPTY_PAIR) {
        return refuse(draft, BH_ECORRUPT, KEY "merges[%u] repeats merges[%u]", rank, merge->rank);
    }
    *merge =
        (struct bh_vocab_merge){.pair = (uint64_t)left << 32 | right, .rank = rank, .joined = made};
    return BH_OK;
}

static enum bh_status
read_merges(const struct draft *draft, struct bh_vocab *vocab)
{
    uint64_t cnt = 0;
    if (!bh_gguf_array_cnt(draft->gguf, KEY "merges", &cnt)) {
        return refuse(draft, BH_ECORRUPT, KEY "merges: must be an array of strings");
    }
    if (cnt > BH_VOCAB_MERGE_MAX) {
        return refuse(draft,
                      BH_ELIMIT,
                      KEY "merges has %llu entries, supported are %u",
                      (unsigned long long)cnt,
                      BH_VOCAB_MERGE_MAX);
    }
    vocab->merge_mask = table_mask((uint32_t)cnt);
    vocab->merges = malloc(((size_t)vocab->merge_mask + 1) * sizeof(*vocab->merges));
    if (vocab->merges == NULL) {
        return no_memory(draft);
    }
    memset(vocab->merges, 0xff, ((size_t)vocab->merge_mask + 1) * sizeof(*vocab->merges));
    size_t cursor = 0;
    for (uint32_t rank = 0; rank < (uint32_t)cnt; rank++) {
        struct bh_gguf_str raw;
        if (!bh_gguf_array_str(draft->gguf, KEY "merges", &cursor, &raw)) {
            return refuse(draft, BH_ECORRUPT, KEY "merges[%u]: must be a string", rank);
        }
        enum bh_status status = read_merge(draft, vocab, rank, &raw);
        if (status != BH_OK) {
            return status;
        }
    }
    return BH_OK;
}

static enum bh_status
read_id(const struct draft *draft, const struct bh_vocab *vocab, const char *key, uint32_t *id)
{
    uint64_t value = 0;
    *id = BH_VOCAB_NONE;
    if (!bh_gguf_u64(draft->gguf, key, &value)) {
        return BH_OK;
    }
    if (value >= vocab->cnt) {
        return refuse(draft,
                      BH_ECORRUPT,
                      "%s is %llu, the vocabulary has %u tokens",
                      key,
                      (unsigned long long)value,
                      vocab->cnt);
    }
    *id = (uint32_t)value;
    return BH_OK;
}

/* Tokens whose text ends an answer in some public model family; the first seven end a turn. The
   list is llama.cpp's (llama-vocab.cpp, special_eog_ids). Ordinary tokens of the same spelling are
   left alone: "</s>" is also a closing tag in HTML. */
static const char *const END_TEXTS[] = {
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<|eom_id|>",
    "<|end_of_text|>",
    "<EOT>",
    "_<EOT>",
    "</s>",
};
#define END_TURN_CNT 7u /* how many of END_TEXTS may stand for a missing eot id */

/* The special ids of the file, and all tokens that end an answer. */
static enum bh_status
read_special_ids(const struct draft *draft, struct bh_vocab *vocab)
{
    uint32_t ending = BH_VOCAB_NONE;
    const struct {
        const char *key;
        uint32_t *id;
        bool ends;
    } fields[] = {
        {KEY "bos_token_id", &vocab->bos, false},
        {KEY "eos_token_id", &vocab->eos, true},
        {KEY "eot_token_id", &vocab->eot, true},
        {KEY "unknown_token_id", &vocab->unk, false},
        {KEY "padding_token_id", &vocab->pad, false},
        {KEY "eom_token_id", &ending, true},
        {KEY "fim_pad_token_id", &ending, true},
        {KEY "fim_rep_token_id", &ending, true},
        {KEY "fim_sep_token_id", &ending, true},
    };
    for (size_t i = 0; i < BH_COUNT(fields); i++) {
        enum bh_status status = read_id(draft, vocab, fields[i].key, fields[i].id);
        if (status != BH_OK) {
            return status;
        }
        if (fields[i].ends && *fields[i].id != BH_VOCAB_NONE) {
            vocab->tokens[*fields[i].id].eog = true;
        }
    }
    for (uint32_t i = 0; i < BH_COUNT(END_TEXTS); i++) {
        uint32_t id = draft->by_raw[raw_slot(draft, END_TEXTS[i], strlen(END_TEXTS[i]))];
        if (id == BH_VOCAB_NONE || is_ordinary(vocab->tokens[id].kind)) {
            continue;
        }
        vocab->tokens[id].eog = true;
        if (vocab->eot == BH_VOCAB_NONE && i < END_TURN_CNT) {
            vocab->eot = id;
        }
    }
    return BH_OK;
}

static bool
pre_adds_bos(const char *pre)
{
    static const struct {
        const char *name;
        bool add_bos;
    } rows[] = {
#define PRETOK(name, passes, ignore_merges, add_bos) {name, add_bos},
#include "src/text/pretok.def"
    };
    for (size_t i = 0; i < BH_COUNT(rows); i++) {
        if (strcmp(rows[i].name, pre) == 0) {
            return rows[i].add_bos;
        }
    }
    return false;
}

static enum bh_status
read_texts(const struct draft *draft, struct bh_vocab *vocab)
{
    struct bh_gguf_str pre = {.bytes = "default", .len = 7};
    (void)bh_gguf_str(draft->gguf, KEY "pre", &pre);
    if (pre.len >= sizeof(vocab->pre) || memchr(pre.bytes, 0, pre.len) != NULL) {
        return refuse(draft,
                      BH_ECORRUPT,
                      KEY "pre must be a name of at most %zu bytes",
                      sizeof(vocab->pre) - 1);
    }
    memcpy(vocab->pre, pre.bytes, pre.len);
    vocab->add_bos = pre_adds_bos(vocab->pre);
    (void)bh_gguf_bool(draft->gguf, KEY "add_bos_token", &vocab->add_bos);
    vocab->add_bos = vocab->add_bos && vocab->bos != BH_VOCAB_NONE;

    struct bh_gguf_str source;
    if (bh_gguf_str(draft->gguf, "tokenizer.chat_template", &source)) {
        vocab->chat_template = malloc(source.len + 1);
        if (vocab->chat_template == NULL) {
            return no_memory(draft);
        }
        memcpy(vocab->chat_template, source.bytes, source.len);
        vocab->chat_template[source.len] = 0;
        vocab->chat_template_len = source.len;
    }
    return BH_OK;
}

static enum bh_status
build(struct draft *draft, struct bh_vocab *vocab)
{
    struct bh_gguf_str model;
    if (!bh_gguf_str(draft->gguf, KEY "model", &model)) {
        return refuse(draft, BH_ECORRUPT, KEY "model: must name the kind of tokenizer");
    }
    if (!raw_equal(&model, "gpt2", 4)) {
        return refuse(draft,
                      BH_ELIMIT,
                      KEY "model is \"%.*s\", supported is \"gpt2\" (byte-level BPE)",
                      (int)(model.len < 64 ? model.len : 64),
                      model.bytes);
    }
    enum bh_status status = read_tokens(draft, vocab);
    if (status == BH_OK) {
        status = index_bytes(draft, vocab);
    }
    if (status == BH_OK) {
        status = index_special(draft, vocab);
    }
    if (status == BH_OK) {
        status = read_merges(draft, vocab);
    }
    if (status == BH_OK) {
        status = read_special_ids(draft, vocab);
    }
    if (status == BH_OK) {
        status = read_texts(draft, vocab);
    }
    return status;
}

enum bh_status
bh_vocab_open(const struct bh_gguf *gguf, char error[BH_TEXT_ERROR_MAX], struct bh_vocab **out)
{
    struct draft draft = {.gguf = gguf, .error = error};
    struct bh_vocab *vocab = calloc(1, sizeof(*vocab));
    if (vocab == NULL) {
        return no_memory(&draft);
    }
    enum bh_status status = build(&draft, vocab);
    free(draft.raw);
    free(draft.by_raw);
    if (status != BH_OK) {
        bh_vocab_close(vocab);
        return status;
    }
    *out = vocab;
    return BH_OK;
}
