/* How an answer is drawn, where it stops, and what comes with it. */
#include "src/api/params_read.h"

#include <stdlib.h>
#include <string.h>

static enum bh_status
say(struct bh_fault *fault, enum bh_error error, const char *param, const char *why)
{
    bh_fault_say(fault, error, param, "%s", why);
    return BH_EINVAL;
}

/* max_tokens and its newer name; 0 means "only the prompt back", which needs echo. */
static enum bh_status
read_max_tokens(const json_t *root, struct bh_params *params, struct bh_fault *fault)
{
    static const char *const NAMES[] = {"max_tokens", "max_completion_tokens"};
    bool chat = params->route == BH_ROUTE_CHAT;
    struct bh_read_range range = {.min = params->echo ? 0 : 1, .max = BH_MAX_TOKENS_MAX};
    int64_t old = chat ? 0 : BH_MAX_TOKENS_DEFAULT;
    for (size_t i = 0; i < BH_COUNT(NAMES); i++) {
        const json_t *value = json_object_get(root, NAMES[i]);
        int64_t number = old;
        enum bh_status status = bh_read_int(value, NAMES[i], range, &number, fault);
        if (status != BH_OK) {
            return status;
        }
        if (bh_read_given(value) && params->has_max_tokens && number != old) {
            return say(fault,
                       BH_ERROR_INVALID_VALUE,
                       NAMES[i],
                       "'max_tokens' and 'max_completion_tokens' differ; send one of them.");
        }
        params->has_max_tokens = params->has_max_tokens || bh_read_given(value);
        old = number;
    }
    params->max_tokens = (uint32_t)old;
    return BH_OK;
}

static enum bh_status
read_drawing(const json_t *root, struct bh_params *params, struct bh_fault *fault)
{
    int64_t top_k = 0;
    int64_t seed = 0;
    const json_t *seed_value = json_object_get(root, "seed");
    struct bh_read_range any = {.min = INT64_MIN, .max = INT64_MAX};
    /* -1 is what other engines' clients send for "off". */
    struct bh_read_range k_range = {.min = -1, .max = BH_MAX_TOKENS_MAX};
    enum bh_status status = bh_read_float(json_object_get(root, "temperature"),
                                          "temperature",
                                          BH_TEMPERATURE_MAX,
                                          &params->temperature,
                                          fault);
    if (status == BH_OK) {
        status =
            bh_read_float(json_object_get(root, "top_p"), "top_p", 1.0f, &params->top_p, fault);
    }
    if (status == BH_OK) {
        status =
            bh_read_float(json_object_get(root, "min_p"), "min_p", 1.0f, &params->min_p, fault);
    }
    if (status == BH_OK) {
        status = bh_read_int(json_object_get(root, "top_k"), "top_k", k_range, &top_k, fault);
    }
    if (status == BH_OK) {
        status = bh_read_int(seed_value, "seed", any, &seed, fault);
    }
    if (status != BH_OK) {
        return status;
    }
    if (!(params->top_p > 0.0f)) {
        return say(
            fault, BH_ERROR_INVALID_VALUE, "top_p", "'top_p' must be above 0 and at most 1.");
    }
    if (params->temperature < BH_TEMPERATURE_MIN) {
        params->temperature = 0.0f;
    }
    params->top_k = top_k < 0 ? 0 : (uint32_t)top_k;
    params->has_seed = bh_read_given(seed_value);
    params->seed = (uint64_t)seed;
    return BH_OK;
}

