/* mkmodel - writes a small random model in GGUF, of a chosen shape, tensor type and context, for
   tests and benches that must not depend on a download. The same flags give the same bytes.
   The values are those of an untrained network: they mean nothing, but every tensor matters to the
   result, so that a wrong read shows. */
#include "tools/mkmodel.h"

#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

enum {
    ALIGN = 32,
    GGUF_VERSION = 3,
    TENSORS_A_LAYER = 9,
    TENSORS_BESIDES = 4, /* token_embd, output_norm, output, rope_freqs */
    VALUE_U32 = 4,
    VALUE_F32 = 6,
    VALUE_BOOL = 7,
    VALUE_STRING = 8,
    VALUE_ARRAY = 9,
    EXIT_USAGE = 2,
};

/* Exactly the tensor types of --type, with the number that general.file_type uses for them. */
static const struct {
    enum bh_gguf_type type;
    uint32_t file_type;
} types[] = {
    {BH_GGUF_F32, 0},
    {BH_GGUF_F16, 1},
    {BH_GGUF_Q4_0, 2},
    {BH_GGUF_Q4_1, 3},
    {BH_GGUF_Q8_0, 7},
    {BH_GGUF_Q5_0, 8},
    {BH_GGUF_Q5_1, 9},
    {BH_GGUF_Q4_K, 14},
    {BH_GGUF_Q5_K, 16},
    {BH_GGUF_Q6_K, 18},
    {BH_GGUF_BF16, 32},
};

struct options {
    const char *out;
    const char *pre;
    const char *chat_template;
    const char *type_name;
    uint64_t layers;
    uint64_t d_model;
    uint64_t heads;
    uint64_t kv_heads;
    uint64_t head_dim;
    uint64_t ffn;
    uint64_t vocab;
    uint64_t ctx;
    uint64_t seed;
    float rope_base;
    bool untied;
    bool rope_freqs;
    enum bh_gguf_type type;
    uint32_t file_type;
};

/* How the values of a tensor come about. */
enum fill { FILL_WEIGHT, FILL_NORM, FILL_ROPE_FREQS };

struct plan {
    char name[64];
    enum bh_gguf_type type;
    enum fill fill;
    uint64_t cols; /* dims[0] */
    uint64_t rows; /* dims[1]; 0 for a vector */
    uint64_t offset;
    uint64_t bytes;
};

struct model {
    struct plan *plans;
    uint32_t plan_cnt;
    uint64_t data_bytes;
};

static const char help_text[] =
    "usage: mkmodel --out FILE [flags]\n"
    "\n"
    "Writes a small random llama-architecture model as GGUF. The same flags give the same bytes.\n"
    "\n"
    "  --out FILE       file to write (required); replaced if it exists\n"
    "  --type NAME      type of all matrices: f32 f16 bf16 q8_0 q4_0 q4_1 q5_0 q5_1 q4_k q5_k "
    "q6_k\n"
    "                   (f32); norms stay f32\n"
    "  --layers N       (2)\n"
    "  --d-model N      width of the residual stream (64; 256 for the _k types)\n"
    "  --heads N        query heads (4)\n"
    "  --kv-heads N     key and value heads, a divisor of --heads (half of --heads, at least 1)\n"
    "  --head-dim N     width of a head, even (d-model / heads)\n"
    "  --ffn N          width of the feed-forward part (2 * d-model)\n"
    "  --vocab N        tokens, 259 to 1048576: 3 control, 256 bytes, the rest merges (512)\n"
    "  --ctx N          context length in the metadata, costs nothing (512)\n"
    "  --untied         own output.weight instead of sharing token_embd.weight\n"
    "  --rope-base F    (10000)\n"
    "  --rope-freqs     add rope_freqs.weight, as for Llama 3.1 (factor 8, from 8192 tokens)\n"
    "  --pre NAME       pre-tokenizer name in the metadata (smollm)\n"
    "  --template TEXT  chat template in the metadata, empty for none (ChatML)\n"
    "  --seed N         (1)\n"
    "  --help           this text\n";

