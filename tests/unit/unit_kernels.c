/* Kernels: every variant against the plain C one, bit for bit, on odd shapes and tails; and the plain
   one against double arithmetic written here from the definitions. */
#include "kernels/kernels.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/canon.h"

static uint64_t random_state = 0x1234567;

static uint32_t
random_u32(void)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(random_state >> 32);
}

static float
random_f32(float scale)
{
    return ((float)(random_u32() >> 8) * 0x1p-23f - 1.0f) * scale;
}

static void *
room(size_t bytes)
{
    void *mem = aligned_alloc(64, bh_round_up(bytes + 64, 64));
    cr_assert_not_null(mem);
    memset(mem, 0xa5, bytes + 64);
    return mem;
}

static float *
random_row(size_t cnt, float scale)
{
    float *row = room(cnt * sizeof(float));
    for (size_t i = 0; i < cnt; i++) {
        row[i] = random_f32(scale);
    }
    return row;
}

static const struct bh_kernels *
reference(void)
{
    const struct bh_kernels *ref = bh_kernels_find("ref");
    cr_assert_not_null(ref);
    return ref;
}

static const struct bh_kernels *
variant(const char *name)
{
    const struct bh_kernels *kernels = bh_kernels_find(name);
    if (kernels == NULL) {
        cr_skip_test("this CPU lacks what variant %s needs", name);
    }
    return kernels;
}

/* One test for each variant and operation. */
#define EACH_VARIANT(op, check)                                                                    \
    Test(avx2, op)                                                                                 \
    {                                                                                              \
        check(variant("avx2"));                                                                    \
    }                                                                                              \
    Test(avx512vnni, op)                                                                           \
    {                                                                                              \
        check(variant("avx512vnni"));                                                              \
    }

static void
same_bits(const void *ours, const void *theirs, size_t bytes, const char *what)
{
    cr_assert(memcmp(ours, theirs, bytes) == 0, "%s: bits differ from the reference", what);
}

/* Numbers are any bytes; scales and minima are finite, some subnormal, some zero. */
static struct bh_panels
random_panels(enum bh_weight_kind kind, uint32_t rows, uint32_t cols)
{
    size_t bytes = bh_panels_bytes(kind, rows, cols);
    uint8_t *mem = room(bytes);
    size_t step = bh_panel_step_bytes(kind);
    size_t numbers = kind <= BH_WEIGHT_Q4K ? 256 : 512;
    for (size_t i = 0; i < bytes; i++) {
        mem[i] = (uint8_t)random_u32();
    }
    bool wide = kind == BH_WEIGHT_Q4K || kind == BH_WEIGHT_Q8K || kind == BH_WEIGHT_F32;
    bool floats = !bh_weight_quantized(kind);
    for (uint32_t panel = 0; panel < bh_panel_cnt(rows); panel++) {
        uint8_t *at = mem + panel * bh_panel_bytes(kind, cols);
        for (uint32_t s = 0; s < (floats ? cols : cols / 32); s++, at += step) {
            size_t end = kind == BH_WEIGHT_Q6K ? numbers + 32 : step;
            for (size_t i = floats ? 0 : numbers; i < end; i += wide ? 4 : 2) {
                float value = random_u32() % 16 == 0 ? 0.0f : random_f32(0.01f);
                uint16_t half = kind == BH_WEIGHT_BF16 ? (uint16_t)(bh_f32_bits(value) >> 16)
                                                       : bh_f16_from_f32(value);
                memcpy(at + i, wide ? (const void *)&value : (const void *)&half, wide ? 4 : 2);
            }
        }
    }
    return (struct bh_panels){.bytes = mem, .kind = kind, .rows = rows, .cols = cols};
}

static struct bh_act
act_room(uint32_t rows, uint32_t cols)
{
    size_t blocks = (size_t)rows * cols / 32;
    return (struct bh_act){.q = room(blocks * 32),
                           .scale = room(blocks * 4),
                           .sum = room(blocks * 4),
                           .off = room(blocks * 4),
                           .half_off = room(blocks * 8),
                           .cols = cols};
}

