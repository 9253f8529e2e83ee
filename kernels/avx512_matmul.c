/* Matrix products with AVX-512 and VNNI: tiles of up to 6 rows by two panels (32 outputs), one
   64-byte vector per panel and step of four inputs, integer accumulators that start at the correction
   for the unsigned storage of signed weights. Same bits as ref_matmul.c. */
#include <immintrin.h>

#include "kernels/canon.h"
#include "kernels/unroll.h"
#include "kernels/variants.h"

#define PANELS 2

/* How far ahead of the computation weights are asked for. */
#define PREFETCH_BYTES 2048

/* What differs between quantized kinds; always a constant after inlining. */
struct form {
    bool u4;
    bool wide;   /* scales and minima are f32 */
    bool min;    /* there are minima */
    bool halves; /* a factor for each half of the block (Q6K) */
    int shift;   /* the offset of stored numbers is 128 >> shift; 31: none */
};

struct tile {
    const uint8_t *panel[PANELS];
    const int8_t *q[6];
    const float *scale[6];
    const float *sum[6];
    const int32_t *off[6];
    const int32_t *half_off[6];
};

BH_INLINE __m512
load_factors(const uint8_t *from, bool wide)
{
    return wide ? _mm512_loadu_ps(from)
                : _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)from));
}

BH_INLINE __m512i
broadcast_i32(const void *from)
{
    return _mm512_set1_epi32(bh_load_i32(from));
}

/* The 64 weights of step `s` (0..7) of the block, as unsigned bytes. */
BH_INLINE __m512i
load_step(const uint8_t *block, int s, bool u4)
{
    if (!u4) {
        return _mm512_loadu_si512(block + s * 64);
    }
    __m512i pair = _mm512_loadu_si512(block + (s & 3) * 64);
    return _mm512_and_si512(s < 4 ? pair : _mm512_srli_epi16(pair, 4), _mm512_set1_epi8(15));
}

/* Steps [s_from, s_to) of one block for all rows and panels of the tile, added to `sums`. */
BH_INLINE void
block_steps(const struct tile *tile,
            const uint8_t *const *block,
            size_t q_at,
            int s_from,
            int s_to,
            struct form form,
            int rows,
            __m512i sums[6][PANELS])
{
    BH_UNROLL
    for (int s = s_from; s < s_to; s++) {
        __m512i w0 = load_step(block[0], s, form.u4);
        __m512i w1 = load_step(block[1], s, form.u4);
        BH_UNROLL
        for (int r = 0; r < rows; r++) {
            __m512i x = broadcast_i32(tile->q[r] + q_at + (size_t)s * 4);
            sums[r][0] = _mm512_dpbusd_epi32(sums[r][0], w0, x);
            sums[r][1] = _mm512_dpbusd_epi32(sums[r][1], w1, x);
        }
    }
}

/* Exact integer sums of a block of kind Q6K: each half times its factor. */
BH_INLINE void
block_halves(const struct tile *tile,
             const uint8_t *const *block,
             size_t b,
             struct form form,
             int rows,
             __m512i sums[6][PANELS])
{
    BH_UNROLL
    for (int half = 0; half < 2; half++) {
        __m512i part[6][PANELS];
        BH_UNROLL
        for (int r = 0; r < rows; r++) {
            part[r][0] = broadcast_i32(tile->half_off[r] + 2 * b + (size_t)half);
            part[r][1] = part[r][0];
        }
        block_steps(tile, block, b * BH_BLOCK_COLS, half * 4, half * 4 + 4, form, rows, part);
        BH_UNROLL
        for (int p = 0; p < PANELS; p++) {
            const uint8_t *factors = block[p] + 512 + 32 + half * 16;
            __m512i factor = _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)factors));
            BH_UNROLL
            for (int r = 0; r < rows; r++) {
                sums[r][p] = _mm512_add_epi32(sums[r][p], _mm512_mullo_epi32(part[r][p], factor));
            }
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

