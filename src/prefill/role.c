/* The prefill role: fills granted pages with the KV of prompt and log, all tokens but the last, and
   reports how many it wrote. It is a reader too: what it builds on is proved like decode proves it,
   because one wrong page read here would be in every page after it.

   One step is one layer of one chunk, so that decode gets the cores between two layers. */
#include <stdlib.h>

#include "shm/hook.h"
#include "src/core/config.h"
#include "src/core/log.h"
#include "src/core/os.h"
#include "src/core/role.h"
#include "src/model/sampler.h"
#include "src/worker/worker.h"

#define SEQS_MAX   8u          /* sequences that share one chunk */
#define LOGIT_ROWS 8u          /* prompt log-probabilities are computed for so many rows at once */
#define SCAN_NS    1000000000u /* all slots are looked at this often, whatever the hints say */

/* One request in work. Tokens [0, done) are proved or written; [done, done + rows) are in the chunk. */
struct job {
    struct bh_sequence sequence;
    uint32_t target; /* tokens to cover */
    uint32_t done;
    uint32_t rows;
    bool outputs; /* log-probabilities of the prompt are wanted and not all there yet */
};

struct prefill {
    struct bh_worker worker;
    struct job jobs[SEQS_MAX];
    uint32_t batch[SEQS_MAX]; /* job index of each sequence of the chunk */
    struct bh_seq seqs[SEQS_MAX];
    uint32_t seq_cnt; /* 0: no chunk in work */
    uint32_t *tokens; /* [chunk_max] */
    struct bh_sampler *sampler;
    float *logits; /* [LOGIT_ROWS][vocab] */
    uint64_t slice_end_ns;
    uint64_t scanned_ns;
};

static enum bh_status
prefill_open(struct bh_world *world, void **state)
{
    struct prefill *self = calloc(1, sizeof(*self));
    if (self == NULL) {
        return BH_ESYS;
    }
    enum bh_status status = bh_worker_open(&self->worker, world, &world->prefill_reports, 0);
    if (status != BH_OK) {
        free(self);
        return status;
    }
    self->tokens = calloc(world->limits.chunk_max, sizeof(*self->tokens));
    self->sampler = bh_sampler_new(world->limits.vocab);
    self->logits = calloc((size_t)LOGIT_ROWS * world->limits.vocab, sizeof(*self->logits));
    bool ok = self->tokens != NULL && self->sampler != NULL && self->logits != NULL;
    for (uint32_t i = 0; i < SEQS_MAX; i++) {
        ok = ok && bh_sequence_new(&self->jobs[i].sequence, &world->limits);
    }
    *state = self;
    return ok ? BH_OK : BH_ESYS;
}

static enum bh_status
prefill_start(void *state)
{
    struct prefill *self = state;
    return bh_worker_start(&self->worker, self->worker.world->limits.chunk_max, SEQS_MAX);
}

/* The job may not go on: release it, whatever was begun. */
static void
job_release(struct prefill *self, struct job *job, enum bh_report_phase phase, uint32_t arg)
{
    bh_worker_report(&self->worker, &job->sequence.live, phase, 0, arg);
    job->sequence.open = false;
}

static void
job_fault(struct prefill *self, struct job *job, enum bh_violation violation, uint32_t ord)
{
    bh_worker_fault(&self->worker, &job->sequence.live, violation, ord);
    job->sequence.open = false;
}

/* Own pages that a predecessor sealed are taken over when every layer proves and every digest is
   right; the first other one, and all after it, are computed again from their start. */
static uint32_t
job_take_over(struct prefill *self, struct job *job)
{
    struct bh_world *world = self->worker.world;
    struct bh_sequence *sequence = &job->sequence;
    uint32_t page_tokens = world->limits.kv.page_tokens;
    uint32_t full = job->target / page_tokens;
    uint32_t layer;
    uint32_t j = sequence->shared;
    while (j < full &&
           bh_pool_prove(&world->pool, &sequence->wants[j], page_tokens, &layer) ==
               BH_VIOLATION_NONE &&
           bh_pool_stamp_at(&world->pool, sequence->wants[j].page_idx, 0)->chain ==
               sequence->chains[j] &&
           bh_pool_digest_ok(&world->pool, sequence->wants[j].page_idx)) {
        bh_role_beat(world);
        j++;
    }
    return j;
}