_Noreturn BH_PRINTF(1, 2) static void usage_error(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fprintf(stderr, "mkmodel: ");
    vfprintf(stderr, format, args);
    fprintf(stderr, "; see mkmodel --help\n");
    va_end(args);
    exit(EXIT_USAGE);
}

void
bh_mk_put(struct bh_mk_buffer *buffer, const void *bytes, size_t len)
{
    if (buffer->room - buffer->len < len) {
        size_t room = 2 * (buffer->room + len);
        uint8_t *grown = realloc(buffer->bytes, room);
        if (grown == NULL) {
            fprintf(stderr, "mkmodel: no memory for a header of %zu bytes\n", room);
            exit(EXIT_FAILURE);
        }
        buffer->bytes = grown;
        buffer->room = room;
    }
    if (len > 0) {
        memcpy(buffer->bytes + buffer->len, bytes, len);
    }
    buffer->len += len;
}

void
bh_mk_put_u32(struct bh_mk_buffer *buffer, uint32_t value)
{
    bh_mk_put(buffer, &value, sizeof(value));
}

void
bh_mk_put_u64(struct bh_mk_buffer *buffer, uint64_t value)
{
    bh_mk_put(buffer, &value, sizeof(value));
}

void
bh_mk_put_str(struct bh_mk_buffer *buffer, const char *text)
{
    size_t len = strlen(text);
    bh_mk_put_u64(buffer, len);
    bh_mk_put(buffer, text, len);
}

static void
key_head(struct bh_mk_buffer *buffer, const char *key, uint32_t type)
{
    bh_mk_put_str(buffer, key);
    bh_mk_put_u32(buffer, type);
    buffer->key_cnt++;
}

void
bh_mk_key_u32(struct bh_mk_buffer *buffer, const char *key, uint32_t value)
{
    key_head(buffer, key, VALUE_U32);
    bh_mk_put_u32(buffer, value);
}

void
bh_mk_key_f32(struct bh_mk_buffer *buffer, const char *key, float value)
{
    key_head(buffer, key, VALUE_F32);
    bh_mk_put(buffer, &value, sizeof(value));
}

void
bh_mk_key_bool(struct bh_mk_buffer *buffer, const char *key, bool value)
{
    uint8_t byte = value ? 1 : 0;
    key_head(buffer, key, VALUE_BOOL);
    bh_mk_put(buffer, &byte, sizeof(byte));
}

void
bh_mk_key_str(struct bh_mk_buffer *buffer, const char *key, const char *value)
{
    key_head(buffer, key, VALUE_STRING);
    bh_mk_put_str(buffer, value);
}

void
bh_mk_key_array(struct bh_mk_buffer *buffer, const char *key, uint32_t elem_type, uint64_t elem_cnt)
{
    key_head(buffer, key, VALUE_ARRAY);
    bh_mk_put_u32(buffer, elem_type);
    bh_mk_put_u64(buffer, elem_cnt);
}

/* Nearly normal, mean 0 and deviation 1: four 16-bit draws added up. The tails end at 3.46, far
   enough to give quantized blocks the outliers that real weights have. */
static float
random_normal(uint64_t stream, uint64_t draw)
{
    uint64_t bits = bh_mk_random(stream, draw);
    uint64_t sum = (bits & 0xffff) + (bits >> 16 & 0xffff) + (bits >> 32 & 0xffff) + (bits >> 48);
    return ((float)sum - 131070.0f) / 37837.2f;
}

/* Divisors of the rotary frequencies, as Llama 3.1 computes them. */
static float
rope_divisor(const struct options *options, uint64_t pair)
{
    const float factor = 8.0f;
    const float low = 1.0f;
    const float high = 4.0f;
    const float old_ctx = 8192.0f;
    float exponent = 2.0f * (float)pair / (float)options->head_dim;
    float wavelength = 6.28318530718f * powf(options->rope_base, exponent);
    if (wavelength < old_ctx / high) {
        return 1.0f;
    }
    if (wavelength > old_ctx / low) {
        return factor;
    }
    float smooth = (old_ctx / wavelength - low) / (high - low);
    return 1.0f / ((1.0f - smooth) / factor + smooth);
}

