/* The three inner operations of attention with AVX-512. Same bits as ref_attend.c. */
#include <immintrin.h>

#include "kernels/avx512_canon.h"
#include "kernels/variants.h"

BH_INLINE __m512
load_elems(const uint8_t *bytes, size_t idx, bool wide)
{
    return wide ? _mm512_loadu_ps(bytes + idx * 4)
                : _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(bytes + idx * 2)));
}

/* `cnt` queries by `vecs` vectors of 16 tokens: accumulators stay in registers over head_dim. */
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
    __m512 acc[12][4];
    const float *q = queries->q + (size_t)q_from * queries->head_dim;
    BH_UNROLL
    for (int i = 0; i < cnt; i++) {
        BH_UNROLL
        for (int v = 0; v < vecs; v++) {
            acc[i][v] = _mm512_setzero_ps();
        }
    }
    for (size_t d = 0; d < queries->head_dim; d++) {
        __m512 key[4];
        BH_UNROLL
        for (int v = 0; v < vecs; v++) {
            key[v] = load_elems(k->bytes, d * k->page_tokens + tok + (size_t)v * 16, wide);
        }
        BH_UNROLL
        for (int i = 0; i < cnt; i++) {
            __m512 x = _mm512_set1_ps(q[(size_t)i * queries->head_dim + d]);
            BH_UNROLL
            for (int v = 0; v < vecs; v++) {
                acc[i][v] = _mm512_fmadd_ps(x, key[v], acc[i][v]);
            }
        }
    }
    BH_UNROLL
    for (int i = 0; i < cnt; i++) {
        BH_UNROLL
        for (int v = 0; v < vecs; v++) {
            _mm512_storeu_ps(scores + (q_from + (size_t)i) * stride + tok + (size_t)v * 16,
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
    uint32_t width = (uint32_t)vecs * 16;
    uint32_t tok = 0;
    for (; tok + width <= tok_to; tok += width) {
        scores_tile(queries, k, q_from, tok, cnt, vecs, wide, scores, stride);
    }
    for (; tok < tok_to; tok += 16) {
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
    for (; q + 12 <= queries->q_cnt; q += 12) {
        scores_row(queries, k, q, 12, 2, wide, scores, stride);
    }
    for (; q + 4 <= queries->q_cnt; q += 4) {
        scores_row(queries, k, q, 4, 4, wide, scores, stride);
    }
    if (q + 3 == queries->q_cnt) {
        scores_row(queries, k, q, 3, 4, wide, scores, stride);
        return;
    }
    for (; q < queries->q_cnt; q++) {
        scores_row(queries, k, q, 1, 4, wide, scores, stride);
    }
}

void
bh_avx512_scores(const struct bh_queries *queries,
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
bh_avx512_softmax(float *scores, uint32_t tok_cnt, float *max, float *sum)
{
    __m512 lane_max = _mm512_set1_ps(-INFINITY);
    __m512 lane_sum = _mm512_setzero_ps();
    uint32_t whole = tok_cnt / BH_LANES * BH_LANES;
    __mmask16 rest = (__mmask16)((1u << (tok_cnt - whole)) - 1u);
    for (uint32_t t = 0; t < whole; t += BH_LANES) {
        lane_max = _mm512_max_ps(_mm512_loadu_ps(scores + t), lane_max);
    }
    if (rest != 0) {
        lane_max = _mm512_mask_max_ps(lane_max, rest, _mm512_loadu_ps(scores + whole), lane_max);
    }
    float top = avx512_tree_max(lane_max);
    for (uint32_t t = 0; t < whole; t += BH_LANES) {
        __m512 p = avx512_exp(_mm512_sub_ps(_mm512_loadu_ps(scores + t), _mm512_set1_ps(top)));
        lane_sum = _mm512_add_ps(lane_sum, p);
        _mm512_storeu_ps(scores + t, p);
    }
    if (rest != 0) {
        __m512 p = avx512_exp(_mm512_sub_ps(_mm512_loadu_ps(scores + whole), _mm512_set1_ps(top)));
        p = _mm512_maskz_mov_ps(rest, p);
        lane_sum = _mm512_add_ps(lane_sum, p);
        _mm512_storeu_ps(scores + whole, p);
    }
    *max = top;
    *sum = avx512_tree(lane_sum);
}

/* `cnt` queries by `vecs` vectors of 16 outputs over all tokens of the part. */
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
    __m512 acc[12][4];
    BH_UNROLL
    for (int i = 0; i < cnt; i++) {
        BH_UNROLL
        for (int j = 0; j < vecs; j++) {
            acc[i][j] = _mm512_loadu_ps(out + (size_t)i * head_dim + (size_t)j * 16);
        }
    }
    for (uint32_t t = v->tok_from; t < v->tok_to; t++) {
        __m512 value[4];
        BH_UNROLL
        for (int j = 0; j < vecs; j++) {
            value[j] = load_elems(v->bytes, (size_t)t * head_dim + (size_t)j * 16, wide);
        }
        BH_UNROLL
        for (int i = 0; i < cnt; i++) {
            __m512 p = _mm512_set1_ps(probs[(size_t)i * stride + t - v->tok_from]);
            BH_UNROLL
            for (int j = 0; j < vecs; j++) {
                acc[i][j] = _mm512_fmadd_ps(p, value[j], acc[i][j]);
            }
        }
    }
    BH_UNROLL
    for (int i = 0; i < cnt; i++) {
        BH_UNROLL
        for (int j = 0; j < vecs; j++) {
            _mm512_storeu_ps(out + (size_t)i * head_dim + (size_t)j * 16, acc[i][j]);
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
    uint32_t width = (uint32_t)vecs * 16;
    uint32_t d = 0;
    for (; d + width <= head_dim; d += width) {
        part.bytes = v->bytes + d * elem;
        values_tile(probs, stride, head_dim, &part, cnt, vecs, wide, out + d);
    }
    for (; d < head_dim; d += 16) {
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
    for (; q + 12 <= q_cnt; q += 12) {
        values_row(
            probs + q * stride, stride, head_dim, v, 12, 2, wide, out + (size_t)q * head_dim);
    }
    for (; q + 4 <= q_cnt; q += 4) {
        values_row(probs + q * stride, stride, head_dim, v, 4, 4, wide, out + (size_t)q * head_dim);
    }
    if (q + 3 == q_cnt) {
        values_row(probs + q * stride, stride, head_dim, v, 3, 4, wide, out + (size_t)q * head_dim);
        return;
    }
    for (; q < q_cnt; q++) {
        values_row(probs + q * stride, stride, head_dim, v, 1, 4, wide, out + (size_t)q * head_dim);
    }
}

void
bh_avx512_values(const float *probs,
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

const struct bh_kernels bh_kernels_avx512 = {
    .name = "avx512vnni",
    .quantize = bh_avx512_quantize,
    .matmul = bh_avx512_matmul,
    .matmul_float = bh_avx512_matmul_float,
    .norm = bh_avx512_norm,
    .swiglu = bh_avx512_swiglu,
    .halve = bh_avx512_halve,
    .scores = bh_avx512_scores,
    .softmax = bh_avx512_softmax,
    .values = bh_avx512_values,
};