static bool
prompt_logprobs_missing(const struct bh_world *world, const struct bh_sequence *sequence)
{
    struct bh_log_view log = bh_log_load(&world->promptlog, sequence->live.req.slot);
    return (sequence->record.flags & BH_RECORD_PROMPT_LOGPROBS) != 0 &&
           (log.gen != sequence->live.req.gen || log.cnt < sequence->record.prompt_cnt);
}

static void
job_open(struct prefill *self, struct job *job, const struct bh_live *live)
{
    struct bh_world *world = self->worker.world;
    struct bh_sequence *sequence = &job->sequence;
    uint32_t page_tokens = world->limits.kv.page_tokens;
    uint32_t ord = 0;
    enum bh_violation violation = bh_sequence_open(sequence, world, live, &ord);
    if (violation != BH_VIOLATION_NONE) {
        job_fault(self, job, violation, ord);
        return;
    }
    job->target = (uint32_t)world->requests.rows[live->req.slot].tokens;
    if ((uint64_t)sequence->page_cnt * page_tokens < job->target ||
        (uint64_t)sequence->shared * page_tokens > job->target) {
        job_fault(self, job, BH_VIOLATION_HANDLE, sequence->page_cnt);
        return;
    }
    bh_sequence_chain(sequence, world, job->target);
    uint32_t layer;
    if (sequence->shared > 0 && BH_FAULT("prefill.open:flip_shared")) {
        const struct bh_kv_shape *kv = &world->limits.kv;
        *bh_kv_k(kv, bh_kv_block(kv, world->pool.pages, sequence->wants[0].page_idx, 0), 0) ^= 1u;
    }
    for (uint32_t j = 0; j < sequence->shared; j++) {
        bh_role_beat(world); /* gigabytes may be read here */
        violation = bh_pool_prove(&world->pool, &sequence->wants[j], page_tokens, &layer);
        if (violation == BH_VIOLATION_NONE &&
            !bh_pool_digest_ok(&world->pool, sequence->wants[j].page_idx)) {
            violation = BH_VIOLATION_DIGEST;
        }
        if (violation != BH_VIOLATION_NONE) {
            job_fault(self, job, violation, j);
            return;
        }
    }
    /* Log-probabilities of the prompt need every row computed here, once: after that its pages may be
       the cache's, and are read-only. */
    job->outputs = prompt_logprobs_missing(world, sequence);
    uint32_t first = job->outputs ? sequence->shared : job_take_over(self, job);
    for (uint32_t j = first; j < sequence->page_cnt; j++) {
        if (!bh_page_writable(&world->pagetable, sequence->pages[j], live->req.slot)) {
            job_fault(self, job, BH_VIOLATION_RECHECK, j);
            return;
        }
        bh_pool_reopen(&world->pool, &sequence->wants[j]);
    }
    job->done = (uint32_t)bh_min_u64((uint64_t)first * page_tokens, job->target);
    job->rows = 0;
    if (job->done == job->target) {
        job_release(self, job, BH_REPORT_OK, job->done);
    }
}

/* Oldest ticket first: of the slots that want attention, open as many as there is room for. */
static void
take_orders(struct prefill *self)
{
    struct bh_worker *worker = &self->worker;
    uint32_t slots = worker->world->limits.slots;
    for (uint32_t slot = 0; slot < slots; slot++) {
        struct bh_live live;
        if (worker->attend[slot] && bh_worker_look(worker, slot, &live) == BH_CALL_NOTHING) {
            worker->attend[slot] = false;
        }
    }
    for (;;) {
        struct job *room = NULL;
        uint32_t best = UINT32_MAX;
        struct bh_live best_live = {0};
        for (uint32_t i = 0; i < SEQS_MAX && room == NULL; i++) {
            room = self->jobs[i].sequence.open ? NULL : &self->jobs[i];
        }
        for (uint32_t slot = 0; slot < slots && room != NULL; slot++) {
            struct bh_live live;
            if (!worker->attend[slot] || bh_worker_look(worker, slot, &live) != BH_CALL_RUN) {
                continue;
            }
            if (best == UINT32_MAX || worker->world->requests.rows[slot].ticket <
                                          worker->world->requests.rows[best].ticket) {
                best = slot;
                best_live = live;
            }
        }
        if (best == UINT32_MAX) {
            return;
        }
        worker->attend[best] = false;
        job_open(self, room, &best_live);
    }
}

