/* The bytes of a packed model: a head, a table of tensors, and the tensors, each at a multiple of 64.
   Made by pack.c in one process, checked and read by model.c in others; offsets only. */
#ifndef BH_MODEL_PACKED_H
#define BH_MODEL_PACKED_H

#include "kernels/panel.h"
#include "src/model/model.h"

#define BH_PACKED_MAGIC UINT64_C(0x31306b6361706862) /* "bhpack01" */

/* Changes with the layout of panels or of this table. */
#define BH_PACKED_FINGERPRINT                                                                      \
    UINT64_C(0x0001002000100009) /* version 1, blocks of 32, 16 rows, 9 a layer */

/* Tensors outside of layers come first, then BH_PACKED_LAYER_CNT for each layer. */
enum bh_packed_fixed {
    BH_PACKED_TOKEN_EMBD,
    BH_PACKED_OUTPUT, /* tied: the same place as TOKEN_EMBD */
    BH_PACKED_OUTPUT_NORM,
    BH_PACKED_ROPE_FREQS, /* divisors of the rotation angles, f32; 0 bytes: none */
    BH_PACKED_FIXED_CNT
};
enum bh_packed_layer {
    BH_PACKED_ATTN_NORM,
    BH_PACKED_Q,
    BH_PACKED_K,
    BH_PACKED_V,
    BH_PACKED_ATTN_OUTPUT,
    BH_PACKED_FFN_NORM,
    BH_PACKED_GATE,
    BH_PACKED_UP,
    BH_PACKED_DOWN,
    BH_PACKED_LAYER_CNT
};

struct bh_packed_tensor {
    uint64_t offset; /* from the start of the packed bytes */
    uint64_t bytes;
    uint32_t kind; /* enum bh_weight_kind; of a vector: BH_WEIGHT_F32, stored as plain floats */
    uint32_t rows; /* 1 for a vector */
    uint32_t cols;
    uint32_t zero;
};
static_assert(sizeof(struct bh_packed_tensor) == 32, "an array of these lies in the packed bytes");

struct bh_packed_head {
    uint64_t magic; /* stored last */
    uint64_t fingerprint;
    uint64_t bytes;
    struct bh_model_dims dims;
    uint32_t tensor_cnt;
    uint32_t zero[15];
};
static_assert(sizeof(struct bh_packed_head) == 128, "the table starts at two cache lines");

/* What a tensor is called in the file, which shape it must have, and whether it is a vector. */
struct bh_packed_want {
    char name[64];
    uint32_t rows;
    uint32_t cols;
    bool vector;
};

static inline uint32_t
bh_packed_tensor_cnt(const struct bh_model_dims *dims)
{
    return BH_PACKED_FIXED_CNT + dims->layers * BH_PACKED_LAYER_CNT;
}

/* bh_packed_want_at - of the idx-th tensor of the table of a model with these dimensions. */
struct bh_packed_want bh_packed_want_at(const struct bh_model_dims *dims, uint32_t idx);

/* Bytes of a tensor in the packed form. */
static inline size_t
bh_packed_bytes(const struct bh_packed_want *want, enum bh_weight_kind kind)
{
    return want->vector ? (size_t)bh_round_up((size_t)want->cols * sizeof(float), 64)
                        : bh_panels_bytes(kind, want->rows, want->cols);
}

/* Limits of what is computed here; a model outside is refused by name. */
#define BH_MODEL_LAYERS_MAX 512u
#define BH_MODEL_WIDTH_MAX  131072u /* d_model, ffn, heads * head_dim */
#define BH_MODEL_GROUP_MAX  16u     /* query heads per kv head */
#define BH_MODEL_VOCAB_MAX  (1u << 20)

/* bh_model_dims_check - are these dimensions inside the limits and consistent? NULL, or what is not. */
const char *bh_model_dims_check(const struct bh_model_dims *dims);

/* bh_pack_panel - the panel-th panel of a tensor of the file, in the packed form of `kind`.
   rows: the tensor's data. False: a scale or weight is not finite. */
bool bh_pack_panel(const struct bh_gguf_tensor *tensor,
                   const uint8_t *data,
                   enum bh_weight_kind kind,
                   uint32_t panel,
                   uint8_t *out);

/* The packed kind of a type of the file. */
enum bh_weight_kind bh_pack_kind(enum bh_gguf_type type);

#endif
