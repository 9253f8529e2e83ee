/* Drawing a token. Tokens leave a heap in order of (logit descending, id ascending) only as far as the
   parameters and the random number need, so that a plain draw does not sort the vocabulary. Sums are
   doubles in that fixed order, exponentials bh_exact_exp: the token is the same on every machine. */
#include "src/model/sampler.h"

#include <stdlib.h>
#include <string.h>

#include "src/model/exact.h"

/* Temperatures above are refused, below are greedy. */
#define BH_TEMPERATURE_MAX 100.0f
#define BH_TEMPERATURE_MIN 1e-5f

struct candidate {
    float logit;
    uint32_t token;
};

struct bh_sampler {
    uint32_t vocab;
    struct candidate *heap;   /* [vocab] the rest, best on top */
    struct candidate *sorted; /* [vocab] the best so far, in order */
    double *weight;           /* [vocab] exp((logit - best) / temperature) of `sorted` */
    uint32_t popped;          /* how many are in `sorted` and no longer in `heap` */
    double temperature;
};

struct bh_sampler *
bh_sampler_new(uint32_t vocab)
{
    struct bh_sampler *sampler = calloc(1, sizeof(*sampler));
    if (sampler == NULL || vocab == 0) {
        free(sampler);
        return NULL;
    }
    sampler->vocab = vocab;
    sampler->heap = calloc(vocab, sizeof(*sampler->heap));
    sampler->sorted = calloc(vocab, sizeof(*sampler->sorted));
    sampler->weight = calloc(vocab, sizeof(*sampler->weight));
    if (sampler->heap == NULL || sampler->sorted == NULL || sampler->weight == NULL) {
        bh_sampler_delete(sampler);
        return NULL;
    }
    return sampler;
}

void
bh_sampler_delete(struct bh_sampler *sampler)
{
    if (sampler == NULL) {
        return;
    }
    free(sampler->heap);
    free(sampler->sorted);
    free(sampler->weight);
    free(sampler);
}

static bool
before(struct candidate a, struct candidate b)
{
    return a.logit > b.logit || (a.logit == b.logit && a.token < b.token);
}

static void
sift_down(struct candidate *heap, uint32_t cnt, uint32_t at)
{
    struct candidate moved = heap[at];
    for (uint32_t child = 2 * at + 1; child < cnt; child = 2 * at + 1) {
        if (child + 1 < cnt && before(heap[child + 1], heap[child])) {
            child++;
        }
        if (!before(heap[child], moved)) {
            break;
        }
        heap[at] = heap[child];
        at = child;
    }
    heap[at] = moved;
}

static void
heap_build(struct bh_sampler *sampler, const float *logits)
{
    for (uint32_t i = 0; i < sampler->vocab; i++) {
        sampler->heap[i] = (struct candidate){.logit = logits[i], .token = i};
    }
    for (uint32_t i = sampler->vocab / 2; i-- > 0;) {
        sift_down(sampler->heap, sampler->vocab, i);
    }
    sampler->popped = 0;
}

/* Moves the next best candidate to the end of `sorted`. */
static struct candidate
heap_pop(struct bh_sampler *sampler)
{
    uint32_t cnt = sampler->vocab - sampler->popped;
    struct candidate best = sampler->heap[0];
    sampler->heap[0] = sampler->heap[cnt - 1];
    if (cnt > 1) {
        sift_down(sampler->heap, cnt - 1, 0);
    }
    sampler->sorted[sampler->popped++] = best;
    return best;
}

/* False when a logit is NaN or infinite. Looks at bits: comparisons would let a NaN pass. */
static bool
all_finite(const float *logits, uint32_t cnt)
{
    uint32_t bad = 0;
    for (uint32_t i = 0; i < cnt; i++) {
        uint32_t bits;
        memcpy(&bits, &logits[i], sizeof(bits));
        bad |= (bits & 0x7f800000u) == 0x7f800000u ? 1u : 0u;
    }
    return bad == 0;
}

static uint32_t
argmax(const float *logits, uint32_t cnt)
{
    uint32_t best = 0;
    for (uint32_t i = 1; i < cnt; i++) {
        best = logits[i] > logits[best] ? i : best;
    }
    return best;
}

/* Philox 4x32-10 of Salmon et al. (2011): key = seed, counter = position. A double in [0, 1) of 53
   bits. */
static double
uniform_at(uint64_t seed, uint32_t position)
{
    uint32_t counter[4] = {position, 0, 0, 0};
    uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    for (int round = 0; round < 10; round++) {
        uint64_t a = (uint64_t)0xd2511f53u * counter[0];
        uint64_t b = (uint64_t)0xcd9e8d57u * counter[2];
        uint32_t next[4] = {(uint32_t)(b >> 32) ^ counter[1] ^ key[0],
                            (uint32_t)b,
                            (uint32_t)(a >> 32) ^ counter[3] ^ key[1],
                            (uint32_t)a};
        memcpy(counter, next, sizeof(counter));
        key[0] += 0x9e3779b9u;
        key[1] += 0xbb67ae85u;
    }
    uint64_t bits = ((uint64_t)counter[0] << 32) | counter[1];
    return (double)(bits >> 11) * 0x1p-53;
}

/* The weight of the idx-th best candidate; pops as far as that. */
static double
weight_at(struct bh_sampler *sampler, uint32_t idx)
{
    while (sampler->popped <= idx) {
        uint32_t at = sampler->popped;
        struct candidate next = heap_pop(sampler);
        double gap = (double)next.logit - (double)sampler->sorted[0].logit;
        sampler->weight[at] = bh_exact_exp(gap / sampler->temperature);
    }
    return sampler->weight[idx];
}