static struct job *
job_of_slot(struct prefill *self, uint32_t slot)
{
    for (uint32_t i = 0; i < SEQS_MAX; i++) {
        if (self->jobs[i].sequence.open && self->jobs[i].sequence.live.req.slot == slot) {
            return &self->jobs[i];
        }
    }
    return NULL;
}

/* Between two chunks: release what is over, begin what is new. */
static void
attend(struct prefill *self)
{
    struct bh_worker *worker = &self->worker;
    for (uint32_t i = 0; i < SEQS_MAX; i++) {
        struct job *job = &self->jobs[i];
        if (job->sequence.open && !bh_sequence_ordered(&job->sequence, worker->world)) {
            job_release(self, job, BH_REPORT_STOPPED, job->done);
        }
    }
    if (!worker->attend_any) {
        return;
    }
    worker->attend_any = false;
    for (uint32_t slot = 0; slot < worker->world->limits.slots; slot++) {
        struct bh_live live;
        if (!worker->attend[slot]) {
            continue;
        }
        if (job_of_slot(self, slot) != NULL) {
            worker->attend[slot] = false;
        } else if (bh_worker_look(worker, slot, &live) == BH_CALL_RELEASE) {
            bh_worker_report(worker, &live, BH_REPORT_STOPPED, 0, 0);
            worker->attend[slot] = false;
        }
    }
    take_orders(self);
    for (uint32_t slot = 0; slot < worker->world->limits.slots; slot++) {
        worker->attend_any = worker->attend_any || worker->attend[slot];
    }
}

/* Called by the model when K and V of a page are in place at one layer. */
static void
stamp(void *role, uint32_t seq_idx, uint32_t page_ord, uint32_t layer, uint32_t end_pos)
{
    struct prefill *self = role;
    struct bh_world *world = self->worker.world;
    struct bh_sequence *sequence = &self->jobs[self->batch[seq_idx]].sequence;
    uint32_t filled = bh_sequence_filled(page_ord, end_pos, world->limits.kv.page_tokens);
    struct bh_stamp_want want = sequence->wants[page_ord];
    if (BH_FAULT("prefill.stamp:skip")) {
        return;
    }
    if (filled > 1 && BH_FAULT("prefill.stamp:short")) {
        filled--;
    }
    if (BH_FAULT("prefill.stamp:other_writer")) {
        want.writer_slot ^= 1u;
    }
    bh_pool_stamp(&world->pool, &want, layer, filled, sequence->chains[page_ord]);
    if (layer + 1 == world->limits.kv.layers && filled == world->limits.kv.page_tokens) {
        bh_metric_add(&world->status[world->self], BH_METRIC_pages_written, 1);
    }
}

/* Fill a chunk from the jobs, oldest first. A token that is no token of this model can only come from
   a broken tokenizer: that request ends. */
static void
chunk_begin(struct prefill *self)
{
    struct bh_world *world = self->worker.world;
    uint32_t rows = 0;
    self->seq_cnt = 0;
    bool used[SEQS_MAX] = {false};
    while (rows < world->limits.chunk_max) {
        uint32_t best = SEQS_MAX;
        for (uint32_t i = 0; i < SEQS_MAX; i++) {
            struct bh_sequence *sequence = &self->jobs[i].sequence;
            if (!sequence->open || used[i]) {
                continue;
            }
            if (best == SEQS_MAX ||
                world->requests.rows[sequence->live.req.slot].ticket <
                    world->requests.rows[self->jobs[best].sequence.live.req.slot].ticket) {
                best = i;
            }
        }
        if (best == SEQS_MAX) {
            break;
        }
        used[best] = true;
        struct job *job = &self->jobs[best];
        job->rows = (uint32_t)bh_min_u64(job->target - job->done, world->limits.chunk_max - rows);
        bool valid = true;
        for (uint32_t t = 0; t < job->rows; t++) {
            self->tokens[rows + t] = bh_sequence_token(&job->sequence, world, job->done + t);
            valid = valid && self->tokens[rows + t] < world->limits.vocab;
        }
        if (!valid) {
            job_fault(self, job, BH_VIOLATION_HANDLE, 0);
            continue;
        }
        self->batch[self->seq_cnt] = best;
        self->seqs[self->seq_cnt++] = (struct bh_seq){.pages = job->sequence.wants,
                                                      .page_cnt = job->sequence.page_cnt,
                                                      .first_pos = job->done,
                                                      .token_cnt = job->rows,
                                                      .outputs = job->outputs,
                                                      .tokens = self->tokens + rows};
        rows += job->rows;
    }
    if (self->seq_cnt > 0) {
        enum bh_status status = bh_forward_begin(
            self->worker.forward, world->pool.pages, self->seqs, self->seq_cnt, stamp, self);
        BH_CHECK(status == BH_OK);
    }
}