BH_INLINE void
tile_run(const struct tile *tile,
         uint32_t blocks,
         size_t step_bytes,
         struct form form,
         int rows,
         __m512 acc[6][PANELS])
{
    size_t numbers = form.u4 ? 256 : 512;
    size_t width = form.wide ? 64 : 32;
    BH_UNROLL
    for (int r = 0; r < rows; r++) {
        acc[r][0] = _mm512_setzero_ps();
        acc[r][1] = _mm512_setzero_ps();
    }
    for (size_t b = 0; b < blocks; b++) {
        const uint8_t *const block[PANELS] = {tile->panel[0] + b * step_bytes,
                                              tile->panel[1] + b * step_bytes};
        if (rows <= 2) {
            prefetch(block[0], step_bytes);
            prefetch(block[1], step_bytes);
        }
        __m512i sums[6][PANELS];
        BH_UNROLL
        for (int r = 0; r < rows; r++) {
            sums[r][0] = form.shift == 31 || form.halves
                             ? _mm512_setzero_si512()
                             : _mm512_set1_epi32(tile->off[r][b] >> form.shift);
            sums[r][1] = sums[r][0];
        }
        if (form.halves) {
            block_halves(tile, block, b, form, rows, sums);
        } else {
            block_steps(tile, block, b * BH_BLOCK_COLS, 0, 8, form, rows, sums);
        }
        BH_UNROLL
        for (int p = 0; p < PANELS; p++) {
            __m512 scale = load_factors(block[p] + numbers, form.wide);
            __m512 min = form.min ? load_factors(block[p] + numbers + width, form.wide) : scale;
            BH_UNROLL
            for (int r = 0; r < rows; r++) {
                __m512 both = _mm512_mul_ps(scale, _mm512_set1_ps(tile->scale[r][b]));
                acc[r][p] = _mm512_fmadd_ps(both, _mm512_cvtepi32_ps(sums[r][p]), acc[r][p]);
                if (form.min) {
                    acc[r][p] = _mm512_fmadd_ps(min, _mm512_set1_ps(tile->sum[r][b]), acc[r][p]);
                }
            }
        }
    }
}

/* Outputs of one panel for one row; a last panel with fewer than 16 outputs is masked. */
BH_INLINE void
store_panel(const struct bh_matmul *call, uint32_t row, uint32_t panel, __m512 value)
{
    uint32_t left = call->matrix->rows - panel * BH_PANEL_ROWS;
    __mmask16 mask = (__mmask16)(left >= BH_PANEL_ROWS ? 0xffffu : (1u << left) - 1u);
    float *out = call->out + row * call->out_stride + panel * BH_PANEL_ROWS;
    if (call->add) {
        value = _mm512_add_ps(_mm512_maskz_loadu_ps(mask, out), value);
    }
    _mm512_mask_storeu_ps(out, mask, value);
}

BH_INLINE void
store_tile(
    const struct bh_matmul *call, uint32_t row, uint32_t panel, int rows, __m512 acc[][PANELS])
{
    BH_UNROLL
    for (int r = 0; r < rows; r++) {
        store_panel(call, row + (uint32_t)r, panel, acc[r][0]);
        if (panel + 1 < call->panel_to) {
            store_panel(call, row + (uint32_t)r, panel + 1, acc[r][1]);
        }
    }
}

BH_INLINE void
tile_rows(const struct bh_matmul *call,
          const struct bh_act *x,
          uint32_t row,
          uint32_t panel,
          int rows,
          struct form form)
{
    const struct bh_panels *matrix = call->matrix;
    uint32_t blocks = matrix->cols / BH_BLOCK_COLS;
    size_t panel_bytes = bh_panel_bytes(matrix->kind, matrix->cols);
    struct tile tile;
    tile.panel[0] = matrix->bytes + panel * panel_bytes;
    tile.panel[1] = panel + 1 < call->panel_to ? tile.panel[0] + panel_bytes : tile.panel[0];
    BH_UNROLL
    for (int r = 0; r < rows; r++) {
        size_t x_block = (size_t)(row + (uint32_t)r) * blocks;
        tile.q[r] = x->q + x_block * BH_BLOCK_COLS;
        tile.scale[r] = x->scale + x_block;
        tile.sum[r] = x->sum + x_block;
        tile.off[r] = x->off + x_block;
        tile.half_off[r] = x->half_off + 2 * x_block;
    }
    __m512 acc[6][PANELS];
    tile_run(&tile, blocks, bh_panel_step_bytes(matrix->kind), form, rows, acc);
    store_tile(call, row, panel, rows, acc);
}

