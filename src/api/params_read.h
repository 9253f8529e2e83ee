/* Readers of single JSON fields for params*.c. Each takes the value (NULL or JSON null: absent, the
   default in *out stays), the name to put into `param`, and the fault to fill. All return BH_OK or
   BH_EINVAL. For this folder only. */
#ifndef BH_API_PARAMS_READ_H
#define BH_API_PARAMS_READ_H

#include <jansson.h>

#include "src/api/params.h"

/* bh_read_load - parse a body that must be one JSON object, within the limits of depth and number
   of values. *root is to be released with json_decref. */
BH_MUST_USE enum bh_status
bh_read_load(const char *body, size_t len, json_t **root, struct bh_fault *fault);

/* bh_read_given - whether a value is there and not null. */
bool bh_read_given(const json_t *value);

BH_MUST_USE enum bh_status
bh_read_bool(const json_t *value, const char *param, bool *out, struct bh_fault *fault);

/* A whole number in min..max. */
struct bh_read_range {
    int64_t min;
    int64_t max;
};
BH_MUST_USE enum bh_status bh_read_int(const json_t *value,
                                       const char *param,
                                       struct bh_read_range range,
                                       int64_t *out,
                                       struct bh_fault *fault);

/* A number in [0, max]. */
BH_MUST_USE enum bh_status bh_read_float(
    const json_t *value, const char *param, float max, float *out, struct bh_fault *fault);

/* A list of token ids below vocab; *ids is malloc'd, NULL when *id_cnt is 0. Not for absent
   values. */
BH_MUST_USE enum bh_status bh_read_ids(const json_t *value,
                                       const char *param,
                                       uint32_t vocab,
                                       uint32_t **ids,
                                       uint32_t *id_cnt,
                                       struct bh_fault *fault);

/* bh_read_refused - refuse every field of refused.def that asks for something. */
BH_MUST_USE enum bh_status bh_read_refused(const json_t *root, struct bh_fault *fault);

/* bh_read_messages - messages, tools, tool_choice, chat_template_kwargs and add_generation_prompt
   into params. Changes `root`: contents become strings. */
BH_MUST_USE enum bh_status
bh_read_messages(json_t *root, struct bh_params *params, struct bh_fault *fault);

/* bh_read_prompts - `prompt` of /v1/completions in its four forms. */
BH_MUST_USE enum bh_status bh_read_prompts(const json_t *root,
                                           uint32_t vocab,
                                           struct bh_params *params,
                                           struct bh_fault *fault);

/* bh_read_text_prompt - make params->prompts one text. */
BH_MUST_USE enum bh_status
bh_read_text_prompt(const json_t *text, struct bh_params *params, struct bh_fault *fault);

/* bh_read_sampling - everything of a completion but its messages or prompts. */
BH_MUST_USE enum bh_status bh_read_sampling(const json_t *root,
                                            uint32_t vocab,
                                            struct bh_params *params,
                                            struct bh_fault *fault);

/* bh_read_wrong - fill *fault with INVALID_VALUE: "'param' must be <what>, not <type>." Returns
   BH_EINVAL. */
BH_MUST_USE enum bh_status
bh_read_wrong(const json_t *value, const char *param, const char *what, struct bh_fault *fault);

/* bh_read_no_memory - fill *fault with INTERNAL. Returns BH_ESYS. */
BH_MUST_USE enum bh_status bh_read_no_memory(struct bh_fault *fault);

#endif