static void
act_free(struct bh_act *act)
{
    free(act->q);
    free(act->scale);
    free(act->sum);
    free(act->off);
    free(act->half_off);
}

static void
same_act(const struct bh_act *a, const struct bh_act *b, uint32_t rows)
{
    size_t blocks = (size_t)rows * a->cols / 32;
    same_bits(a->q, b->q, blocks * 32, "q");
    same_bits(a->scale, b->scale, blocks * 4, "scale");
    same_bits(a->sum, b->sum, blocks * 4, "sum");
    same_bits(a->off, b->off, blocks * 4, "off");
    same_bits(a->half_off, b->half_off, blocks * 8, "half_off");
}

static void
check_quantize(const struct bh_kernels *kernels)
{
    enum { ROWS = 9, COLS = 160 };
    float *x = random_row(ROWS * COLS, 3.0f);
    /* a zero block, a tiny one, ties at half, the largest floats, infinity, NaN, minus zero */
    memset(x, 0, 32 * sizeof(float));
    for (int i = 0; i < 32; i++) {
        x[32 + i] = 1e-31f * (float)(i - 7);
        x[64 + i] = (float)(i - 16) * 0.5f;
        x[96 + i] = i % 2 == 0 ? 3.4e38f : -3.4e38f;
    }
    x[64] = 127.0f;
    x[COLS + 5] = INFINITY;
    x[2 * COLS + 40] = -NAN;
    x[3 * COLS] = -0.0f;
    struct bh_act ours = act_room(ROWS, COLS);
    struct bh_act theirs = act_room(ROWS, COLS);
    kernels->quantize(x, COLS, 0, ROWS, &ours);
    reference()->quantize(x, COLS, 0, ROWS, &theirs);
    same_act(&ours, &theirs, ROWS);
    act_free(&ours);
    act_free(&theirs);
    free(x);
}
EACH_VARIANT(quantize, check_quantize)

static void
check_matmul_shape(const struct bh_kernels *kernels,
                   enum bh_weight_kind kind,
                   uint32_t outputs,
                   uint32_t cols,
                   uint32_t rows)
{
    struct bh_panels matrix = random_panels(kind, outputs, cols);
    struct bh_act act = act_room(rows, cols);
    float *x = random_row((size_t)rows * cols, 2.0f);
    size_t cnt = (size_t)rows * outputs;
    float *ours = random_row(cnt + 16, 1.0f);
    float *theirs = room((cnt + 16) * sizeof(float));
    memcpy(theirs, ours, (cnt + 16) * sizeof(float));
    reference()->quantize(x, cols, 0, rows, &act);
    for (int add = 0; add < 2; add++) {
        struct bh_matmul call = {.matrix = &matrix,
                                 .panel_to = bh_panel_cnt(outputs),
                                 .row_to = rows,
                                 .out = ours,
                                 .out_stride = outputs,
                                 .add = add != 0};
        struct bh_matmul ref_call = call;
        ref_call.out = theirs;
        if (bh_weight_quantized(kind)) {
            kernels->matmul(&call, &act);
            reference()->matmul(&ref_call, &act);
        } else {
            kernels->matmul_float(&call, x, cols);
            reference()->matmul_float(&ref_call, x, cols);
        }
        /* 16 floats past the end too: nothing may be stored there */
        cr_assert(memcmp(ours, theirs, (cnt + 16) * sizeof(float)) == 0,
                  "kind %d, %u outputs, %u inputs, %u rows, add %d: bits differ",
                  (int)kind,
                  outputs,
                  cols,
                  rows,
                  add);
    }
    free(ours);
    free(theirs);
    free(x);
    act_free(&act);
    free((void *)(uintptr_t)matrix.bytes);
}

