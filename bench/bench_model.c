/* How fast is the model in one process, and how near to what the memory allows: prefill and decode rates of
   each variant this CPU has, with the bandwidth that decoding achieves beside the bandwidth of a plain
   read, measured in the same run because machines and minutes differ more than programs do.

   Usage: bench_model [MODEL.gguf [THREADS]], or the path in BH_MODEL. Without a model: exit 77. */
#include <immintrin.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "kernels/kernels.h"
#include "tests/golden/model_rig.h"

#define PREFILL_TOKENS 512u
#define DECODE_TOKENS  48u
#define ROUNDS         3
#define READ_BYTES     (256u << 20) /* above any cache that is ours alone */
#define STREAMS_MAX    16u

static uint32_t tokens[PREFILL_TOKENS + DECODE_TOKENS];

static double
now_s(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static int
by_value(const void *a, const void *b)
{
    double left = *(const double *)a;
    double right = *(const double *)b;
    return (left > right) - (left < right);
}

static double
median(double values[ROUNDS])
{
    qsort(values, ROUNDS, sizeof(*values), by_value);
    return values[ROUNDS / 2];
}

struct reading {
    const uint8_t *bytes;
    size_t len;
    uint64_t sums[BH_TEAM_MAX];
};

static void
read_share(void *arg, uint32_t member_idx, uint32_t member_cnt)
{
    struct reading *reading = arg;
    uint32_t from = 0;
    uint32_t to = 0;
    bh_team_share((uint32_t)reading->len, 4096, member_idx, member_cnt, &from, &to);
    __m128i sum[4] = {_mm_setzero_si128()};
    for (size_t i = from; i < to; i += 64) {
        for (size_t k = 0; k < 4; k++) {
            const __m128i *at = (const __m128i *)(const void *)(reading->bytes + i + k * 16);
            sum[k] = _mm_add_epi64(sum[k], _mm_load_si128(at));
        }
    }
    sum[0] = _mm_add_epi64(_mm_add_epi64(sum[0], sum[1]), _mm_add_epi64(sum[2], sum[3]));
    reading->sums[member_idx] = (uint64_t)_mm_cvtsi128_si64(sum[0]);
}

/* Bytes a second of a read by all members. */
static double
read_rate(struct bh_team *team, const uint8_t *bytes)
{
    struct reading reading = {.bytes = bytes, .len = READ_BYTES};
    double start = now_s();
    bh_team_run(team, read_share, &reading);
    return (double)READ_BYTES / (now_s() - start);
}

/* Bytes of weights that one decoded token reads: all but the embedding rows of an untied model. */
static double
weights_bytes(const struct rig_file *file)
{
    const struct bh_gguf_tensor *output = bh_gguf_tensor_find(file->gguf, "output.weight");
    const struct bh_gguf_tensor *embd = bh_gguf_tensor_find(file->gguf, "token_embd.weight");
    return (double)file->packed_bytes - (output != NULL ? (double)embd->bytes : 0.0);
}

static double
prefill_rate(struct rig *rig)
{
    rig_reset(rig);
    double start = now_s();
    rig_feed(rig, 0, tokens, PREFILL_TOKENS, PREFILL_TOKENS, NULL, NULL);
    return PREFILL_TOKENS / (now_s() - start);
}

/* Tokens a second of `streams` sequences together, each at a context of PREFILL_TOKENS / streams. */
static double
decode_rate(struct rig *rig, uint32_t streams, float *logits)
{
    rig_reset(rig);
    for (uint32_t s = 0; s < streams; s++) {
        rig_feed(rig, s, tokens, PREFILL_TOKENS / streams, PREFILL_TOKENS, NULL, NULL);
    }
    double start = now_s();
    for (uint32_t i = 0; i < DECODE_TOKENS; i++) {
        for (uint32_t s = 0; s < streams; s++) {
            rig_place(rig, s, s, &tokens[PREFILL_TOKENS + i], 1, true);
        }
        rig_step(rig, streams);
        bh_forward_logits(rig->forward, 0, streams, logits);
    }
    return (double)DECODE_TOKENS * (double)streams / (now_s() - start);
}

/* Rounds of all numbers of one variant are interleaved with readings of the bandwidth. */
static void
bench_variant(const struct rig_file *file,
              const char *variant,
              uint32_t threads,
              const uint8_t *bytes)
{
    struct rig rig;
    struct rig_options options = {.mode = BH_MODEL_SERVED,
                                  .variant = variant,
                                  .threads = threads,
                                  .elem_bytes = 2,
                                  .page_tokens = 64,
                                  .tokens_max = 4096,
                                  .rows_max = PREFILL_TOKENS,
                                  .seqs_max = STREAMS_MAX};
    double prefill[ROUNDS];
    double decode[ROUNDS];
    double share[ROUNDS];
    double bound[ROUNDS];
    double many[ROUNDS];
    float *logits = calloc((size_t)STREAMS_MAX * file->dims.vocab, sizeof(*logits));
    rig_new(&rig, file, &options);
    for (int round = 0; logits != NULL && round < ROUNDS; round++) {
        bound[round] = read_rate(rig.team, bytes);
        prefill[round] = prefill_rate(&rig);
        decode[round] = decode_rate(&rig, 1, logits);
        share[round] = decode[round] * weights_bytes(file) / bound[round];
        many[round] = decode_rate(&rig, STREAMS_MAX, logits);
    }
    double achieved = median(decode) * weights_bytes(file);
    printf("%-11s threads=%u prefill_512=%.0f tok/s decode=%.1f tok/s weights=%.2f GB/s "
           "read_bound=%.2f GB/s "
           "share=%.0f %% decode_16_streams=%.0f tok/s\n",
           variant,
           threads,
           median(prefill),
           median(decode),
           achieved / 1e9,
           median(bound) / 1e9,
           100.0 * median(share),
           median(many));
    (void)fflush(stdout);
    free(logits);
    rig_delete(&rig);
}

int
main(int argc, char **argv)
{
    const char *path = argc > 1 ? argv[1] : getenv("BH_MODEL");
    long cpus = sysconf(_SC_NPROCESSORS_ONLN);
    uint32_t threads = argc > 2 ? (uint32_t)strtoul(argv[2], NULL, 10) : (uint32_t)cpus;
    if (path == NULL || access(path, R_OK) != 0) {
        printf("1..0 # SKIP no model at %s\n", path == NULL ? "BH_MODEL, which is not set" : path);
        return 77;
    }
    if (threads < 1 || threads > BH_TEAM_MAX) {
        fprintf(stderr, "bench_model: threads must be 1 to %d\n", BH_TEAM_MAX);
        return 2;
    }
    struct rig_file file;
    double start = now_s();
    rig_file_open(&file, path, threads);
    printf("packed %.1f MB in %.2f s\n", (double)file.packed_bytes / 1e6, now_s() - start);
    for (uint32_t i = 0; i < BH_COUNT(tokens); i++) {
        tokens[i] = (i * 7919 + 13) % file.dims.vocab;
    }
    uint8_t *bytes = aligned_alloc(64, READ_BYTES);
    if (bytes == NULL) {
        return 1;
    }
    for (size_t i = 0; i < READ_BYTES; i++) {
        bytes[i] = (uint8_t)i; /* pages of their own, not the one page of zeros */
    }
    bool usable = false;
    for (uint32_t i = 1; bh_kernels_at(i, &usable) != NULL;
         i++) { /* 0 is the plain C one: minutes */
        if (usable) {
            bench_variant(&file, bh_kernels_at(i, &usable)->name, threads, bytes);
        }
    }
    free(bytes);
    rig_file_close(&file);
    return 0;
}
