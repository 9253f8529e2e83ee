/* Sampling: known answers of the generator, the order and effect of each parameter, frequencies against
   the softmax, and log-probabilities against libm. */
#include "src/model/sampler.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>

#include "src/model/exact.h"

#define VOCAB 50u

static const struct bh_sampling plain = {.temperature = 1.0f, .top_p = 1.0f, .seed = 42};

static struct bh_sampler *
sampler_new(uint32_t vocab)
{
    struct bh_sampler *sampler = bh_sampler_new(vocab);
    cr_assert_not_null(sampler);
    return sampler;
}

/* Logits in no order: token i has the logit of rank (i * 37) mod vocab, `step` apart. */
static void
fill(float *logits, uint32_t vocab, float step)
{
    for (uint32_t i = 0; i < vocab; i++) {
        logits[i] = -step * (float)(i * 37 % vocab);
    }
}

static uint32_t
draw(struct bh_sampler *sampler,
     const float *logits,
     const struct bh_sampling *params,
     uint32_t position)
{
    uint32_t token = UINT32_MAX;
    cr_assert_eq(bh_sampler_draw(sampler, logits, params, position, &token), BH_OK);
    return token;
}

Test(sampler, greedy_takes_the_lowest_of_equals)
{
    float logits[VOCAB] = {0};
    struct bh_sampler *sampler = sampler_new(VOCAB);
    struct bh_sampling params = plain;
    params.temperature = 0.0f;
    logits[30] = 2.0f;
    logits[17] = 2.0f;
    logits[40] = 1.0f;
    cr_assert_eq(draw(sampler, logits, &params, 0), 17);
    params.temperature = 1e-6f;
    cr_assert_eq(draw(sampler, logits, &params, 0), 17);
    bh_sampler_delete(sampler);
}

/* Frequencies of 40000 draws against the probabilities, five standard deviations wide. */
static void
check_frequencies(const struct bh_sampling *params, const double *expected)
{
    enum { DRAWS = 40000 };
    float logits[VOCAB];
    uint32_t count[VOCAB] = {0};
    struct bh_sampler *sampler = sampler_new(VOCAB);
    fill(logits, VOCAB, 0.2f);
    for (uint32_t position = 0; position < DRAWS; position++) {
        count[draw(sampler, logits, params, position)]++;
    }
    for (uint32_t i = 0; i < VOCAB; i++) {
        double p = expected[i * 37 % VOCAB];
        double spread = 5.0 * sqrt(p * (1.0 - p) / DRAWS) + 1e-12;
        cr_assert_lt(fabs((double)count[i] / DRAWS - p),
                     spread,
                     "rank %u: %u draws for p %g",
                     i * 37 % VOCAB,
                     count[i],
                     p);
    }
    bh_sampler_delete(sampler);
}

/* Probabilities by rank, of the first `kept` ranks at a temperature. */
static void
softmax_by_rank(double temperature, uint32_t kept, double *out)
{
    double sum = 0.0;
    for (uint32_t rank = 0; rank < VOCAB; rank++) {
        out[rank] = rank < kept ? exp(-0.2 * (double)rank / temperature) : 0.0;
        sum += out[rank];
    }
    for (uint32_t rank = 0; rank < VOCAB; rank++) {
        out[rank] /= sum;
    }
}

Test(sampler, draws_follow_the_softmax)
{
    double expected[VOCAB];
    struct bh_sampling params = plain;
    softmax_by_rank(1.0, VOCAB, expected);
    check_frequencies(&params, expected);
    params.temperature = 2.0f;
    softmax_by_rank(2.0, VOCAB, expected);
    check_frequencies(&params, expected);
}

