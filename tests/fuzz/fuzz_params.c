/* Fuzz target: a hostile JSON body. Whatever the bytes, the reader refuses with an error of the
   table or leaves parameters inside their ranges. The first input byte chooses the route. */
#include "src/api/params.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#define VOCAB 1000u

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

/* Stops the run if `condition` does not hold; the fuzzer keeps the input. */
static void
require(bool condition)
{
    if (!condition) {
        abort();
    }
}

static void
require_sampling(const struct bh_params *params)
{
    uint32_t prompts = params->prompt_cnt > 0 ? params->prompt_cnt : 1;
    require(params->n >= 1 && params->n * prompts <= BH_CHOICES_MAX);
    require(params->temperature >= 0.0f && params->temperature <= BH_TEMPERATURE_MAX);
    require(params->temperature == 0.0f || params->temperature >= BH_TEMPERATURE_MIN);
    require(params->top_p > 0.0f && params->top_p <= 1.0f);
    require(params->min_p >= 0.0f && params->min_p <= 1.0f);
    require(params->top_k <= BH_MAX_TOKENS_MAX && params->max_tokens <= BH_MAX_TOKENS_MAX);
    require(params->max_tokens > 0 || params->echo || !params->has_max_tokens);
    require(params->logprobs >= -1 && params->logprobs <= BH_LOGPROBS_MAX);
    require(params->stop_cnt <= BH_STOP_MAX && params->stop_id_cnt <= BH_STOP_IDS_MAX);
    uint32_t end = 0;
    for (uint32_t i = 0; i < params->stop_cnt; i++) {
        require(params->stop_end[i] > end && params->stop_end[i] <= BH_STOP_BYTES_MAX);
        end = params->stop_end[i];
    }
    for (uint32_t i = 0; i < params->stop_id_cnt; i++) {
        require(params->stop_ids[i] < VOCAB);
    }
    require(params->stream || !params->include_usage);
}

static void
require_prompts(const struct bh_params *params)
{
    for (uint32_t i = 0; i < params->prompt_cnt; i++) {
        const struct bh_prompt *prompt = &params->prompts[i];
        require(prompt->text == NULL || strlen(prompt->text) == prompt->text_len);
        require(prompt->text == NULL || prompt->ids == NULL);
        for (uint32_t k = 0; k < prompt->id_cnt; k++) {
            require(prompt->ids[k] < VOCAB);
        }
    }
}

/* Every message has a role and a content, both strings. */
static void
require_messages(const char *text)
{
    json_t *messages = json_loads(text, 0, NULL);
    require(json_array_size(messages) > 0);
    for (size_t i = 0; i < json_array_size(messages); i++) {
        const json_t *message = json_array_get(messages, i);
        require(json_is_string(json_object_get(message, "role")));
        require(json_is_string(json_object_get(message, "content")));
    }
    json_decref(messages);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
    static const enum bh_route ROUTES[] = {BH_ROUTE_CHAT,
                                           BH_ROUTE_COMPLETIONS,
                                           BH_ROUTE_TOKENIZE,
                                           BH_ROUTE_DETOKENIZE,
                                           BH_ROUTE_APPLY_TEMPLATE};
    if (len == 0) {
        return 0;
    }
    const struct bh_params_rules rules = {.vocab = VOCAB};
    enum bh_route route = ROUTES[data[0] % BH_COUNT(ROUTES)];
    struct bh_params params;
    struct bh_fault fault = {0};
    enum bh_status status =
        bh_params_parse(route, (const char *)data + 1, len - 1, &rules, &params, &fault);
    require(status == BH_OK || status == BH_EINVAL);
    if (status == BH_EINVAL) {
        require(bh_error_info(fault.error)->status >= 400 && fault.error != BH_ERROR_INTERNAL);
        require(memchr(fault.detail, '\0', sizeof(fault.detail)) != NULL);
    } else {
        require_prompts(&params);
        if (route == BH_ROUTE_CHAT || route == BH_ROUTE_COMPLETIONS) {
            require_sampling(&params);
        }
        if (route == BH_ROUTE_CHAT || route == BH_ROUTE_APPLY_TEMPLATE) {
            require_messages(params.messages);
        }
    }
    bh_params_free(&params);
    return 0;
}
