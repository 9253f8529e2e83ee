/* Matrix products with AVX2, FMA and F16C: tiles of rows by one half panel (8 outputs) or a whole one.
   Without VNNI the integer sums must not saturate: products of u4 weights are at most 15 * 127 * 2 a
   pair, so a block's eight pair sums stay below 2^15; products of i8 weights use |w| and x with the
   sign of w (at most 128 * 127 * 2 a pair) and are widened at once. Same bits as ref_matmul.c. */
#include <immintrin.h>

#include "kernels/avx2_canon.h"
#include "kernels/variants.h"

/* How far ahead of the computation weights are asked for. */
#define PREFETCH_BYTES 2048

/* What differs between quantized kinds; always a constant after inlining. */
struct form {
    bool u4;
    bool wide;   /* scales and minima are f32 */
    bool min;    /* there are minima */
    bool halves; /* a factor for each half of the block (Q6K) */
    bool eight;  /* numbers are stored plus 8 (Q4) */
};

struct tile {
    const uint8_t *panel;
    const int8_t *q[6];
    const float *scale[6];
    const float *sum[6];
    const int32_t *off[6];
};

BH_INLINE __m256
load_factors(const uint8_t *from, bool wide)
{
    return wide ? _mm256_loadu_ps((const float *)(const void *)from)
                : _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)from));
}

BH_INLINE __m256i
broadcast_i32(const void *from)
{
    return _mm256_set1_epi32(bh_load_i32(from));
}

/* Sums of a block of u4 numbers for rows by halves [0, halves) of the panel that starts at `numbers`. */
BH_INLINE void
sum_u4(const struct tile *tile,
       const uint8_t *numbers,
       size_t q_at,
       int rows,
       int halves,
       __m256i sums[6][2])
{
    __m256i low_mask = _mm256_set1_epi8(15);
    BH_UNROLL
    for (int r = 0; r < rows; r++) {
        BH_UNROLL
        for (int h = 0; h < halves; h++) {
            sums[r][h] = _mm256_setzero_si256();
        }
    }
    BH_UNROLL
    for (int j = 0; j < 4; j++) {
        BH_UNROLL
        for (int h = 0; h < halves; h++) {
            __m256i pair = _mm256_loadu_si256((const __m256i *)(numbers + j * 64 + h * 32));
            __m256i low = _mm256_and_si256(pair, low_mask);
            __m256i high = _mm256_and_si256(_mm256_srli_epi16(pair, 4), low_mask);
            BH_UNROLL
            for (int r = 0; r < rows; r++) {
                const int8_t *q = tile->q[r] + q_at + (size_t)j * 4;
                sums[r][h] =
                    _mm256_add_epi16(sums[r][h], _mm256_maddubs_epi16(low, broadcast_i32(q)));
                sums[r][h] =
                    _mm256_add_epi16(sums[r][h], _mm256_maddubs_epi16(high, broadcast_i32(q + 16)));
            }
        }
    }
    BH_UNROLL
    for (int r = 0; r < rows; r++) {
        BH_UNROLL
        for (int h = 0; h < halves; h++) {
            sums[r][h] = _mm256_madd_epi16(sums[r][h], _mm256_set1_epi16(1));
        }
    }
}

/* Steps [s_from, s_to) of a block of i8 numbers. */
BH_INLINE void
sum_i8(const struct tile *tile,
       const uint8_t *numbers,
       size_t q_at,
       int s_from,
       int s_to,
       int rows,
       int halves,
       __m256i sums[6][2])
{
    __m256i ones = _mm256_set1_epi16(1);
    BH_UNROLL
    for (int r = 0; r < rows; r++) {
        BH_UNROLL
        for (int h = 0; h < halves; h++) {
            sums[r][h] = _mm256_setzero_si256();
        }
    }
    BH_UNROLL
    for (int s = s_from; s < s_to; s++) {
        BH_UNROLL
        for (int h = 0; h < halves; h++) {
            __m256i stored = _mm256_loadu_si256((const __m256i *)(numbers + s * 64 + h * 32));
            __m256i weight = _mm256_xor_si256(stored, _mm256_set1_epi8((char)0x80));
            __m256i abs = _mm256_abs_epi8(weight);
            BH_UNROLL
            for (int r = 0; r < rows; r++) {
                __m256i x =
                    _mm256_sign_epi8(broadcast_i32(tile->q[r] + q_at + (size_t)s * 4), weight);
                sums[r][h] = _mm256_add_epi32(
                    sums[r][h], _mm256_madd_epi16(_mm256_maddubs_epi16(abs, x), ones));
            }
        }
    }
}

BH_INLINE void
sum_halves(const struct tile *tile,
           const uint8_t *numbers,
           size_t q_at,
           int rows,
           int halves,
           __m256i sums[6][2])
{
    __m256i second[6][2];
    sum_i8(tile, numbers, q_at, 0, 4, rows, halves, sums);
    sum_i8(tile, numbers, q_at, 4, 8, rows, halves, second);
    BH_UNROLL
    for (int h = 0; h < halves; h++) {
        const uint8_t *factors = numbers + 512 + 32 + h * 8;
        __m256i f0 = _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)factors));
        __m256i f1 = _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(factors + 16)));
        BH_UNROLL
        for (int r = 0; r < rows; r++) {
            sums[r][h] = _mm256_add_epi32(_mm256_mullo_epi32(sums[r][h], f0),
                                          _mm256_mullo_epi32(second[r][h], f1));
        }
    }
}

