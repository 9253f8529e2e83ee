/* Is the model right, and is it the same on every machine? Compares logits, greedy runs and perplexity of
   the demo model with reference values, for three ways of computing, each with the bounds that its
   rounding allows, and prints every number beside its bound. Then checks that instruction set, number
   of threads and chunk size change no bit of the logits.

   Usage: golden_logits FOLDER, with the model's path in BH_MODEL; exits with 77 when that is absent.
   The bounds come from measurements of other engines on the same file: what float16 in the cache or
   int8 activations cost there is what they may cost here. Wrong arithmetic (another RoPE, a key
   missed, another head) is outside by factors of 20 and more; a stale page is not, and is not looked
   for here: stamps find it, and tests of equality. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "kernels/kernels.h"
#include "tests/golden/golden_reference.h"
#include "tests/golden/model_rig.h"

#define POSITIONS_MAX 1024

/* With int8 activations a rounding of attention that differs in the last place may move one number of a
   block by one step. */
#define SPREAD_SERVED 0.5

/* Rows of logits computed together: they share one pass over the output matrix. */
#define ROWS_AT_ONCE 32

static struct rig_file model;
static const struct reference_prompt *prompts;
static uint32_t prompt_cnt;
static const struct reference_greedy *greedy;
static uint32_t greedy_cnt;
static struct reference_perplexity perplexity;
static float *logits; /* [ROWS_AT_ONCE][vocab] */
static uint32_t test_cnt;
static uint32_t fail_cnt;

static void
ok(bool good, const char *name, double measured, const char *relation, double bound)
{
    test_cnt++;
    fail_cnt += good ? 0 : 1;
    printf("%s %u - %s: measured %.6g, must be %s %.6g\n",
           good ? "ok" : "not ok",
           test_cnt,
           name,
           measured,
           relation,
           bound);
    (void)fflush(stdout);
}

static void
at_most(const char *way, const char *what, double measured, double bound)
{
    char name[128];
    (void)snprintf(name, sizeof(name), "%s: %s", way, what);
    ok(measured <= bound, name, measured, "at most", bound);
}

/* Logits of row `row` of a chunk, whose rows are looked at in ascending order up to `row_to`: fetches the
   rows after it too. A chunk is looked at from its beginning or afresh. */
static const float *
row_logits(struct rig *rig, uint32_t row, uint32_t row_to, bool afresh)
{
    static uint32_t from;
    static uint32_t cnt;
    if (afresh || row < from || row >= from + cnt) {
        from = row;
        cnt = (uint32_t)bh_min_u64(ROWS_AT_ONCE, row_to - row);
        bh_forward_logits(rig->forward, from, cnt, logits);
    }
    return logits + (size_t)(row - from) * model.dims.vocab;
}

static uint32_t
argmax(const float *row)
{
    uint32_t best = 0;
    for (uint32_t i = 1; i < model.dims.vocab; i++) {
        best = row[i] > row[best] ? i : best;
    }
    return best;
}

static double
log_sum_exp(const float *row)
{
    double top = (double)row[argmax(row)];
    double sum = 0.0;
    for (uint32_t i = 0; i < model.dims.vocab; i++) {
        sum += exp((double)row[i] - top);
    }
    return top + log(sum);
}

/* Distances from the reference, collected over positions. */
struct distances {
    double kl[POSITIONS_MAX];
    uint32_t cnt;
    uint32_t top_same;
    double delta_max;   /* of log-probabilities of the reference's 20 */
    double margin_lost; /* largest margin of the reference at which the first differs */
};

static void
compare(const struct reference_position *want, const float *row, struct distances *out)
{
    double lse = log_sum_exp(row);
    double kl = 0.0;
    double p_rest = 1.0;
    double q_rest = 1.0;
    for (uint32_t k = 0; k < REFERENCE_TOP; k++) {
        double ours = (double)row[want->ids[k]] - lse;
        double theirs = want->logprobs[k];
        out->delta_max = fmax(out->delta_max, fabs(ours - theirs));
        kl += exp(theirs) * (theirs - ours);
        p_rest -= exp(theirs);
        q_rest -= exp(ours);
    }
    if (p_rest > 1e-9 && q_rest > 1e-9) {
        kl += p_rest * log(p_rest / q_rest);
    }
    out->kl[out->cnt++] = kl;
    if (argmax(row) == want->ids[0]) {
        out->top_same++;
    } else {
        out->margin_lost = fmax(out->margin_lost, want->logprobs[0] - want->logprobs[1]);
    }
}

