/* The three inner operations of attention with AVX2, FMA and F16C. Same bits as ref_attend.c. */
#include <immintrin.h>

#include "kernels/avx2_canon.h"
#include "kernels/variants.h"

BH_INLINE __m256
load_elems(const uint8_t *bytes, size_t idx, bool wide)
{
    return wide ? _mm256_loadu_ps((const float *)(const void *)(bytes + idx * 4))
                : _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(bytes + idx * 2)));
}

/* `cnt` queries by `vecs` vectors of 8 tokens: accumulators stay in registers over head_dim. */
BH_INLINE void
scores_tile(const struct bh_queries *queries,
            const struct bh_page_part *k,
            uint32_t q_from,
            uint32_t tok,
            int cnt,
            int vecs,
            bool wide,
            float *scores,
            size_t stride)
{
    __m256 acc[6][4];
    const float *q = queries->q + (size_t)q_from * queries->head_dim;
    BH_UNROLL
    for (int i = 0; i < cnt; i++) {
        BH_UNROLL
        for (int v = 0; v < vecs; v++) {
            acc[i][v] = _mm256_setzero_ps();
        }
    }
    for (size_t d = 0; d < queries->head_dim; d++) {
        __m256 key[4];
        BH_UNROLL
        for (int v = 0; v < vecs; v++) {
            key[v] = load_elems(k->bytes, d * k->page_tokens + tok + (size_t)v * 8, wide);
        }
        BH_UNROLL
        for (int i = 0; i < cnt; i++) {
            __m256 x = _mm256_set1_ps(q[(size_t)i * queries->head_dim + d]);
            BH_UNROLL
            for (int v = 0; v < vecs; v++) {
                acc[i][v] = _mm256_fmadd_ps(x, key[v], acc[i][v]);
            }
        }
    }
    BH_UNROLL
    for (int i = 0; i < cnt; i++) {
        BH_UNROLL
        for (int v = 0; v < vecs; v++) {
            _mm256_storeu_ps(scores + (q_from + (size_t)i) * stride + tok + (size_t)v * 8,
                             acc[i][v]);
        }
    }
}

/* All tokens for `cnt` queries, `vecs` vectors at a time and the rest one by one. */
BH_INLINE void
scores_row(const struct bh_queries *queries,
           const struct bh_page_part *k,
           uint32_t q_from,
           int cnt,
           int vecs,
           bool wide,
           float *scores,
           size_t stride)
{
    uint32_t tok_to = (uint32_t)bh_round_up(k->tok_to, BH_LANES);
    uint32_t width = (uint32_t)vecs * 8;
    uint32_t tok = 0;
    for (; tok + width <= tok_to; tok += width) {
        scores_tile(queries, k, q_from, tok, cnt, vecs, wide, scores, stride);
    }
    for (; tok < tok_to; tok += 8) {
        scores_tile(queries, k, q_from, tok, cnt, 1, wide, scores, stride);
    }
}

BH_INLINE void
scores_all(const struct bh_queries *queries,
           const struct bh_page_part *k,
           bool wide,
           float *scores,
           size_t stride)
{
    uint32_t q = 0;
    for (; q + 6 <= queries->q_cnt; q += 6) {
        scores_row(queries, k, q, 6, 2, wide, scores, stride);
    }
    for (; q + 3 <= queries->q_cnt; q += 3) {
        scores_row(queries, k, q, 3, 4, wide, scores, stride);
    }
    for (; q < queries->q_cnt; q++) {
        scores_row(queries, k, q, 1, 4, wide, scores, stride);
    }
}

void
bh_avx2_scores(const struct bh_queries *queries,
               const struct bh_page_part *k,
               float *scores,
               size_t stride)
{
    if (k->elem_bytes == 4) {
        scores_all(queries, k, true, scores, stride);
    } else {
        scores_all(queries, k, false, scores, stride);
    }
}