BH_PRINTF(6, 7)
static void
plan_add(struct model *model,
         enum bh_gguf_type type,
         enum fill fill,
         uint64_t cols,
         uint64_t rows,
         const char *name_format,
         ...)
{
    struct plan *plan = &model->plans[model->plan_cnt++];
    va_list args;
    va_start(args, name_format);
    vsnprintf(plan->name, sizeof(plan->name), name_format, args);
    va_end(args);
    plan->type = type;
    plan->fill = fill;
    plan->cols = cols;
    plan->rows = rows;
    plan->offset = model->data_bytes;
    plan->bytes =
        cols / bh_gguf_type_elems(type) * bh_gguf_type_bytes(type) * (rows == 0 ? 1 : rows);
    model->data_bytes += bh_round_up(plan->bytes, ALIGN);
}

static void
plan_layer(struct model *model, const struct options *options, unsigned layer)
{
    enum bh_gguf_type type = options->type;
    uint64_t d = options->d_model;
    uint64_t q_dim = options->heads * options->head_dim;
    uint64_t kv_dim = options->kv_heads * options->head_dim;
    plan_add(model, BH_GGUF_F32, FILL_NORM, d, 0, "blk.%u.attn_norm.weight", layer);
    plan_add(model, type, FILL_WEIGHT, d, q_dim, "blk.%u.attn_q.weight", layer);
    plan_add(model, type, FILL_WEIGHT, d, kv_dim, "blk.%u.attn_k.weight", layer);
    plan_add(model, type, FILL_WEIGHT, d, kv_dim, "blk.%u.attn_v.weight", layer);
    plan_add(model, type, FILL_WEIGHT, q_dim, d, "blk.%u.attn_output.weight", layer);
    plan_add(model, BH_GGUF_F32, FILL_NORM, d, 0, "blk.%u.ffn_norm.weight", layer);
    plan_add(model, type, FILL_WEIGHT, d, options->ffn, "blk.%u.ffn_gate.weight", layer);
    plan_add(model, type, FILL_WEIGHT, d, options->ffn, "blk.%u.ffn_up.weight", layer);
    plan_add(model, type, FILL_WEIGHT, options->ffn, d, "blk.%u.ffn_down.weight", layer);
}

static void
plan_model(struct model *model, const struct options *options)
{
    size_t plan_max = (size_t)options->layers * TENSORS_A_LAYER + TENSORS_BESIDES;
    *model = (struct model){.plans = calloc(plan_max, sizeof(struct plan))};
    if (model->plans == NULL) {
        fprintf(stderr, "mkmodel: no memory for %zu tensors; use fewer --layers\n", plan_max);
        exit(EXIT_FAILURE);
    }
    uint64_t d = options->d_model;
    plan_add(model, options->type, FILL_WEIGHT, d, options->vocab, "token_embd.weight");
    if (options->rope_freqs) {
        uint64_t pairs = options->head_dim / 2;
        plan_add(model, BH_GGUF_F32, FILL_ROPE_FREQS, pairs, 0, "rope_freqs.weight");
    }
    for (uint32_t layer = 0; layer < options->layers; layer++) {
        plan_layer(model, options, layer);
    }
    plan_add(model, BH_GGUF_F32, FILL_NORM, d, 0, "output_norm.weight");
    if (options->untied) {
        plan_add(model, options->type, FILL_WEIGHT, d, options->vocab, "output.weight");
    }
    BH_CHECK(model->plan_cnt <= plan_max);
}

