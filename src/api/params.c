/* One body in, one struct out: which fields each route has, and the copy into a record. */
#include "src/api/params.h"

#include <stdlib.h>
#include <string.h>

#include "src/api/params_read.h"

static enum bh_status
read_model(const json_t *root,
           const struct bh_params_rules *rules,
           struct bh_params *params,
           struct bh_fault *fault)
{
    const json_t *value = json_object_get(root, "model");
    if (!bh_read_given(value)) {
        return BH_OK;
    }
    if (!json_is_string(value)) {
        return bh_read_wrong(value, "model", "a string", fault);
    }
    const char *name = json_string_value(value);
    bool known = rules->model_cnt == 0 || name[0] == '\0';
    for (uint32_t i = 0; i < rules->model_cnt; i++) {
        known = known || strcmp(rules->models[i], name) == 0;
    }
    if (!known || strlen(name) >= sizeof(params->model)) {
        bh_fault_say(
            fault,
            BH_ERROR_MODEL_NOT_FOUND,
            "model",
            "The model '%.100s' does not exist here. GET /v1/models lists the models served.",
            name);
        return BH_EINVAL;
    }
    memcpy(params->model, name, strlen(name) + 1);
    return BH_OK;
}

static enum bh_status
read_tokenize(const json_t *root, struct bh_params *params, struct bh_fault *fault)
{
    const json_t *content = json_object_get(root, "content");
    params->parse_special = true;
    if (!json_is_string(content)) {
        return bh_read_wrong(content, "content", "a string", fault);
    }
    enum bh_status status = bh_read_bool(
        json_object_get(root, "add_special"), "add_special", &params->add_special, fault);
    if (status == BH_OK) {
        status = bh_read_bool(
            json_object_get(root, "parse_special"), "parse_special", &params->parse_special, fault);
    }
    if (status == BH_OK) {
        status = bh_read_bool(
            json_object_get(root, "with_pieces"), "with_pieces", &params->with_pieces, fault);
    }
    return status == BH_OK ? bh_read_text_prompt(content, params, fault) : status;
}

static enum bh_status
read_detokenize(const json_t *root,
                uint32_t vocab,
                struct bh_params *params,
                struct bh_fault *fault)
{
    const json_t *tokens = json_object_get(root, "tokens");
    if (!json_is_array(tokens)) {
        return bh_read_wrong(tokens, "tokens", "a list of token ids", fault);
    }
    params->prompts = calloc(1, sizeof(*params->prompts));
    if (params->prompts == NULL) {
        return bh_read_no_memory(fault);
    }
    params->prompt_cnt = 1;
    return bh_read_ids(
        tokens, "tokens", vocab, &params->prompts[0].ids, &params->prompts[0].id_cnt, fault);
}

static enum bh_status
read_route(json_t *root,
           const struct bh_params_rules *rules,
           struct bh_params *params,
           struct bh_fault *fault)
{
    enum bh_status status = BH_OK;
    switch (params->route) {
    case BH_ROUTE_CHAT:
        status = bh_read_messages(root, params, fault);
        return status == BH_OK ? bh_read_sampling(root, rules->vocab, params, fault) : status;
    case BH_ROUTE_COMPLETIONS:
        status = bh_read_prompts(root, rules->vocab, params, fault);
        return status == BH_OK ? bh_read_sampling(root, rules->vocab, params, fault) : status;
    case BH_ROUTE_APPLY_TEMPLATE:
        return bh_read_messages(root, params, fault);
    case BH_ROUTE_TOKENIZE:
        return read_tokenize(root, params, fault);
    case BH_ROUTE_DETOKENIZE:
        return read_detokenize(root, rules->vocab, params, fault);
    case BH_ROUTE_NONE:
    case BH_ROUTE_HEALTH:
    case BH_ROUTE_LIVE:
    case BH_ROUTE_METRICS:
    case BH_ROUTE_MODELS:
    case BH_ROUTE_CNT:
    default:
        bh_fault_set(fault, BH_ERROR_INTERNAL, NULL);
        return BH_EINVAL;
    }
}

void
bh_params_prepare(void)
{
    json_object_seed(0);
}

enum bh_status
bh_params_parse(enum bh_route route,
                const char *body,
                size_t body_len,
                const struct bh_params_rules *rules,
                struct bh_params *params,
                struct bh_fault *fault)
{
    memset(params, 0, sizeof(*params));
    params->route = route;
    json_t *root = NULL;
    enum bh_status status = bh_read_load(body, body_len, &root, fault);
    if (status != BH_OK) {
        return status;
    }
    status = read_model(root, rules, params, fault);
    if (status == BH_OK) {
        status = read_route(root, rules, params, fault);
    }
    json_decref(root);
    return status;
}

void
bh_params_free(struct bh_params *params)
{
    for (uint32_t i = 0; i < params->prompt_cnt; i++) {
        free(params->prompts[i].text);
        free(params->prompts[i].ids);
    }
    free(params->prompts);
    free(params->messages);
    free(params->tools);
    free(params->template_kwargs);
    memset(params, 0, sizeof(*params));
}

static uint32_t
flag_if(bool on, enum bh_record_flag flag)
{
    return on ? (uint32_t)flag : 0;
}

void
bh_params_record(const struct bh_params *params,
                 uint32_t sample_idx,
                 uint64_t random_seed,
                 struct bh_record *record)
{
    uint32_t mine = BH_RECORD_CHAT | BH_RECORD_STREAM | BH_RECORD_USAGE | BH_RECORD_ECHO |
                    BH_RECORD_IGNORE_EOS | BH_RECORD_PROMPT_LOGPROBS;
    uint32_t flags = flag_if(params->route == BH_ROUTE_CHAT, BH_RECORD_CHAT) |
                     flag_if(params->stream, BH_RECORD_STREAM) |
                     flag_if(params->include_usage, BH_RECORD_USAGE) |
                     flag_if(params->echo, BH_RECORD_ECHO) |
                     flag_if(params->ignore_eos, BH_RECORD_IGNORE_EOS) |
                     flag_if(params->echo && params->logprobs >= 0, BH_RECORD_PROMPT_LOGPROBS);
    record->flags = (record->flags & ~mine) | flags;
    record->logprobs = params->logprobs;
    record->top_k = params->top_k;
    record->temperature = params->temperature;
    record->top_p = params->top_p;
    record->min_p = params->min_p;
    record->seed = (params->has_seed ? params->seed : random_seed) + sample_idx;
    record->stop_cnt = params->stop_cnt;
    record->stop_id_cnt = params->stop_id_cnt;
    memcpy(record->stop_ids, params->stop_ids, sizeof(record->stop_ids));
    memcpy(record->stop_end, params->stop_end, sizeof(record->stop_end));
    memcpy(record->stop_bytes, params->stop_bytes, sizeof(record->stop_bytes));
}
