/* The operations of a transformer on pointers and shapes, in variants per instruction set. The plain
   C variant defines the order of every float operation and the others give the same bits
   (README.md: rules); kernels.def lists operations and variants. Nothing here allocates, logs, makes
   a system call or can fail. Pointers may be unaligned for their vector type but must be aligned for
   their element, and outputs do not alias inputs unless said. */
#ifndef BH_KERNELS_KERNELS_H
#define BH_KERNELS_KERNELS_H

#include "kernels/panel.h"
#include "shm/base.h"

/* Activations quantized in blocks of 32: x is about scale * q. Row r of `q` starts at r * cols, row r
   of the others at r * cols / 32 (half_off: twice that). */
struct bh_act {
    int8_t *q;    /* -127..127 */
    float *scale; /* amax / 127; 0 for a block of (nearly) zeros; NaN if an input is not finite */
    float *sum;   /* scale * (sum of q), for kinds with minima */
    int32_t *off; /* -128 * (sum of q): makes the u8 products of VNNI signed */
    int32_t *half_off; /* the same for inputs 0..15 and 16..31 of the block */
    uint32_t cols;     /* a multiple of 32 */
};

/* What a matrix product is asked for: outputs of panels [panel_from, panel_to) for rows
   [row_from, row_to). out[row * out_stride + output] for outputs below matrix->rows.
   add: the product is added to what is there (out + product), otherwise stored. */
struct bh_matmul {
    const struct bh_panels *matrix;
    uint32_t panel_from;
    uint32_t panel_to;
    uint32_t row_from;
    uint32_t row_to;
    float *out;
    size_t out_stride;
    bool add;
};

/* Queries of one kv head: q [q_cnt][head_dim], already scaled. */
struct bh_queries {
    const float *q;
    uint32_t q_cnt;
    uint32_t head_dim; /* a multiple of 16 */
};

/* The K or V bytes of one kv head in one page. */
struct bh_page_part {
    const uint8_t *bytes;
    uint32_t page_tokens; /* a multiple of 16 */
    uint32_t elem_bytes;  /* 2: f16, 4: f32 */
    uint32_t tok_from;    /* used tokens of the page: [tok_from, tok_to) */
    uint32_t tok_to;
};

struct bh_kernels {
    const char *name;

    /* x [row_cnt][x_stride] to blocks of 32, rounding to nearest even. */
    void (*quantize)(const float *x,
                     size_t x_stride,
                     uint32_t row_from,
                     uint32_t row_to,
                     const struct bh_act *out);

    /* Quantized kinds. Per output, over blocks ascending: acc = fma(w_scale * x_scale, (float)(exact
       integer sum), acc), then for kinds with minima acc = fma(w_min, x_sum, acc). */
    void (*matmul)(const struct bh_matmul *call, const struct bh_act *x);

    /* Float kinds. Per output, over inputs ascending: acc = fma(w, x, acc). */
    void (*matmul_float)(const struct bh_matmul *call, const float *x, size_t x_stride);

    /* out = x / sqrt(mean(x * x) + eps) * weight over `cols`; squares in 16 lanes and a fixed tree. */
    void (*norm)(const float *x, const float *weight, float eps, uint32_t cols, float *out);

    /* out = gate / (1 + exp(-gate)) * up. out may be gate. */
    void (*swiglu)(const float *gate, const float *up, uint32_t cnt, float *out);

    /* f32 to f16 bits, to nearest even. */
    void (*halve)(const float *x, uint32_t cnt, uint16_t *out);

    /* scores[q * stride + t] for tokens 0..tok_to of the page (tok_from is 0; up to the next multiple
       of 16 is computed and stored), each: over head_dim ascending acc = fma(q, k, acc).
       K is [head_dim][page_tokens]. */
    void (*scores)(const struct bh_queries *queries,
                   const struct bh_page_part *k,
                   float *scores,
                   size_t stride);

    /* In place over tok_cnt scores (capacity a multiple of 16, the rest becomes zero): exp(s - max).
       The sum of them in 16 lanes and a fixed tree. tok_cnt > 0. */
    void (*softmax)(float *scores, uint32_t tok_cnt, float *max, float *sum);

    /* out [q_cnt][head_dim]: over tokens [tok_from, tok_to) ascending out = fma(p, v, out), p being
       probs[q * stride + t - tok_from]. V is [page_tokens][head_dim]. */
    void (*values)(const float *probs,
                   size_t stride,
                   uint32_t q_cnt,
                   uint32_t head_dim,
                   const struct bh_page_part *v,
                   float *out);
};

/* bh_kernels_find - the variant of that name, or the best one this CPU has if name is NULL.
   NULL: no such variant, or this CPU lacks what it needs. */
const struct bh_kernels *bh_kernels_find(const char *name);

/* bh_kernels_at - the idx-th variant in order of kernels.def and whether this CPU can run it;
   NULL when there are no more. */
const struct bh_kernels *bh_kernels_at(uint32_t idx, bool *usable);

#endif
