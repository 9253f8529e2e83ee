/* A llama-architecture transformer over paged KV, as pure computation: pointers in, logits out.
   No rings, no request tables, no system calls. The roles own the pages and tell the model, page by
   page, what it must find there; the model checks that in the attention loop and refuses to read
   anything else.

   Results are a function of the sequence alone: not of the other rows of the batch, the chunking,
   the number of threads or the instruction set (kernels/README.md says how). */
#ifndef BH_MODEL_MODEL_H
#define BH_MODEL_MODEL_H

#include "shm/base.h"
#include "shm/kv.h"
#include "shm/stamp.h"
#include "src/core/team.h"
#include "src/model/gguf.h"

#define BH_MODEL_ERROR_MAX 256

/* Everything about a model that other parts need to know before weights are mapped. */
struct bh_model_dims {
    uint32_t layers;
    uint32_t d_model;
    uint32_t heads;
    uint32_t kv_heads;
    uint32_t head_dim;
    uint32_t ffn;
    uint32_t vocab;
    uint32_t ctx_train; /* tokens of context in the file's metadata */
    float rope_base;
    float norm_eps;
};

/* bh_model_dims_read - from GGUF metadata; only the header is needed.
   BH_ELIMIT  another architecture or shape than supported; `error` names the key
   BH_ECORRUPT a key is missing or contradicts another; same */
BH_MUST_USE enum bh_status bh_model_dims_read(const struct bh_gguf *gguf,
                                              char error[BH_MODEL_ERROR_MAX],
                                              struct bh_model_dims *out);

/* Packed weights: position-independent bytes (offsets, no pointers) in the layout the kernels read,
   made once at start into a sealed memory file and mapped read-only by every worker.
   footprint: bytes needed, 0 if the file lacks a tensor or has a wrong shape (error says which).
   new: writes them to `out` (64-byte aligned, that many bytes). `file` is the whole GGUF file. */
size_t bh_model_pack_footprint(const struct bh_gguf *gguf, char error[BH_MODEL_ERROR_MAX]);
BH_MUST_USE enum bh_status bh_model_pack_new(const struct bh_gguf *gguf,
                                             const uint8_t *file,
                                             struct bh_team *team,
                                             uint8_t *out,
                                             size_t out_bytes,
                                             char error[BH_MODEL_ERROR_MAX]);

/* How products are computed. SERVED: activations quantized to int8 in blocks of 32, exact integer
   sums inside a block. PLAIN: float32 activations, every weight as its float value; slow, for tests
   that must see small errors. */
enum bh_model_mode { BH_MODEL_SERVED, BH_MODEL_PLAIN };

struct bh_model; /* private view of packed weights and the chosen kernels */

/* bh_model_join - check packed weights (magic, fingerprint, every offset) and make a view of them.
   `packed` stays mapped until bh_model_leave. variant: name of a kernel variant ("ref", "avx2",
   "avx512vnni") or NULL for the best this CPU has.
   BH_ECORRUPT the bytes are no packed model; BH_EINVAL this CPU lacks `variant`; BH_ESYS no memory */
BH_MUST_USE enum bh_status bh_model_join(const uint8_t *packed,
                                         size_t packed_bytes,
                                         enum bh_model_mode mode,
                                         const char *variant,
                                         struct bh_model **out);
void bh_model_leave(struct bh_model *model);
const struct bh_model_dims *bh_model_dims(const struct bh_model *model);
const char *bh_model_variant(const struct bh_model *model);

/* One sequence's share of a batch: `token_cnt` consecutive tokens starting at position first_pos,
   whose predecessors' K and V are in its pages. */
struct bh_seq {
    const struct bh_stamp_want
        *pages; /* what page j of the sequence must be; page_cnt of them, enough
                                          for first_pos + token_cnt tokens */
    uint32_t page_cnt;
    uint32_t first_pos;
    uint32_t token_cnt;
    bool outputs; /* hidden states of these rows are wanted (decode, prompt log-probabilities);
                                if not, the last layer stops after writing K and V */
    const uint32_t *tokens;      /* token_cnt ids, each below vocab */
    enum bh_violation violation; /* out: first refusal, or BH_VIOLATION_NONE. A row that was refused
                                    read nothing from that page; its outputs are zero */
    uint32_t violation_page;     /* out: which page of the sequence, when violation is set */
    uint32_t violation_layer;    /* out */
};

/* Called on the calling thread after K and V of tokens up to (not including) position `end_pos` are
   in the block of page `page_ord` of sequence `seq_idx` at `layer`, and before anything reads them.
   The role stamps (and, when the page is full, seals) the block here. */
typedef void
bh_stamp_fn(void *role, uint32_t seq_idx, uint32_t page_ord, uint32_t layer, uint32_t end_pos);

struct bh_forward; /* scratch for one step; allocated once */

/* bh_forward_new - scratch for batches of at most rows_max tokens and seqs_max sequences.
   kv is the pool's shape; its layers, kv_heads and head_dim must be the model's. NULL: no memory. */
struct bh_forward *bh_forward_new(const struct bh_model *model,
                                  const struct bh_kv_shape *kv,
                                  struct bh_team *team,
                                  uint32_t rows_max,
                                  uint32_t seqs_max);
void bh_forward_delete(struct bh_forward *forward);

/* bh_forward_begin - load a batch: seqs[0..seq_cnt) (kept until the step ends; the caller may not
   change them), pages in `pool`. Embeds the tokens.
   BH_EINVAL a limit of bh_forward_new is exceeded, a token is not below vocab, or pages are too few */
BH_MUST_USE enum bh_status bh_forward_begin(struct bh_forward *forward,
                                            uint8_t *pool,
                                            struct bh_seq *seqs,
                                            uint32_t seq_cnt,
                                            bh_stamp_fn *stamp,
                                            void *role);

/* bh_forward_layer - compute one layer. Returns BH_AGAIN while layers remain, BH_OK after the last
   one. A caller that shares its cores yields between two calls. Before reading K and V of a page it
   proves the page's stamp for that layer; a sequence that was refused is skipped from then on. */
BH_MUST_USE enum bh_status bh_forward_layer(struct bh_forward *forward);

/* bh_forward_logits - after the last layer: logits of `row_cnt` rows (of sequences with outputs) of
   the batch from `row` on; row r is the r-th token of the batch in order of the sequences.
   out [row_cnt][vocab] f32. */
void bh_forward_logits(struct bh_forward *forward, uint32_t row, uint32_t row_cnt, float *out);

#endif