static enum bh_status
read_counts(const json_t *root, struct bh_params *params, struct bh_fault *fault)
{
    struct bh_read_range range = {.min = 1, .max = BH_CHOICES_MAX};
    int64_t n = 1;
    enum bh_status status = bh_read_int(json_object_get(root, "n"), "n", range, &n, fault);
    int64_t best_of = n;
    if (status == BH_OK) {
        status = bh_read_int(json_object_get(root, "best_of"), "best_of", range, &best_of, fault);
    }
    if (status != BH_OK) {
        return status;
    }
    if (best_of > n) {
        return say(fault,
                   BH_ERROR_UNSUPPORTED,
                   "best_of",
                   "'best_of' above 'n' is not supported: every answer made is returned.");
    }
    if (best_of < n) {
        return say(fault, BH_ERROR_INVALID_VALUE, "best_of", "'best_of' must not be below 'n'.");
    }
    params->n = (uint32_t)n;
    uint32_t prompts = params->prompt_cnt > 0 ? params->prompt_cnt : 1;
    if (params->n * prompts > BH_CHOICES_MAX) {
        bh_fault_say(fault,
                     BH_ERROR_INVALID_VALUE,
                     "n",
                     "'n' times the number of prompts is %u; at most %d answers are made at once.",
                     params->n * prompts,
                     BH_CHOICES_MAX);
        return BH_EINVAL;
    }
    return BH_OK;
}

static enum bh_status
add_stop(const json_t *text, struct bh_params *params, struct bh_fault *fault)
{
    if (!json_is_string(text)) {
        return bh_read_wrong(text, "stop", "a string or a list of strings", fault);
    }
    size_t len = json_string_length(text);
    size_t used = params->stop_cnt == 0 ? 0 : params->stop_end[params->stop_cnt - 1];
    if (len == 0) {
        return say(fault, BH_ERROR_INVALID_VALUE, "stop", "'stop' holds an empty string.");
    }
    if (params->stop_cnt == BH_STOP_MAX || len > BH_STOP_BYTES_MAX - used) {
        bh_fault_say(fault,
                     BH_ERROR_INVALID_VALUE,
                     "stop",
                     "'stop' may hold at most %d strings and %d bytes together.",
                     BH_STOP_MAX,
                     BH_STOP_BYTES_MAX);
        return BH_EINVAL;
    }
    memcpy(params->stop_bytes + used, json_string_value(text), len);
    params->stop_end[params->stop_cnt++] = (uint16_t)(used + len);
    return BH_OK;
}

static enum bh_status
read_stops(const json_t *root, struct bh_params *params, struct bh_fault *fault)
{
    const json_t *stop = json_object_get(root, "stop");
    if (!bh_read_given(stop)) {
        return BH_OK;
    }
    if (!json_is_array(stop)) {
        return add_stop(stop, params, fault);
    }
    enum bh_status status = BH_OK;
    for (size_t i = 0; i < json_array_size(stop) && status == BH_OK; i++) {
        status = add_stop(json_array_get(stop, i), params, fault);
    }
    return status;
}

static enum bh_status
read_stop_ids(const json_t *root, uint32_t vocab, struct bh_params *params, struct bh_fault *fault)
{
    const json_t *value = json_object_get(root, "stop_token_ids");
    if (!bh_read_given(value)) {
        return BH_OK;
    }
    if (!json_is_array(value)) {
        return bh_read_wrong(value, "stop_token_ids", "a list of token ids", fault);
    }
    if (json_array_size(value) > BH_STOP_IDS_MAX) {
        bh_fault_say(fault,
                     BH_ERROR_INVALID_VALUE,
                     "stop_token_ids",
                     "'stop_token_ids' may hold at most %d ids.",
                     BH_STOP_IDS_MAX);
        return BH_EINVAL;
    }
    uint32_t *ids = NULL;
    enum bh_status status =
        bh_read_ids(value, "stop_token_ids", vocab, &ids, &params->stop_id_cnt, fault);
    if (status == BH_OK && params->stop_id_cnt > 0) {
        memcpy(params->stop_ids, ids, params->stop_id_cnt * sizeof(*ids));
        free(ids);
    }
    return status;
}