static void
check_matmul(const struct bh_kernels *kernels)
{
    static const uint32_t outputs[] = {1, 15, 16, 17, 33, 40, 64};
    for (int kind = 0; kind < BH_WEIGHT_KIND_CNT; kind++) {
        for (uint32_t rows = 1; rows <= 14; rows++) {
            uint32_t cols = 32 * (1 + rows % 4);
            check_matmul_shape(
                kernels, (enum bh_weight_kind)kind, outputs[rows % BH_COUNT(outputs)], cols, rows);
        }
        check_matmul_shape(kernels, (enum bh_weight_kind)kind, 48, 576, 19);
    }
}
EACH_VARIANT(matmul, check_matmul)

/* The largest sums that can occur: all numbers at one end, all activations at an end. A saturating
   instruction would show here. */
static void
check_extremes(const struct bh_kernels *kernels)
{
    static const uint8_t numbers[] = {0x00, 0xff, 0x80, 0x01};
    enum { COLS = 64, OUTPUTS = 16 };
    struct bh_act act = act_room(2, COLS);
    float x[2 * COLS];
    for (int kind = BH_WEIGHT_Q4; kind < BH_WEIGHT_KIND_CNT; kind++) {
        for (size_t n = 0; n < BH_COUNT(numbers); n++) {
            struct bh_panels matrix = random_panels((enum bh_weight_kind)kind, OUTPUTS, COLS);
            uint8_t *bytes = (uint8_t *)(uintptr_t)matrix.bytes;
            size_t step = bh_panel_step_bytes(matrix.kind);
            for (size_t b = 0; b < COLS / 32; b++) {
                memset(bytes + b * step, numbers[n], kind <= BH_WEIGHT_Q4K ? 256 : 512);
                if (kind == BH_WEIGHT_Q6K) {
                    memset(bytes + b * step + 544, n % 2 == 0 ? 0x80 : 0x7f, 32);
                }
            }
            for (uint32_t i = 0; i < 2 * COLS; i++) {
                x[i] = i < COLS ? 1.0f : i % 2 == 0 ? -1.0f : 1.0f;
            }
            float ours[2 * OUTPUTS];
            float theirs[2 * OUTPUTS];
            struct bh_matmul call = {
                .matrix = &matrix, .panel_to = 1, .row_to = 2, .out = ours, .out_stride = OUTPUTS};
            reference()->quantize(x, COLS, 0, 2, &act);
            kernels->matmul(&call, &act);
            call.out = theirs;
            reference()->matmul(&call, &act);
            same_bits(ours, theirs, sizeof(ours), "extremes");
            free(bytes);
        }
    }
    act_free(&act);
}
EACH_VARIANT(extremes, check_extremes)

static void
check_rows(const struct bh_kernels *kernels)
{
    for (uint32_t cols = 1; cols <= 100; cols += cols < 36 ? 1 : 7) {
        float *x = random_row(cols, 20.0f);
        float *w = random_row(cols, 2.0f);
        float *ours = random_row(cols + 16, 1.0f);
        float *theirs = room((cols + 16) * sizeof(float));
        memcpy(theirs, ours, (cols + 16) * sizeof(float));
        kernels->norm(x, w, 1e-5f, cols, ours);
        reference()->norm(x, w, 1e-5f, cols, theirs);
        same_bits(ours, theirs, (cols + 16) * sizeof(float), "norm");
        x[cols / 2] = 200.0f;
        x[0] = -200.0f;
        kernels->swiglu(x, w, cols, ours);
        reference()->swiglu(x, w, cols, theirs);
        same_bits(ours, theirs, (cols + 16) * sizeof(float), "swiglu");
        uint16_t half[2][128];
        memset(half, 0, sizeof(half));
        x[0] = 65520.0f; /* the smallest that becomes infinity */
        x[cols / 2] = 6.1e-5f;
        kernels->halve(x, cols, half[0]);
        reference()->halve(x, cols, half[1]);
        same_bits(half[0], half[1], sizeof(half[0]), "halve");
        free(x);
        free(w);
        free(ours);
        free(theirs);
    }
}
EACH_VARIANT(rows, check_rows)

