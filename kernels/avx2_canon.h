/* The operations of canon.h on 8 lanes at once; a pair of vectors is the 16 lanes of the canonical
   sums. Included by the AVX2 files only. */
#ifndef BH_KERNELS_AVX2_CANON_H
#define BH_KERNELS_AVX2_CANON_H

#include <immintrin.h>

#include "kernels/canon.h"
#include "kernels/unroll.h"

BH_INLINE __m256
avx2_exp(__m256 x)
{
    x = _mm256_max_ps(_mm256_set1_ps(BH_EXP_LO), x);
    x = _mm256_min_ps(_mm256_set1_ps(BH_EXP_HI), x);
    __m256 t = _mm256_fmadd_ps(x, _mm256_set1_ps(BH_EXP_LOG2E), _mm256_set1_ps(BH_EXP_MAGIC));
    __m256 n = _mm256_sub_ps(t, _mm256_set1_ps(BH_EXP_MAGIC));
    __m256 r = _mm256_fmadd_ps(n, _mm256_set1_ps(-BH_EXP_LN2HI), x);
    r = _mm256_fmadd_ps(n, _mm256_set1_ps(-BH_EXP_LN2LO), r);
    __m256 p = _mm256_fmadd_ps(_mm256_set1_ps(BH_EXP_C7), r, _mm256_set1_ps(BH_EXP_C6));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(BH_EXP_C5));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(BH_EXP_C4));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(BH_EXP_C3));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(BH_EXP_C2));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f));
    __m256i power =
        _mm256_slli_epi32(_mm256_add_epi32(_mm256_castps_si256(t), _mm256_set1_epi32(127)), 23);
    return _mm256_mul_ps(p, _mm256_castsi256_ps(power));
}

BH_INLINE float
avx2_tree(__m256 low, __m256 high)
{
    __m256 eight = _mm256_add_ps(low, high);
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

BH_INLINE float
avx2_tree_max(__m256 low, __m256 high)
{
    __m256 eight = _mm256_max_ps(high, low);
    __m128 four = _mm_max_ps(_mm256_extractf128_ps(eight, 1), _mm256_castps256_ps128(eight));
    __m128 two = _mm_max_ps(_mm_movehl_ps(four, four), four);
    return _mm_cvtss_f32(_mm_max_ss(_mm_movehdup_ps(two), two));
}

/* All ones in the first `cnt` (0..8) lanes. */
BH_INLINE __m256i
avx2_mask(uint32_t cnt)
{
    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)cnt),
                              _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

/* The same for a run of elements [from, to): lanes that exist at from + skip. */
BH_INLINE __m256i
avx2_mask_left(uint32_t from, uint32_t skip, uint32_t to)
{
    uint32_t left = to > from + skip ? to - from - skip : 0;
    return avx2_mask(left > 8 ? 8 : left);
}

#endif
