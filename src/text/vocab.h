/* The vocabulary of a model, read once from GGUF metadata and then immutable: every token as the
   bytes it stands for (GPT-2's byte-to-unicode alphabet undone), its kind, the special ids, the
   merges, the chat template. The file is not believed: what does not fit together is refused with
   an error that names the field. Pure; everything is copied, so the GGUF may be closed afterwards. */
#ifndef BH_TEXT_VOCAB_H
#define BH_TEXT_VOCAB_H

#include "shm/base.h"
#include "src/model/gguf.h"

#define BH_TEXT_ERROR_MAX  256
#define BH_VOCAB_NONE      UINT32_MAX /* no such token */
#define BH_VOCAB_CNT_MAX   (1u << 22) /* tokens; the largest public vocabulary has 262144 */
#define BH_VOCAB_BYTES_MAX 1024u      /* of one token */
#define BH_VOCAB_MERGE_MAX (1u << 22) /* merges */

/* Token kinds, with the numbers of tokenizer.ggml.token_type. */
enum bh_vocab_kind {
    BH_VOCAB_NORMAL = 1,
    BH_VOCAB_UNKNOWN = 2,
    BH_VOCAB_CONTROL = 3, /* structure of the conversation; never made from a client's text */
    BH_VOCAB_USER = 4,    /* "user-defined": matched whole in any text, otherwise ordinary */
    BH_VOCAB_UNUSED = 5,
    BH_VOCAB_BYTE = 6,
};

struct bh_vocab;

/* bh_vocab_open - build the vocabulary of a byte-level BPE model (tokenizer.ggml.model "gpt2").
   BH_OK        *out is immutable; free it with bh_vocab_close
   BH_ECORRUPT  the metadata contradict themselves; `error` names the field, the value and the rule
   BH_ELIMIT    well formed, but another kind of tokenizer or above a limit of this header; same
   BH_ESYS      no memory */
BH_MUST_USE enum bh_status
bh_vocab_open(const struct bh_gguf *gguf, char error[BH_TEXT_ERROR_MAX], struct bh_vocab **out);
void bh_vocab_close(struct bh_vocab *vocab);

uint32_t bh_vocab_cnt(const struct bh_vocab *vocab);

/* bh_vocab_bytes - what token `id` prints, control tokens as their own text. NULL and *len 0 when
   `id` is not a token. Not NUL-terminated; valid as long as the vocabulary. */
const uint8_t *bh_vocab_bytes(const struct bh_vocab *vocab, uint32_t id, size_t *len);

/* BH_VOCAB_UNUSED when `id` is not a token. */
enum bh_vocab_kind bh_vocab_kind(const struct bh_vocab *vocab, uint32_t id);
bool bh_vocab_is_control(const struct bh_vocab *vocab, uint32_t id);

/* bh_vocab_is_eog - does `id` end an answer? The file's eos, eot and eom ids, and the tokens whose
   text is one of the end markers of the public model families. */
bool bh_vocab_is_eog(const struct bh_vocab *vocab, uint32_t id);

/* Special ids, or BH_VOCAB_NONE. */
uint32_t bh_vocab_bos(const struct bh_vocab *vocab);
uint32_t bh_vocab_eos(const struct bh_vocab *vocab);
uint32_t bh_vocab_eot(const struct bh_vocab *vocab);
uint32_t bh_vocab_unk(const struct bh_vocab *vocab);
uint32_t bh_vocab_pad(const struct bh_vocab *vocab);

/* bh_vocab_add_bos - must the caller put bos in front of a raw prompt (completions)? Never for
   chat: the template writes its own. */
bool bh_vocab_add_bos(const struct bh_vocab *vocab);

/* The name of the pre-tokenizer (tokenizer.ggml.pre), "default" when absent. NUL-terminated. */
const char *bh_vocab_pre(const struct bh_vocab *vocab);

/* The chat template's source, NUL-terminated, or NULL when the file has none. */
const char *bh_vocab_chat_template(const struct bh_vocab *vocab, size_t *len);

/* bh_vocab_find - the token of ordinary text (not control) whose bytes are exactly these, or
   BH_VOCAB_NONE. */
uint32_t bh_vocab_find(const struct bh_vocab *vocab, const uint8_t *bytes, size_t len);

/* The token of one byte, or BH_VOCAB_NONE: some published vocabularies lack bytes. */
uint32_t bh_vocab_byte(const struct bh_vocab *vocab, uint8_t byte);

/* bh_vocab_merge - may `left` and `right` be joined? True: *rank (lower joins first) and the token
   they make. One hash look-up. */
bool bh_vocab_merge(
    const struct bh_vocab *vocab, uint32_t left, uint32_t right, uint32_t *rank, uint32_t *joined);

/* bh_vocab_special_at - the longest user-defined token, or with `control` also control token, that
   `bytes` begins with, or BH_VOCAB_NONE. Their texts are valid UTF-8, so in valid UTF-8 they begin
   and end between characters. Cheap when the first byte begins none; else logarithmic. */
uint32_t
bh_vocab_special_at(const struct bh_vocab *vocab, const uint8_t *bytes, size_t len, bool control);

#endif
