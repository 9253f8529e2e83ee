/* Fuzz target: a hostile tokenizer in a well-formed GGUF file. Whatever the metadata say, the
   vocabulary is refused with a text, or every answer of it stays inside it: tokens, special ids,
   merges, and an encoder over it that reproduces or drops each byte but never invents one. */
#include "src/text/bpe.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

/* Stops the run if `condition` does not hold; the fuzzer keeps the input. */
static void
require(bool condition)
{
    if (!condition) {
        abort();
    }
}

static void
check_tokens(const struct bh_vocab *vocab)
{
    uint32_t cnt = bh_vocab_cnt(vocab);
    size_t sum = 0;
    for (uint32_t id = 0; id < cnt; id++) {
        size_t len = 0;
        const uint8_t *bytes = bh_vocab_bytes(vocab, id, &len);
        require(bytes != NULL && len <= BH_VOCAB_BYTES_MAX);
        for (size_t i = 0; i < len; i++) {
            sum += bytes[i];
        }
        uint32_t found = bh_vocab_find(vocab, bytes, len);
        require(found == BH_VOCAB_NONE || !bh_vocab_is_control(vocab, found));
        uint32_t rank = 0;
        uint32_t joined = 0;
        if (bh_vocab_merge(vocab, id, id, &rank, &joined)) {
            require(joined < cnt && !bh_vocab_is_control(vocab, joined));
        }
    }
    require(sum <= (size_t)cnt * BH_VOCAB_BYTES_MAX * 255);
    const uint32_t special[] = {bh_vocab_bos(vocab),
                                bh_vocab_eos(vocab),
                                bh_vocab_eot(vocab),
                                bh_vocab_unk(vocab),
                                bh_vocab_pad(vocab)};
    for (size_t i = 0; i < BH_COUNT(special); i++) {
        require(special[i] == BH_VOCAB_NONE || special[i] < cnt);
    }
}

static void
check_encoder(const struct bh_vocab *vocab)
{
    static const char text[] = "ab abab <|s|><t> the 12 \xc3\xa9\xe6\xbc\xa2\n";
    char error[BH_TEXT_ERROR_MAX] = "";
    struct bh_bpe *bpe = NULL;
    if (bh_bpe_open(vocab, sizeof(text), false, error, &bpe) != BH_OK) {
        require(error[0] != 0);
        return;
    }
    for (int mode = BH_BPE_PLAIN; mode <= BH_BPE_MARKED; mode++) {
        uint32_t ids[sizeof(text)];
        size_t cnt = 0;
        require(
            bh_bpe_encode(
                bpe, text, sizeof(text) - 1, (enum bh_bpe_mode)mode, ids, BH_COUNT(ids), &cnt) ==
            BH_OK);
        for (size_t i = 0; i < cnt; i++) {
            require(ids[i] < bh_vocab_cnt(vocab));
            require(mode != BH_BPE_PLAIN || !bh_vocab_is_control(vocab, ids[i]));
        }
    }
    bh_bpe_close(bpe);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
    char error[BH_TEXT_ERROR_MAX] = "";
    struct bh_gguf *gguf = NULL;
    struct bh_vocab *vocab = NULL;
    if (bh_gguf_open(data, len, len, error, &gguf) != BH_OK) {
        return 0;
    }
    if (bh_vocab_open(gguf, error, &vocab) != BH_OK) {
        require(error[0] != 0);
    } else {
        check_tokens(vocab);
        check_encoder(vocab);
        bh_vocab_close(vocab);
    }
    bh_gguf_close(gguf);
    return 0;
}
