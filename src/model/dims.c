/* A model's dimensions from GGUF metadata. Whatever would change the arithmetic and is not implemented
   (another architecture, experts, scaled positions, biases) is refused here by name: a model that is
   computed wrongly answers fluently. */
#include <stdio.h>
#include <string.h>

#include "src/model/packed.h"

static enum bh_status
refuse(char error[BH_MODEL_ERROR_MAX], enum bh_status status, const char *key, const char *why)
{
    (void)snprintf(error, BH_MODEL_ERROR_MAX, "%s: %s", key, why);
    return status;
}

/* A required positive integer. */
static bool
read_u32(const struct bh_gguf *gguf, const char *key, uint32_t *out, char error[BH_MODEL_ERROR_MAX])
{
    uint64_t value = 0;
    if (!bh_gguf_u64(gguf, key, &value) || value == 0 || value > UINT32_MAX) {
        (void)snprintf(
            error, BH_MODEL_ERROR_MAX, "%s: missing, or not a number of 1 to 2^32 - 1", key);
        return false;
    }
    *out = (uint32_t)value;
    return true;
}

/* An optional integer that must be `expected` if it is there. */
static bool
agrees_u64(const struct bh_gguf *gguf,
           const char *key,
           uint64_t expected,
           char error[BH_MODEL_ERROR_MAX])
{
    uint64_t value = 0;
    if (bh_gguf_u64(gguf, key, &value) && value != expected) {
        (void)snprintf(error,
                       BH_MODEL_ERROR_MAX,
                       "%s: is %llu, only %llu is supported here",
                       key,
                       (unsigned long long)value,
                       (unsigned long long)expected);
        return false;
    }
    return true;
}

static bool
str_is(struct bh_gguf_str str, const char *text)
{
    return str.len == strlen(text) && memcmp(str.bytes, text, str.len) == 0;
}

/* Things that a llama-architecture file may ask for and this model does not do. */
static enum bh_status
refuse_unsupported(const struct bh_gguf *gguf, char error[BH_MODEL_ERROR_MAX])
{
    struct bh_gguf_str scaling;
    if (!agrees_u64(gguf, "llama.expert_count", 0, error) ||
        !agrees_u64(gguf, "split.count", 1, error)) {
        return BH_ELIMIT;
    }
    if (bh_gguf_str(gguf, "llama.rope.scaling.type", &scaling) && !str_is(scaling, "none")) {
        return refuse(error,
                      BH_ELIMIT,
                      "llama.rope.scaling.type",
                      "only none is supported (and rope_freqs.weight)");
    }
    static const char *const ignored_wrongly[] = {
        "llama.rope.scale_linear", "llama.rope.scaling.factor", "llama.attention.causal"};
    for (size_t i = 0; i < BH_COUNT(ignored_wrongly); i++) {
        float number = 1.0f;
        bool truth = true;
        if ((bh_gguf_f32(gguf, ignored_wrongly[i], &number) && number != 1.0f) ||
            (bh_gguf_bool(gguf, ignored_wrongly[i], &truth) && !truth)) {
            return refuse(
                error, BH_ELIMIT, ignored_wrongly[i], "only its neutral value is supported");
        }
    }
    uint64_t window = 0;
    if (bh_gguf_u64(gguf, "llama.attention.sliding_window", &window)) {
        return refuse(error, BH_ELIMIT, "llama.attention.sliding_window", "not supported");
    }
    return BH_OK;
}

/* The vocabulary's size has up to three witnesses; they must agree. */
static bool
read_vocab(const struct bh_gguf *gguf, struct bh_model_dims *dims, char error[BH_MODEL_ERROR_MAX])
{
    const struct bh_gguf_tensor *embd = bh_gguf_tensor_find(gguf, "token_embd.weight");
    uint64_t tokens = 0;
    if (embd == NULL || embd->dims[1] == 0 || embd->dims[1] > UINT32_MAX) {
        (void)refuse(error, BH_ECORRUPT, "token_embd.weight", "missing or empty");
        return false;
    }
    dims->vocab = (uint32_t)embd->dims[1];
    if (bh_gguf_array_cnt(gguf, "tokenizer.ggml.tokens", &tokens) && tokens != dims->vocab) {
        (void)snprintf(error,
                       BH_MODEL_ERROR_MAX,
                       "tokenizer.ggml.tokens: has %llu tokens, but token_embd.weight has %u rows",
                       (unsigned long long)tokens,
                       dims->vocab);
        return false;
    }
    return agrees_u64(gguf, "llama.vocab_size", dims->vocab, error);
}

