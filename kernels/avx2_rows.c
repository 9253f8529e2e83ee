/* Operations on one row at a time with AVX2: two vectors are the 16 lanes of the canonical sums.
   Same bits as ref_rows.c. */
#include <immintrin.h>

#include "kernels/avx2_canon.h"
#include "kernels/variants.h"

static uint32_t
reduce_max_u32(__m256i eight)
{
    __m128i four = _mm_max_epu32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
    __m128i two = _mm_max_epu32(four, _mm_shuffle_epi32(four, 0x4e));
    return (uint32_t)_mm_cvtsi128_si32(_mm_max_epu32(two, _mm_shuffle_epi32(two, 0xb1)));
}

static int32_t
reduce_add_i32(__m256i eight)
{
    __m128i four = _mm_add_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
    __m128i two = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(two, _mm_shuffle_epi32(two, 0xb1)));
}

/* One block; magnitudes are compared as bits, where infinity and NaN are the largest. */
static void
quantize_block(const float *x, const struct bh_act *out, size_t block)
{
    __m256 part[4];
    __m256i bits = _mm256_setzero_si256();
    BH_UNROLL
    for (int i = 0; i < 4; i++) {
        part[i] = _mm256_loadu_ps(x + i * 8);
        __m256i abs = _mm256_and_si256(_mm256_castps_si256(part[i]), _mm256_set1_epi32(0x7fffffff));
        bits = _mm256_max_epu32(bits, abs);
    }
    uint32_t amax_bits = reduce_max_u32(bits);
    bool finite = amax_bits < BH_F32_INF_BITS;
    bool empty = !finite || amax_bits < BH_QUANT_TINY_BITS;
    float amax = bh_f32_from_bits(amax_bits);
    __m256 inverse = _mm256_set1_ps(empty ? 0.0f : 127.0f / amax);
    __m256i keep = _mm256_set1_epi32(empty ? 0 : -1);
    __m256i q[4];
    BH_UNROLL
    for (int i = 0; i < 4; i++) {
        q[i] = _mm256_and_si256(keep, _mm256_cvtps_epi32(_mm256_mul_ps(part[i], inverse)));
    }
    __m256i low = _mm256_packs_epi32(q[0], q[1]);
    __m256i high = _mm256_packs_epi32(q[2], q[3]);
    __m256i bytes = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(low, high),
                                                _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    _mm256_storeu_si256((__m256i *)(out->q + block * BH_BLOCK_COLS), bytes);
    int32_t half_a = reduce_add_i32(_mm256_add_epi32(q[0], q[1]));
    int32_t half_b = reduce_add_i32(_mm256_add_epi32(q[2], q[3]));
    float scale = empty ? 0.0f : amax / 127.0f;
    scale = finite ? scale : bh_f32_from_bits(BH_F32_NAN_BITS);
    out->scale[block] = scale;
    out->sum[block] = scale * (float)(half_a + half_b);
    out->off[block] = -128 * (half_a + half_b);
    out->half_off[2 * block] = -128 * half_a;
    out->half_off[2 * block + 1] = -128 * half_b;
}

void
bh_avx2_quantize(
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
bh_avx2_norm(const float *x, const float *weight, float eps, uint32_t cols, float *out)
{
    __m256 sum[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
    for (uint32_t i = 0; i < cols; i += BH_LANES) {
        BH_UNROLL
        for (uint32_t h = 0; h < 2; h++) {
            __m256 value = _mm256_maskload_ps(x + i + h * 8, avx2_mask_left(i, h * 8, cols));
            sum[h] = _mm256_fmadd_ps(value, value, sum[h]);
        }
    }
    __m256 inverse = _mm256_set1_ps(1.0f / sqrtf(avx2_tree(sum[0], sum[1]) / (float)cols + eps));
    for (uint32_t i = 0; i < cols; i += 8) {
        __m256i mask = avx2_mask_left(i, 0, cols);
        __m256 value = _mm256_mul_ps(_mm256_maskload_ps(x + i, mask), inverse);
        _mm256_maskstore_ps(
            out + i, mask, _mm256_mul_ps(value, _mm256_maskload_ps(weight + i, mask)));
    }
}

void
bh_avx2_swiglu(const float *gate, const float *up, uint32_t cnt, float *out)
{
    __m256 one = _mm256_set1_ps(1.0f);
    __m256 sign = _mm256_set1_ps(-0.0f);
    for (uint32_t i = 0; i < cnt; i += 8) {
        __m256i mask = avx2_mask_left(i, 0, cnt);
        __m256 g = _mm256_maskload_ps(gate + i, mask);
        __m256 sigmoid = _mm256_div_ps(g, _mm256_add_ps(one, avx2_exp(_mm256_xor_ps(g, sign))));
        _mm256_maskstore_ps(
            out + i, mask, _mm256_mul_ps(sigmoid, _mm256_maskload_ps(up + i, mask)));
    }
}

void
bh_avx2_halve(const float *x, uint32_t cnt, uint16_t *out)
{
    uint32_t i = 0;
    for (; i + 8 <= cnt; i += 8) {
        __m128i half = _mm256_cvtps_ph(_mm256_loadu_ps(x + i), _MM_FROUND_TO_NEAREST_INT);
        _mm_storeu_si128((__m128i *)(out + i), half);
    }
    for (; i < cnt; i++) {
        out[i] = bh_f16_from_f32(x[i]);
    }
}
