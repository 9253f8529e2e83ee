/* Rows of the decode batch. A row is let in only when ledger, prefill and the stamps of every page
   and layer agree on what was written; it publishes a token only when the step read nothing but
   pages that are still in the life it proved. See batch.h. */
#include "src/decode/batch.h"

#include <math.h>
#include <stdlib.h>

#include "shm/hook.h"
#include "shm/region.h"
#include "src/core/role.h"

/* A log that used more than this gives its memory back when its slot starts another life. */
#define LOG_KEEP_TOKENS 4096u

enum bh_status
bh_decode_open(struct bh_decode *decode, struct bh_world *world)
{
    enum bh_status status = bh_worker_open(&decode->worker, world, &world->decode_reports, 1);
    if (status != BH_OK) {
        return status;
    }
    uint32_t rows = world->limits.rows_max;
    decode->rows = calloc(rows, sizeof(*decode->rows));
    decode->batch = calloc(rows, sizeof(*decode->batch));
    decode->seqs = calloc(rows, sizeof(*decode->seqs));
    decode->logits = calloc((size_t)rows * world->limits.vocab, sizeof(*decode->logits));
    decode->sampler = bh_sampler_new(world->limits.vocab);
    bool ok = decode->rows != NULL && decode->batch != NULL && decode->seqs != NULL &&
              decode->logits != NULL && decode->sampler != NULL;
    for (uint32_t r = 0; ok && r < rows; r++) {
        ok = bh_sequence_new(&decode->rows[r].sequence, &world->limits);
    }
    return ok ? BH_OK : BH_ESYS;
}

bool
bh_decode_has_slot(const struct bh_decode *decode, uint32_t slot)
{
    for (uint32_t r = 0; r < decode->worker.world->limits.rows_max; r++) {
        const struct bh_sequence *sequence = &decode->rows[r].sequence;
        if (sequence->open && sequence->live.req.slot == slot) {
            return true;
        }
    }
    return false;
}

static void
row_release(struct bh_decode *decode, struct bh_row *row, enum bh_report_phase phase)
{
    bh_worker_report(&decode->worker, &row->sequence.live, phase, 0, row->cnt);
    row->sequence.open = false;
}

static void
row_fault(struct bh_decode *decode, struct bh_row *row, enum bh_violation violation, uint32_t ord)
{
    bh_worker_fault(&decode->worker, &row->sequence.live, violation, ord);
    row->sequence.open = false;
}

/* The first look at a slot in this life: its log starts empty, whatever an earlier life left. */
static void
log_begin(struct bh_decode *decode, const struct bh_live *live)
{
    struct bh_world *world = decode->worker.world;
    uint32_t slot = live->req.slot;
    struct bh_log_view log = bh_log_load(&world->tokenlog, slot);
    if (log.gen == live->req.gen) {
        return;
    }
    if (log.cnt > LOG_KEEP_TOKENS) {
        bh_region_discard(bh_log_token(&world->tokenlog, slot, 0),
                          (size_t)world->limits.ctx * sizeof(uint32_t));
        bh_region_discard(bh_log_logprob_at(&world->tokenlog, slot, 0),
                          (size_t)world->limits.ctx * sizeof(struct bh_log_logprob));
    }
    bh_log_store(&world->tokenlog, slot, (struct bh_log_view){.gen = live->req.gen});
}

/* What the ledger ordered, what prefill reported and what the log says must be one number: the
   cheapest alarm for a request that was handed over without having been written. */
static bool
coverage_agrees(const struct bh_decode *decode, const struct bh_row *row, uint32_t covered)
{
    const struct bh_world *world = decode->worker.world;
    uint32_t slot = row->sequence.live.req.slot;
    struct bh_report report = bh_report_load(&world->prefill_reports, slot);
    return world->requests.rows[slot].tokens == covered && report.phase == BH_REPORT_OK &&
           report.seq + 1 == row->sequence.live.order.seq && report.arg == covered &&
           (uint64_t)row->sequence.page_cnt * world->limits.kv.page_tokens >= covered;
}