/* Looks at the positions of one prompt as its chunks go by. */
struct watch {
    const struct reference_prompt *prompt;
    struct distances *distances;
    XXH3_state_t *digest;
    uint32_t next;
};

static void
watch_chunk(struct rig *rig, uint32_t first_pos, uint32_t cnt, void *arg)
{
    struct watch *watch = arg;
    bool dense = watch->prompt->position_cnt == watch->prompt->id_cnt;
    bool afresh = true;
    while (watch->next < watch->prompt->position_cnt &&
           watch->prompt->positions[watch->next].position < first_pos + cnt) {
        const struct reference_position *want = &watch->prompt->positions[watch->next++];
        uint32_t row = want->position - first_pos;
        const float *got = row_logits(rig, row, dense ? cnt : row + 1, afresh);
        afresh = false;
        if (watch->distances != NULL) {
            compare(want, got, watch->distances);
        }
        if (watch->digest != NULL) {
            (void)XXH3_128bits_update(watch->digest, got, model.dims.vocab * sizeof(float));
        }
    }
}

static struct rig_options
options_of(enum bh_model_mode mode, const char *variant, uint32_t elem_bytes)
{
    return (struct rig_options){.mode = mode,
                                .variant = variant,
                                .threads = 2,
                                .elem_bytes = elem_bytes,
                                .page_tokens = 64,
                                .tokens_max = 2048,
                                .rows_max = 512,
                                .seqs_max = 1};
}

static int
by_value(const void *a, const void *b)
{
    double left = *(const double *)a;
    double right = *(const double *)b;
    return (left > right) - (left < right);
}

static double
mean(const double *values, uint32_t cnt)
{
    double sum = 0.0;
    for (uint32_t i = 0; i < cnt; i++) {
        sum += values[i];
    }
    return sum / (double)cnt;
}

static void
measure_prompts(struct rig *rig, struct distances *out)
{
    *out = (struct distances){0};
    for (uint32_t i = 0; i < prompt_cnt; i++) {
        struct watch watch = {.prompt = &prompts[i], .distances = out};
        rig_reset(rig);
        rig_feed(rig, 0, prompts[i].ids, prompts[i].id_cnt, 512, watch_chunk, &watch);
    }
    qsort(out->kl, out->cnt, sizeof(double), by_value);
}

/* The reference's own continuation is the input: each step is judged alone. */
struct forced {
    const struct reference_greedy *run;
    double margin_lost;
    uint32_t same;
};

static void
forced_chunk(struct rig *rig, uint32_t first_pos, uint32_t cnt, void *arg)
{
    struct forced *forced = arg;
    uint32_t begin = (uint32_t)bh_max_u64(first_pos, forced->run->id_cnt - 1);
    for (uint32_t pos = begin; pos < first_pos + cnt; pos++) {
        uint32_t step = pos + 1 - forced->run->id_cnt;
        const float *got = row_logits(rig, pos - first_pos, cnt, pos == begin);
        if (argmax(got) == forced->run->continuation[step]) {
            forced->same++;
        } else {
            forced->margin_lost = fmax(forced->margin_lost, forced->run->margins[step]);
        }
    }
}

static void
check_forced(const char *way, struct rig *rig, double margin_bound)
{
    struct forced forced = {0};
    for (uint32_t i = 0; i < greedy_cnt; i++) {
        uint32_t ids[2048];
        forced.run = &greedy[i];
        memcpy(ids, greedy[i].ids, greedy[i].id_cnt * sizeof(*ids));
        memcpy(
            ids + greedy[i].id_cnt, greedy[i].continuation, (REFERENCE_STEPS - 1) * sizeof(*ids));
        rig_reset(rig);
        rig_feed(rig, 0, ids, greedy[i].id_cnt + REFERENCE_STEPS - 1, 512, forced_chunk, &forced);
    }
    printf("# %s: %u of %u forced steps have the reference's first\n",
           way,
           forced.same,
           greedy_cnt * REFERENCE_STEPS);
    at_most(way, "largest margin lost in forced greedy steps", forced.margin_lost, margin_bound);
}