static void
put_keys(struct bh_mk_buffer *keys, const struct options *options)
{
    bh_mk_key_str(keys, "general.architecture", "llama");
    bh_mk_key_str(keys, "general.name", "random test model");
    bh_mk_key_u32(keys, "general.alignment", ALIGN);
    bh_mk_key_u32(keys, "general.file_type", options->file_type);
    bh_mk_key_u32(keys, "general.quantization_version", 2);
    bh_mk_key_u32(keys, "llama.block_count", (uint32_t)options->layers);
    bh_mk_key_u32(keys, "llama.context_length", (uint32_t)options->ctx);
    bh_mk_key_u32(keys, "llama.embedding_length", (uint32_t)options->d_model);
    bh_mk_key_u32(keys, "llama.feed_forward_length", (uint32_t)options->ffn);
    bh_mk_key_u32(keys, "llama.attention.head_count", (uint32_t)options->heads);
    bh_mk_key_u32(keys, "llama.attention.head_count_kv", (uint32_t)options->kv_heads);
    bh_mk_key_u32(keys, "llama.attention.key_length", (uint32_t)options->head_dim);
    bh_mk_key_u32(keys, "llama.attention.value_length", (uint32_t)options->head_dim);
    bh_mk_key_f32(keys, "llama.attention.layer_norm_rms_epsilon", 1e-5f);
    bh_mk_key_u32(keys, "llama.rope.dimension_count", (uint32_t)options->head_dim);
    bh_mk_key_f32(keys, "llama.rope.freq_base", options->rope_base);
    bh_mk_key_u32(keys, "llama.vocab_size", (uint32_t)options->vocab);
    bh_mk_vocab_put(keys,
                    &(struct bh_mk_vocab){.tokens = (uint32_t)options->vocab,
                                          .pre = options->pre,
                                          .chat_template = options->chat_template,
                                          .seed = options->seed});
}

static void
put_header(struct bh_mk_buffer *header, const struct model *model, const struct options *options)
{
    struct bh_mk_buffer keys = {0};
    put_keys(&keys, options);
    bh_mk_put(header, "GGUF", 4);
    bh_mk_put_u32(header, GGUF_VERSION);
    bh_mk_put_u64(header, model->plan_cnt);
    bh_mk_put_u64(header, keys.key_cnt);
    bh_mk_put(header, keys.bytes, keys.len);
    free(keys.bytes);
    for (uint32_t i = 0; i < model->plan_cnt; i++) {
        const struct plan *plan = &model->plans[i];
        bh_mk_put_str(header, plan->name);
        bh_mk_put_u32(header, plan->rows == 0 ? 1 : 2);
        bh_mk_put_u64(header, plan->cols);
        if (plan->rows != 0) {
            bh_mk_put_u64(header, plan->rows);
        }
        bh_mk_put_u32(header, (uint32_t)plan->type);
        bh_mk_put_u64(header, plan->offset);
    }
    static const uint8_t zeros[ALIGN];
    bh_mk_put(header, zeros, bh_round_up(header->len, ALIGN) - header->len);
}

static float
plan_value(const struct plan *plan, const struct options *options, uint64_t stream, uint64_t idx)
{
    switch (plan->fill) {
    case FILL_NORM:
        return 1.0f + 0.1f * random_normal(stream, idx);
    case FILL_ROPE_FREQS:
        return rope_divisor(options, idx);
    case FILL_WEIGHT:
        break;
    }
    return random_normal(stream, idx) / sqrtf((float)plan->cols);
}

/* Writes a tensor row by row, so that memory stays at one row. False: errno says why. */
static bool
write_tensor(FILE *file, const struct plan *plan, const struct options *options)
{
    static const uint8_t zeros[ALIGN];
    uint64_t rows = plan->rows == 0 ? 1 : plan->rows;
    uint64_t row_bytes = plan->bytes / rows;
    uint64_t stream = XXH3_64bits_withSeed(plan->name, strlen(plan->name), options->seed);
    float *values = calloc(plan->cols, sizeof(*values));
    uint8_t *encoded = calloc(1, row_bytes);
    bool good = values != NULL && encoded != NULL;
    for (uint64_t row = 0; row < rows && good; row++) {
        for (uint64_t col = 0; col < plan->cols; col++) {
            values[col] = plan_value(plan, options, stream, row * plan->cols + col);
        }
        bh_mk_quantize(plan->type, values, plan->cols, encoded);
        good = fwrite(encoded, 1, row_bytes, file) == row_bytes;
    }
    size_t pad = bh_round_up(plan->bytes, ALIGN) - plan->bytes;
    good = good && fwrite(zeros, 1, pad, file) == pad;
    free(encoded);
    free(values);
    return good;
}

/* Half a model would be mistaken for one. Only a regular file is removed: a name given by mistake
   may be a device. */
