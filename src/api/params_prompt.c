/* Prompts of /v1/completions: one text, a list of texts, one list of token ids, or a list of
   those. */
#include "src/api/params_read.h"

#include <stdlib.h>
#include <string.h>

#define FORMS "a string, a list of strings, a list of token ids, or a list of lists of token ids"

static enum bh_status
copy_text(const json_t *text, struct bh_prompt *prompt, struct bh_fault *fault)
{
    size_t len = json_string_length(text);
    prompt->text = malloc(len + 1);
    if (prompt->text == NULL) {
        return bh_read_no_memory(fault);
    }
    memcpy(prompt->text, json_string_value(text), len + 1);
    prompt->text_len = len;
    return BH_OK;
}

static enum bh_status
copy_ids(const json_t *ids, uint32_t vocab, struct bh_prompt *prompt, struct bh_fault *fault)
{
    if (json_array_size(ids) == 0) {
        bh_fault_say(
            fault, BH_ERROR_INVALID_VALUE, "prompt", "'prompt' holds an empty list of token ids.");
        return BH_EINVAL;
    }
    return bh_read_ids(ids, "prompt", vocab, &prompt->ids, &prompt->id_cnt, fault);
}

static enum bh_status
make_room(struct bh_params *params, size_t cnt, struct bh_fault *fault)
{
    params->prompts = calloc(cnt, sizeof(*params->prompts));
    if (params->prompts == NULL) {
        return bh_read_no_memory(fault);
    }
    params->prompt_cnt = (uint32_t)cnt;
    return BH_OK;
}

enum bh_status
bh_read_text_prompt(const json_t *text, struct bh_params *params, struct bh_fault *fault)
{
    enum bh_status status = make_room(params, 1, fault);
    return status == BH_OK ? copy_text(text, &params->prompts[0], fault) : status;
}

static enum bh_status
read_list(const json_t *list, uint32_t vocab, struct bh_params *params, struct bh_fault *fault)
{
    size_t cnt = json_array_size(list);
    if (cnt > BH_CHOICES_MAX) {
        bh_fault_say(fault,
                     BH_ERROR_INVALID_VALUE,
                     "prompt",
                     "'prompt' holds %zu prompts; at most %d are taken at once.",
                     cnt,
                     BH_CHOICES_MAX);
        return BH_EINVAL;
    }
    bool texts = json_is_string(json_array_get(list, 0));
    enum bh_status status = make_room(params, cnt, fault);
    for (size_t i = 0; i < cnt && status == BH_OK; i++) {
        const json_t *item = json_array_get(list, i);
        if (texts && json_is_string(item)) {
            status = copy_text(item, &params->prompts[i], fault);
        } else if (!texts && json_is_array(item)) {
            status = copy_ids(item, vocab, &params->prompts[i], fault);
        } else {
            status = bh_read_wrong(item, "prompt", FORMS, fault);
        }
    }
    return status;
}

enum bh_status
bh_read_prompts(const json_t *root,
                uint32_t vocab,
                struct bh_params *params,
                struct bh_fault *fault)
{
    const json_t *prompt = json_object_get(root, "prompt");
    if (json_is_string(prompt)) {
        return bh_read_text_prompt(prompt, params, fault);
    }
    if (!json_is_array(prompt)) {
        return bh_read_wrong(prompt, "prompt", FORMS, fault);
    }
    if (json_array_size(prompt) == 0) {
        bh_fault_say(fault, BH_ERROR_INVALID_VALUE, "prompt", "'prompt' must not be empty.");
        return BH_EINVAL;
    }
    if (!json_is_number(json_array_get(prompt, 0))) {
        return read_list(prompt, vocab, params, fault);
    }
    enum bh_status status = make_room(params, 1, fault);
    return status == BH_OK ? copy_ids(prompt, vocab, &params->prompts[0], fault) : status;
}