void
bh_avx2_softmax(float *scores, uint32_t tok_cnt, float *max, float *sum)
{
    __m256 lane_max[2] = {_mm256_set1_ps(-INFINITY), _mm256_set1_ps(-INFINITY)};
    __m256 lane_sum[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
    for (uint32_t t = 0; t < tok_cnt; t += BH_LANES) {
        BH_UNROLL
        for (uint32_t h = 0; h < 2; h++) {
            __m256 mask = _mm256_castsi256_ps(avx2_mask_left(t, h * 8, tok_cnt));
            __m256 more = _mm256_max_ps(_mm256_loadu_ps(scores + t + h * 8), lane_max[h]);
            lane_max[h] = _mm256_blendv_ps(lane_max[h], more, mask);
        }
    }
    float top = avx2_tree_max(lane_max[0], lane_max[1]);
    for (uint32_t t = 0; t < tok_cnt; t += BH_LANES) {
        BH_UNROLL
        for (uint32_t h = 0; h < 2; h++) {
            __m256 mask = _mm256_castsi256_ps(avx2_mask_left(t, h * 8, tok_cnt));
            __m256 p =
                avx2_exp(_mm256_sub_ps(_mm256_loadu_ps(scores + t + h * 8), _mm256_set1_ps(top)));
            p = _mm256_and_ps(p, mask);
            lane_sum[h] = _mm256_add_ps(lane_sum[h], p);
            _mm256_storeu_ps(scores + t + h * 8, p);
        }
    }
    *max = top;
    *sum = avx2_tree(lane_sum[0], lane_sum[1]);
}

/* `cnt` queries by `vecs` vectors of 8 outputs over all tokens of the part. */
BH_INLINE void
values_tile(const float *probs,
            size_t stride,
            uint32_t head_dim,
            const struct bh_page_part *v,
            int cnt,
            int vecs,
            bool wide,
            float *out)
{
    __m256 acc[6][4];
    BH_UNROLL
    for (int i = 0; i < cnt; i++) {
        BH_UNROLL
        for (int j = 0; j < vecs; j++) {
            acc[i][j] = _mm256_loadu_ps(out + (size_t)i * head_dim + (size_t)j * 8);
        }
    }
    for (uint32_t t = v->tok_from; t < v->tok_to; t++) {
        __m256 value[4];
        BH_UNROLL
        for (int j = 0; j < vecs; j++) {
            value[j] = load_elems(v->bytes, (size_t)t * head_dim + (size_t)j * 8, wide);
        }
        BH_UNROLL
        for (int i = 0; i < cnt; i++) {
            __m256 p = _mm256_set1_ps(probs[(size_t)i * stride + t - v->tok_from]);
            BH_UNROLL
            for (int j = 0; j < vecs; j++) {
                acc[i][j] = _mm256_fmadd_ps(p, value[j], acc[i][j]);
            }
        }
    }
    BH_UNROLL
    for (int i = 0; i < cnt; i++) {
        BH_UNROLL
        for (int j = 0; j < vecs; j++) {
            _mm256_storeu_ps(out + (size_t)i * head_dim + (size_t)j * 8, acc[i][j]);
        }
    }
}

BH_INLINE void
values_row(const float *probs,
           size_t stride,
           uint32_t head_dim,
           const struct bh_page_part *v,
           int cnt,
           int vecs,
           bool wide,
           float *out)
{
    struct bh_page_part part = *v;
    size_t elem = wide ? 4 : 2;
    uint32_t width = (uint32_t)vecs * 8;
    uint32_t d = 0;
    for (; d + width <= head_dim; d += width) {
        part.bytes = v->bytes + d * elem;
        values_tile(probs, stride, head_dim, &part, cnt, vecs, wide, out + d);
    }
    for (; d < head_dim; d += 8) {
        part.bytes = v->bytes + d * elem;
        values_tile(probs, stride, head_dim, &part, cnt, 1, wide, out + d);
    }
}

BH_INLINE void
values_all(const float *probs,
           size_t stride,
           uint32_t q_cnt,
           uint32_t head_dim,
           const struct bh_page_part *v,
           bool wide,
           float *out)
{
    uint32_t q = 0;
    for (; q + 6 <= q_cnt; q += 6) {
        values_row(probs + q * stride, stride, head_dim, v, 6, 2, wide, out + (size_t)q * head_dim);
    }
    for (; q + 3 <= q_cnt; q += 3) {
        values_row(probs + q * stride, stride, head_dim, v, 3, 4, wide, out + (size_t)q * head_dim);
    }
    for (; q < q_cnt; q++) {
        values_row(probs + q * stride, stride, head_dim, v, 1, 4, wide, out + (size_t)q * head_dim);
    }
}

void
bh_avx2_values(const float *probs,
               size_t stride,
               uint32_t q_cnt,
               uint32_t head_dim,
               const struct bh_page_part *v,
               float *out)
{
    if (v->elem_bytes == 4) {
        values_all(probs, stride, q_cnt, head_dim, v, true, out);
    } else {
        values_all(probs, stride, q_cnt, head_dim, v, false, out);
    }
}

const struct bh_kernels bh_kernels_avx2 = {
    .name = "avx2",
    .quantize = bh_avx2_quantize,
    .matmul = bh_avx2_matmul,
    .matmul_float = bh_avx2_matmul_float,
    .norm = bh_avx2_norm,
    .swiglu = bh_avx2_swiglu,
    .halve = bh_avx2_halve,
    .scores = bh_avx2_scores,
    .softmax = bh_avx2_softmax,
    .values = bh_avx2_values,
};
