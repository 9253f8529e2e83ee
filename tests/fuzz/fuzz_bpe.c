/* Fuzz target: hostile text. The first byte chooses the pre-tokenizer, the rest is the text. Whatever
   it is, it is refused exactly when it is not UTF-8; otherwise its tokens print it again in every
   mode, control tokens come only where they may, and the pieces are its bytes in order. A marked text
   makes no control token at all. The same bytes through the detokenizer in two halves give the text
   of the whole. */
#include "src/text/bpe.h"
#include "src/text/detok.h"
#include "src/text/utf8.h"
#include "tests/unit/make_vocab.h"

#define TEXT_MAX      ((size_t)1 << 16)
#define CONTROL_FIRST 262u

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

static struct bh_vocab *vocabs[5];
static struct bh_bpe *encoders[5];

/* Stops the run if `condition` does not hold; the fuzzer keeps the input. */
static void
require(bool condition)
{
    if (!condition) {
        abort();
    }
}

static void
open_encoder(size_t idx)
{
    static const char *const pres[] = {"smollm", "gpt-2", "llama-bpe", "qwen2", "default"};
    static const char *const more[] = {
        "ab", "aa", "aaaa", "th", "the", "\xc4\xa0the", "<|s|>", "<sop>", "||", "<t>", "<t><|s|>"};
    static const char *const merges[] = {"a b", "a a", "aa aa", "t h", "th e", "\xc4\xa0 the"};
    static struct make_vocab make;
    const char *tokens[256 + BH_COUNT(more)];
    int32_t kinds[BH_COUNT(tokens)];
    char error[BH_TEXT_ERROR_MAX];
    make_byte_tokens(tokens, more, BH_COUNT(more));
    for (size_t i = 0; i < BH_COUNT(kinds); i++) {
        kinds[i] = i < CONTROL_FIRST ? BH_VOCAB_NORMAL : BH_VOCAB_CONTROL;
    }
    kinds[265] = BH_VOCAB_USER;
    make_begin(&make);
    make_key_text(&make, "tokenizer.ggml.model", "gpt2");
    make_key_text(&make, "tokenizer.ggml.pre", pres[idx]);
    make_key_texts(&make, "tokenizer.ggml.tokens", tokens, BH_COUNT(tokens));
    make_key_ints(&make, "tokenizer.ggml.token_type", kinds, BH_COUNT(kinds));
    make_key_texts(&make, "tokenizer.ggml.merges", merges, BH_COUNT(merges));
    require(make_open(&make, error, &vocabs[idx]) == BH_OK);
    require(bh_bpe_open(vocabs[idx], TEXT_MAX, true, error, &encoders[idx]) == BH_OK);
}

/* The tokens of ids print exactly these bytes. Returns how many are control tokens. */
static size_t
require_prints(
    const struct bh_vocab *vocab, const uint32_t *ids, size_t cnt, const uint8_t *bytes, size_t len)
{
    size_t at = 0;
    size_t controls = 0;
    for (size_t i = 0; i < cnt; i++) {
        size_t token_len = 0;
        const uint8_t *token = bh_vocab_bytes(vocab, ids[i], &token_len);
        require(token != NULL && token_len <= len - at);
        require(memcmp(token, bytes + at, token_len) == 0);
        at += token_len;
        controls += bh_vocab_is_control(vocab, ids[i]) ? 1 : 0;
    }
    require(at == len);
    return controls;
}

static void
check_detok(const uint8_t *bytes, size_t len)
{
    static uint8_t whole[BH_DETOK_OUT(TEXT_MAX)];
    static uint8_t halves[BH_DETOK_OUT(TEXT_MAX)];
    struct bh_detok detok;
    bh_detok_init(&detok);
    size_t whole_len = bh_detok_push(&detok, bytes, len, whole);
    whole_len += bh_detok_finish(&detok, whole + whole_len);
    bh_detok_init(&detok);
    size_t halves_len = bh_detok_push(&detok, bytes, len / 2, halves);
    halves_len += bh_detok_push(&detok, bytes + len / 2, len - len / 2, halves + halves_len);
    halves_len += bh_detok_finish(&detok, halves + halves_len);
    require(whole_len == halves_len && memcmp(whole, halves, whole_len) == 0);
    require(bh_utf8_valid(whole, whole_len) == whole_len);
}

static void
check_pieces(struct bh_bpe *bpe, const uint8_t *bytes, size_t len)
{
    static uint32_t ends[TEXT_MAX];
    size_t cnt = 0;
    require(bh_bpe_split(bpe, (const char *)bytes, len, ends, TEXT_MAX, &cnt) == BH_OK);
    uint32_t start = 0;
    for (size_t i = 0; i < cnt; i++) {
        require(ends[i] > start &&
                bh_utf8_valid(bytes + start, ends[i] - start) == ends[i] - start);
        start = ends[i];
    }
    require(start == len);
}

static void
check_marks(size_t idx, const uint8_t *bytes, size_t len)
{
    static uint8_t marked[3 * TEXT_MAX];
    static uint8_t clean[3 * TEXT_MAX];
    static uint32_t ids[TEXT_MAX];
    struct bh_bpe *bpe = encoders[idx];
    const struct bh_marks *marks = bh_bpe_marks(bpe);
    for (int reach = BH_MARKS_TOKENS; reach <= BH_MARKS_ALL; reach++) {
        size_t marked_len =
            bh_marks_apply(marks, vocabs[idx], (enum bh_marks_reach)reach, bytes, len, marked);
        size_t clean_len = bh_marks_remove(marks, marked, marked_len, clean, NULL);
        if (marked_len > TEXT_MAX) {
            continue;
        }
        size_t cnt = 0;
        require(bh_bpe_encode(
                    bpe, (const char *)marked, marked_len, BH_BPE_MARKED, ids, TEXT_MAX, &cnt) ==
                BH_OK);
        require(require_prints(vocabs[idx], ids, cnt, clean, clean_len) == 0);
    }
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
    static uint32_t ids[TEXT_MAX];
    if (len == 0 || len > TEXT_MAX) {
        return 0;
    }
    size_t idx = data[0] % BH_COUNT(encoders);
    if (encoders[idx] == NULL) {
        open_encoder(idx);
    }
    const uint8_t *bytes = data + 1;
    len--;
    check_detok(bytes, len);
    bool valid = bh_utf8_valid(bytes, len) == len;
    for (int mode = BH_BPE_PLAIN; mode <= BH_BPE_SPECIAL; mode++) {
        size_t cnt = 0;
        enum bh_status status = bh_bpe_encode(
            encoders[idx], (const char *)bytes, len, (enum bh_bpe_mode)mode, ids, TEXT_MAX, &cnt);
        require(status == (valid ? BH_OK : BH_ECORRUPT));
        if (valid) {
            size_t controls = require_prints(vocabs[idx], ids, cnt, bytes, len);
            require(mode == BH_BPE_SPECIAL || controls == 0);
        }
    }
    if (valid && len != 0) {
        check_pieces(encoders[idx], bytes, len);
        check_marks(idx, bytes, len);
    }
    return 0;
}
