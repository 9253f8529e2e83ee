/* The model on tiny random files: what is refused, what packing keeps, and that nothing but the sequence
   decides the bits of a result. */
#include "src/model/model.h"

#include <math.h>

#include "kernels/kernels.h"
#include "src/model/packed.h"
#include "src/model/view.h"
#include "tests/unit/model_fixture.h"

static const char *const types[] = {
    "f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "q4_k", "q5_k", "q6_k"};

static uint32_t
byte_at(const uint8_t *bytes, size_t at)
{
    return bytes[at];
}

static float
half_at(const uint8_t *bytes)
{
    uint32_t bits = byte_at(bytes, 0) | byte_at(bytes, 1) << 8;
    int exponent = (int)(bits >> 10 & 31);
    float mantissa = (float)(bits & 1023);
    float value = exponent == 0 ? ldexpf(mantissa, -24) : ldexpf(1024.0f + mantissa, exponent - 25);
    return (bits & 0x8000) != 0 ? -value : value;
}

/* Element i of a block of 32, from the format's description. */
static float
small_value(enum bh_gguf_type type, const uint8_t *block, size_t i)
{
    size_t qs = type == BH_GGUF_Q4_0 ? 2 : type == BH_GGUF_Q4_1 ? 4 : type == BH_GGUF_Q5_0 ? 6 : 8;
    if (type == BH_GGUF_Q8_0) {
        return half_at(block) * (float)(int8_t)block[2 + i];
    }
    uint32_t q = byte_at(block, qs + i % 16) >> 4 * (i / 16) & 15u;
    if (type == BH_GGUF_Q5_0 || type == BH_GGUF_Q5_1) {
        q += 16u * (byte_at(block, qs - 4 + i / 8) >> i % 8 & 1u);
    }
    switch (type) {
    case BH_GGUF_Q4_0:
        return half_at(block) * ((float)q - 8.0f);
    case BH_GGUF_Q5_0:
        return half_at(block) * ((float)q - 16.0f);
    default:
        return half_at(block) * (float)q + half_at(block + 2);
    }
}

/* Element i of a super-block of 256. */
static float
large_value(enum bh_gguf_type type, const uint8_t *block, size_t i)
{
    if (type == BH_GGUF_Q6_K) {
        size_t n = i / 128;
        size_t g = i % 128 / 32;
        size_t l = i % 32;
        uint32_t low = byte_at(block, 64 * n + 32 * (g & 1) + l) >> 4 * (g >> 1) & 15u;
        uint32_t high = byte_at(block, 128 + 32 * n + l) >> 2 * g & 3u;
        float scale = half_at(block + 208) * (float)(int8_t)block[192 + 8 * n + 2 * g + l / 16];
        return scale * (float)((int)(low + 16 * high) - 32);
    }
    const uint8_t *s = block + 4;
    size_t j = i / 32;
    uint32_t scale = j < 4 ? s[j] & 63u : (s[j + 4] & 15u) | byte_at(s, j - 4) >> 6 << 4;
    uint32_t min = j < 4 ? s[j + 4] & 63u : byte_at(s, j + 4) >> 4 | byte_at(s, j) >> 6 << 4;
    size_t qs = type == BH_GGUF_Q5_K ? 48 : 16;
    uint32_t q = byte_at(block, qs + 32 * (i / 64) + i % 32) >> 4 * (j & 1) & 15u;
    if (type == BH_GGUF_Q5_K) {
        q += 16u * (byte_at(block, 16 + i % 32) >> j & 1u);
    }
    return half_at(block) * (float)scale * (float)q - half_at(block + 2) * (float)min;
}

static float
file_value(const struct rig_file *file, const struct bh_gguf_tensor *tensor, size_t row, size_t col)
{
    size_t idx = row * tensor->dims[0] + col;
    uint32_t elems = bh_gguf_type_elems(tensor->type);
    const uint8_t *block =
        file->bytes + tensor->offset + idx / elems * bh_gguf_type_bytes(tensor->type);
    if (tensor->type == BH_GGUF_F16) {
        return half_at(block);
    }
    if (elems == 1) {
        uint32_t bits =
            tensor->type == BH_GGUF_BF16 ? (byte_at(block, 0) | byte_at(block, 1) << 8) << 16 : 0;
        float value;
        memcpy(&value, tensor->type == BH_GGUF_BF16 ? (const void *)&bits : block, sizeof(value));
        return value;
    }
    return elems == 32 ? small_value(tensor->type, block, idx % 32)
                       : large_value(tensor->type, block, idx % 256);
}

static void
check_matrix(const struct rig_file *file, const char *name, const struct bh_panels *matrix)
{
    const struct bh_gguf_tensor *tensor = bh_gguf_tensor_find(file->gguf, name);
    cr_assert(tensor != NULL && matrix->rows == tensor->dims[1] && matrix->cols == tensor->dims[0]);
    float *row = calloc(matrix->cols, sizeof(*row));
    float *panel = calloc(matrix->cols, 16 * sizeof(*panel));
    cr_assert(row != NULL && panel != NULL);
    for (uint32_t r = 0; r < matrix->rows; r++) {
        bh_panel_unpack_row(matrix, r, row);
        if (r % 16 == 0) {
            bh_panel_unpack(matrix, r / 16, panel);
        }
        for (uint32_t c = 0; c < matrix->cols; c++) {
            cr_assert_eq(row[c], file_value(file, tensor, r, c), "%s row %u column %u", name, r, c);
            cr_assert_eq(panel[c * 16 + r % 16], row[c]);
        }
    }
    free(row);
    free(panel);
}

Test(pack, keeps_every_weight)
{
    for (size_t t = 0; t < BH_COUNT(types); t++) {
        struct rig_file file;
        struct bh_model *model = NULL;
        char flags[128];
        (void)snprintf(flags, sizeof(flags), "--type %s --untied --layers 1 --vocab 300", types[t]);
        fixture_open(&file, flags);
        cr_assert_eq(bh_model_join(file.packed, file.packed_bytes, BH_MODEL_SERVED, NULL, &model),
                     BH_OK);
        check_matrix(&file, "token_embd.weight", &model->token_embd);
        check_matrix(&file, "output.weight", &model->output);
        check_matrix(&file, "blk.0.attn_q.weight", &model->layers[0].q);
        check_matrix(&file, "blk.0.attn_k.weight", &model->layers[0].k);
        check_matrix(&file, "blk.0.attn_v.weight", &model->layers[0].v);
        check_matrix(&file, "blk.0.attn_output.weight", &model->layers[0].attn_output);
        check_matrix(&file, "blk.0.ffn_gate.weight", &model->layers[0].gate);
        check_matrix(&file, "blk.0.ffn_up.weight", &model->layers[0].up);
        check_matrix(&file, "blk.0.ffn_down.weight", &model->layers[0].down);
        bh_model_leave(model);
        rig_file_close(&file);
    }
}

/* Joining must notice each of these spoiled bytes. */
Test(join, refuses_spoiled_weights)
{
    struct rig_file file;
    struct bh_model *model = NULL;
    fixture_open(&file, "--type q8_0");
    struct bh_packed_head *head = (struct bh_packed_head *)(void *)file.packed;
    struct bh_packed_tensor *table =
        (struct bh_packed_tensor *)(void *)(file.packed + sizeof(*head));
    size_t layer_q = BH_PACKED_FIXED_CNT + BH_PACKED_Q;
    cr_assert_eq(bh_model_join(file.packed, file.packed_bytes, BH_MODEL_SERVED, NULL, &model),
                 BH_OK);
    bh_model_leave(model);
    const struct {
        void *at;
        size_t bytes;
        uint64_t value;
    } spoils[] = {
        {&head->magic, 8, 0},
        {&head->fingerprint, 8, BH_PACKED_FINGERPRINT + 1},
        {&head->bytes, 8, file.packed_bytes + 1},
        {&head->bytes, 8, 100},
        {&head->dims.layers, 4, 3},
        {&head->dims.layers, 4, 0},
        {&head->dims.heads, 4, 3},
        {&head->dims.d_model, 4, 63},
        {&head->dims.norm_eps, 4, 0},
        {&head->tensor_cnt, 4, head->tensor_cnt - 1},
        {&table[layer_q].offset, 8, table[layer_q].offset + 4},
        {&table[layer_q].offset, 8, file.packed_bytes},
        {&table[layer_q].offset, 8, 0},
        {&table[layer_q].offset, 8, UINT64_MAX - 63},
        {&table[layer_q].bytes, 8, table[layer_q].bytes - 64},
        {&table[layer_q].kind, 4, BH_WEIGHT_KIND_CNT},
        {&table[layer_q].kind, 4, BH_WEIGHT_Q4},
        {&table[layer_q].rows, 4, table[layer_q].rows + 16},
        {&table[layer_q].cols, 4, 32},
        {&table[BH_PACKED_OUTPUT_NORM].kind, 4, BH_WEIGHT_F16},
    };
    for (size_t i = 0; i < BH_COUNT(spoils); i++) {
        uint64_t kept = 0;
        memcpy(&kept, spoils[i].at, spoils[i].bytes);
        memcpy(spoils[i].at, &spoils[i].value, spoils[i].bytes);
        cr_assert_eq(bh_model_join(file.packed, file.packed_bytes, BH_MODEL_SERVED, NULL, &model),
                     BH_ECORRUPT,
                     "spoil %zu",
                     i);
        memcpy(spoils[i].at, &kept, spoils[i].bytes);
    }
    cr_assert_eq(bh_model_join(NULL, 0, BH_MODEL_SERVED, NULL, &model), BH_ECORRUPT);
    cr_assert_eq(bh_model_join(file.packed, 64, BH_MODEL_SERVED, NULL, &model), BH_ECORRUPT);
    cr_assert_eq(bh_model_join(file.packed, file.packed_bytes, BH_MODEL_SERVED, "sse9", &model),
                 BH_EINVAL);
    cr_assert_eq(bh_model_join(file.packed, file.packed_bytes, BH_MODEL_SERVED, NULL, &model),
                 BH_OK);
    bh_model_leave(model);
    rig_file_close(&file);
}

/* Replaces `from` by `to` (of one length) wherever it stands in the header, and reads dimensions. */
static enum bh_status
dims_after(
    const struct rig_file *file, const char *from, const char *to, char *error, size_t *footprint)
{
    size_t len = strlen(from);
    struct bh_gguf *gguf = NULL;
    struct bh_model_dims dims;
    uint8_t *copy = malloc(file->len);
    cr_assert(copy != NULL && strlen(to) == len);
    memcpy(copy, file->bytes, file->len);
    for (size_t i = 0; i + len <= bh_gguf_header_bytes(file->gguf); i++) {
        if (memcmp(copy + i, from, len) == 0) {
            memcpy(copy + i, to, len);
        }
    }
    cr_assert_eq(bh_gguf_open(copy, file->len, file->len, error, &gguf), BH_OK);
    enum bh_status status = bh_model_dims_read(gguf, error, &dims);
    *footprint = bh_model_pack_footprint(gguf, error);
    bh_gguf_close(gguf);
    free(copy);
    return status;
}

Test(dims, refuses_by_name)
{
    struct rig_file file;
    fixture_open(&file, "--type q8_0");
    static const struct {
        const char *from;
        const char *to;
        enum bh_status status;
        const char *named;
    } cases[] = {
        {"general.architecture", "general.architectura", BH_ECORRUPT, "general.architecture"},
        {"llama.block_count", "llama.block_counX", BH_ECORRUPT, "llama.block_count"},
        {"llama.embedding_length", "llama.embedding_lengtX", BH_ECORRUPT, "llama.embedding_length"},
        {"llama.context_length", "llama.expert_countxx", BH_ECORRUPT, "llama.context_length"},
        {"layer_norm_rms_epsilon", "layer_norm_rms_epsiloX", BH_ECORRUPT, "rms_epsilon"},
        {"token_embd.weight", "token_embd.weighX", BH_ECORRUPT, "token_embd.weight"},
        {"blk.1.ffn_up.weight", "blk.1.ffn_ux.weight", BH_OK, "blk.1.ffn_up.weight"},
        {"output_norm.weight", "output_nork.weight", BH_OK, "output_norm.weight"},
    };
    char error[BH_MODEL_ERROR_MAX] = "";
    size_t footprint = 0;
    cr_assert_eq(dims_after(&file, "llama.block_count", "llama.block_count", error, &footprint),
                 BH_OK);
    cr_assert_eq(footprint, file.packed_bytes);
    for (size_t i = 0; i < BH_COUNT(cases); i++) {
        enum bh_status status = dims_after(&file, cases[i].from, cases[i].to, error, &footprint);
        cr_assert_eq(status, cases[i].status, "case %zu: %d %s", i, (int)status, error);
        cr_assert_eq(footprint, 0);
        cr_assert(strstr(error, cases[i].named) != NULL, "case %zu says '%s'", i, error);
    }
    rig_file_close(&file);
}

/* A tensor that the computation would not use must stop it. */
Test(dims, refuses_tensors_it_does_not_know)
{
    struct rig_file file;
    char error[BH_MODEL_ERROR_MAX] = "";
    size_t footprint = 1;
    fixture_open(&file, "--type q8_0 --rope-freqs");
    cr_assert_eq(dims_after(&file, "rope_freqs.weight", "rope_freqs.weighs", error, &footprint),
                 BH_OK);
    cr_assert_eq(footprint, 0);
    cr_assert(strstr(error, "not supported") != NULL, "%s", error);
    rig_file_close(&file);
}

Test(dims, limits)
{
    struct bh_model_dims good = {.layers = 2,
                                 .d_model = 64,
                                 .heads = 4,
                                 .kv_heads = 2,
                                 .head_dim = 16,
                                 .ffn = 128,
                                 .vocab = 300,
                                 .ctx_train = 512,
                                 .rope_base = 10000.0f,
                                 .norm_eps = 1e-5f};
    cr_assert_null(bh_model_dims_check(&good));
    struct bh_model_dims bad[16];
    for (size_t i = 0; i < BH_COUNT(bad); i++) {
        bad[i] = good;
    }
    bad[0].layers = 0;
    bad[1].layers = BH_MODEL_LAYERS_MAX + 1;
    bad[2].d_model = 48;
    bad[3].d_model = BH_MODEL_WIDTH_MAX + 32;
    bad[4].ffn = 31;
    bad[5].head_dim = 24;
    bad[6].heads = 0;
    bad[7].heads = UINT32_MAX / 16;
    bad[8].kv_heads = 3;
    bad[9].kv_heads = 0;
    bad[10].vocab = 0;
    bad[11].ctx_train = 1u << 24;
    bad[12].rope_base = NAN;
    bad[13].norm_eps = NAN;
    bad[14].heads = 34; /* 17 heads share one */
    bad[15].vocab = BH_MODEL_VOCAB_MAX + 1;
    for (size_t i = 0; i < BH_COUNT(bad); i++) {
        cr_assert_not_null(bh_model_dims_check(&bad[i]), "case %zu", i);
    }
    good.heads = 32; /* 16 heads share one: the limit */
    cr_assert_null(bh_model_dims_check(&good));
}

#define TEXT_TOKENS 300u /* more than a split of attention */

/* Logits of the last four positions of text 0, computed in some way. */
struct result {
    float *logits;
    size_t bytes;
};

static void
take_last(struct rig *rig, uint32_t first_pos, uint32_t cnt, void *arg)
{
    struct result *result = arg;
    uint32_t vocab = bh_model_dims(rig->model)->vocab;
    for (uint32_t row = 0; row < cnt; row++) {
        if (first_pos + row + 4 >= TEXT_TOKENS) {
            float *to = result->logits + (size_t)(first_pos + row + 4 - TEXT_TOKENS) * vocab;
            bh_forward_logits(rig->forward, row, 1, to);
        }
    }
}

static struct result
compute(const struct rig_file *file, const struct rig_options *options, uint32_t chunk)
{
    struct rig rig;
    uint32_t tokens[TEXT_TOKENS];
    struct result result = {.bytes = (size_t)4 * file->dims.vocab * sizeof(float)};
    result.logits = calloc(1, result.bytes);
    cr_assert_not_null(result.logits);
    for (uint32_t i = 0; i < TEXT_TOKENS; i++) {
        tokens[i] = fixture_token(0, i);
    }
    rig_new(&rig, file, options);
    rig_feed(&rig, 0, tokens, TEXT_TOKENS, chunk, take_last, &result);
    rig_delete(&rig);
    return result;
}

static void
check_same(const struct rig_file *file,
           const struct rig_options *options,
           uint32_t chunk,
           const struct result *want,
           const char *type)
{
    struct result got = compute(file, options, chunk);
    cr_assert(memcmp(got.logits, want->logits, got.bytes) == 0,
              "%s, variant %s, %u threads, pages of %u, chunks of %u: other bits",
              type,
              options->variant == NULL ? "best" : options->variant,
              options->threads,
              options->page_tokens,
              chunk);
    free(got.logits);
}

/* Variants, threads, pages and chunks: none of them may show, for any type of weights. */
Test(model, nothing_but_the_sequence_matters)
{
    for (size_t t = 0; t < BH_COUNT(types); t++) {
        struct rig_file file;
        char flags[128];
        bool usable = false;
        (void)snprintf(flags,
                       sizeof(flags),
                       "--type %s --rope-freqs --heads 8 --kv-heads 2 --head-dim 32",
                       types[t]);
        fixture_open(&file, flags);
        struct rig_options options = fixture_options();
        options.variant = "ref";
        struct result want = compute(&file, &options, 512);
        cr_assert(isfinite(want.logits[0]) && want.logits[0] != 0.0f);
        for (uint32_t i = 0; bh_kernels_at(i, &usable) != NULL; i++) {
            if (!usable) {
                continue;
            }
            options = fixture_options();
            options.variant = bh_kernels_at(i, &usable)->name;
            check_same(&file, &options, 512, &want, types[t]);
            options.threads = 3;
            options.page_tokens = 64;
            check_same(&file, &options, 37, &want, types[t]);
            options.threads = 1;
            options.page_tokens = 256;
            check_same(&file, &options, 1, &want, types[t]);
        }
        free(want.logits);
        rig_file_close(&file);
    }
}

/* Float activations are what int8 ones are near to: an independent path through other kernels. */
Test(model, served_is_near_plain)
{
    for (size_t t = 0; t < BH_COUNT(types); t++) {
        struct rig_file file;
        char flags[128];
        (void)snprintf(flags, sizeof(flags), "--type %s", types[t]);
        fixture_open(&file, flags);
        struct rig_options options = fixture_options();
        struct result served = compute(&file, &options, 512);
        options.mode = BH_MODEL_PLAIN;
        options.elem_bytes = 4;
        struct result plain = compute(&file, &options, 512);
        double error = 0.0;
        double size = 0.0;
        for (size_t i = 0; i < served.bytes / sizeof(float); i++) {
            error += pow((double)served.logits[i] - (double)plain.logits[i], 2);
            size += pow((double)plain.logits[i], 2);
        }
        cr_assert(size > 0.0 && sqrt(error / size) < 0.05,
                  "%s: relative error %g",
                  types[t],
                  sqrt(error / size));
        free(served.logits);
        free(plain.logits);
        rig_file_close(&file);
    }
}

/* Eight sequences at different positions in one batch give what each gives alone. */
Test(model, a_batch_is_its_sequences)
{
    enum { SEQS = 8, STEPS = 12 };
    struct rig_file file;
    struct rig together;
    struct rig alone;
    struct rig_options options = fixture_options();
    fixture_open(&file, "--type q4_1");
    rig_new(&together, &file, &options);
    rig_new(&alone, &file, &options);
    uint32_t vocab = file.dims.vocab;
    float *logits = calloc((size_t)vocab * (SEQS + 1), sizeof(*logits));
    uint32_t tokens[SEQS][64];
    cr_assert_not_null(logits);
    for (uint32_t s = 0; s < SEQS; s++) {
        for (uint32_t i = 0; i < 64; i++) {
            tokens[s][i] = fixture_token(s, i);
        }
        rig_feed(&together, s, tokens[s], 5 + s * 6, 64, NULL, NULL);
        rig_feed(&alone, s, tokens[s], 5 + s * 6, 7, NULL, NULL);
    }
    for (uint32_t step = 0; step < STEPS; step++) {
        for (uint32_t s = 0; s < SEQS; s++) {
            rig_place(&together, s, s, &tokens[s][5 + s * 6 + step % 4], 1, true);
        }
        rig_step(&together, SEQS);
        bh_forward_logits(together.forward, 0, SEQS, logits);
        for (uint32_t s = 0; s < SEQS; s++) {
            rig_place(&alone, 0, s, &tokens[s][5 + s * 6 + step % 4], 1, true);
            rig_step(&alone, 1);
            float *own = logits + (size_t)SEQS * vocab;
            bh_forward_logits(alone.forward, 0, 1, own);
            cr_assert(memcmp(own, logits + (size_t)s * vocab, vocab * sizeof(float)) == 0,
                      "sequence %u step %u",
                      s,
                      step);
        }
    }
    free(logits);
    rig_delete(&together);
    rig_delete(&alone);
    rig_file_close(&file);
}

/* Rows whose outputs nobody wants leave the same K and V behind, and logits of zero. */
Test(model, rows_without_outputs_store_the_same)
{
    struct rig_file file;
    struct rig with;
    struct rig without;
    struct rig_options options = fixture_options();
    uint32_t tokens[2][40];
    fixture_open(&file, "--type q8_0 --layers 1");
    rig_new(&with, &file, &options);
    rig_new(&without, &file, &options);
    for (uint32_t i = 0; i < 40; i++) {
        tokens[0][i] = fixture_token(3, i);
        tokens[1][i] = fixture_token(4, i);
    }
    struct rig *const both[2] = {&with, &without};
    float *logits = calloc((size_t)file.dims.vocab * 4, sizeof(*logits));
    cr_assert_not_null(logits);
    for (int i = 0; i < 2; i++) {
        /* the second sequence wants outputs in both, and its rows move up in one of them */
        rig_place(both[i], 0, 0, tokens[0], 40, i == 0);
        rig_place(both[i], 1, 1, tokens[1], 40, true);
        rig_step(both[i], 2);
        bh_forward_logits(both[i]->forward, 79, 1, logits + (size_t)(2 * i) * file.dims.vocab);
        bh_forward_logits(both[i]->forward, 39, 1, logits + (size_t)(2 * i + 1) * file.dims.vocab);
        cr_assert_eq(both[i]->stamp_calls, 6);
    }
    size_t row = file.dims.vocab;
    cr_assert(memcmp(logits, logits + 2 * row, row * sizeof(float)) == 0);
    cr_assert(logits[row] != 0.0f && logits[3 * row] == 0.0f && logits[4 * row - 1] == 0.0f);
    for (uint32_t s = 0; s < 2; s++) {
        for (uint32_t ord = 0; ord < 3; ord++) {
            const uint8_t *a = (const uint8_t *)rig_stamp_at(&with, s, ord, 0) + 64;
            const uint8_t *b = (const uint8_t *)rig_stamp_at(&without, s, ord, 0) + 64;
            cr_assert(
                memcmp(a, b, bh_kv_block_bytes(&with.kv) - 64) == 0, "sequence %u page %u", s, ord);
        }
    }
    free(logits);
    rig_delete(&with);
    rig_delete(&without);
    rig_file_close(&file);
}

static void
never_stamp(void *role, uint32_t seq_idx, uint32_t page_ord, uint32_t layer, uint32_t end_pos)
{
    (void)role;
    cr_assert_fail(
        "stamped sequence %u page %u layer %u end %u", seq_idx, page_ord, layer, end_pos);
}

Test(forward, begin_refuses_what_is_above_its_limits)
{
    struct rig_file file;
    struct rig rig;
    struct rig_options options = fixture_options();
    uint32_t tokens[40] = {0};
    options.rows_max = 32;
    options.seqs_max = 2;
    fixture_open(&file, "--type q8_0");
    rig_new(&rig, &file, &options);
    rig_place(&rig, 0, 0, tokens, 32, true);
    struct bh_seq seqs[3] = {rig.batch[0], rig.batch[0], rig.batch[0]};
#define BEGIN(cnt) bh_forward_begin(rig.forward, rig.pool, seqs, cnt, never_stamp, NULL)
    cr_assert_eq(BEGIN(1), BH_OK);
    cr_assert_eq(BEGIN(0), BH_EINVAL);
    cr_assert_eq(BEGIN(2), BH_EINVAL); /* 64 rows */
    seqs[0].token_cnt = seqs[1].token_cnt = seqs[2].token_cnt = 1;
    cr_assert_eq(BEGIN(2), BH_OK);
    cr_assert_eq(BEGIN(3), BH_EINVAL); /* sequences */
    seqs[0].token_cnt = 33;
    cr_assert_eq(BEGIN(1), BH_EINVAL);
    seqs[0].token_cnt = 0;
    cr_assert_eq(BEGIN(1), BH_EINVAL);
    seqs[0].token_cnt = 32;
    seqs[0].page_cnt = 1;
    cr_assert_eq(BEGIN(1), BH_EINVAL); /* 32 tokens, room for 16 */
    seqs[0].page_cnt = 2;
    seqs[0].first_pos = 1;
    cr_assert_eq(BEGIN(1), BH_EINVAL);
    seqs[0].first_pos = UINT32_MAX;
    cr_assert_eq(BEGIN(1), BH_EINVAL);
    seqs[0].first_pos = 0;
    tokens[31] = file.dims.vocab;
    cr_assert_eq(BEGIN(1), BH_EINVAL);
    tokens[31] = file.dims.vocab - 1;
    cr_assert_eq(BEGIN(1), BH_OK);
#undef BEGIN
    struct bh_kv_shape other = rig.kv;
    other.head_dim *= 2;
    cr_assert_null(bh_forward_new(rig.model, &other, rig.team, 32, 2));
    other = rig.kv;
    other.page_tokens = 48;
    cr_assert_null(bh_forward_new(rig.model, &other, rig.team, 32, 2));
    cr_assert_null(bh_forward_new(rig.model, &rig.kv, rig.team, 0, 2));
    rig_delete(&rig);
    rig_file_close(&file);
}
