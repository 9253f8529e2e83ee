/* Matrix products, plain C: the definition that the other variants equal bit for bit. */
#include <math.h>

#include "kernels/canon.h"
#include "kernels/variants.h"

/* One block of 32 inputs of one panel row, as integers. Sums of at most 32 * 15 * 127 (u4) or
   32 * 128 * 127 (i8) are exact as floats; with the factors of Q6K below 2^24, still exact. */
static int32_t
block_sum(enum bh_weight_kind kind, const uint8_t *block, uint32_t lane, const int8_t *x)
{
    int32_t sum = 0;
    if (kind <= BH_WEIGHT_Q4K) {
        int32_t offset = kind == BH_WEIGHT_Q4 ? 8 : 0;
        for (uint32_t col = 0; col < 16; col++) {
            uint8_t pair = block[(col / 4 * BH_PANEL_ROWS + lane) * 4 + col % 4];
            sum += ((pair & 15) - offset) * x[col] + ((pair >> 4) - offset) * x[16 + col];
        }
        return sum;
    }
    int32_t half[2] = {0, 0};
    for (uint32_t col = 0; col < BH_BLOCK_COLS; col++) {
        int32_t weight = block[(col / 4 * BH_PANEL_ROWS + lane) * 4 + col % 4] - 128;
        half[col / 16] += weight * x[col];
    }
    if (kind == BH_WEIGHT_Q6K) {
        const int8_t *factors = (const int8_t *)block + 512 + 32;
        return factors[lane] * half[0] + factors[BH_PANEL_ROWS + lane] * half[1];
    }
    return half[0] + half[1];
}

static float
dot_quantized(const struct bh_panels *matrix,
              const uint8_t *panel,
              uint32_t lane,
              const struct bh_act *x,
              uint32_t row)
{
    enum bh_weight_kind kind = matrix->kind;
    uint32_t blocks = matrix->cols / BH_BLOCK_COLS;
    size_t step_bytes = bh_panel_step_bytes(kind);
    size_t numbers = kind <= BH_WEIGHT_Q4K ? 256 : 512;
    bool wide = kind == BH_WEIGHT_Q4K || kind == BH_WEIGHT_Q8K;
    bool has_min = wide || kind == BH_WEIGHT_Q4M || kind == BH_WEIGHT_Q8M;
    float acc = 0.0f;
    for (uint32_t b = 0; b < blocks; b++) {
        const uint8_t *block = panel + b * step_bytes;
        const uint8_t *scales = block + numbers;
        size_t x_block = (size_t)row * blocks + b;
        int32_t sum = block_sum(kind, block, lane, x->q + x_block * BH_BLOCK_COLS);
        float scale =
            wide ? bh_load_f32(scales + lane * 4) : bh_f16_to_f32(bh_load_u16(scales + lane * 2));
        acc = fmaf(scale * x->scale[x_block], (float)sum, acc);
        if (has_min) {
            float min = wide ? bh_load_f32(scales + 64 + lane * 4)
                             : bh_f16_to_f32(bh_load_u16(scales + 32 + lane * 2));
            acc = fmaf(min, x->sum[x_block], acc);
        }
    }
    return acc;
}

static void
store(const struct bh_matmul *call, uint32_t row, uint32_t output, float value)
{
    float *out = call->out + row * call->out_stride + output;
    *out = call->add ? *out + value : value;
}

void
bh_ref_matmul(const struct bh_matmul *call, const struct bh_act *x)
{
    const struct bh_panels *matrix = call->matrix;
    for (uint32_t panel = call->panel_from; panel < call->panel_to; panel++) {
        const uint8_t *bytes = matrix->bytes + panel * bh_panel_bytes(matrix->kind, matrix->cols);
        for (uint32_t row = call->row_from; row < call->row_to; row++) {
            for (uint32_t lane = 0;
                 lane < BH_PANEL_ROWS && panel * BH_PANEL_ROWS + lane < matrix->rows;
                 lane++) {
                store(call,
                      row,
                      panel * BH_PANEL_ROWS + lane,
                      dot_quantized(matrix, bytes, lane, x, row));
            }
        }
    }
}

static float
weight_float(enum bh_weight_kind kind, const uint8_t *step, uint32_t lane)
{
    if (kind == BH_WEIGHT_F32) {
        return bh_load_f32(step + lane * 4);
    }
    uint16_t bits = bh_load_u16(step + lane * 2);
    return kind == BH_WEIGHT_F16 ? bh_f16_to_f32(bits) : bh_bf16_to_f32(bits);
}

void
bh_ref_matmul_float(const struct bh_matmul *call, const float *x, size_t x_stride)
{
    const struct bh_panels *matrix = call->matrix;
    size_t step_bytes = bh_panel_step_bytes(matrix->kind);
    for (uint32_t panel = call->panel_from; panel < call->panel_to; panel++) {
        const uint8_t *bytes = matrix->bytes + panel * bh_panel_bytes(matrix->kind, matrix->cols);
        for (uint32_t row = call->row_from; row < call->row_to; row++) {
            float acc[BH_PANEL_ROWS] = {0};
            for (uint32_t col = 0; col < matrix->cols; col++) {
                for (uint32_t lane = 0; lane < BH_PANEL_ROWS; lane++) {
                    float weight = weight_float(matrix->kind, bytes + col * step_bytes, lane);
                    acc[lane] = fmaf(weight, x[row * x_stride + col], acc[lane]);
                }
            }
            for (uint32_t lane = 0;
                 lane < BH_PANEL_ROWS && panel * BH_PANEL_ROWS + lane < matrix->rows;
                 lane++) {
                store(call, row, panel * BH_PANEL_ROWS + lane, acc[lane]);
            }
        }
    }
}