static void
check_scores_shape(const struct bh_kernels *kernels,
                   uint32_t q_cnt,
                   uint32_t head_dim,
                   uint32_t page_tokens,
                   uint32_t elem)
{
    uint32_t tok_to = 1 + random_u32() % page_tokens;
    float *wide = random_row((size_t)page_tokens * head_dim, 2.0f);
    uint16_t *half = room((size_t)page_tokens * head_dim * 2);
    reference()->halve(wide, page_tokens * head_dim, half);
    float *q = random_row((size_t)q_cnt * head_dim, 1.0f);
    struct bh_page_part part = {.bytes = elem == 4 ? (const uint8_t *)wide : (const uint8_t *)half,
                                .page_tokens = page_tokens,
                                .elem_bytes = elem,
                                .tok_to = tok_to};
    struct bh_queries queries = {.q = q, .q_cnt = q_cnt, .head_dim = head_dim};
    size_t stride = page_tokens;
    float *scores[2] = {room(q_cnt * stride * 4), room(q_cnt * stride * 4)};
    float *out[2] = {random_row((size_t)q_cnt * head_dim, 1.0f),
                     room((size_t)q_cnt * head_dim * 4)};
    memcpy(out[1], out[0], (size_t)q_cnt * head_dim * 4);
    const struct bh_kernels *both[2] = {kernels, reference()};
    for (int i = 0; i < 2; i++) {
        struct bh_page_part v = part;
        float max = 0.0f;
        float sum = 0.0f;
        both[i]->scores(&queries, &part, scores[i], stride);
        for (uint32_t r = 0; r < q_cnt; r++) {
            both[i]->softmax(scores[i] + r * stride, tok_to, &max, &sum);
            out[i][r] += max + sum;
        }
        v.tok_from = tok_to / 3;
        both[i]->values(scores[i], stride, q_cnt, head_dim, &v, out[i]);
    }
    same_bits(scores[0], scores[1], q_cnt * stride * 4, "scores and softmax");
    same_bits(out[0], out[1], (size_t)q_cnt * head_dim * 4, "values");
    for (int i = 0; i < 2; i++) {
        free(scores[i]);
        free(out[i]);
    }
    free(q);
    free(half);
    free(wide);
}

static void
check_attend(const struct bh_kernels *kernels)
{
    static const uint32_t head_dims[] = {16, 48, 64, 80, 128};
    for (uint32_t q_cnt = 1; q_cnt <= 16; q_cnt++) {
        for (size_t h = 0; h < BH_COUNT(head_dims); h++) {
            uint32_t page_tokens = 16u << (q_cnt + h) % 5;
            check_scores_shape(kernels, q_cnt, head_dims[h], page_tokens, q_cnt % 3 == 0 ? 4 : 2);
        }
    }
}
EACH_VARIANT(attend, check_attend)

/* NaN and infinity must come out as NaN whatever the variant, never as a number. */
static void
check_nonfinite(const struct bh_kernels *kernels)
{
    float scores[16] = {1.0f, NAN, 2.0f};
    float max = 0.0f;
    float sum = 0.0f;
    kernels->softmax(scores, 3, &max, &sum);
    cr_assert(isnan(sum) && isnan(scores[1]));
    float gate[1] = {NAN};
    float up[1] = {1.0f};
    kernels->swiglu(gate, up, 1, gate);
    cr_assert(isnan(gate[0]));
    float x[32] = {[7] = INFINITY};
    struct bh_act act = act_room(1, 32);
    struct bh_panels matrix = random_panels(BH_WEIGHT_Q8, 16, 32);
    float out[16];
    struct bh_matmul call = {
        .matrix = &matrix, .panel_to = 1, .row_to = 1, .out = out, .out_stride = 16};
    kernels->quantize(x, 32, 0, 1, &act);
    kernels->matmul(&call, &act);
    for (int i = 0; i < 16; i++) {
        cr_assert(isnan(out[i]));
    }
    act_free(&act);
    free((void *)(uintptr_t)matrix.bytes);
}
EACH_VARIANT(nonfinite, check_nonfinite)
Test(ref, nonfinite)
{
    check_nonfinite(reference());
}