static void
remove_half(const char *path)
{
    struct stat found;
    if (lstat(path, &found) == 0 && S_ISREG(found.st_mode)) {
        (void)unlink(path);
    }
}

static int
write_model(const struct options *options)
{
    struct model model;
    struct bh_mk_buffer header = {0};
    plan_model(&model, options);
    put_header(&header, &model, options);
    FILE *file = fopen(options->out, "wb");
    bool good = file != NULL && fwrite(header.bytes, 1, header.len, file) == header.len;
    for (uint32_t i = 0; i < model.plan_cnt && good; i++) {
        good = write_tensor(file, &model.plans[i], options);
    }
    if (file != NULL) {
        good = fclose(file) == 0 && good;
    }
    if (!good) {
        fprintf(stderr,
                "mkmodel: cannot write %s: %s; %llu bytes are needed\n",
                options->out,
                strerror(errno),
                (unsigned long long)(header.len + model.data_bytes));
        if (file != NULL) {
            remove_half(options->out);
        }
    }
    free(header.bytes);
    free(model.plans);
    return good ? EXIT_SUCCESS : EXIT_FAILURE;
}

static void
find_type(struct options *options)
{
    for (size_t i = 0; i < BH_COUNT(types); i++) {
        if (strcmp(bh_gguf_type_name(types[i].type), options->type_name) == 0) {
            options->type = types[i].type;
            options->file_type = types[i].file_type;
            return;
        }
    }
    usage_error("--type is '%s', expected f32 f16 bf16 q8_0 q4_0 q4_1 q5_0 q5_1 q4_k q5_k or q6_k",
                options->type_name);
}

static void
check_block(const struct options *options, const char *what, uint64_t width)
{
    uint32_t block = bh_gguf_type_elems(options->type);
    if (width % block != 0) {
        usage_error("%s is %llu, but --type %s needs a multiple of %u",
                    what,
                    (unsigned long long)width,
                    options->type_name,
                    block);
    }
}

/* Fills what depends on other flags and was not given, then checks how the flags fit together. */
static void
complete(struct options *options)
{
    if (options->out == NULL) {
        usage_error("--out is missing: name the file to write");
    }
    find_type(options);
    if (options->d_model == 0) {
        options->d_model = bh_gguf_type_elems(options->type) == 256 ? 256 : 64;
    }
    if (options->kv_heads == 0) {
        options->kv_heads = options->heads % 2 == 0 ? options->heads / 2 : 1;
    }
    if (options->head_dim == 0) {
        options->head_dim = options->d_model / options->heads;
    }
    if (options->ffn == 0) {
        options->ffn = 2 * options->d_model;
    }
    if (options->heads % options->kv_heads != 0) {
        usage_error("--kv-heads is %llu, expected a divisor of --heads %llu",
                    (unsigned long long)options->kv_heads,
                    (unsigned long long)options->heads);
    }
    if (options->head_dim == 0 || options->head_dim % 2 != 0) {
        usage_error("--head-dim is %llu, expected an even number from 2 on (rotary pairs)",
                    (unsigned long long)options->head_dim);
    }
    check_block(options, "--d-model", options->d_model);
    check_block(options, "--heads times --head-dim", options->heads * options->head_dim);
    check_block(options, "--ffn", options->ffn);
}

static uint64_t
parse_u64(const char *flag, const char *text, uint64_t min, uint64_t max)
{
    char *end = NULL;
    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    bool digits = text[0] >= '0' && text[0] <= '9' && *end == '\0';
    if (!digits || errno != 0 || value < min || value > max) {
        usage_error("--%s is '%s', expected a whole number from %llu to %llu",
                    flag,
                    text,
                    (unsigned long long)min,
                    (unsigned long long)max);
    }
    return value;
}

static float
parse_f32(const char *flag, const char *text)
{
    char *end = NULL;
    float value = strtof(text, &end);
    if (end == text || *end != '\0' || !isfinite(value) || value < 1.0f) {
        usage_error("--%s is '%s', expected a number from 1 on", flag, text);
    }
    return value;
}