static double
prefix_weight(struct bh_sampler *sampler, uint32_t cnt)
{
    double sum = 0.0;
    for (uint32_t i = 0; i < cnt; i++) {
        sum += weight_at(sampler, i);
    }
    return sum;
}

/* The sum of all weights without sorting: in order of ids. */
static double
total_weight(const struct bh_sampler *sampler, const float *logits)
{
    double best = (double)sampler->heap[0].logit;
    double sum = 0.0;
    for (uint32_t i = 0; i < sampler->vocab; i++) {
        sum += bh_exact_exp(((double)logits[i] - best) / sampler->temperature);
    }
    return sum;
}

/* The shortest prefix of the first `cnt` candidates whose weight reaches `enough`. */
static uint32_t
prefix_reaching(struct bh_sampler *sampler, uint32_t cnt, double enough)
{
    double sum = 0.0;
    for (uint32_t i = 0; i < cnt; i++) {
        sum += weight_at(sampler, i);
        if (sum >= enough) {
            return i + 1;
        }
    }
    return cnt;
}

/* How many of the first `cnt` candidates weigh at least `least`; the best, whose weight is 1, does. */
static uint32_t
prefix_above(struct bh_sampler *sampler, uint32_t cnt, double least)
{
    uint32_t i = 1;
    while (i < cnt && weight_at(sampler, i) >= least) {
        i++;
    }
    return i;
}

static uint32_t
draw(struct bh_sampler *sampler,
     const float *logits,
     const struct bh_sampling *params,
     uint32_t position)
{
    uint32_t kept = sampler->vocab;
    double total = 0.0;
    sampler->temperature = (double)params->temperature;
    heap_build(sampler, logits);
    if (params->top_k > 0 && params->top_k < kept) {
        kept = params->top_k;
        total = prefix_weight(sampler, kept);
    } else {
        total = total_weight(sampler, logits);
    }
    if (params->top_p < 1.0f) {
        kept = prefix_reaching(sampler, kept, total * (double)params->top_p);
        total = prefix_weight(sampler, kept);
    }
    if (params->min_p > 0.0f) {
        kept = prefix_above(sampler, kept, (double)params->min_p);
        total = prefix_weight(sampler, kept);
    }
    double target = uniform_at(params->seed, position) * total;
    double sum = 0.0;
    uint32_t chosen = 0;
    for (; chosen + 1 < kept; chosen++) {
        sum += weight_at(sampler, chosen);
        if (sum > target) {
            break;
        }
    }
    (void)weight_at(sampler, chosen);
    return sampler->sorted[chosen].token;
}

static bool
params_ok(const struct bh_sampling *params)
{
    return params->temperature >= 0.0f && params->temperature <= BH_TEMPERATURE_MAX &&
           params->top_p > 0.0f && params->top_p <= 1.0f && params->min_p >= 0.0f &&
           params->min_p <= 1.0f;
}

enum bh_status
bh_sampler_draw(struct bh_sampler *sampler,
                const float *logits,
                const struct bh_sampling *params,
                uint32_t position,
                uint32_t *token)
{
    if (!params_ok(params)) {
        return BH_EINVAL;
    }
    if (!all_finite(logits, sampler->vocab)) {
        return BH_ECORRUPT;
    }
    /* Below this temperature every gap that a float can show between two logits of usual size is an
       exponent beyond the range: the draw is the greedy one, and division must not overflow. */
    if (params->temperature < BH_TEMPERATURE_MIN) {
        *token = argmax(logits, sampler->vocab);
        return BH_OK;
    }
    *token = draw(sampler, logits, params, position);
    BH_CHECK(*token < sampler->vocab);
    return BH_OK;
}

/* log(sum(exp(logits))), by ids, the maximum subtracted. */
static double
log_sum_exp(const float *logits, uint32_t cnt)
{
    double best = (double)logits[argmax(logits, cnt)];
    double sum = 0.0;
    for (uint32_t i = 0; i < cnt; i++) {
        sum += bh_exact_exp((double)logits[i] - best);
    }
    return best + bh_exact_log(sum);
}

/* Keeps the `cnt` best of all candidates in top[], by insertion: cnt is small, and almost every
   candidate fails the first comparison. */
static void
top_candidates(const float *logits, uint32_t vocab, uint32_t cnt, struct candidate *top)
{
    uint32_t have = 0;
    for (uint32_t i = 0; i < vocab; i++) {
        struct candidate next = {.logit = logits[i], .token = i};
        if (have == cnt && !before(next, top[cnt - 1])) {
            continue;
        }
        uint32_t at = have < cnt ? have++ : cnt - 1;
        for (; at > 0 && before(next, top[at - 1]); at--) {
            top[at] = top[at - 1];
        }
        top[at] = next;
    }
}

enum bh_status
bh_sampler_logprobs(struct bh_sampler *sampler,
                    const float *logits,
                    uint32_t token,
                    uint32_t top_cnt,
                    float *logprob,
                    struct bh_logprob *top)
{
    if (token >= sampler->vocab || top_cnt > BH_TOP_LOGPROBS_MAX || top_cnt > sampler->vocab) {
        return BH_EINVAL;
    }
    if (!all_finite(logits, sampler->vocab)) {
        return BH_ECORRUPT;
    }
    double lse = log_sum_exp(logits, sampler->vocab);
    struct candidate best[BH_TOP_LOGPROBS_MAX];
    if (top_cnt > 0) {
        top_candidates(logits, sampler->vocab, top_cnt, best);
    }
    for (uint32_t i = 0; i < top_cnt; i++) {
        top[i] = (struct bh_logprob){.token = best[i].token,
                                     .logprob = (float)((double)best[i].logit - lse)};
    }
    *logprob = (float)((double)logits[token] - lse);
    return BH_OK;
}
