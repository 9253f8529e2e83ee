/* What a client is told when a request is refused or fails: one table of errors (errors.def), one
   flat struct that says which one with its details, and its JSON. The struct holds no pointers, so
   that it may travel between processes. */
#ifndef BH_API_ERRORS_H
#define BH_API_ERRORS_H

#include "src/api/bytes.h"

enum bh_error {
    BH_ERROR_NONE = 0,
#define BH_ERROR_DEF(name, code, status, type, retry_after_s, message) BH_ERROR_##name,
#include "src/api/errors.def"
#undef BH_ERROR_DEF
    BH_ERROR_CNT
};

/* Which limit a prompt broke: the value of the extra field `limit`. */
enum bh_fault_limit { BH_FAULT_LIMIT_NONE, BH_FAULT_LIMIT_CONTEXT, BH_FAULT_LIMIT_KV_POOL };

#define BH_FAULT_PARAM_MAX  64  /* with the NUL */
#define BH_FAULT_DETAIL_MAX 256 /* with the NUL */

struct bh_fault {
    uint32_t error;         /* enum bh_error */
    uint32_t retry_after_s; /* 0: no Retry-After header */
    uint32_t allow;         /* METHOD_NOT_ALLOWED: bits 1 << enum bh_method (http.h) */
    uint32_t limit;         /* enum bh_fault_limit */
    uint64_t n_prompt_tokens;
    uint64_t n_max_tokens;            /* the explicit max_tokens that does not fit, or 0 */
    uint64_t n_ctx;                   /* 0: the numeric fields are not written */
    char param[BH_FAULT_PARAM_MAX];   /* "": null */
    char detail[BH_FAULT_DETAIL_MAX]; /* "": the message of errors.def */
};

static_assert(sizeof(struct bh_fault) == 40 + BH_FAULT_PARAM_MAX + BH_FAULT_DETAIL_MAX,
              "no padding: the struct is copied between processes as bytes");

/* One line of errors.def. */
struct bh_error_info {
    const char *code;
    const char *type;
    const char *message;
    uint32_t status;
    uint32_t retry_after_s;
};

/* bh_error_info - the line of `error`; a number outside the table gives the line of INTERNAL, since
   it may come from another process. Never NULL. */
const struct bh_error_info *bh_error_info(uint32_t error);

/* bh_error_by_code - the error with that code string; INTERNAL if there is none. For causes of
   shm/cause.def, which name codes. */
enum bh_error bh_error_by_code(const char *code);

/* bh_fault_set - fill `fault` for `error`, with Retry-After from the table. param may be NULL. The
   message is the table's. */
void bh_fault_set(struct bh_fault *fault, enum bh_error error, const char *param);

/* bh_fault_say - like bh_fault_set, with a message of its own; cut at BH_FAULT_DETAIL_MAX - 1
   bytes. */
BH_PRINTF(4, 5)
void bh_fault_say(
    struct bh_fault *fault, enum bh_error error, const char *param, const char *format, ...);

/* bh_fault_context - fill `fault` for a prompt that is too long. n_ctx is the context of the model
   that clients are told; max_tokens is the explicit wish that does not fit, or 0 when the prompt
   alone is too long; chat chooses "messages" or "prompt" for the text and param. The message holds
   "maximum context length is N tokens", which clients search for. */
struct bh_fault_numbers {
    uint64_t n_prompt_tokens;
    uint64_t n_max_tokens;
    uint64_t n_ctx;
};
void bh_fault_context(struct bh_fault *fault,
                      const struct bh_fault_numbers *numbers,
                      enum bh_fault_limit limit,
                      bool chat);

/* bh_fault_json - {"error":{"message":...,"type":...,"param":...,"code":...}} with n_prompt_tokens,
   n_ctx and limit behind them when n_ctx is not 0. For whole answers and for error events alike. */
void bh_fault_json(struct bh_bytes *out, const struct bh_fault *fault);

#endif