enum flag_kind { FLAG_NUMBER, FLAG_FLOAT, FLAG_TEXT, FLAG_SWITCH, FLAG_HELP };

static const struct {
    const char *name;
    enum flag_kind kind;
    size_t field; /* offset in struct options */
    uint64_t min; /* of a number */
    uint64_t max;
} flags[] = {
    {"out", FLAG_TEXT, offsetof(struct options, out), 0, 0},
    {"type", FLAG_TEXT, offsetof(struct options, type_name), 0, 0},
    {"layers", FLAG_NUMBER, offsetof(struct options, layers), 1, 1024},
    {"d-model", FLAG_NUMBER, offsetof(struct options, d_model), 2, 65536},
    {"heads", FLAG_NUMBER, offsetof(struct options, heads), 1, 1024},
    {"kv-heads", FLAG_NUMBER, offsetof(struct options, kv_heads), 1, 1024},
    {"head-dim", FLAG_NUMBER, offsetof(struct options, head_dim), 2, 1024},
    {"ffn", FLAG_NUMBER, offsetof(struct options, ffn), 1, 1 << 20},
    {"vocab", FLAG_NUMBER, offsetof(struct options, vocab), BH_MK_VOCAB_MIN, 1 << 20},
    {"ctx", FLAG_NUMBER, offsetof(struct options, ctx), 1, 1 << 30},
    {"untied", FLAG_SWITCH, offsetof(struct options, untied), 0, 0},
    {"rope-base", FLAG_FLOAT, offsetof(struct options, rope_base), 0, 0},
    {"rope-freqs", FLAG_SWITCH, offsetof(struct options, rope_freqs), 0, 0},
    {"pre", FLAG_TEXT, offsetof(struct options, pre), 0, 0},
    {"template", FLAG_TEXT, offsetof(struct options, chat_template), 0, 0},
    {"seed", FLAG_NUMBER, offsetof(struct options, seed), 0, UINT64_MAX},
    {"help", FLAG_HELP, 0, 0, 0},
};

static void
set_flag(struct options *options, size_t idx, const char *text)
{
    void *field = (char *)options + flags[idx].field;
    const bool on = true;
    uint64_t number;
    float real;
    switch (flags[idx].kind) {
    case FLAG_NUMBER:
        number = parse_u64(flags[idx].name, text, flags[idx].min, flags[idx].max);
        memcpy(field, &number, sizeof(number));
        break;
    case FLAG_FLOAT:
        real = parse_f32(flags[idx].name, text);
        memcpy(field, &real, sizeof(real));
        break;
    case FLAG_TEXT:
        memcpy(field, &text, sizeof(text));
        break;
    case FLAG_SWITCH:
        memcpy(field, &on, sizeof(on));
        break;
    case FLAG_HELP:
        fputs(help_text, stdout);
        exit(EXIT_SUCCESS);
    }
}

static void
parse(struct options *options, int argc, char **argv)
{
    struct option longs[BH_COUNT(flags) + 1] = {0};
    for (size_t i = 0; i < BH_COUNT(flags); i++) {
        bool alone = flags[i].kind == FLAG_SWITCH || flags[i].kind == FLAG_HELP;
        longs[i].name = flags[i].name;
        longs[i].has_arg = alone ? no_argument : required_argument;
    }
    int idx = 0;
    int got = getopt_long(argc, argv, "", longs, &idx);
    while (got != -1) {
        if (got == '?') { /* getopt_long has named the flag */
            fprintf(stderr, "see mkmodel --help\n");
            exit(EXIT_USAGE);
        }
        set_flag(options, (size_t)idx, optarg);
        got = getopt_long(argc, argv, "", longs, &idx);
    }
    if (optind < argc) {
        usage_error("'%s' is no flag", argv[optind]);
    }
}

int
main(int argc, char **argv)
{
    struct options options = {
        .pre = "smollm",
        .type_name = "f32",
        .layers = 2,
        .heads = 4,
        .vocab = 512,
        .ctx = 512,
        .seed = 1,
        .rope_base = 10000.0f,
    };
    parse(&options, argc, argv);
    complete(&options);
    return write_model(&options);
}