/* With few rows the weights come straight from memory, faster than the hardware asks for them. */
BH_INLINE void
prefetch(const uint8_t *block, size_t step_bytes)
{
    for (size_t at = 0; at < step_bytes; at += 64) {
        _mm_prefetch((const char *)block + PREFETCH_BYTES + at, _MM_HINT_T0);
    }
}

/* `half` is the first half panel of the tile, `halves` how many it has (their product stays in one
   panel). */
BH_INLINE void
tile_run(const struct tile *tile,
         uint32_t blocks,
         size_t step_bytes,
         struct form form,
         int rows,
         int half,
         int halves,
         __m256 acc[6][2])
{
    size_t factors_at = form.u4 ? 256 : 512;
    size_t width = form.wide ? 32 : 16;
    BH_UNROLL
    for (int r = 0; r < rows; r++) {
        acc[r][0] = _mm256_setzero_ps();
        acc[r][1] = _mm256_setzero_ps();
    }
    for (size_t b = 0; b < blocks; b++) {
        const uint8_t *block = tile->panel + b * step_bytes;
        if (rows <= 2) {
            prefetch(block, step_bytes);
        }
        __m256i sums[6][2];
        if (form.halves) {
            sum_halves(tile, block, b * BH_BLOCK_COLS, rows, halves, sums);
        } else if (form.u4) {
            sum_u4(tile, block + half * 32, b * BH_BLOCK_COLS, rows, halves, sums);
        } else {
            sum_i8(tile, block + half * 32, b * BH_BLOCK_COLS, 0, 8, rows, halves, sums);
        }
        BH_UNROLL
        for (int h = 0; h < halves; h++) {
            const uint8_t *factors = block + factors_at + (size_t)(half + h) * width;
            __m256 scale = load_factors(factors, form.wide);
            __m256 min = form.min ? load_factors(factors + 2 * width, form.wide) : scale;
            BH_UNROLL
            for (int r = 0; r < rows; r++) {
                __m256i sum = sums[r][h];
                if (form.eight) {
                    sum = _mm256_add_epi32(sum, _mm256_set1_epi32(tile->off[r][b] >> 4));
                }
                __m256 both = _mm256_mul_ps(scale, _mm256_broadcast_ss(&tile->scale[r][b]));
                acc[r][h] = _mm256_fmadd_ps(both, _mm256_cvtepi32_ps(sum), acc[r][h]);
                if (form.min) {
                    acc[r][h] =
                        _mm256_fmadd_ps(min, _mm256_broadcast_ss(&tile->sum[r][b]), acc[r][h]);
                }
            }
        }
    }
}

/* Eight outputs from `output` on for one row; those past the matrix are not stored. */
BH_INLINE void
store_half(const struct bh_matmul *call, uint32_t row, uint32_t output, __m256 value)
{
    __m256i mask = avx2_mask_left(output, 0, call->matrix->rows);
    float *out = call->out + row * call->out_stride + output;
    if (call->add) {
        value = _mm256_add_ps(_mm256_maskload_ps(out, mask), value);
    }
    _mm256_maskstore_ps(out, mask, value);
}

BH_INLINE void
tile_rows(const struct bh_matmul *call,
          const struct bh_act *x,
          uint32_t row,
          uint32_t panel,
          int rows,
          int half,
          int halves,
          struct form form)
{
    const struct bh_panels *matrix = call->matrix;
    uint32_t blocks = matrix->cols / BH_BLOCK_COLS;
    struct tile tile;
    tile.panel = matrix->bytes + panel * bh_panel_bytes(matrix->kind, matrix->cols);
    BH_UNROLL
    for (int r = 0; r < rows; r++) {
        size_t x_block = (size_t)(row + (uint32_t)r) * blocks;
        tile.q[r] = x->q + x_block * BH_BLOCK_COLS;
        tile.scale[r] = x->scale + x_block;
        tile.sum[r] = x->sum + x_block;
        tile.off[r] = x->off + x_block;
    }
    __m256 acc[6][2];
    tile_run(&tile, blocks, bh_panel_step_bytes(matrix->kind), form, rows, half, halves, acc);
    BH_UNROLL
    for (int r = 0; r < rows; r++) {
        BH_UNROLL
        for (int h = 0; h < halves; h++) {
            uint32_t output = panel * BH_PANEL_ROWS + (uint32_t)(half + h) * 8;
            store_half(call, row + (uint32_t)r, output, acc[r][h]);
        }
    }
}

/* Few rows take both halves at once (one pass over the weights), many rows one half with more rows, so
   that the accumulators fit 16 registers. Q6K always takes both: its factors follow both halves. */
