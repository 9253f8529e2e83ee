/* The model maker: its quantizers against the closed forms of the block formats, written here from
   the format's description, and its files against the GGUF reader. */
#include "tools/mkmodel.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static float
half_at(const uint8_t *bytes)
{
    uint16_t bits;
    memcpy(&bits, bytes, sizeof(bits));
    int exponent = bits >> 10 & 31;
    float mantissa = (float)(bits & 1023);
    float value = exponent == 0 ? ldexpf(mantissa, -24) : ldexpf(1024.0f + mantissa, exponent - 25);
    return (bits & 0x8000) != 0 ? -value : value;
}

static uint32_t
nibble_at(const uint8_t *bytes, size_t i)
{
    return (uint32_t)bytes[i % 16] >> 4 * (i / 16) & 15u;
}

static float
k_min_value(const uint8_t *block, bool five, size_t i)
{
    const uint8_t *scales = block + 4;
    size_t j = i / 32;
    uint32_t scale;
    uint32_t min;
    if (j < 4) {
        scale = scales[j] & 63u;
        min = scales[j + 4] & 63u;
    } else {
        scale = (scales[j + 4] & 15u) | (uint32_t)(scales[j - 4] >> 6) << 4;
        min = (uint32_t)(scales[j + 4] >> 4) | (uint32_t)(scales[j] >> 6) << 4;
    }
    const uint8_t *nibbles = block + (five ? 48 : 16);
    uint32_t q = (uint32_t)nibbles[32 * (i / 64) + i % 32] >> 4 * (j & 1) & 15u;
    if (five) {
        q += 16 * ((uint32_t)block[16 + i % 32] >> j & 1u);
    }
    return half_at(block) * (float)scale * (float)q - half_at(block + 2) * (float)min;
}

static float
q6_k_value(const uint8_t *block, size_t i)
{
    size_t n = i / 128;
    size_t g = i % 128 / 32;
    size_t l = i % 32;
    int low = block[64 * n + 32 * (g & 1) + l] >> 4 * (g >> 1) & 15;
    int high = block[128 + 32 * n + l] >> 2 * g & 3;
    int scale = (int8_t)block[192 + 8 * n + 2 * g + l / 16];
    return half_at(block + 208) * (float)(scale * (low + 16 * high - 32));
}

/* Element i of one block. */
static float
value_at(enum bh_gguf_type type, const uint8_t *block, size_t i)
{
    uint32_t fifth = 0;
    switch (type) {
    case BH_GGUF_Q8_0:
        return half_at(block) * (float)(int8_t)block[2 + i];
    case BH_GGUF_Q4_0:
        return half_at(block) * ((float)nibble_at(block + 2, i) - 8.0f);
    case BH_GGUF_Q4_1:
        return half_at(block) * (float)nibble_at(block + 4, i) + half_at(block + 2);
    case BH_GGUF_Q5_0:
        memcpy(&fifth, block + 2, 4);
        return half_at(block) * ((float)(nibble_at(block + 6, i) + 16 * (fifth >> i & 1)) - 16.0f);
    case BH_GGUF_Q5_1:
        memcpy(&fifth, block + 4, 4);
        return half_at(block) * (float)(nibble_at(block + 8, i) + 16 * (fifth >> i & 1)) +
               half_at(block + 2);
    case BH_GGUF_Q4_K:
    case BH_GGUF_Q5_K:
        return k_min_value(block, type == BH_GGUF_Q5_K, i);
    case BH_GGUF_Q6_K:
        return q6_k_value(block, i);
    case BH_GGUF_F32:
    case BH_GGUF_F16:
    case BH_GGUF_BF16:
        break;
    }
    cr_assert_fail("not a block type");
    return 0.0f;
}

/* Error allowed for a block whose values span [low, high], in units of that span. A level is at
   most one step off (the positive end of a signed scheme clips); _k blocks round scales too. */