BH_INLINE void
run(const struct bh_matmul *call, const struct bh_act *x, struct form form)
{
    for (uint32_t panel = call->panel_from; panel < call->panel_to; panel += PANELS) {
        uint32_t row = call->row_from;
        for (; row + 6 <= call->row_to; row += 6) {
            tile_rows(call, x, row, panel, 6, form);
        }
        if (row + 4 <= call->row_to) {
            tile_rows(call, x, row, panel, 4, form);
            row += 4;
        }
        if (row + 2 <= call->row_to) {
            tile_rows(call, x, row, panel, 2, form);
            row += 2;
        }
        if (row < call->row_to) {
            tile_rows(call, x, row, panel, 1, form);
        }
    }
}

void
bh_avx512_matmul(const struct bh_matmul *call, const struct bh_act *x)
{
    switch (call->matrix->kind) {
    case BH_WEIGHT_Q4:
        run(call, x, (struct form){.u4 = true, .shift = 4});
        break;
    case BH_WEIGHT_Q4M:
        run(call, x, (struct form){.u4 = true, .min = true, .shift = 31});
        break;
    case BH_WEIGHT_Q4K:
        run(call, x, (struct form){.u4 = true, .min = true, .wide = true, .shift = 31});
        break;
    case BH_WEIGHT_Q8:
        run(call, x, (struct form){.shift = 0});
        break;
    case BH_WEIGHT_Q8M:
        run(call, x, (struct form){.min = true, .shift = 0});
        break;
    case BH_WEIGHT_Q8K:
        run(call, x, (struct form){.min = true, .wide = true, .shift = 0});
        break;
    case BH_WEIGHT_Q6K:
        run(call, x, (struct form){.halves = true, .shift = 0});
        break;
    default:
        break; /* float kinds have their own operation */
    }
}

BH_INLINE __m512
load_float(const uint8_t *from, enum bh_weight_kind kind)
{
    if (kind == BH_WEIGHT_F32) {
        return _mm512_loadu_ps(from);
    }
    __m256i half = _mm256_loadu_si256((const __m256i *)from);
    return kind == BH_WEIGHT_F16
               ? _mm512_cvtph_ps(half)
               : _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
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
    size_t panel_bytes = bh_panel_bytes(kind, matrix->cols);
    size_t step_bytes = bh_panel_step_bytes(kind);
    const uint8_t *w0 = matrix->bytes + panel * panel_bytes;
    const uint8_t *w1 = panel + 1 < call->panel_to ? w0 + panel_bytes : w0;
    __m512 acc[8][PANELS];
    BH_UNROLL
    for (int r = 0; r < rows; r++) {
        acc[r][0] = _mm512_setzero_ps();
        acc[r][1] = _mm512_setzero_ps();
    }
    for (uint32_t col = 0; col < matrix->cols; col++) {
        __m512 a = load_float(w0 + col * step_bytes, kind);
        __m512 b = load_float(w1 + col * step_bytes, kind);
        BH_UNROLL
        for (int r = 0; r < rows; r++) {
            __m512 value = _mm512_set1_ps(x[(row + (uint32_t)r) * x_stride + col]);
            acc[r][0] = _mm512_fmadd_ps(a, value, acc[r][0]);
            acc[r][1] = _mm512_fmadd_ps(b, value, acc[r][1]);
        }
    }
    store_tile(call, row, panel, rows, acc);
}

BH_INLINE void
run_float(const struct bh_matmul *call, const float *x, size_t x_stride, enum bh_weight_kind kind)
{
    for (uint32_t panel = call->panel_from; panel < call->panel_to; panel += PANELS) {
        uint32_t row = call->row_from;
        for (; row + 8 <= call->row_to; row += 8) {
            tile_float(call, x, x_stride, row, panel, 8, kind);
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
bh_avx512_matmul_float(const struct bh_matmul *call, const float *x, size_t x_stride)
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