/* Free runs, whose margins stay far above the rounding of int8: all 64 tokens must come. */
static void
check_free(const char *way, struct rig *rig)
{
    static const char *const sure[] = {"count", "sentence repeated", "digits repeated"};
    for (uint32_t i = 0; i < greedy_cnt; i++) {
        const struct reference_greedy *run = &greedy[i];
        bool wanted = false;
        for (uint32_t k = 0; k < BH_COUNT(sure); k++) {
            wanted = wanted || strcmp(run->name, sure[k]) == 0;
        }
        if (!wanted) {
            continue;
        }
        uint32_t token = run->ids[run->id_cnt - 1];
        uint32_t same = 0;
        rig_reset(rig);
        rig_feed(rig, 0, run->ids, run->id_cnt - 1, 512, NULL, NULL);
        for (uint32_t step = 0; step < REFERENCE_STEPS; step++) {
            rig_place(rig, 0, 0, &token, 1, true);
            rig_step(rig, 1);
            bh_forward_logits(rig->forward, 0, 1, logits);
            token = argmax(logits);
            same += token == run->continuation[step] ? 1 : 0;
        }
        char name[128];
        (void)snprintf(name, sizeof(name), "%s: free greedy tokens equal, %s", way, run->name);
        ok(same == REFERENCE_STEPS, name, same, "exactly", REFERENCE_STEPS);
    }
}

/* All tokens of this prompt are the same, hence all values of a layer: the logits may not depend on the
   position. Spread of the log-probabilities of the first position's 20 likeliest over the prompt. */
struct spread {
    double low[REFERENCE_TOP];
    double high[REFERENCE_TOP];
    const struct reference_prompt *prompt;
};

static void
spread_chunk(struct rig *rig, uint32_t first_pos, uint32_t cnt, void *arg)
{
    struct spread *spread = arg;
    for (uint32_t pos = first_pos; pos < first_pos + cnt; pos++) {
        const float *got = row_logits(rig, pos - first_pos, cnt, pos == first_pos);
        double lse = log_sum_exp(got);
        for (uint32_t k = 0; k < REFERENCE_TOP; k++) {
            double value = (double)got[spread->prompt->positions[0].ids[k]] - lse;
            spread->low[k] = pos == 0 ? value : fmin(spread->low[k], value);
            spread->high[k] = pos == 0 ? value : fmax(spread->high[k], value);
        }
    }
}

static void
check_repeated(const char *way, struct rig *rig, double bound)
{
    for (uint32_t i = 0; i < prompt_cnt; i++) {
        if (strcmp(prompts[i].name, "word repeated") != 0) {
            continue;
        }
        struct spread spread = {.prompt = &prompts[i]};
        double widest = 0.0;
        rig_reset(rig);
        rig_feed(rig, 0, prompts[i].ids, prompts[i].id_cnt, 512, spread_chunk, &spread);
        for (uint32_t k = 0; k < REFERENCE_TOP; k++) {
            widest = fmax(widest, spread.high[k] - spread.low[k]);
        }
        at_most(way, "spread over positions of a repeated word", widest, bound);
    }
}

struct losses {
    const uint32_t *ids;
    double sum;
    double second_half;
};

static void
losses_chunk(struct rig *rig, uint32_t first_pos, uint32_t cnt, void *arg)
{
    struct losses *losses = arg;
    for (uint32_t pos = first_pos; pos < first_pos + cnt && pos + 1 < perplexity.window; pos++) {
        const float *got = row_logits(rig, pos - first_pos, cnt, pos == first_pos);
        double loss = log_sum_exp(got) - (double)got[losses->ids[pos + 1]];
        losses->sum += loss;
        losses->second_half += pos + 1 >= perplexity.window / 2 ? loss : 0.0;
    }
}