BH_INLINE void
run(const struct bh_matmul *call, const struct bh_act *x, struct form form)
{
    for (uint32_t panel = call->panel_from; panel < call->panel_to; panel++) {
        uint32_t row = call->row_from;
        if (!form.halves) {
            for (; row + 6 <= call->row_to; row += 6) {
                tile_rows(call, x, row, panel, 6, 0, 1, form);
                tile_rows(call, x, row, panel, 6, 1, 1, form);
            }
            if (row + 4 <= call->row_to) {
                tile_rows(call, x, row, panel, 4, 0, 1, form);
                tile_rows(call, x, row, panel, 4, 1, 1, form);
                row += 4;
            }
        }
        for (; row + 2 <= call->row_to; row += 2) {
            tile_rows(call, x, row, panel, 2, 0, 2, form);
        }
        if (row < call->row_to) {
            tile_rows(call, x, row, panel, 1, 0, 2, form);
        }
    }
}

void
bh_avx2_matmul(const struct bh_matmul *call, const struct bh_act *x)
{
    switch (call->matrix->kind) {
    case BH_WEIGHT_Q4:
        run(call, x, (struct form){.u4 = true, .eight = true});
        break;
    case BH_WEIGHT_Q4M:
        run(call, x, (struct form){.u4 = true, .min = true});
        break;
    case BH_WEIGHT_Q4K:
        run(call, x, (struct form){.u4 = true, .min = true, .wide = true});
        break;
    case BH_WEIGHT_Q8:
        run(call, x, (struct form){.u4 = false});
        break;
    case BH_WEIGHT_Q8M:
        run(call, x, (struct form){.min = true});
        break;
    case BH_WEIGHT_Q8K:
        run(call, x, (struct form){.min = true, .wide = true});
        break;
    case BH_WEIGHT_Q6K:
        run(call, x, (struct form){.halves = true});
        break;
    default:
        break; /* float kinds have their own operation */
    }
}

BH_INLINE __m256
load_float(const uint8_t *step, int half, enum bh_weight_kind kind)
{
    if (kind == BH_WEIGHT_F32) {
        return load_factors(step + half * 32, true);
    }
    const uint8_t *from = step + half * 16;
    if (kind == BH_WEIGHT_F16) {
        return load_factors(from, false);
    }
    __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)from));
    return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}

BH_INLINE void
tile_float(const struct bh_matmul *call,
           const float *x,
           size_t x_stride,
           uint32_t row,
           uint32_t panel,
           int rows,
           enum bh_weight_kind kind)
{
    const struct bh_panels *matrix = call->matrix;
    size_t step_bytes = bh_panel_step_bytes(kind);
    const uint8_t *step = matrix->bytes + panel * bh_panel_bytes(kind, matrix->cols);
    __m256 acc[6][2];
    BH_UNROLL
    for (int r = 0; r < rows; r++) {
        acc[r][0] = _mm256_setzero_ps();
        acc[r][1] = _mm256_setzero_ps();
    }
    for (uint32_t col = 0; col < matrix->cols; col++, step += step_bytes) {
        __m256 low = load_float(step, 0, kind);
        __m256 high = load_float(step, 1, kind);
        BH_UNROLL
        for (int r = 0; r < rows; r++) {
            __m256 value = _mm256_broadcast_ss(&x[(row + (uint32_t)r) * x_stride + col]);
            acc[r][0] = _mm256_fmadd_ps(low, value, acc[r][0]);
            acc[r][1] = _mm256_fmadd_ps(high, value, acc[r][1]);
        }
    }
    BH_UNROLL
    for (int r = 0; r < rows; r++) {
        store_half(call, row + (uint32_t)r, panel * BH_PANEL_ROWS, acc[r][0]);
        store_half(call, row + (uint32_t)r, panel * BH_PANEL_ROWS + 8, acc[r][1]);
    }
}

BH_INLINE void
run_float(const struct bh_matmul *call, const float *x, size_t x_stride, enum bh_weight_kind kind)
{
    for (uint32_t panel = call->panel_from; panel < call->panel_to; panel++) {
        uint32_t row = call->row_from;
        for (; row + 6 <= call->row_to; row += 6) {
            tile_float(call, x, x_stride, row, panel, 6, kind);
        }
        for (; row + 2 <= call->row_to; row += 2) {
            tile_float(call, x, x_stride, row, panel, 2, kind);
        }
        if (row < call->row_to) {
            tile_float(call, x, x_stride, row, panel, 1, kind);
        }
    }
}

void
bh_avx2_matmul_float(const struct bh_matmul *call, const float *x, size_t x_stride)
{
    switch (call->matrix->kind) {
    case BH_WEIGHT_F32:
        run_float(call, x, x_stride, BH_WEIGHT_F32);
        break;
    case BH_WEIGHT_F16:
        run_float(call, x, x_stride, BH_WEIGHT_F16);
        break;
    case BH_WEIGHT_BF16:
        run_float(call, x, x_stride, BH_WEIGHT_BF16);
        break;
    default:
        break; /* quantized kinds have their own operation */
    }
}