/* Every page, every layer: stamps, and the digest of what is sealed. */
static enum bh_violation
prove_pages(struct bh_decode *decode, const struct bh_row *row, uint32_t covered, uint32_t *ord)
{
    struct bh_world *world = decode->worker.world;
    uint32_t page_tokens = world->limits.kv.page_tokens;
    uint32_t cnt = (covered + page_tokens - 1) / page_tokens;
    for (uint32_t j = 0; j < cnt; j++) {
        uint32_t filled = bh_sequence_filled(j, covered, page_tokens);
        uint32_t layer;
        *ord = j;
        bh_role_beat(world); /* gigabytes may be read here */
        enum bh_violation violation =
            bh_pool_prove(&world->pool, &row->sequence.wants[j], filled, &layer);
        if (violation != BH_VIOLATION_NONE) {
            return violation;
        }
        if (filled == page_tokens &&
            !bh_pool_digest_ok(&world->pool, row->sequence.wants[j].page_idx)) {
            return BH_VIOLATION_DIGEST;
        }
    }
    return bh_sequence_current(&row->sequence, world, covered, ord) ? BH_VIOLATION_NONE
                                                                    : BH_VIOLATION_RECHECK;
}

bool
bh_decode_join(struct bh_decode *decode, const struct bh_live *live)
{
    struct bh_world *world = decode->worker.world;
    struct bh_row *row = NULL;
    for (uint32_t r = 0; r < world->limits.rows_max && row == NULL; r++) {
        row = decode->rows[r].sequence.open ? NULL : &decode->rows[r];
    }
    if (row == NULL) {
        return false;
    }
    log_begin(decode, live);
    struct bh_log_view log = bh_log_load(&world->tokenlog, live->req.slot);
    uint32_t ord = 0;
    enum bh_violation violation = bh_sequence_open(&row->sequence, world, live, &ord);
    row->cnt = log.cnt;
    row->wanted = 0;
    uint32_t covered = row->sequence.record.prompt_cnt + log.cnt - 1;
    if (violation == BH_VIOLATION_NONE && !coverage_agrees(decode, row, covered)) {
        violation = BH_VIOLATION_FILLED;
    }
    if (violation == BH_VIOLATION_NONE) {
        bh_sequence_chain(&row->sequence, world, covered);
        violation = prove_pages(decode, row, covered, &ord);
    }
    if (violation != BH_VIOLATION_NONE) {
        row_fault(decode, row, violation, ord);
        return true;
    }
    if (log.finish != BH_FINISH_NONE) {
        row_release(decode, row, BH_REPORT_OK);
    } else if (row->sequence.record.max_tokens <= log.cnt) {
        bh_log_store(
            &world->tokenlog,
            live->req.slot,
            (struct bh_log_view){.gen = live->req.gen, .finish = BH_FINISH_LENGTH, .cnt = log.cnt});
        bh_world_tell(
            world, BH_ROLE_EGRESS, bh_hint_make(BH_HINT_LOG, live->req.slot, live->req.gen));
        row_release(decode, row, BH_REPORT_OK);
    } else {
        bh_worker_report(&decode->worker, live, BH_REPORT_JOINED, 0, row->sequence.page_cnt);
    }
    return true;
}

void
bh_decode_attend(struct bh_decode *decode)
{
    struct bh_world *world = decode->worker.world;
    for (uint32_t r = 0; r < world->limits.rows_max; r++) {
        struct bh_row *row = &decode->rows[r];
        if (!row->sequence.open) {
            continue;
        }
        if (!bh_sequence_ordered(&row->sequence, world)) {
            row_release(decode, row, BH_REPORT_STOPPED);
            continue;
        }
        uint32_t ord = 0;
        enum bh_violation violation = bh_sequence_grow(&row->sequence, world, &ord);
        if (violation != BH_VIOLATION_NONE) {
            row_fault(decode, row, violation, ord);
        }
    }
}

/* Pages for the next token, and one page ahead when this one is three quarters full and the answer
   may go on: a page is asked for before it is needed, so that no step waits for the ledger. */
static uint32_t
pages_wanted(const struct bh_decode *decode, const struct bh_row *row)
{
    uint32_t page_tokens = decode->worker.world->limits.kv.page_tokens;
    const struct bh_record *record = &row->sequence.record;
    uint32_t last = record->prompt_cnt + record->max_tokens - 1; /* tokens that will ever have KV */
    uint32_t ahead = record->prompt_cnt + row->cnt + page_tokens / 4;
    return ((uint32_t)bh_min_u64(ahead, last) + page_tokens - 1) / page_tokens;
}