Test(sampler, truncations_keep_what_they_say)
{
    double all[VOCAB];
    double expected[VOCAB];
    struct bh_sampling params = plain;
    params.top_k = 5;
    softmax_by_rank(1.0, 5, expected);
    check_frequencies(&params, expected);

    params = plain;
    params.top_p = 0.6f;
    softmax_by_rank(1.0, VOCAB, all);
    uint32_t kept = 0;
    for (double sum = 0.0; sum < 0.6; kept++) {
        sum += all[kept];
    }
    softmax_by_rank(1.0, kept, expected);
    check_frequencies(&params, expected);

    params = plain;
    params.min_p = 0.3f; /* exp(-0.2 * 6) is 0.301, of rank 7 0.247 */
    softmax_by_rank(1.0, 7, expected);
    check_frequencies(&params, expected);

    params.top_k = 4; /* all three: top_k leaves 4, top_p of those 3 */
    params.top_p = 0.7f;
    params.min_p = 0.01f;
    softmax_by_rank(1.0, 4, all);
    cr_assert(all[0] + all[1] < 0.7 && all[0] + all[1] + all[2] > 0.7);
    softmax_by_rank(1.0, 3, expected);
    check_frequencies(&params, expected);
}

Test(sampler, is_a_function_of_seed_and_position)
{
    float logits[VOCAB];
    struct bh_sampler *a = sampler_new(VOCAB);
    struct bh_sampler *b = sampler_new(VOCAB);
    struct bh_sampling other = plain;
    other.seed = plain.seed + (1ull << 40);
    uint32_t differ = 0;
    fill(logits, VOCAB, 0.05f);
    for (uint32_t position = 1000; position-- > 0;) {
        uint32_t token = draw(a, logits, &plain, position);
        cr_assert_eq(draw(b, logits, &plain, position), token);
        differ += draw(b, logits, &other, position) != token ? 1 : 0;
    }
    cr_assert_gt(differ, 800);
    bh_sampler_delete(a);
    bh_sampler_delete(b);
}

/* Philox4x32-10 of counter {position, 0, 0, 0}, key = seed: 6627e8d5 e169c58d for zeros (the published
   known-answer test), so that u is 0.39905... With equal logits the token is floor(u * vocab). */
Test(sampler, generator_gives_the_published_numbers)
{
    enum { WIDE = 1u << 16 };
    float *logits = calloc(WIDE, sizeof(*logits));
    cr_assert_not_null(logits);
    struct bh_sampler *sampler = sampler_new(WIDE);
    struct bh_sampling params = plain;
    params.seed = 0;
    cr_assert_eq(draw(sampler, logits, &params, 0), 0x6627);
    bh_sampler_delete(sampler);
    free(logits);
}

Test(sampler, refuses_what_is_not_finite_and_bad_parameters)
{
    float logits[VOCAB] = {0};
    struct bh_sampler *sampler = sampler_new(VOCAB);
    struct bh_sampling params = plain;
    uint32_t token = 7;
    float logprob = 0.0f;
    const float bad[] = {NAN, INFINITY, -INFINITY};
    for (size_t i = 0; i < BH_COUNT(bad); i++) {
        logits[VOCAB - 1] = bad[i];
        cr_assert_eq(bh_sampler_draw(sampler, logits, &params, 0, &token), BH_ECORRUPT);
        params.temperature = 0.0f;
        cr_assert_eq(bh_sampler_draw(sampler, logits, &params, 0, &token), BH_ECORRUPT);
        params.temperature = 1.0f;
        cr_assert_eq(bh_sampler_logprobs(sampler, logits, 0, 0, &logprob, NULL), BH_ECORRUPT);
    }
    cr_assert_eq(token, 7);
    logits[VOCAB - 1] = 0.0f;
    params.temperature = -1.0f;
    cr_assert_eq(bh_sampler_draw(sampler, logits, &params, 0, &token), BH_EINVAL);
    params = plain;
    params.top_p = 0.0f;
    cr_assert_eq(bh_sampler_draw(sampler, logits, &params, 0, &token), BH_EINVAL);
    params = plain;
    params.min_p = 1.5f;
    cr_assert_eq(bh_sampler_draw(sampler, logits, &params, 0, &token), BH_EINVAL);
    params.min_p = NAN;
    cr_assert_eq(bh_sampler_draw(sampler, logits, &params, 0, &token), BH_EINVAL);
    struct bh_logprob top[BH_TOP_LOGPROBS_MAX + 1];
    cr_assert_eq(bh_sampler_logprobs(sampler, logits, VOCAB, 0, &logprob, top), BH_EINVAL);
    cr_assert_eq(bh_sampler_logprobs(sampler, logits, 0, BH_TOP_LOGPROBS_MAX + 1, &logprob, top),
                 BH_EINVAL);
    bh_sampler_delete(sampler);
}

