/* Byte-level BPE: text to token ids. Special tokens are cut out first, the rest is split into
   pieces by the model's pre-tokenizer (pretok.def, run by PCRE2), and the pieces are merged by rank
   in O(n log n), however long a piece is. Pure; all memory is taken at open, so one encoder serves
   one thread. */
#ifndef BH_TEXT_BPE_H
#define BH_TEXT_BPE_H

#include "src/text/marks.h"
#include "src/text/vocab.h"

struct bh_bpe;

enum bh_bpe_mode {
    BH_BPE_PLAIN,   /* control tokens in the text are ordinary text */
    BH_BPE_SPECIAL, /* control tokens in the text become their ids: trusted text only */
    BH_BPE_MARKED,  /* as SPECIAL, but a control token that holds a mark is ordinary text: what
                       bh_template_render returns */
};

/* bh_bpe_open - an encoder for `vocab`, which must outlive it, for texts of up to text_max bytes.
   jit false interprets the patterns (for processes that may not make memory executable); a JIT
   that fails also falls back to that.
   BH_OK        *out; free it with bh_bpe_close. Costs up to 54 bytes of address space per byte of
                text_max, touched only as long texts come
   BH_EINVAL    text_max is 0 or above 1 GiB
   BH_ELIMIT    the vocabulary's pre-tokenizer has no row in pretok.def, or bh_marks_init refused
   BH_ESYS      no memory */
BH_MUST_USE enum bh_status bh_bpe_open(const struct bh_vocab *vocab,
                                       size_t text_max,
                                       bool jit,
                                       char error[BH_TEXT_ERROR_MAX],
                                       struct bh_bpe **out);
void bh_bpe_close(struct bh_bpe *bpe);

/* bh_bpe_watch - call alive(arg) every few milliseconds while a text is encoded: a long one may take
   longer than a supervisor waits for a sign of life. NULL: nobody is called. */
typedef void bh_bpe_alive_fn(void *arg);
void bh_bpe_watch(struct bh_bpe *bpe, bh_bpe_alive_fn *alive, void *arg);

const struct bh_vocab *bh_bpe_vocab(const struct bh_bpe *bpe);
const struct bh_marks *bh_bpe_marks(const struct bh_bpe *bpe);

/* bh_bpe_encode - ids of `text`. Nothing is put in front (see bh_vocab_add_bos). Bytes that no
   token has are dropped, as the published tokenizers do.
   BH_OK        ids[0..*cnt) are the tokens
   BH_FULL      more than `cap` tokens: the first `cap` are in ids, *cnt is how many there are, so
                that a client can be told
   BH_ECORRUPT  the text is not valid UTF-8
   BH_ELIMIT    longer than text_max, or the regular expression engine gave up
   O(len log len) at worst; a few tens of nanoseconds a byte in ordinary text. */
BH_MUST_USE enum bh_status bh_bpe_encode(struct bh_bpe *bpe,
                                         const char *text,
                                         size_t len,
                                         enum bh_bpe_mode mode,
                                         uint32_t *ids,
                                         size_t cap,
                                         size_t *cnt);

/* bh_bpe_split - where the pre-tokenizer cuts a text, special tokens not looked for: what the
   patterns are compared with other programs by.
   BH_OK        ends[0..*cnt) are the ends of the pieces, in bytes; the last is len
   BH_FULL      more than `cap` pieces
   BH_ECORRUPT, BH_ELIMIT  as bh_bpe_encode; also BH_ELIMIT for an empty text, which has no piece */
BH_MUST_USE enum bh_status bh_bpe_split(
    struct bh_bpe *bpe, const char *text, size_t len, uint32_t *ends, size_t cap, size_t *cnt);

#endif