static const struct {
    enum bh_gguf_type type;
    float error_max;
} block_types[] = {
    {BH_GGUF_Q8_0, 0.51f / 127.0f},
    {BH_GGUF_Q4_0, 1.01f / 8.0f},
    {BH_GGUF_Q4_1, 0.51f / 15.0f},
    {BH_GGUF_Q5_0, 1.01f / 16.0f},
    {BH_GGUF_Q5_1, 0.51f / 31.0f},
    {BH_GGUF_Q4_K, 0.80f / 15.0f},
    {BH_GGUF_Q5_K, 0.90f / 31.0f},
    {BH_GGUF_Q6_K, 1.20f / 32.0f},
};

static void
check_blocks(const float *values, size_t cnt)
{
    float low = 0.0f;
    float high = 0.0f;
    for (size_t i = 0; i < cnt; i++) {
        low = fminf(low, values[i]);
        high = fmaxf(high, values[i]);
    }
    uint8_t encoded[4096];
    for (size_t t = 0; t < BH_COUNT(block_types); t++) {
        enum bh_gguf_type type = block_types[t].type;
        uint32_t elems = bh_gguf_type_elems(type);
        size_t used = cnt / elems * bh_gguf_type_bytes(type);
        memset(encoded, 0xee, sizeof(encoded));
        bh_mk_quantize(type, values, cnt, encoded);
        cr_assert(encoded[used] == 0xee, "%s wrote too much", bh_gguf_type_name(type));
        for (size_t i = 0; i < cnt; i++) {
            const uint8_t *block = encoded + i / elems * bh_gguf_type_bytes(type);
            float error = fabsf(value_at(type, block, i % elems) - values[i]);
            cr_assert(error <= block_types[t].error_max * (high - low) * 1.001f,
                      "%s element %zu: %g off %g",
                      bh_gguf_type_name(type),
                      i,
                      (double)error,
                      (double)values[i]);
        }
    }
}

Test(mkmodel, blocks_hold_their_values)
{
    float values[512];
    for (uint64_t round = 0; round < 50; round++) {
        for (size_t i = 0; i < BH_COUNT(values); i++) {
            values[i] = (float)(int64_t)bh_mk_random(round, i) * 0x1p-63f;
        }
        check_blocks(values, BH_COUNT(values));
    }
}

Test(mkmodel, blocks_of_odd_values)
{
    float values[256] = {0};
    check_blocks(values, BH_COUNT(values)); /* zeros come back as zeros exactly */
    values[77] = -3.0f;
    check_blocks(values, BH_COUNT(values));
    for (size_t i = 0; i < BH_COUNT(values); i++) {
        values[i] = 0.25f; /* positive only: a stored minimum would be negative */
    }
    check_blocks(values, BH_COUNT(values));
    for (size_t i = 0; i < BH_COUNT(values); i++) {
        values[i] = -0.25f;
    }
    check_blocks(values, BH_COUNT(values));
}

Test(mkmodel, halves)
{
    static const struct {
        float value;
        uint16_t f16;
    } wanted[] = {
        {0.0f, 0},
        {1.0f, 0x3c00},
        {-2.0f, 0xc000},
        {0.1f, 0x2e66},
        {65504.0f, 0x7bff},
        {65519.0f, 0x7bff},
        {65520.0f, 0x7c00},
        {1e30f, 0x7c00},
        {0x1p-14f, 0x0400},
        {0x1p-24f, 0x0001},
        {0x1p-25f, 0x0000},
        {0x1.8p-24f, 0x0002},
        {0x1.ff8p-15f, 0x03ff},
        {0x1.ffcp-15f, 0x0400},
        {0x1.002p0f, 0x3c00},
        {0x1.006p0f, 0x3c02},
    };
    for (size_t i = 0; i < BH_COUNT(wanted); i++) {
        uint16_t got = 0;
        bh_mk_quantize(BH_GGUF_F16, &wanted[i].value, 1, (uint8_t *)&got);
        cr_assert(got == wanted[i].f16, "%a: %04x", (double)wanted[i].value, got);
    }
    static const float floats[] = {1.0f, 0x1.01p0f, 0x1.03p0f, -0x1.0200004p0f};
    static const uint16_t bf16[] = {0x3f80, 0x3f80, 0x3f82, 0xbf81};
    for (size_t i = 0; i < BH_COUNT(floats); i++) {
        uint16_t got = 0;
        bh_mk_quantize(BH_GGUF_BF16, &floats[i], 1, (uint8_t *)&got);
        cr_assert(got == bf16[i], "%a: %04x", (double)floats[i], got);
    }
}

