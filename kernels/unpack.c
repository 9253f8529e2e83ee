/* Packed weights back to floats: for token embeddings, and for the plain mode whose products are made
   of float values. Not a hot path, so there is one version for all instruction sets. */
#include "kernels/panel.h"

#include "kernels/canon.h"

/* Offset of scales behind the numbers of a quantized block. */
static size_t
numbers_bytes(enum bh_weight_kind kind)
{
    return kind <= BH_WEIGHT_Q4K ? 256 : 512;
}

static float
weight_float(enum bh_weight_kind kind, const uint8_t *step, uint32_t lane)
{
    if (kind == BH_WEIGHT_F32) {
        return bh_load_f32(step + lane * sizeof(float));
    }
    uint16_t bits = bh_load_u16(step + lane * sizeof(uint16_t));
    return kind == BH_WEIGHT_F16 ? bh_f16_to_f32(bits) : bh_bf16_to_f32(bits);
}

/* The number stored for input `col` of the block, offset removed. */
static int32_t
weight_number(enum bh_weight_kind kind, const uint8_t *block, uint32_t lane, uint32_t col)
{
    if (kind <= BH_WEIGHT_Q4K) {
        uint8_t pair = block[(col % 16 / 4 * BH_PANEL_ROWS + lane) * 4 + col % 4];
        int32_t number = col < 16 ? pair & 15 : pair >> 4;
        return kind == BH_WEIGHT_Q4 ? number - 8 : number;
    }
    return (int32_t)block[(col / 4 * BH_PANEL_ROWS + lane) * 4 + col % 4] - 128;
}

/* Scales and minima of lanes [from, to) of one block; minima are -0 for kinds without them, which
   changes no sum. */
static void
block_factors(enum bh_weight_kind kind,
              const uint8_t *block,
              uint32_t from,
              uint32_t to,
              float *scale,
              float *min)
{
    const uint8_t *scales = block + numbers_bytes(kind);
    bool wide = kind == BH_WEIGHT_Q4K || kind == BH_WEIGHT_Q8K;
    bool has_min = wide || kind == BH_WEIGHT_Q4M || kind == BH_WEIGHT_Q8M;
    for (uint32_t lane = from; lane < to; lane++) {
        scale[lane] =
            wide ? bh_load_f32(scales + lane * 4) : bh_f16_to_f32(bh_load_u16(scales + lane * 2));
        min[lane] = -0.0f;
        if (has_min) {
            const uint8_t *at = scales + (wide ? 64 + lane * 4 : 32 + lane * 2);
            min[lane] = wide ? bh_load_f32(at) : bh_f16_to_f32(bh_load_u16(at));
        }
    }
}

/* scale * number is exact (11 or 17 bits by 8 bits or fewer), so that one rounding is left, as in a
   fused operation. Q6K: factor * number fits 13 bits, with the scale 24. */
static float *
unpack_block(enum bh_weight_kind kind, const uint8_t *block, uint32_t from, uint32_t to, float *out)
{
    float scale[BH_PANEL_ROWS];
    float min[BH_PANEL_ROWS];
    block_factors(kind, block, from, to, scale, min);
    for (uint32_t col = 0; col < BH_BLOCK_COLS; col++) {
        const int8_t *factors = (const int8_t *)block + 512 + 32 + col / 16 * BH_PANEL_ROWS;
        for (uint32_t lane = from; lane < to; lane++) {
            int32_t number = weight_number(kind, block, lane, col);
            number = kind == BH_WEIGHT_Q6K ? factors[lane] * number : number;
            *out++ = scale[lane] * (float)number + min[lane];
        }
    }
    return out;
}

static void
unpack_lanes(const struct bh_panels *matrix, uint32_t panel, uint32_t from, uint32_t to, float *out)
{
    const uint8_t *bytes = matrix->bytes + panel * bh_panel_bytes(matrix->kind, matrix->cols);
    size_t step_bytes = bh_panel_step_bytes(matrix->kind);
    if (bh_weight_quantized(matrix->kind)) {
        for (uint32_t b = 0; b < matrix->cols / BH_BLOCK_COLS; b++) {
            out = unpack_block(matrix->kind, bytes + b * step_bytes, from, to, out);
        }
        return;
    }
    for (uint32_t col = 0; col < matrix->cols; col++) {
        for (uint32_t lane = from; lane < to; lane++) {
            *out++ = weight_float(matrix->kind, bytes + col * step_bytes, lane);
        }
    }
}

void
bh_panel_unpack(const struct bh_panels *matrix, uint32_t panel, float *out)
{
    unpack_lanes(matrix, panel, 0, BH_PANEL_ROWS, out);
}

void
bh_panel_unpack_row(const struct bh_panels *matrix, uint32_t row, float *out)
{
    unpack_lanes(matrix, row / BH_PANEL_ROWS, row % BH_PANEL_ROWS, row % BH_PANEL_ROWS + 1, out);
}
