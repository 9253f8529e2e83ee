/* Operations on one row at a time, plain C: quantizing, RMS norm, the gate of the feed-forward. */
#include <math.h>

#include "kernels/canon.h"
#include "kernels/variants.h"

static uint32_t
block_amax_bits(const float *x)
{
    uint32_t amax = 0;
    for (uint32_t i = 0; i < BH_BLOCK_COLS; i++) {
        uint32_t abs = bh_f32_bits(x[i]) & 0x7fffffffu;
        amax = abs > amax ? abs : amax;
    }
    return amax;
}

/* Magnitudes are compared as bits, where infinity and NaN are the largest: such a block gets the
   scale NaN, so that every output it takes part in is NaN and the row is refused later. */
static void
quantize_block(const float *x, const struct bh_act *out, size_t block)
{
    uint32_t amax_bits = block_amax_bits(x);
    bool finite = amax_bits < BH_F32_INF_BITS;
    bool empty = !finite || amax_bits < BH_QUANT_TINY_BITS;
    float amax = bh_f32_from_bits(amax_bits);
    float inverse = empty ? 0.0f : 127.0f / amax;
    int32_t half[2] = {0, 0};
    for (uint32_t i = 0; i < BH_BLOCK_COLS; i++) {
        float product = empty ? 0.0f : x[i] * inverse;
        int32_t q = (int32_t)(bh_f32_bits(product + BH_EXP_MAGIC) - bh_f32_bits(BH_EXP_MAGIC));
        out->q[block * BH_BLOCK_COLS + i] = (int8_t)q;
        half[i / 16] += q;
    }
    float scale = empty ? 0.0f : amax / 127.0f;
    scale = finite ? scale : bh_f32_from_bits(BH_F32_NAN_BITS);
    out->scale[block] = scale;
    out->sum[block] = scale * (float)(half[0] + half[1]);
    out->off[block] = -128 * (half[0] + half[1]);
    out->half_off[2 * block] = -128 * half[0];
    out->half_off[2 * block + 1] = -128 * half[1];
}

void
bh_ref_quantize(
    const float *x, size_t x_stride, uint32_t row_from, uint32_t row_to, const struct bh_act *out)
{
    uint32_t blocks = out->cols / BH_BLOCK_COLS;
    for (uint32_t row = row_from; row < row_to; row++) {
        for (uint32_t b = 0; b < blocks; b++) {
            quantize_block(
                x + row * x_stride + (size_t)b * BH_BLOCK_COLS, out, (size_t)row * blocks + b);
        }
    }
}

void
bh_ref_norm(const float *x, const float *weight, float eps, uint32_t cols, float *out)
{
    float lane[BH_LANES] = {0};
    for (uint32_t i = 0; i < cols; i++) {
        lane[i % BH_LANES] = fmaf(x[i], x[i], lane[i % BH_LANES]);
    }
    float inverse = 1.0f / sqrtf(bh_canon_tree(lane) / (float)cols + eps);
    for (uint32_t i = 0; i < cols; i++) {
        out[i] = x[i] * inverse * weight[i];
    }
}

void
bh_ref_swiglu(const float *gate, const float *up, uint32_t cnt, float *out)
{
    for (uint32_t i = 0; i < cnt; i++) {
        out[i] = gate[i] / (1.0f + bh_canon_exp(-gate[i])) * up[i];
    }
}

void
bh_ref_halve(const float *x, uint32_t cnt, uint16_t *out)
{
    for (uint32_t i = 0; i < cnt; i++) {
        out[i] = bh_f16_from_f32(x[i]);
    }
}
