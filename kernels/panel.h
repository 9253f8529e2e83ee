/* How a weight matrix lies in memory for the kernels: 16 output rows interleaved into one panel, so
   that outputs lie across SIMD lanes and each output keeps its own accumulator.

   A matrix of `rows` outputs and `cols` inputs is ceil(rows / 16) panels, one after the other; rows
   past the last are zero weights. A panel of a float kind is [cols][16] values. A panel of a
   quantized kind is cols / 32 blocks:
       u4: 4 groups of [16 rows][4 bytes]; the low nibbles of group j are inputs 4j..4j+3 of the block,
           the high nibbles inputs 16+4j..16+4j+3                                          256 bytes
       i8: 8 groups of [16 rows][4 bytes]; group j is inputs 4j..4j+3, each stored plus 128 512 bytes
       then the scales (16 of f16 or f32), then for kinds that have them the minima (the same), or
       for Q6K two rows of 16 signed bytes: the factors of inputs 0..15 and 16..31.
   The value of a weight is scale * number + minimum, of which the product is exact. */
#ifndef BH_KERNELS_PANEL_H
#define BH_KERNELS_PANEL_H

#include "shm/base.h"

#define BH_PANEL_ROWS 16u
#define BH_BLOCK_COLS 32u

enum bh_weight_kind {
    BH_WEIGHT_F32 = 0,
    BH_WEIGHT_F16 = 1,
    BH_WEIGHT_BF16 = 2,
    BH_WEIGHT_Q4 = 3,  /* u4 minus 8, scale f16:       Q4_0 */
    BH_WEIGHT_Q4M = 4, /* u4, scale and minimum f16:   Q4_1 */
    BH_WEIGHT_Q4K =
        5, /* u4, scale and minimum f32:   Q4_K (its products of two factors are exact) */
    BH_WEIGHT_Q8 = 6,  /* i8, scale f16:               Q8_0, Q5_0 */
    BH_WEIGHT_Q8M = 7, /* i8, scale and minimum f16:   Q5_1 */
    BH_WEIGHT_Q8K = 8, /* i8, scale and minimum f32:   Q5_K */
    BH_WEIGHT_Q6K = 9, /* i8 times a factor per 16 inputs, scale f16: Q6_K */
    BH_WEIGHT_KIND_CNT
};

/* One matrix in panels. */
struct bh_panels {
    const uint8_t *bytes; /* 64-byte aligned */
    enum bh_weight_kind kind;
    uint32_t rows;
    uint32_t cols; /* a multiple of 32 for quantized kinds */
};

static inline bool
bh_weight_quantized(enum bh_weight_kind kind)
{
    return kind >= BH_WEIGHT_Q4;
}

/* Bytes of 16 rows by one input (float kinds) or by one block of 32 inputs (quantized kinds). */
static inline size_t
bh_panel_step_bytes(enum bh_weight_kind kind)
{
    static const uint16_t bytes[BH_WEIGHT_KIND_CNT] = {
        64, 32, 32, 288, 320, 384, 544, 576, 640, 576};
    return bytes[kind];
}

static inline size_t
bh_panel_bytes(enum bh_weight_kind kind, uint32_t cols)
{
    size_t steps = bh_weight_quantized(kind) ? cols / BH_BLOCK_COLS : cols;
    return bh_round_up(steps * bh_panel_step_bytes(kind), 64);
}

static inline uint32_t
bh_panel_cnt(uint32_t rows)
{
    return (rows + BH_PANEL_ROWS - 1) / BH_PANEL_ROWS;
}

static inline size_t
bh_panels_bytes(enum bh_weight_kind kind, uint32_t rows, uint32_t cols)
{
    return (size_t)bh_panel_cnt(rows) * bh_panel_bytes(kind, cols);
}

/* bh_panel_unpack - one panel as floats: out [cols][16]. Exact: every weight as its file defines it. */
void bh_panel_unpack(const struct bh_panels *matrix, uint32_t panel, float *out);

/* bh_panel_unpack_row - one row of the matrix as floats: out [cols]. The same values. */
void bh_panel_unpack_row(const struct bh_panels *matrix, uint32_t row, float *out);

#endif