static void
check_perplexity(const char *way, struct rig *rig, double bound)
{
    struct losses losses = {0};
    uint32_t windows = perplexity.id_cnt / perplexity.window;
    for (uint32_t i = 0; i < windows; i++) {
        losses.ids = perplexity.ids + (size_t)i * perplexity.window;
        rig_reset(rig);
        rig_feed(rig, 0, losses.ids, perplexity.window, 512, losses_chunk, &losses);
    }
    double mean_nll = losses.sum / (double)(windows * (perplexity.window - 1));
    double second = losses.second_half / (double)(windows * (perplexity.window / 2));
    printf("# %s: mean loss %.5f (reference %.5f), second halves %.5f (reference %.5f)\n",
           way,
           mean_nll,
           perplexity.mean_nll,
           second,
           perplexity.mean_nll_second_half);
    at_most(way, "difference of mean loss", fabs(mean_nll - perplexity.mean_nll), bound);
    at_most(way,
            "difference of mean loss, second halves",
            fabs(second - perplexity.mean_nll_second_half),
            2 * bound);
}

/* Float32 throughout: only here do small errors of the arithmetic show. */
static void
check_plain(void)
{
    struct rig rig;
    struct rig_options options = options_of(BH_MODEL_PLAIN, NULL, 4);
    static struct distances got;
    rig_new(&rig, &model, &options);
    measure_prompts(&rig, &got);
    ok(got.cnt == 600, "plain, f32 cache: positions", got.cnt, "exactly", 600);
    at_most("plain, f32 cache", "largest difference of 20 log-probabilities", got.delta_max, 0.001);
    at_most("plain, f32 cache", "largest margin lost", got.margin_lost, 0.001);
    check_forced("plain, f32 cache", &rig, 0.001);
    check_repeated("plain, f32 cache", &rig, 1e-4);
    check_perplexity("plain, f32 cache", &rig, 1e-4);
    rig_delete(&rig);

    options.elem_bytes = 2;
    rig_new(&rig, &model, &options);
    measure_prompts(&rig, &got);
    at_most("plain, f16 cache", "largest difference of 20 log-probabilities", got.delta_max, 0.05);
    at_most("plain, f16 cache", "largest KL over 21 bins", got.kl[got.cnt - 1], 2e-4);
    rig_delete(&rig);
}

static void
check_served(void)
{
    struct rig rig;
    struct rig_options options = options_of(BH_MODEL_SERVED, NULL, 2);
    static struct distances got;
    rig_new(&rig, &model, &options);
    printf("# served by %s\n", bh_model_variant(rig.model));
    measure_prompts(&rig, &got);
    double top_percent = 100.0 * (double)got.top_same / (double)got.cnt;
    at_most("served", "mean KL over 21 bins", mean(got.kl, got.cnt), 0.006);
    at_most("served", "99th percentile of KL", got.kl[got.cnt * 99 / 100], 0.06);
    at_most("served", "largest KL", got.kl[got.cnt - 1], 0.25);
    ok(top_percent >= 93.0,
       "served: percent of positions with the same first",
       top_percent,
       "at least",
       93.0);
    at_most("served", "largest margin lost", got.margin_lost, 0.6);
    check_forced("served", &rig, 0.6);
    check_free("served", &rig);
    check_repeated("served", &rig, SPREAD_SERVED);
    check_perplexity("served", &rig, 0.01);
    rig_delete(&rig);
}

/* One way of computing the same thing, and which prompts it takes. */
struct config {
    const char *variant;
    uint32_t threads;
    uint32_t chunk;
    uint32_t page_tokens;
    uint32_t id_max; /* prompts of at most so many ids */
};

