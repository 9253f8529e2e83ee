/* The operations of canon.h on 16 lanes at once. Included by the AVX-512 files only. */
#ifndef BH_KERNELS_AVX512_CANON_H
#define BH_KERNELS_AVX512_CANON_H

#include <immintrin.h>

#include "kernels/canon.h"
#include "kernels/unroll.h"

BH_INLINE __m512
avx512_exp(__m512 x)
{
    x = _mm512_max_ps(_mm512_set1_ps(BH_EXP_LO), x);
    x = _mm512_min_ps(_mm512_set1_ps(BH_EXP_HI), x);
    __m512 t = _mm512_fmadd_ps(x, _mm512_set1_ps(BH_EXP_LOG2E), _mm512_set1_ps(BH_EXP_MAGIC));
    __m512 n = _mm512_sub_ps(t, _mm512_set1_ps(BH_EXP_MAGIC));
    __m512 r = _mm512_fmadd_ps(n, _mm512_set1_ps(-BH_EXP_LN2HI), x);
    r = _mm512_fmadd_ps(n, _mm512_set1_ps(-BH_EXP_LN2LO), r);
    __m512 p = _mm512_fmadd_ps(_mm512_set1_ps(BH_EXP_C7), r, _mm512_set1_ps(BH_EXP_C6));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(BH_EXP_C5));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(BH_EXP_C4));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(BH_EXP_C3));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(BH_EXP_C2));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f));
    __m512i power =
        _mm512_slli_epi32(_mm512_add_epi32(_mm512_castps_si512(t), _mm512_set1_epi32(127)), 23);
    return _mm512_mul_ps(p, _mm512_castsi512_ps(power));
}

BH_INLINE float
avx512_tree(__m512 lanes)
{
    __m256 high = _mm512_extractf32x8_ps(lanes, 1);
    __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(lanes), high);
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

/* The maximum over lanes in the same tree: max(upper, lower), so that a NaN is ignored as in ref. */
BH_INLINE float
avx512_tree_max(__m512 lanes)
{
    __m256 high = _mm512_extractf32x8_ps(lanes, 1);
    __m256 eight = _mm256_max_ps(high, _mm512_castps512_ps256(lanes));
    __m128 four = _mm_max_ps(_mm256_extractf128_ps(eight, 1), _mm256_castps256_ps128(eight));
    __m128 two = _mm_max_ps(_mm_movehl_ps(four, four), four);
    return _mm_cvtss_f32(_mm_max_ss(_mm_movehdup_ps(two), two));
}

#endif