/* Chat says whether and how many apart; completions says how many. */
static enum bh_status
read_logprobs(const json_t *root, struct bh_params *params, struct bh_fault *fault)
{
    struct bh_read_range range = {.min = 0, .max = BH_LOGPROBS_MAX};
    const json_t *logprobs = json_object_get(root, "logprobs");
    const json_t *top = json_object_get(root, "top_logprobs");
    int64_t cnt = params->route == BH_ROUTE_CHAT ? 0 : -1;
    enum bh_status status = BH_OK;
    if (params->route != BH_ROUTE_CHAT) {
        status = bh_read_int(logprobs, "logprobs", range, &cnt, fault);
    } else {
        bool wanted = false;
        status = bh_read_bool(logprobs, "logprobs", &wanted, fault);
        if (status == BH_OK) {
            status = bh_read_int(top, "top_logprobs", range, &cnt, fault);
        }
        if (status == BH_OK && !wanted && cnt > 0) {
            return say(fault,
                       BH_ERROR_INVALID_VALUE,
                       "top_logprobs",
                       "'top_logprobs' needs 'logprobs': true.");
        }
        cnt = wanted ? cnt : -1;
    }
    params->logprobs = (int32_t)cnt;
    return status;
}

static enum bh_status
read_stream(const json_t *root, struct bh_params *params, struct bh_fault *fault)
{
    const json_t *options = json_object_get(root, "stream_options");
    enum bh_status status =
        bh_read_bool(json_object_get(root, "stream"), "stream", &params->stream, fault);
    if (status != BH_OK || !bh_read_given(options)) {
        return status;
    }
    if (!json_is_object(options)) {
        return bh_read_wrong(options, "stream_options", "an object", fault);
    }
    if (!params->stream) {
        return say(fault,
                   BH_ERROR_INVALID_VALUE,
                   "stream_options",
                   "'stream_options' needs 'stream': true.");
    }
    return bh_read_bool(json_object_get(options, "include_usage"),
                        "stream_options.include_usage",
                        &params->include_usage,
                        fault);
}

/* Anything but plain text would need constrained sampling. */
static enum bh_status
check_format(const json_t *root, struct bh_fault *fault)
{
    const json_t *format = json_object_get(root, "response_format");
    if (!bh_read_given(format)) {
        return BH_OK;
    }
    const char *type = json_string_value(json_object_get(format, "type"));
    if (type == NULL) {
        return bh_read_wrong(format, "response_format", "an object with a type", fault);
    }
    if (strcmp(type, "text") != 0) {
        return say(fault,
                   BH_ERROR_UNSUPPORTED,
                   "response_format",
                   "'response_format': only {\"type\":\"text\"} is supported.");
    }
    return BH_OK;
}

static enum bh_status
read_echo(const json_t *root, struct bh_params *params, struct bh_fault *fault)
{
    bool echo = false;
    enum bh_status status = bh_read_bool(json_object_get(root, "echo"), "echo", &echo, fault);
    if (status == BH_OK && echo && params->route == BH_ROUTE_CHAT) {
        return say(fault, BH_ERROR_UNSUPPORTED, "echo", "'echo' is for /v1/completions only.");
    }
    params->echo = echo;
    return status;
}

enum bh_status
bh_read_sampling(const json_t *root,
                 uint32_t vocab,
                 struct bh_params *params,
                 struct bh_fault *fault)
{
    params->temperature = 1.0f;
    params->top_p = 1.0f;
    params->logprobs = -1;
    enum bh_status status = bh_read_refused(root, fault);
    if (status == BH_OK) {
        status = check_format(root, fault);
    }
    if (status == BH_OK) {
        status = read_echo(root, params, fault);
    }
    if (status == BH_OK) {
        status = read_max_tokens(root, params, fault);
    }
    if (status == BH_OK) {
        status = read_drawing(root, params, fault);
    }
    if (status == BH_OK) {
        status = read_counts(root, params, fault);
    }
    if (status == BH_OK) {
        status = read_stops(root, params, fault);
    }
    if (status == BH_OK) {
        status = read_stop_ids(root, vocab, params, fault);
    }
    if (status == BH_OK) {
        status = read_logprobs(root, params, fault);
    }
    if (status == BH_OK) {
        status = read_stream(root, params, fault);
    }
    if (status == BH_OK) {
        status = bh_read_bool(
            json_object_get(root, "ignore_eos"), "ignore_eos", &params->ignore_eos, fault);
    }
    return status;
}