static XXH128_hash_t
digest_of(const struct config *config)
{
    struct rig rig;
    struct rig_options options = options_of(BH_MODEL_SERVED, config->variant, 2);
    XXH3_state_t *digest = XXH3_createState();
    options.threads = config->threads;
    options.page_tokens = config->page_tokens;
    rig_new(&rig, &model, &options);
    (void)XXH3_128bits_reset(digest);
    for (uint32_t i = 0; i < prompt_cnt; i++) {
        if (prompts[i].id_cnt <= config->id_max) {
            struct watch watch = {.prompt = &prompts[i], .digest = digest};
            rig_reset(&rig);
            rig_feed(
                &rig, 0, prompts[i].ids, prompts[i].id_cnt, config->chunk, watch_chunk, &watch);
        }
    }
    rig_delete(&rig);
    XXH128_hash_t hash = XXH3_128bits_digest(digest);
    (void)XXH3_freeState(digest);
    return hash;
}

/* Digests of the logits of two sets of prompts, as every machine must have them whatever its instruction
   set: they change when the order of a float operation does, and only then. */
static const XXH128_hash_t short_digest = {.low64 = 0x074e22c0b67dad98,
                                           .high64 = 0xef9fd982283f4d6f};
static const XXH128_hash_t long_digest = {.low64 = 0x2a3568994ee9b7d8,
                                          .high64 = 0xeccaef864bdc8035};

static void
check_same(const struct config *configs, uint32_t config_cnt, XXH128_hash_t expected)
{
    for (uint32_t i = 0; i < config_cnt; i++) {
        bool usable = false;
        for (uint32_t k = 0; bh_kernels_at(k, &usable) != NULL; k++) {
            if (strcmp(bh_kernels_at(k, &usable)->name, configs[i].variant) == 0) {
                break;
            }
        }
        if (!usable) {
            printf("# SKIP %s: this CPU lacks it\n", configs[i].variant);
            continue;
        }
        XXH128_hash_t hash = digest_of(&configs[i]);
        test_cnt++;
        bool same = XXH128_isEqual(hash, expected) != 0;
        fail_cnt += same ? 0 : 1;
        printf("%s %u - logits of prompts up to %u ids: %s, %u threads, chunks of %u, pages of %u: "
               "%016llx%016llx\n",
               same ? "ok" : "not ok",
               test_cnt,
               configs[i].id_max,
               configs[i].variant,
               configs[i].threads,
               configs[i].chunk,
               configs[i].page_tokens,
               (unsigned long long)hash.high64,
               (unsigned long long)hash.low64);
        (void)fflush(stdout);
    }
}

static void
check_bits(void)
{
    static const struct config short_prompts[] = {
        {"ref", 2, 512, 64, 20},
        {"avx2", 1, 512, 64, 20},
        {"avx512vnni", 2, 16, 16, 20},
    };
    static const struct config long_prompts[] = {
        {"avx2", 2, 512, 64, 700},
        {"avx2", 1, 100, 16, 700},
        {"avx512vnni", 2, 512, 64, 700},
        {"avx512vnni", 1, 512, 256, 700},
        {"avx512vnni", 2, 16, 64, 700},
        {"avx512vnni", 1, 77, 32, 700},
    };
    check_same(short_prompts, BH_COUNT(short_prompts), short_digest);
    check_same(long_prompts, BH_COUNT(long_prompts), long_digest);
}

int
main(int argc, char **argv)
{
    const char *path = getenv("BH_MODEL");
    if (path == NULL || access(path, R_OK) != 0) {
        printf("1..0 # SKIP no model at BH_MODEL=%s\n", path == NULL ? "(not set)" : path);
        return 77;
    }
    if (argc != 2) {
        fprintf(stderr, "usage: golden_logits FOLDER\n");
        return 2;
    }
    prompt_cnt = reference_prompts(argv[1], &prompts);
    greedy_cnt = reference_greedy(argv[1], &greedy);
    reference_perplexity(argv[1], &perplexity);
    rig_file_open(&model, path, 2);
    logits = calloc((size_t)ROWS_AT_ONCE * model.dims.vocab, sizeof(*logits));
    if (logits == NULL) {
        return 1;
    }
    check_served();
    check_bits();
    check_plain();
    printf("1..%u\n# %u failed\n", test_cnt, fail_cnt);
    free(logits);
    rig_file_close(&model);
    return fail_cnt == 0 ? 0 : 1;
}