static char dir[64];

static void
make_dir(void)
{
    snprintf(dir, sizeof(dir), "/tmp/bulkhead-mkmodel-XXXXXX");
    cr_assert(mkdtemp(dir) != NULL);
}

static void
remove_dir(void)
{
    char command[128];
    snprintf(command, sizeof(command), "rm -r '%s'", dir);
    cr_assert(system(command) == 0);
}

/* Runs mkmodel with `flags` in the directory of this test; its exit status. */
static int
run(const char *flags)
{
    const char *tool = getenv("BULKHEAD_MKMODEL");
    cr_assert(tool != NULL, "BULKHEAD_MKMODEL names the mkmodel program; run this with meson test");
    char command[1024];
    snprintf(command, sizeof(command), "cd '%s' && '%s' %s >text 2>&1", dir, tool, flags);
    int status = system(command);
    cr_assert(WIFEXITED(status));
    return WEXITSTATUS(status);
}

struct file {
    uint8_t *bytes;
    size_t len;
};

static struct file
load(const char *name)
{
    char path[128];
    snprintf(path, sizeof(path), "%s/%s", dir, name);
    struct file file = {.bytes = malloc(1 << 22)};
    FILE *stream = fopen(path, "rb");
    cr_assert(stream != NULL && file.bytes != NULL);
    file.len = fread(file.bytes, 1, 1 << 22, stream);
    fclose(stream);
    return file;
}

static bool
same(const char *left, const char *right)
{
    struct file a = load(left);
    struct file b = load(right);
    bool equal = a.len == b.len && memcmp(a.bytes, b.bytes, a.len) == 0;
    free(a.bytes);
    free(b.bytes);
    return equal;
}