/* A row's result may not depend on how many rows share the call. */
static void
check_alone(const struct bh_kernels *kernels)
{
    enum { ROWS = 13, COLS = 96, OUTPUTS = 40 };
    for (int kind = 0; kind < BH_WEIGHT_KIND_CNT; kind++) {
        struct bh_panels matrix = random_panels((enum bh_weight_kind)kind, OUTPUTS, COLS);
        struct bh_act act = act_room(ROWS, COLS);
        float *x = random_row(ROWS * COLS, 2.0f);
        float together[ROWS * OUTPUTS];
        float alone[ROWS * OUTPUTS];
        kernels->quantize(x, COLS, 0, ROWS, &act);
        struct bh_matmul call = {.matrix = &matrix,
                                 .panel_to = 3,
                                 .row_to = ROWS,
                                 .out = together,
                                 .out_stride = OUTPUTS};
        for (uint32_t row = 0; row <= ROWS; row++) {
            if (bh_weight_quantized(matrix.kind)) {
                kernels->matmul(&call, &act);
            } else {
                kernels->matmul_float(&call, x, COLS);
            }
            call.out = alone;
            call.row_from = row;
            call.row_to = row + 1;
        }
        same_bits(together, alone, sizeof(alone), "rows alone");
        act_free(&act);
        free(x);
        free((void *)(uintptr_t)matrix.bytes);
    }
}
EACH_VARIANT(alone, check_alone)

/* From here: the plain C kernels against double arithmetic. */

Test(ref, exponential_is_close_to_libm)
{
    for (float x = -86.9f; x < 87.9f; x += 0.0137f) {
        double expected = exp((double)x);
        cr_assert_lt(
            fabs((double)bh_canon_exp(x) - expected), 1.2e-7 * expected, "x = %g", (double)x);
    }
    cr_assert_eq(bh_canon_exp(0.0f), 1.0f);
    cr_assert(bh_canon_exp(-1000.0f) < 1e-37f && bh_canon_exp(1000.0f) > 1e38f &&
              isnan(bh_canon_exp(NAN)));
}

Test(ref, halves_all)
{
    for (uint32_t bits = 0; bits < 65536; bits++) {
        int exponent = (int)(bits >> 10 & 31);
        double mantissa = (double)(bits & 1023);
        double expected =
            exponent == 0 ? ldexp(mantissa, -24) : ldexp(1024.0 + mantissa, exponent - 25);
        float value = bh_f16_to_f32((uint16_t)bits);
        if (exponent == 31) {
            cr_assert(mantissa != 0 ? isnan(value) : isinf(value));
            cr_assert(isnan(bh_f16_to_f32(bh_f16_from_f32(value))) == isnan(value));
            continue;
        }
        cr_assert_eq((double)value, (bits & 0x8000u) != 0 ? -expected : expected);
        cr_assert_eq(bh_f16_from_f32(value), bits);
        /* halfway to the next one goes to the even one, a little more to the next */
        float next = bh_f16_to_f32((uint16_t)(bits + 1));
        if ((bits & 0x7fffu) < 0x7bffu) {
            float half = (float)(((double)value + (double)next) / 2.0);
            cr_assert_eq(bh_f16_from_f32(half), (bits & 1) != 0 ? bits + 1 : bits);
            cr_assert_eq(bh_f16_from_f32(nextafterf(half, next)), bits + 1);
        }
    }
    cr_assert_eq(bh_f16_from_f32(65519.99f), 0x7bff);
    cr_assert_eq(bh_f16_from_f32(65520.0f), 0x7c00);
}

