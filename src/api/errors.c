/* The table of errors and the JSON that tells a client about one. */
#include "src/api/errors.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "src/api/json_text.h"

static const struct bh_error_info ERRORS[BH_ERROR_CNT] = {
#define BH_ERROR_DEF(name_, code_, status_, type_, retry_after_s_, message_)                       \
    [BH_ERROR_##name_] = {.code = (code_),                                                         \
                          .type = (type_),                                                         \
                          .message = (message_),                                                   \
                          .status = (status_),                                                     \
                          .retry_after_s = (retry_after_s_)},
#include "src/api/errors.def"
#undef BH_ERROR_DEF
};

const struct bh_error_info *
bh_error_info(uint32_t error)
{
    return &ERRORS[error > BH_ERROR_NONE && error < BH_ERROR_CNT ? error : BH_ERROR_INTERNAL];
}

enum bh_error
bh_error_by_code(const char *code)
{
    for (uint32_t i = BH_ERROR_NONE + 1; i < BH_ERROR_CNT; i++) {
        if (strcmp(ERRORS[i].code, code) == 0) {
            return (enum bh_error)i;
        }
    }
    return BH_ERROR_INTERNAL;
}

void
bh_fault_set(struct bh_fault *fault, enum bh_error error, const char *param)
{
    memset(fault, 0, sizeof(*fault));
    fault->error = error;
    fault->retry_after_s = bh_error_info(error)->retry_after_s;
    if (param != NULL) {
        snprintf(fault->param, sizeof(fault->param), "%s", param);
    }
}

void
bh_fault_say(
    struct bh_fault *fault, enum bh_error error, const char *param, const char *format, ...)
{
    bh_fault_set(fault, error, param);
    va_list args;
    va_start(args, format);
    vsnprintf(fault->detail, sizeof(fault->detail), format, args);
    va_end(args);
}

void
bh_fault_context(struct bh_fault *fault,
                 const struct bh_fault_numbers *numbers,
                 enum bh_fault_limit limit,
                 bool chat)
{
    const char *what = chat ? "messages" : "prompt";
    uint64_t prompt = numbers->n_prompt_tokens;
    uint64_t wish = numbers->n_max_tokens;
    if (wish == 0) {
        bh_fault_say(fault,
                     BH_ERROR_CONTEXT_LENGTH,
                     what,
                     "This model's maximum context length is %" PRIu64
                     " tokens. However, your %s resulted in %" PRIu64
                     " tokens. Please reduce the length of the %s.",
                     numbers->n_ctx,
                     what,
                     prompt,
                     what);
    } else {
        bh_fault_say(fault,
                     BH_ERROR_CONTEXT_LENGTH,
                     what,
                     "This model's maximum context length is %" PRIu64
                     " tokens. However, you requested %" PRIu64 " tokens (%" PRIu64
                     " in the %s, %" PRIu64 " in the completion). Please reduce the length of the "
                     "%s or completion.",
                     numbers->n_ctx,
                     prompt + wish,
                     prompt,
                     what,
                     wish,
                     what);
    }
    fault->limit = limit;
    fault->n_prompt_tokens = prompt;
    fault->n_max_tokens = wish;
    fault->n_ctx = numbers->n_ctx;
}

/* A string from a fault, which may come from another process without its NUL. */
static void
put_text(struct bh_bytes *out, const char *text, size_t size)
{
    bh_json_string(out, text, strnlen(text, size));
}

void
bh_fault_json(struct bh_bytes *out, const struct bh_fault *fault)
{
    const struct bh_error_info *info = bh_error_info(fault->error);
    bh_bytes_text(out, "{\"error\":{\"message\":");
    if (fault->detail[0] != '\0') {
        put_text(out, fault->detail, sizeof(fault->detail));
    } else {
        bh_json_string(out, info->message, strlen(info->message));
    }
    bh_bytes_format(out, ",\"type\":\"%s\",\"param\":", info->type);
    if (fault->param[0] != '\0') {
        put_text(out, fault->param, sizeof(fault->param));
    } else {
        bh_bytes_text(out, "null");
    }
    bh_bytes_format(out, ",\"code\":\"%s\"", info->code);
    if (fault->n_ctx != 0) {
        bh_bytes_format(out,
                        ",\"n_prompt_tokens\":%" PRIu64 ",\"n_ctx\":%" PRIu64,
                        fault->n_prompt_tokens,
                        fault->n_ctx);
        if (fault->n_max_tokens != 0) {
            bh_bytes_format(out, ",\"n_max_tokens\":%" PRIu64, fault->n_max_tokens);
        }
    }
    if (fault->limit == BH_FAULT_LIMIT_CONTEXT) {
        bh_bytes_text(out, ",\"limit\":\"context\"");
    } else if (fault->limit == BH_FAULT_LIMIT_KV_POOL) {
        bh_bytes_text(out, ",\"limit\":\"kv_pool\"");
    }
    bh_bytes_text(out, "}}");
}