Test(mkmodel, every_type_is_readable, .init = make_dir, .fini = remove_dir)
{
    static const char *const names[] = {
        "f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "q4_k", "q5_k", "q6_k"};
    for (size_t i = 0; i < BH_COUNT(names); i++) {
        char flags[64];
        snprintf(flags, sizeof(flags), "--out m --type %s", names[i]);
        cr_assert(run(flags) == 0);
        struct file file = load("m");
        char error[BH_GGUF_ERROR_MAX] = "";
        struct bh_gguf *gguf = NULL;
        cr_assert(bh_gguf_open(file.bytes, file.len, file.len, error, &gguf) == BH_OK, "%s", error);
        cr_assert(bh_gguf_tensor_cnt(gguf) == 2 + 2 * 9);
        const struct bh_gguf_tensor *down = bh_gguf_tensor_find(gguf, "blk.1.ffn_down.weight");
        cr_assert(down != NULL && down->dim_cnt == 2 && down->dims[0] == 2 * down->dims[1]);
        cr_assert_str_eq(bh_gguf_type_name(down->type), names[i]);
        cr_assert(bh_gguf_tensor_find(gguf, "blk.0.attn_norm.weight")->type == BH_GGUF_F32);
        cr_assert(bh_gguf_tensor_find(gguf, "output.weight") == NULL);
        bh_gguf_close(gguf);
        free(file.bytes);
    }
}

Test(mkmodel, flags_are_in_the_file, .init = make_dir, .fini = remove_dir)
{
    cr_assert(
        run("--out m --layers 1 --d-model 32 --heads 1 --kv-heads 1 --head-dim 16 --ffn 96 "
            "--vocab 300 --ctx 1048576 --rope-base 500000 --untied --rope-freqs --pre qwen2") == 0);
    struct file file = load("m");
    char error[BH_GGUF_ERROR_MAX] = "";
    struct bh_gguf *gguf = NULL;
    cr_assert(bh_gguf_open(file.bytes, file.len, file.len, error, &gguf) == BH_OK, "%s", error);
    static const struct {
        const char *key;
        uint64_t value;
    } wanted[] = {
        {"llama.context_length", 1048576},
        {"llama.block_count", 1},
        {"llama.embedding_length", 32},
        {"llama.feed_forward_length", 96},
        {"llama.attention.head_count", 1},
        {"llama.attention.key_length", 16},
        {"llama.vocab_size", 300},
        {"tokenizer.ggml.bos_token_id", 1},
        {"tokenizer.ggml.eos_token_id", 2},
    };
    for (size_t i = 0; i < BH_COUNT(wanted); i++) {
        uint64_t value = 0;
        cr_assert(bh_gguf_u64(gguf, wanted[i].key, &value) && value == wanted[i].value);
    }
    uint64_t cnt = 0;
    float base = 0.0f;
    struct bh_gguf_str str;
    int32_t kind = 0;
    size_t cursor = 0;
    cr_assert(bh_gguf_f32(gguf, "llama.rope.freq_base", &base) && base == 500000.0f);
    cr_assert(bh_gguf_str(gguf, "tokenizer.ggml.pre", &str) &&
              memcmp(str.bytes, "qwen2", str.len) == 0);
    cr_assert(bh_gguf_array_cnt(gguf, "tokenizer.ggml.tokens", &cnt) && cnt == 300);
    cr_assert(bh_gguf_array_cnt(gguf, "tokenizer.ggml.merges", &cnt) && cnt == 300 - 259);
    cr_assert(bh_gguf_array_i32(gguf, "tokenizer.ggml.token_type", 2, &kind) && kind == 3);
    cr_assert(bh_gguf_array_i32(gguf, "tokenizer.ggml.token_type", 3, &kind) && kind == 1);
    cr_assert(bh_gguf_array_str(gguf, "tokenizer.ggml.merges", &cursor, &str));
    cr_assert(str.len == 4 && memcmp(str.bytes, "\304\240 t", 4) == 0);
    cr_assert(bh_gguf_tensor_find(gguf, "output.weight")->dims[1] == 300);
    cr_assert(bh_gguf_tensor_find(gguf, "rope_freqs.weight")->dims[0] == 8);
    cr_assert(bh_gguf_tensor_find(gguf, "blk.0.attn_output.weight")->dims[0] == 16);
    bh_gguf_close(gguf);
    free(file.bytes);
}

Test(mkmodel, seed_decides, .init = make_dir, .fini = remove_dir)
{
    cr_assert(run("--out a --seed 7") == 0);
    cr_assert(run("--out b --seed 7") == 0);
    cr_assert(run("--out c --seed 8") == 0);
    cr_assert(same("a", "b"));
    cr_assert_not(same("a", "c"));
}

Test(mkmodel, bad_flags_are_explained, .init = make_dir, .fini = remove_dir)
{
    static const struct {
        const char *flags;
        const char *word;
    } wanted[] = {
        {"", "--out"},
        {"--out m --bogus", "bogus"},
        {"--out m extra", "extra"},
        {"--out m --type q9", "q9"},
        {"--out m --type q4_k --d-model 64", "multiple of 256"},
        {"--out m --type q4_0 --heads 3 --kv-heads 1 --head-dim 16", "--head-dim"},
        {"--out m --heads 4 --kv-heads 3", "--kv-heads"},
        {"--out m --head-dim 7", "--head-dim"},
        {"--out m --d-model 4 --heads 8", "--head-dim"},
        {"--out m --vocab 258", "259"},
        {"--out m --layers 0", "--layers"},
        {"--out m --layers -1", "--layers"},
        {"--out m --ctx 1e3", "--ctx"},
        {"--out m --seed 99999999999999999999", "--seed"},
        {"--out m --rope-base x", "--rope-base"},
        {"--out m --rope-base nan", "--rope-base"},
        {"--layers", "layers"},
    };
    for (size_t i = 0; i < BH_COUNT(wanted); i++) {
        cr_assert(run(wanted[i].flags) == 2, "%s", wanted[i].flags);
        struct file text = load("text");
        text.bytes[text.len] = '\0';
        const char *said = (const char *)text.bytes;
        cr_assert(strstr(said, wanted[i].word) != NULL, "%s: %s", wanted[i].flags, said);
        cr_assert(strstr(said, "--help") != NULL, "%s: %s", wanted[i].flags, said);
        free(text.bytes);
    }
    cr_assert(run("--help") == 0);
    cr_assert(run("--out no/such/folder") == 1);
}
