/* Submissions: layout, checks, and the check of a record that both its readers make. */
#include "shm/submit.h"

#include <math.h>
#include <string.h>

#define SUBMIT_VERSION 1u

#define RECORD_FLAGS_KNOWN                                                                         \
    ((uint32_t)(BH_RECORD_CHAT | BH_RECORD_STREAM | BH_RECORD_USAGE | BH_RECORD_ECHO |             \
                BH_RECORD_IGNORE_EOS | BH_RECORD_PROMPT_LOGPROBS | BH_RECORD_CLOSE |               \
                BH_RECORD_HTTP10))

#define LOGPROBS_MAX    20
#define TEMPERATURE_MAX 100.0f
#define NO_NEXT         UINT32_MAX

struct sections {
    size_t subs;
    size_t records;
    size_t conns;
    size_t prompts;
    size_t replies;
    size_t bytes;
};

static struct sections
lay_out(const struct bh_limits *limits)
{
    struct sections at = {.bytes = sizeof(struct bh_object_head)};
    at.subs = bh_object_place(&at.bytes, limits->slots * sizeof(struct bh_word));
    at.records = bh_object_place(&at.bytes, limits->slots * sizeof(struct bh_record));
    at.conns = bh_object_place(&at.bytes, limits->conns * sizeof(struct bh_conn_row));
    at.prompts = bh_object_place(&at.bytes, (size_t)limits->slots * limits->ctx * sizeof(uint32_t));
    at.replies = bh_object_place(&at.bytes, (size_t)limits->conns * limits->reply_bytes);
    return at;
}

size_t
bh_submit_footprint(const struct bh_limits *limits)
{
    return bh_limits_ok(limits) ? lay_out(limits).bytes : 0;
}

enum bh_status
bh_submit_new(void *mem, const struct bh_limits *limits)
{
    size_t bytes = bh_submit_footprint(limits);
    enum bh_status status = bh_object_prepare(mem, bytes);
    if (status != BH_OK) {
        return status;
    }
    /* Prompts and replies are read behind a sub or ask word only: the file stays sparse. */
    struct sections at = lay_out(limits);
    memset((uint8_t *)mem + at.subs, 0, at.prompts - at.subs);
    bh_object_publish(mem, bh_object_layout("submit", SUBMIT_VERSION, limits), bytes);
    return BH_OK;
}

enum bh_status
bh_submit_join(void *mem, size_t bytes, const struct bh_limits *limits, struct bh_submit *out)
{
    size_t footprint = bh_submit_footprint(limits);
    if (footprint == 0) {
        return BH_EINVAL;
    }
    uint64_t layout = bh_object_layout("submit", SUBMIT_VERSION, limits);
    enum bh_status status = bh_object_check(mem, bytes, layout, footprint);
    if (status == BH_OK) {
        struct sections at = lay_out(limits);
        uint8_t *base = mem;
        *out = (struct bh_submit){.head = mem,
                                  .subs = (void *)(base + at.subs),
                                  .records = (void *)(base + at.records),
                                  .conns = (void *)(base + at.conns),
                                  .prompts = (void *)(base + at.prompts),
                                  .replies = base + at.replies,
                                  .slots = limits->slots,
                                  .conn_cnt = limits->conns,
                                  .ctx = limits->ctx,
                                  .reply_bytes = limits->reply_bytes};
    }
    return status;
}

void
bh_submit_leave(struct bh_submit *submit)
{
    *submit = (struct bh_submit){0};
}

/* A question is judged only while its ask word stands still around the look at it. */
static bool
conn_ok(const struct bh_submit *submit, uint32_t conn_idx)
{
    struct bh_ask ask = bh_ask_load(submit, conn_idx);
    if (ask.cnt == 0) {
        return true;
    }
    struct bh_question question = submit->conns[conn_idx].question;
    bool ok = ask.gen != 0 && question.kind < BH_QUESTION_KIND_CNT && question.close <= 1 &&
              question.reply_bytes <= submit->reply_bytes &&
              (question.kind != BH_QUESTION_REQUEST || question.slot < submit->slots);
    bh_fence_acquire();
    struct bh_ask again = bh_ask_load(submit, conn_idx);
    return ok || again.gen != ask.gen || again.cnt != ask.cnt;
}

