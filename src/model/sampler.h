/* From logits to a token, as a pure function of (logits, parameters, seed, position): a successor
   of a dead worker draws what the dead one would have drawn. */
#ifndef BH_MODEL_SAMPLER_H
#define BH_MODEL_SAMPLER_H

#include "shm/base.h"

#define BH_TOP_LOGPROBS_MAX 20

struct bh_sampling {
    float temperature; /* 0: greedy (lowest id wins a tie); else logits are divided by it */
    float top_p;       /* (0, 1]; 1 is off */
    float min_p;       /* [0, 1]; 0 is off: keep tokens with p >= min_p * p_max */
    uint32_t top_k;    /* 0 is off */
    uint64_t seed;
};

struct bh_logprob {
    uint32_t token;
    float
        logprob; /* natural log, of the softmax of the raw logits (temperature 1, no truncation) */
};

struct bh_sampler; /* scratch for one vocabulary size */
struct bh_sampler *bh_sampler_new(uint32_t vocab);
void bh_sampler_delete(struct bh_sampler *sampler);

/* bh_sampler_draw - the token for this position. Order: temperature, then top_k, top_p, min_p over the
   probabilities sorted by (p descending, id ascending), then one uniform number from a counter-based
   generator keyed by (seed, position).
   BH_OK        *token is below vocab
   BH_ECORRUPT  a logit is NaN or infinite: a violation, no token */
BH_MUST_USE enum bh_status bh_sampler_draw(struct bh_sampler *sampler,
                                           const float *logits,
                                           const struct bh_sampling *params,
                                           uint32_t position,
                                           uint32_t *token);

/* bh_sampler_logprobs - log-probability of `token` and the `top_cnt` (0..20) most probable tokens,
   (logprob descending, id ascending). BH_ECORRUPT as above. */
BH_MUST_USE enum bh_status bh_sampler_logprobs(struct bh_sampler *sampler,
                                               const float *logits,
                                               uint32_t token,
                                               uint32_t top_cnt,
                                               float *logprob,
                                               struct bh_logprob *top);

#endif