/* Log-probabilities of the prompt's own tokens: row r of the chunk predicts token first_pos + r + 1. */
static void
prompt_logprobs(struct prefill *self, struct job *job, uint32_t row)
{
    struct bh_world *world = self->worker.world;
    const struct bh_record *record = &job->sequence.record;
    uint32_t slot = job->sequence.live.req.slot;
    for (uint32_t r = 0; r < job->rows; r += LOGIT_ROWS) {
        uint32_t cnt = (uint32_t)bh_min_u64(LOGIT_ROWS, job->rows - r);
        bh_forward_logits(self->worker.forward, row + r, cnt, self->logits);
        for (uint32_t i = 0; i < cnt; i++) {
            uint32_t next = job->done + r + i + 1;
            if (next >= record->prompt_cnt) {
                continue;
            }
            struct bh_log_logprob *entry = bh_log_logprob_at(&world->promptlog, slot, next);
            struct bh_logprob top[BH_TOP_LOGPROBS_MAX];
            uint32_t top_cnt = record->logprobs > 0 ? (uint32_t)record->logprobs : 0;
            uint32_t token = bh_sequence_token(&job->sequence, world, next);
            if (token >= world->limits.vocab ||
                bh_sampler_logprobs(self->sampler,
                                    self->logits + (size_t)i * world->limits.vocab,
                                    token,
                                    top_cnt,
                                    &entry->logprob,
                                    top) != BH_OK) {
                job_fault(self, job, BH_VIOLATION_NONFINITE, 0);
                return;
            }
            entry->top_cnt = top_cnt;
            for (uint32_t k = 0; k < top_cnt; k++) {
                entry->top[k].token = top[k].token;
                entry->top[k].logprob = top[k].logprob;
            }
        }
        bh_role_beat(world);
    }
    bh_log_store(&world->promptlog,
                 slot,
                 (struct bh_log_view){
                     .gen = job->sequence.live.req.gen,
                     .cnt = (uint32_t)bh_min_u64(job->done + job->rows + 1, record->prompt_cnt)});
}

/* What a broken prefill may leave behind while it reports success; returns what it claims too much. */
static uint32_t
result_spoil(struct bh_world *world, const struct job *job)
{
    const struct bh_kv_shape *kv = &world->limits.kv;
    const struct bh_stamp_want *wants = job->sequence.wants;
    if (BH_FAULT("prefill.report:unwritten")) {
        bh_pool_reopen(&world->pool, &wants[(job->done - 1) / kv->page_tokens]);
    }
    if (BH_FAULT("prefill.report:flip")) {
        *bh_kv_k(kv, bh_kv_block(kv, world->pool.pages, wants[0].page_idx, 0), 0) ^= 1u;
    }
    if (BH_FAULT("prefill.report:more")) {
        return 1;
    }
    return BH_FAULT("prefill.report:fewer") ? UINT32_MAX : 0;
}

/* The chunk is through all layers: check what was read once more, count it, report what is complete. */
static void
chunk_end(struct prefill *self)
{
    struct bh_world *world = self->worker.world;
    uint32_t row = 0;
    for (uint32_t s = 0; s < self->seq_cnt; s++) {
        struct job *job = &self->jobs[self->batch[s]];
        struct bh_seq *seq = &self->seqs[s];
        uint32_t ord = 0;
        bh_metric_add(
            &world->status[world->self],
            BH_METRIC_pages_checked,
            (uint64_t)(seq->first_pos + seq->token_cnt + world->limits.kv.page_tokens - 1) /
                world->limits.kv.page_tokens * world->limits.kv.layers);
        BH_HOOK("prefill.chunk:before_recheck");
        if (seq->violation != BH_VIOLATION_NONE) {
            job_fault(self, job, seq->violation, seq->violation_page);
        } else if (!bh_sequence_current(&job->sequence, world, job->done + job->rows, &ord)) {
            job_fault(self, job, BH_VIOLATION_RECHECK, ord);
        } else if (seq->outputs) {
            prompt_logprobs(self, job, row);
        }
        row += seq->token_cnt;
        job->done += job->rows;
        job->rows = 0;
        if (job->sequence.open && job->done == job->target &&
            bh_sequence_ordered(&job->sequence, world)) {
            job_release(self, job, BH_REPORT_OK, job->done + result_spoil(world, job));
        }
    }
    self->seq_cnt = 0;
}