Test(sampler, extreme_parameters_still_give_a_token)
{
    float logits[VOCAB];
    struct bh_sampler *sampler = sampler_new(VOCAB);
    struct bh_sampling params = plain;
    fill(logits, VOCAB, 1000.0f);
    uint32_t best = 0;
    cr_assert_eq(draw(sampler, logits, &params, 3), best);
    params.top_k = 1;
    cr_assert_eq(draw(sampler, logits, &params, 3), best);
    params = plain;
    params.min_p = 1.0f;
    params.top_p = 1e-6f;
    params.top_k = VOCAB + 1;
    cr_assert_eq(draw(sampler, logits, &params, 3), best);
    bh_sampler_delete(sampler);
    sampler = sampler_new(1);
    cr_assert_eq(draw(sampler, logits, &plain, 3), 0);
    bh_sampler_delete(sampler);
    cr_assert_null(bh_sampler_new(0));
}

Test(sampler, logprobs_are_those_of_the_softmax)
{
    float logits[VOCAB];
    struct bh_logprob top[BH_TOP_LOGPROBS_MAX];
    struct bh_sampler *sampler = sampler_new(VOCAB);
    float logprob = 0.0f;
    double sum = 0.0;
    fill(logits, VOCAB, 0.2f);
    logits[2] = logits[1]; /* equals come in order of ids */
    for (uint32_t i = 0; i < VOCAB; i++) {
        sum += exp((double)logits[i]);
    }
    cr_assert_eq(bh_sampler_logprobs(sampler, logits, 7, BH_TOP_LOGPROBS_MAX, &logprob, top),
                 BH_OK);
    cr_assert_float_eq(logprob, (float)((double)logits[7] - log(sum)), 1e-6);
    for (uint32_t i = 0; i < BH_TOP_LOGPROBS_MAX; i++) {
        cr_assert_float_eq(top[i].logprob, (float)((double)logits[top[i].token] - log(sum)), 1e-6);
        if (i > 0) {
            bool ordered = top[i - 1].logprob > top[i].logprob ||
                           (logits[top[i - 1].token] == logits[top[i].token] &&
                            top[i - 1].token < top[i].token);
            cr_assert(ordered, "place %u", i);
        }
    }
    cr_assert_eq(bh_sampler_logprobs(sampler, logits, 7, 0, &logprob, NULL), BH_OK);
    bh_sampler_delete(sampler);
}

Test(exact, agrees_with_libm)
{
    for (double x = -700.0; x < 700.0; x += 0.7331) {
        double expected = exp(x);
        cr_assert_lt(fabs(bh_exact_exp(x) - expected), 4e-16 * expected * 2, "exp %g", x);
    }
    cr_assert(bh_exact_exp(0.0) == 1.0 && bh_exact_exp(-1e9) == 0.0 && isinf(bh_exact_exp(1e9)) &&
              isnan(bh_exact_exp((double)NAN)));
    for (double x = 1e-300; x < 1e300; x *= 1.7e3) {
        cr_assert_lt(fabs(bh_exact_log(x) - log(x)), 4e-16 * fabs(log(x)) + 1e-16, "log %g", x);
    }
    cr_assert_eq(bh_exact_log(1.0), 0.0);
    for (double x = -40000.0; x < 200000.0; x += 3.77) {
        double sine = 0.0;
        double cosine = 0.0;
        bh_exact_sincos(x, &sine, &cosine);
        cr_assert_lt(fabs(sine - sin(x)), 1e-15, "sin %g", x);
        cr_assert_lt(fabs(cosine - cos(x)), 1e-15, "cos %g", x);
    }
}