static void
row_want(struct bh_decode *decode, struct bh_row *row)
{
    uint32_t wanted = pages_wanted(decode, row);
    if (wanted > row->sequence.page_cnt && wanted != row->wanted) {
        row->wanted = wanted;
        bh_worker_report(&decode->worker, &row->sequence.live, BH_REPORT_WANT, 0, wanted);
    }
}

/* The page of position `pos` is listed; a page of ours gets its first byte only while the table says
   that it is ours. */
static bool
row_ready(struct bh_decode *decode, struct bh_row *row, uint32_t pos)
{
    struct bh_world *world = decode->worker.world;
    uint32_t page_tokens = world->limits.kv.page_tokens;
    uint32_t ord = pos / page_tokens;
    if (ord >= row->sequence.page_cnt) {
        return false;
    }
    if (pos % page_tokens == 0 && !bh_page_writable(&world->pagetable,
                                                    row->sequence.pages[ord],
                                                    row->sequence.live.req.slot)) {
        row_fault(decode, row, BH_VIOLATION_RECHECK, ord);
        return false;
    }
    return true;
}

static void
stamp(void *role, uint32_t seq_idx, uint32_t page_ord, uint32_t layer, uint32_t end_pos)
{
    struct bh_decode *decode = role;
    struct bh_world *world = decode->worker.world;
    struct bh_sequence *sequence = &decode->rows[decode->batch[seq_idx]].sequence;
    uint32_t filled = bh_sequence_filled(page_ord, end_pos, world->limits.kv.page_tokens);
    if (BH_FAULT("decode.stamp:skip")) {
        return;
    }
    bh_pool_stamp(
        &world->pool, &sequence->wants[page_ord], layer, filled, sequence->chains[page_ord]);
    if (layer + 1 == world->limits.kv.layers && filled == world->limits.kv.page_tokens) {
        bh_metric_add(&world->status[world->self], BH_METRIC_pages_written, 1);
    }
}

uint32_t
bh_decode_begin(struct bh_decode *decode)
{
    struct bh_world *world = decode->worker.world;
    decode->seq_cnt = 0;
    for (uint32_t r = 0; r < world->limits.rows_max; r++) {
        struct bh_row *row = &decode->rows[r];
        if (!row->sequence.open) {
            continue;
        }
        uint32_t pos = row->sequence.record.prompt_cnt + row->cnt - 1;
        row_want(decode, row);
        if (!row_ready(decode, row, pos)) {
            continue;
        }
        row->token = bh_sequence_token(&row->sequence, world, pos);
        if (row->token >= world->limits.vocab) {
            row_fault(decode, row, BH_VIOLATION_HANDLE, pos / world->limits.kv.page_tokens);
            continue;
        }
        bh_sequence_chain(&row->sequence, world, pos + 1);
        if (BH_FAULT("decode.want:old_generation")) {
            row->sequence.wants[0].gen -= 1;
        }
        decode->batch[decode->seq_cnt] = r;
        decode->seqs[decode->seq_cnt++] = (struct bh_seq){.pages = row->sequence.wants,
                                                          .page_cnt = row->sequence.page_cnt,
                                                          .first_pos = pos,
                                                          .token_cnt = 1,
                                                          .outputs = true,
                                                          .tokens = &row->token};
    }
    if (decode->seq_cnt > 0) {
        enum bh_status status = bh_forward_begin(decode->worker.forward,
                                                 world->pool.pages,
                                                 decode->seqs,
                                                 decode->seq_cnt,
                                                 stamp,
                                                 decode);
        BH_CHECK(status == BH_OK);
    }
    return decode->seq_cnt;
}

static bool
is_stop(const struct bh_record *record, uint32_t token)
{
    for (uint32_t i = 0; i < record->stop_id_cnt; i++) {
        if (record->stop_ids[i] == token) {
            return true;
        }
    }
    return false;
}

static enum bh_status
write_logprobs(struct bh_decode *decode,
               const struct bh_row *row,
               const float *logits,
               uint32_t token)
{
    const struct bh_record *record = &row->sequence.record;
    struct bh_log_logprob *entry =
        bh_log_logprob_at(&decode->worker.world->tokenlog, row->sequence.live.req.slot, row->cnt);
    struct bh_logprob top[BH_TOP_LOGPROBS_MAX];
    uint32_t top_cnt = (uint32_t)record->logprobs;
    enum bh_status status =
        bh_sampler_logprobs(decode->sampler, logits, token, top_cnt, &entry->logprob, top);
    if (status != BH_OK) {
        return status;
    }
    entry->top_cnt = top_cnt;
    for (uint32_t k = 0; k < top_cnt; k++) {
        entry->top[k].token = top[k].token;
        entry->top[k].logprob = top[k].logprob;
    }
    return BH_OK;
}

