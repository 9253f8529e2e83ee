/* Operations on one row at a time with AVX-512: one vector is the 16 lanes of the canonical sums.
   Same bits as ref_rows.c. */
#include <immintrin.h>

#include "kernels/avx512_canon.h"
#include "kernels/variants.h"

/* One block; `magnitudes` as bits, where infinity and NaN are the largest. */
static void
quantize_block(const float *x, const struct bh_act *out, size_t block)
{
    __m512 a = _mm512_loadu_ps(x);
    __m512 b = _mm512_loadu_ps(x + 16);
    __m512i abs_mask = _mm512_set1_epi32(0x7fffffff);
    __m512i bits = _mm512_max_epu32(_mm512_and_si512(_mm512_castps_si512(a), abs_mask),
                                    _mm512_and_si512(_mm512_castps_si512(b), abs_mask));
    uint32_t amax_bits = _mm512_reduce_max_epu32(bits);
    bool finite = amax_bits < BH_F32_INF_BITS;
    bool empty = !finite || amax_bits < BH_QUANT_TINY_BITS;
    float amax = bh_f32_from_bits(amax_bits);
    __m512 inverse = _mm512_set1_ps(empty ? 0.0f : 127.0f / amax);
    __mmask16 keep = empty ? 0 : 0xffff;
    __m512i qa = _mm512_cvtps_epi32(_mm512_maskz_mul_ps(keep, a, inverse));
    __m512i qb = _mm512_cvtps_epi32(_mm512_maskz_mul_ps(keep, b, inverse));
    int8_t *q = out->q + block * BH_BLOCK_COLS;
    _mm_storeu_si128((__m128i *)q, _mm512_cvtepi32_epi8(qa));
    _mm_storeu_si128((__m128i *)(q + 16), _mm512_cvtepi32_epi8(qb));
    int32_t half_a = _mm512_reduce_add_epi32(qa);
    int32_t half_b = _mm512_reduce_add_epi32(qb);
    float scale = empty ? 0.0f : amax / 127.0f;
    scale = finite ? scale : bh_f32_from_bits(BH_F32_NAN_BITS);
    out->scale[block] = scale;
    out->sum[block] = scale * (float)(half_a + half_b);
    out->off[block] = -128 * (half_a + half_b);
    out->half_off[2 * block] = -128 * half_a;
    out->half_off[2 * block + 1] = -128 * half_b;
}

void
bh_avx512_quantize(
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

static __mmask16
lanes_left(uint32_t from, uint32_t to)
{
    return (__mmask16)(to - from >= BH_LANES ? 0xffffu : (1u << (to - from)) - 1u);
}

void
bh_avx512_norm(const float *x, const float *weight, float eps, uint32_t cols, float *out)
{
    __m512 sum = _mm512_setzero_ps();
    for (uint32_t i = 0; i < cols; i += BH_LANES) {
        __m512 value = _mm512_maskz_loadu_ps(lanes_left(i, cols), x + i);
        sum = _mm512_fmadd_ps(value, value, sum);
    }
    __m512 inverse = _mm512_set1_ps(1.0f / sqrtf(avx512_tree(sum) / (float)cols + eps));
    for (uint32_t i = 0; i < cols; i += BH_LANES) {
        __mmask16 mask = lanes_left(i, cols);
        __m512 value = _mm512_mul_ps(_mm512_maskz_loadu_ps(mask, x + i), inverse);
        _mm512_mask_storeu_ps(
            out + i, mask, _mm512_mul_ps(value, _mm512_maskz_loadu_ps(mask, weight + i)));
    }
}

void
bh_avx512_swiglu(const float *gate, const float *up, uint32_t cnt, float *out)
{
    __m512 one = _mm512_set1_ps(1.0f);
    __m512i sign = _mm512_set1_epi32((int)0x80000000u);
    for (uint32_t i = 0; i < cnt; i += BH_LANES) {
        __mmask16 mask = lanes_left(i, cnt);
        __m512 g = _mm512_maskz_loadu_ps(mask, gate + i);
        __m512 minus = _mm512_castsi512_ps(_mm512_xor_si512(_mm512_castps_si512(g), sign));
        __m512 sigmoid = _mm512_div_ps(g, _mm512_add_ps(one, avx512_exp(minus)));
        _mm512_mask_storeu_ps(
            out + i, mask, _mm512_mul_ps(sigmoid, _mm512_maskz_loadu_ps(mask, up + i)));
    }
}

void
bh_avx512_halve(const float *x, uint32_t cnt, uint16_t *out)
{
    for (uint32_t i = 0; i < cnt; i += BH_LANES) {
        __mmask16 mask = lanes_left(i, cnt);
        __m256i half =
            _mm512_cvtps_ph(_mm512_maskz_loadu_ps(mask, x + i), _MM_FROUND_TO_NEAREST_INT);
        _mm256_mask_storeu_epi16(out + i, mask, half);
    }
}