Test(ref, matmul_is_the_sum_of_unpacked_products)
{
    enum { COLS = 256, OUTPUTS = 20 };
    for (int kind = 0; kind < BH_WEIGHT_KIND_CNT; kind++) {
        struct bh_panels matrix = random_panels((enum bh_weight_kind)kind, OUTPUTS, COLS);
        struct bh_act act = act_room(1, COLS);
        float *x = random_row(COLS, 2.0f);
        float out[OUTPUTS];
        struct bh_matmul call = {
            .matrix = &matrix, .panel_to = 2, .row_to = 1, .out = out, .out_stride = OUTPUTS};
        reference()->quantize(x, COLS, 0, 1, &act);
        for (uint32_t i = 0; bh_weight_quantized(matrix.kind) && i < COLS; i++) {
            cr_assert_lt(fabsf(x[i] - act.scale[i / 32] * (float)act.q[i]),
                         0.51f * act.scale[i / 32]);
            x[i] = act.scale[i / 32] * (float)act.q[i];
        }
        if (bh_weight_quantized(matrix.kind)) {
            reference()->matmul(&call, &act);
        } else {
            reference()->matmul_float(&call, x, COLS);
        }
        for (uint32_t output = 0; output < OUTPUTS; output++) {
            float row[COLS];
            double expected = 0.0;
            double size = 0.0;
            bh_panel_unpack_row(&matrix, output, row);
            for (uint32_t i = 0; i < COLS; i++) {
                expected += (double)row[i] * (double)x[i];
                size += fabs((double)row[i] * (double)x[i]);
            }
            cr_assert_lt(fabs((double)out[output] - expected),
                         1e-5 * size,
                         "kind %d output %u",
                         kind,
                         output);
        }
        act_free(&act);
        free(x);
        free((void *)(uintptr_t)matrix.bytes);
    }
}

Test(ref, attention_is_softmax)
{
    enum { TOKENS = 21, DIM = 16, PAGE = 32 };
    float *q = random_row(DIM, 1.0f);
    float *k = random_row(DIM * PAGE, 1.0f);
    float *v = random_row(PAGE * DIM, 1.0f);
    float scores[PAGE];
    float out[DIM] = {0};
    float max = 0.0f;
    float sum = 0.0f;
    struct bh_queries queries = {.q = q, .q_cnt = 1, .head_dim = DIM};
    struct bh_page_part part = {
        .bytes = (const uint8_t *)k, .page_tokens = PAGE, .elem_bytes = 4, .tok_to = TOKENS};
    reference()->scores(&queries, &part, scores, PAGE);
    reference()->softmax(scores, TOKENS, &max, &sum);
    part.bytes = (const uint8_t *)v;
    reference()->values(scores, PAGE, 1, DIM, &part, out);
    double weight[TOKENS];
    double total = 0.0;
    for (int t = 0; t < TOKENS; t++) {
        double dot = 0.0;
        for (int d = 0; d < DIM; d++) {
            dot += (double)q[d] * (double)k[d * PAGE + t];
        }
        weight[t] = exp(dot - (double)max);
        total += weight[t];
    }
    cr_assert_lt(fabs((double)sum - total), 1e-5 * total);
    for (int d = 0; d < DIM; d++) {
        double expected = 0.0;
        for (int t = 0; t < TOKENS; t++) {
            expected += weight[t] * (double)v[t * DIM + d];
        }
        cr_assert_lt(fabs((double)out[d] - expected), 1e-5 * total);
    }
    free(q);
    free(k);
    free(v);
}

Test(dispatch, names)
{
    bool usable = false;
    cr_assert_null(bh_kernels_find("no such variant"));
    cr_assert_not_null(bh_kernels_find(NULL));
    uint32_t cnt = 0;
    while (bh_kernels_at(cnt, &usable) != NULL) {
        cr_assert_eq(bh_kernels_find(bh_kernels_at(cnt, &usable)->name) != NULL, usable);
        cnt++;
    }
    cr_assert_eq(cnt, 3);
}
