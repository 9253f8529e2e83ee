/* The token log: layout and checks. */
#include "shm/tokenlog.h"

#include <string.h>

#define TOKENLOG_VERSION 1u

struct sections {
    size_t words;
    size_t tokens;
    size_t logprobs;
    size_t bytes;
};

static struct sections
lay_out(const struct bh_limits *limits)
{
    size_t token_cnt = (size_t)limits->slots * limits->ctx;
    struct sections at = {.bytes = sizeof(struct bh_object_head)};
    at.words = bh_object_place(&at.bytes, limits->slots * sizeof(struct bh_word));
    at.tokens = bh_object_place(&at.bytes, token_cnt * sizeof(uint32_t));
    at.logprobs = bh_object_place(&at.bytes, token_cnt * sizeof(struct bh_log_logprob));
    return at;
}

size_t
bh_tokenlog_footprint(const struct bh_limits *limits)
{
    return bh_limits_ok(limits) ? lay_out(limits).bytes : 0;
}

enum bh_status
bh_tokenlog_new(void *mem, const struct bh_limits *limits)
{
    size_t bytes = bh_tokenlog_footprint(limits);
    enum bh_status status = bh_object_prepare(mem, bytes);
    if (status != BH_OK) {
        return status;
    }
    /* Words only: entries that no word counts are never read, and the file stays sparse. */
    memset((uint8_t *)mem + lay_out(limits).words, 0, limits->slots * sizeof(struct bh_word));
    bh_object_publish(mem, bh_object_layout("tokenlog", TOKENLOG_VERSION, limits), bytes);
    return BH_OK;
}

enum bh_status
bh_tokenlog_join(void *mem, size_t bytes, const struct bh_limits *limits, struct bh_tokenlog *out)
{
    size_t footprint = bh_tokenlog_footprint(limits);
    if (footprint == 0) {
        return BH_EINVAL;
    }
    uint64_t layout = bh_object_layout("tokenlog", TOKENLOG_VERSION, limits);
    enum bh_status status = bh_object_check(mem, bytes, layout, footprint);
    if (status == BH_OK) {
        struct sections at = lay_out(limits);
        uint8_t *base = mem;
        *out = (struct bh_tokenlog){.head = mem,
                                    .words = (void *)(base + at.words),
                                    .tokens = (void *)(base + at.tokens),
                                    .logprobs = (void *)(base + at.logprobs),
                                    .slots = limits->slots,
                                    .ctx = limits->ctx};
    }
    return status;
}

void
bh_tokenlog_leave(struct bh_tokenlog *log)
{
    *log = (struct bh_tokenlog){0};
}

enum bh_status
bh_tokenlog_verify(const struct bh_tokenlog *log)
{
    enum bh_status status = bh_object_verify(log->head);
    for (uint32_t slot = 0; status == BH_OK && slot < log->slots; slot++) {
        struct bh_log_view view = bh_log_load(log, slot);
        if (view.finish > BH_FINISH_LENGTH || view.cnt > log->ctx ||
            (view.gen == 0 && view.cnt != 0)) {
            status = BH_ECORRUPT;
        }
    }
    return status;
}