static bool
read_heads(const struct bh_gguf *gguf, struct bh_model_dims *dims, char error[BH_MODEL_ERROR_MAX])
{
    uint64_t value = 0;
    if (!read_u32(gguf, "llama.attention.head_count", &dims->heads, error)) {
        return false;
    }
    dims->kv_heads = dims->heads;
    if (bh_gguf_u64(gguf, "llama.attention.head_count_kv", &value) &&
        !read_u32(gguf, "llama.attention.head_count_kv", &dims->kv_heads, error)) {
        return false;
    }
    dims->head_dim = dims->d_model / dims->heads;
    if (bh_gguf_u64(gguf, "llama.attention.key_length", &value) &&
        !read_u32(gguf, "llama.attention.key_length", &dims->head_dim, error)) {
        return false;
    }
    return agrees_u64(gguf, "llama.attention.value_length", dims->head_dim, error) &&
           agrees_u64(gguf, "llama.rope.dimension_count", dims->head_dim, error);
}

const char *
bh_model_dims_check(const struct bh_model_dims *dims)
{
    if (dims->layers < 1 || dims->layers > BH_MODEL_LAYERS_MAX) {
        return "llama.block_count: must be 1 to 512";
    }
    if (dims->d_model < 32 || dims->d_model % 32 != 0 || dims->d_model > BH_MODEL_WIDTH_MAX) {
        return "llama.embedding_length: must be a multiple of 32, at most 131072";
    }
    if (dims->ffn < 32 || dims->ffn % 32 != 0 || dims->ffn > BH_MODEL_WIDTH_MAX) {
        return "llama.feed_forward_length: must be a multiple of 32, at most 131072";
    }
    if (dims->head_dim < 16 || dims->head_dim % 16 != 0 || dims->head_dim > 512) {
        return "llama.attention.key_length: the head dimension must be a multiple of 16, 16 to 512";
    }
    if (dims->heads < 1 || dims->heads > BH_MODEL_WIDTH_MAX / dims->head_dim ||
        dims->heads * dims->head_dim % 32 != 0) {
        return "llama.attention.head_count: heads times their dimension must be a multiple of 32, "
               "at most 131072";
    }
    if (dims->kv_heads < 1 || dims->heads % dims->kv_heads != 0 ||
        dims->heads / dims->kv_heads > BH_MODEL_GROUP_MAX) {
        return "llama.attention.head_count_kv: must divide the number of heads, at most 16 heads "
               "sharing one";
    }
    if (dims->vocab < 1 || dims->vocab > BH_MODEL_VOCAB_MAX) {
        return "token_embd.weight: 1 to 1048576 tokens are supported";
    }
    if (dims->ctx_train < 1 || dims->ctx_train > (1u << 24) - 1) {
        return "llama.context_length: must be 1 to 16777215";
    }
    if (!(dims->rope_base > 1.0f && dims->rope_base < 1e12f)) {
        return "llama.rope.freq_base: must be above 1 and below 1e12";
    }
    if (!(dims->norm_eps > 0.0f && dims->norm_eps < 1.0f)) {
        return "llama.attention.layer_norm_rms_epsilon: must be between 0 and 1";
    }
    return NULL;
}

enum bh_status
bh_model_dims_read(const struct bh_gguf *gguf,
                   char error[BH_MODEL_ERROR_MAX],
                   struct bh_model_dims *out)
{
    struct bh_gguf_str architecture;
    struct bh_model_dims dims = {.rope_base = 10000.0f};
    if (!bh_gguf_str(gguf, "general.architecture", &architecture)) {
        return refuse(error, BH_ECORRUPT, "general.architecture", "missing");
    }
    if (!str_is(architecture, "llama")) {
        return refuse(error, BH_ELIMIT, "general.architecture", "only llama is supported");
    }
    enum bh_status status = refuse_unsupported(gguf, error);
    if (status != BH_OK) {
        return status;
    }
    if (!read_u32(gguf, "llama.block_count", &dims.layers, error) ||
        !read_u32(gguf, "llama.embedding_length", &dims.d_model, error) ||
        !read_u32(gguf, "llama.feed_forward_length", &dims.ffn, error) ||
        !read_u32(gguf, "llama.context_length", &dims.ctx_train, error) ||
        !read_heads(gguf, &dims, error) || !read_vocab(gguf, &dims, error)) {
        return BH_ECORRUPT;
    }
    (void)bh_gguf_f32(gguf, "llama.rope.freq_base", &dims.rope_base);
    if (!bh_gguf_f32(gguf, "llama.attention.layer_norm_rms_epsilon", &dims.norm_eps)) {
        return refuse(error, BH_ECORRUPT, "llama.attention.layer_norm_rms_epsilon", "missing");
    }
    const char *why = bh_model_dims_check(&dims);
    if (why != NULL) {
        (void)snprintf(error, BH_MODEL_ERROR_MAX, "%s", why);
        return BH_ELIMIT;
    }
    *out = dims;
    return BH_OK;
}