static bool
any_open(const struct prefill *self)
{
    for (uint32_t i = 0; i < SEQS_MAX; i++) {
        if (self->jobs[i].sequence.open) {
            return true;
        }
    }
    return false;
}

/* The turn: a new slice whenever it was taken anew. What decode needs of the gap is how long this
   worker waited for it. */
static void
turn_before_layer(struct prefill *self)
{
    uint64_t waited = bh_worker_take_turn(&self->worker);
    if (waited > 0 || self->slice_end_ns == 0) {
        uint64_t gap = (uint64_t)BH_GAP_MS * 1000000u;
        uint64_t slice = gap > waited ? gap - waited : 0;
        slice = bh_max_u64(slice, (uint64_t)BH_SLICE_MIN_MS * 1000000u);
        slice = bh_min_u64(slice, (uint64_t)BH_SLICE_MAX_MS * 1000000u);
        self->slice_end_ns = bh_os_now_ns() + slice;
    }
}

/* Nobody waits for the chunk in work any more: its requests are over, or their orders say STOP. */
static bool
chunk_unwanted(const struct prefill *self)
{
    for (uint32_t s = 0; s < self->seq_cnt; s++) {
        if (bh_sequence_ordered(&self->jobs[self->batch[s]].sequence, self->worker.world)) {
            return false;
        }
    }
    return self->seq_cnt > 0;
}

static void
turn_let_go(struct prefill *self)
{
    if (bh_turn_held(&self->worker.world->turn, self->worker.turn_member)) {
        bh_worker_pass_turn(&self->worker, true);
    }
    self->slice_end_ns = 0;
}

static uint32_t
prefill_step(void *state, uint64_t now_ns)
{
    struct prefill *self = state;
    (void)now_ns;
    uint32_t done = bh_worker_hints(&self->worker, NULL, NULL);
    if (chunk_unwanted(self)) {
        self->seq_cnt = 0;
    }
    if (self->seq_cnt == 0) {
        attend(self);
        if (!any_open(self)) {
            turn_let_go(self);
            return done;
        }
        chunk_begin(self);
        if (self->seq_cnt == 0) {
            return done + 1;
        }
    }
    turn_before_layer(self);
    BH_HOOK("prefill.layer:before");
    if (bh_forward_layer(self->worker.forward) == BH_OK) {
        chunk_end(self);
        attend(self);
    }
    if (!any_open(self)) {
        turn_let_go(self);
    } else if (bh_os_now_ns() >= self->slice_end_ns) {
        bh_worker_pass_turn(&self->worker, false);
        self->slice_end_ns = bh_turn_held(&self->worker.world->turn, self->worker.turn_member)
                                 ? self->slice_end_ns + (uint64_t)BH_SLICE_MIN_MS * 1000000u
                                 : 0;
    }
    return done + 1;
}

static void
prefill_tend(void *state, uint64_t now_ns)
{
    struct prefill *self = state;
    if (now_ns - self->scanned_ns >= SCAN_NS) {
        self->scanned_ns = now_ns;
        bh_worker_attend_all(&self->worker);
    }
}

static bool
prefill_pending(void *state)
{
    struct prefill *self = state;
    struct bh_hint hint;
    return self->seq_cnt > 0 || any_open(self) || self->worker.attend_any ||
           bh_ring_peek(&self->worker.world->rx[BH_ROLE_LEDGER], &hint) != BH_EMPTY;
}

const struct bh_role bh_role_prefill = {.id = BH_ROLE_PREFILL,
                                        .open = prefill_open,
                                        .start = prefill_start,
                                        .step = prefill_step,
                                        .tend = prefill_tend,
                                        .pending = prefill_pending};
