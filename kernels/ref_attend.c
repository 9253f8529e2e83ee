/* The three inner operations of attention, plain C. */
#include <math.h>

#include "kernels/canon.h"
#include "kernels/variants.h"

static float
element(const struct bh_page_part *part, size_t idx)
{
    return part->elem_bytes == 4 ? bh_load_f32(part->bytes + idx * 4)
                                 : bh_f16_to_f32(bh_load_u16(part->bytes + idx * 2));
}

void
bh_ref_scores(const struct bh_queries *queries,
              const struct bh_page_part *k,
              float *scores,
              size_t stride)
{
    uint32_t tok_to = (uint32_t)bh_round_up(k->tok_to, BH_LANES);
    for (uint32_t q = 0; q < queries->q_cnt; q++) {
        const float *query = queries->q + (size_t)q * queries->head_dim;
        for (uint32_t t = 0; t < tok_to; t++) {
            float acc = 0.0f;
            for (uint32_t d = 0; d < queries->head_dim; d++) {
                acc = fmaf(query[d], element(k, (size_t)d * k->page_tokens + t), acc);
            }
            scores[q * stride + t] = acc;
        }
    }
}

void
bh_ref_softmax(float *scores, uint32_t tok_cnt, float *max, float *sum)
{
    float lane_max[BH_LANES];
    float lane_sum[BH_LANES] = {0};
    for (uint32_t j = 0; j < BH_LANES; j++) {
        lane_max[j] = -INFINITY;
    }
    for (uint32_t t = 0; t < tok_cnt; t++) {
        lane_max[t % BH_LANES] =
            scores[t] > lane_max[t % BH_LANES] ? scores[t] : lane_max[t % BH_LANES];
    }
    for (uint32_t half = BH_LANES / 2; half > 0; half /= 2) {
        for (uint32_t j = 0; j < half; j++) {
            lane_max[j] = lane_max[j + half] > lane_max[j] ? lane_max[j + half] : lane_max[j];
        }
    }
    for (uint32_t t = 0; t < tok_cnt; t++) {
        scores[t] = bh_canon_exp(scores[t] - lane_max[0]);
        lane_sum[t % BH_LANES] = lane_sum[t % BH_LANES] + scores[t];
    }
    for (uint32_t t = tok_cnt; t < bh_round_up(tok_cnt, BH_LANES); t++) {
        scores[t] = 0.0f;
    }
    *max = lane_max[0];
    *sum = bh_canon_tree(lane_sum);
}

void
bh_ref_values(const float *probs,
              size_t stride,
              uint32_t q_cnt,
              uint32_t head_dim,
              const struct bh_page_part *v,
              float *out)
{
    for (uint32_t q = 0; q < q_cnt; q++) {
        for (uint32_t t = v->tok_from; t < v->tok_to; t++) {
            float p = probs[q * stride + t - v->tok_from];
            for (uint32_t d = 0; d < head_dim; d++) {
                float *acc = out + (size_t)q * head_dim + d;
                *acc = fmaf(p, element(v, (size_t)t * head_dim + d), *acc);
            }
        }
    }
}

const struct bh_kernels bh_kernels_ref = {
    .name = "ref",
    .quantize = bh_ref_quantize,
    .matmul = bh_ref_matmul,
    .matmul_float = bh_ref_matmul_float,
    .norm = bh_ref_norm,
    .swiglu = bh_ref_swiglu,
    .halve = bh_ref_halve,
    .scores = bh_ref_scores,
    .softmax = bh_ref_softmax,
    .values = bh_ref_values,
};