enum bh_status
bh_submit_verify(const struct bh_submit *submit)
{
    enum bh_status status = bh_object_verify(submit->head);
    for (uint32_t slot = 0; status == BH_OK && slot < submit->slots; slot++) {
        /* edge sub.word: acquire; pairs with release in bh_sub_store. */
        if ((bh_word_load(&submit->subs[slot]) >> 32) != 0) {
            status = BH_ECORRUPT;
        }
    }
    for (uint32_t conn_idx = 0; status == BH_OK && conn_idx < submit->conn_cnt; conn_idx++) {
        if (!conn_ok(submit, conn_idx)) {
            status = BH_ECORRUPT;
        }
    }
    return status;
}

static bool
identity_ok(const struct bh_record *record, struct bh_req req, const struct bh_limits *limits)
{
    if (req.gen == 0 || req.slot >= limits->slots || record->slot != req.slot ||
        record->gen != req.gen || record->tenant >= limits->tenants ||
        record->conn_idx >= limits->conns || record->conn_gen == 0 || record->question == 0) {
        return false;
    }
    if (record->choice_cnt < 1 || record->choice_cnt > BH_CHOICES_MAX ||
        record->choice_idx >= record->choice_cnt || record->prompt_idx >= record->choice_cnt) {
        return false;
    }
    if (record->next_slot == NO_NEXT) {
        return true;
    }
    return record->next_slot < limits->slots && record->next_slot != record->slot &&
           record->next_gen != 0;
}

static bool
length_ok(const struct bh_record *record, const struct bh_limits *limits)
{
    if (record->prompt_cnt < 1 || record->prompt_cnt > limits->ctx ||
        record->max_tokens > limits->ctx - record->prompt_cnt) {
        return false;
    }
    return record->max_tokens > 0 || (record->flags & BH_RECORD_ECHO) != 0;
}

/* Written so that a NaN, for which every comparison is false, is refused. */
static bool
inside(float value, float min, float max)
{
    return isfinite(value) && value >= min && value <= max;
}

static bool
sampling_ok(const struct bh_record *record)
{
    return (record->flags & ~RECORD_FLAGS_KNOWN) == 0 && record->logprobs >= -1 &&
           record->logprobs <= LOGPROBS_MAX && inside(record->temperature, 0.0f, TEMPERATURE_MAX) &&
           inside(record->top_p, 0.0f, 1.0f) && record->top_p > 0.0f &&
           inside(record->min_p, 0.0f, 1.0f) && record->zero == 0;
}

static bool
stops_ok(const struct bh_record *record, const struct bh_limits *limits)
{
    if (record->stop_cnt > BH_STOP_MAX || record->stop_id_cnt > BH_STOP_IDS_MAX) {
        return false;
    }
    for (uint32_t i = 0; i < record->stop_id_cnt; i++) {
        if (record->stop_ids[i] >= limits->vocab) {
            return false;
        }
    }
    uint32_t begin = 0;
    for (uint32_t i = 0; i < record->stop_cnt; i++) {
        /* An empty string would be found before the first token. */
        if (record->stop_end[i] <= begin || record->stop_end[i] > BH_STOP_BYTES_MAX) {
            return false;
        }
        begin = record->stop_end[i];
    }
    return true;
}

bool
bh_record_check(const struct bh_record *record, struct bh_req req, const struct bh_limits *limits)
{
    return identity_ok(record, req, limits) && length_ok(record, limits) && sampling_ok(record) &&
           stops_ok(record, limits);
}