/* Sample, append to the log, and say so: token, log word, report, in this order. */
static void
row_publish(struct bh_decode *decode, struct bh_row *row, const float *logits)
{
    struct bh_world *world = decode->worker.world;
    const struct bh_record *record = &row->sequence.record;
    uint32_t slot = row->sequence.live.req.slot;
    struct bh_sampling sampling = {.temperature = record->temperature,
                                   .top_p = record->top_p,
                                   .min_p = record->min_p,
                                   .top_k = record->top_k,
                                   .seed = record->seed};
    uint32_t token;
    if (bh_sampler_draw(decode->sampler, logits, &sampling, row->cnt, &token) != BH_OK ||
        (record->logprobs >= 0 && write_logprobs(decode, row, logits, token) != BH_OK)) {
        row_fault(decode, row, BH_VIOLATION_NONFINITE, 0);
        return;
    }
    *bh_log_token(&world->tokenlog, slot, row->cnt) = token;
    row->cnt++;
    enum bh_finish finish = BH_FINISH_NONE;
    if (is_stop(record, token)) {
        finish = BH_FINISH_STOP;
    } else if (row->cnt >= record->max_tokens) {
        finish = BH_FINISH_LENGTH;
    }
    BH_HOOK("decode.token:before_word");
    bh_log_store(
        &world->tokenlog,
        slot,
        (struct bh_log_view){.gen = row->sequence.live.req.gen, .finish = finish, .cnt = row->cnt});
    BH_HOOK("decode.token:after_word");
    bh_world_tell(
        world, BH_ROLE_EGRESS, bh_hint_make(BH_HINT_LOG, slot, row->sequence.live.req.gen));
    bh_metric_add(&world->status[world->self], BH_METRIC_generation_tokens, 1);
    if (finish != BH_FINISH_NONE) {
        row_release(decode, row, BH_REPORT_OK);
    }
}

void
bh_decode_finish(struct bh_decode *decode)
{
    struct bh_world *world = decode->worker.world;
    struct bh_statusboard *board = &world->status[world->self];
    bh_forward_logits(decode->worker.forward, 0, decode->seq_cnt, decode->logits);
    BH_HOOK("decode.step:before_recheck");
    for (uint32_t s = 0; s < decode->seq_cnt; s++) {
        bh_role_beat(world); /* drawing from a large vocabulary takes its time */
        struct bh_row *row = &decode->rows[decode->batch[s]];
        struct bh_seq *seq = &decode->seqs[s];
        float *logits = decode->logits + (size_t)s * world->limits.vocab;
        uint32_t ord = 0;
        uint32_t pages = seq->first_pos / world->limits.kv.page_tokens + 1;
        bh_metric_add(board, BH_METRIC_pages_checked, (uint64_t)pages * world->limits.kv.layers);
        if (BH_FAULT("decode.step:nan")) {
            logits[0] = NAN;
        }
        if (seq->violation != BH_VIOLATION_NONE) {
            row_fault(decode, row, seq->violation, seq->violation_page);
        } else if (!bh_sequence_current(&row->sequence, world, seq->first_pos + 1, &ord)) {
            row_fault(decode, row, BH_VIOLATION_RECHECK, ord);
        } else if (!bh_sequence_ordered(&row->sequence, world)) {
            row_release(decode, row, BH_REPORT_STOPPED);
        } else {
            row_publish(decode, row, logits);
        }
    }
    bh_metric_add(board, BH_METRIC_steps, 1);
    bh_metric_add(board, BH_METRIC_step_rows, decode->seq_cnt);
    decode->seq_cnt = 0;
}

bool
bh_decode_runnable(const struct bh_decode *decode)
{
    const struct bh_world *world = decode->worker.world;
    for (uint32_t r = 0; r < world->limits.rows_max; r++) {
        const struct bh_row *row = &decode->rows[r];
        if (row->sequence.open &&
            (row->sequence.record.prompt_cnt + row->cnt - 1) / world->limits.kv.page_tokens <
                row->sequence.page_cnt) {
            return true;
        }
    }
    return false;
}
