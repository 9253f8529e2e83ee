/* The decode role: joins requests that prove their pages, steps the batch, samples. It is also the
   scrubber of its pool: pages whose life is over are overwritten here before they are given again.

   One step of the loop is one batch step, because a token a row is what clients wait for. */
#include <stdlib.h>

#include "shm/hook.h"
#include "src/core/config.h"
#include "src/core/log.h"
#include "src/core/os.h"
#include "src/core/role.h"
#include "src/decode/batch.h"

#define SCAN_NS  1000000000u
#define SCRUB_NS 1000000u /* of one loop: what a step in work notices least */

struct decode {
    struct bh_decode batch;
    uint32_t *dirty; /* [page_cnt] pages to wipe, a stack; each at most once */
    bool *dirty_known;
    uint32_t dirty_cnt;
    uint64_t scanned_ns;
};

static void
dirty_push(void *role, uint32_t page_idx)
{
    struct decode *self = role;
    if (!self->dirty_known[page_idx]) {
        self->dirty_known[page_idx] = true;
        self->dirty[self->dirty_cnt++] = page_idx;
    }
}

static void
dirty_scan(struct decode *self)
{
    struct bh_world *world = self->batch.worker.world;
    for (uint32_t page = 1; page < world->limits.page_cnt; page++) {
        struct bh_page_view view = bh_page_load(&world->pagetable, page);
        if (view.state == BH_PAGE_DIRTY &&
            bh_scrubbed_load(&world->decode_reports, page) != view.gen) {
            dirty_push(self, page);
        }
    }
}

/* Wipe one page if it still is DIRTY and not yet wiped for this generation. */
static void
scrub_one(struct decode *self)
{
    struct bh_world *world = self->batch.worker.world;
    uint32_t page = self->dirty[--self->dirty_cnt];
    self->dirty_known[page] = false;
    struct bh_page_view view = bh_page_load(&world->pagetable, page);
    if (view.state != BH_PAGE_DIRTY || bh_scrubbed_load(&world->decode_reports, page) == view.gen) {
        return;
    }
    bh_pool_scrub(&world->pool, page);
    BH_HOOK("decode.scrub:before_word");
    bh_scrubbed_store(&world->decode_reports, page, view.gen);
    bh_metric_add(&world->status[world->self], BH_METRIC_pages_scrubbed, 1);
    bh_world_tell(world, BH_ROLE_LEDGER, bh_hint_make(BH_HINT_SCRUBBED, page, view.gen));
}

/* At least one page a loop, not only when idle: admission may be waiting for it. */
static uint32_t
scrub(struct decode *self, uint64_t now_ns)
{
    uint32_t done = 0;
    while (self->dirty_cnt > 0 && (done == 0 || bh_os_now_ns() - now_ns < SCRUB_NS)) {
        scrub_one(self);
        done++;
    }
    return done;
}

static enum bh_status
decode_open(struct bh_world *world, void **state)
{
    struct decode *self = calloc(1, sizeof(*self));
    if (self == NULL) {
        return BH_ESYS;
    }
    *state = self;
    self->dirty = calloc(world->limits.page_cnt, sizeof(*self->dirty));
    self->dirty_known = calloc(world->limits.page_cnt, sizeof(*self->dirty_known));
    if (self->dirty == NULL || self->dirty_known == NULL) {
        return BH_ESYS;
    }
    return bh_decode_open(&self->batch, world);
}

static enum bh_status
decode_start(void *state)
{
    struct decode *self = state;
    uint32_t rows = self->batch.worker.world->limits.rows_max;
    enum bh_status status = bh_worker_start(&self->batch.worker, rows, rows);
    dirty_scan(self);
    return status;
}

/* Slots that hints or a scan named: join what is ordered, release what is over. A slot stays on the
   list when every row is taken. One request joins at a time: proving a long one reads all its pages,
   and the others wait for their tokens meanwhile. Returns how many orders were answered. */
static uint32_t
attend(struct decode *self)
{
    struct bh_worker *worker = &self->batch.worker;
    uint32_t done = 0;
    uint32_t joined = 0;
    bh_decode_attend(&self->batch);
    if (!worker->attend_any) {
        return 0;
    }
    worker->attend_any = false;
    for (uint32_t slot = 0; slot < worker->world->limits.slots; slot++) {
        struct bh_live live;
        if (!worker->attend[slot]) {
            continue;
        }
        if (joined > 0) {
            worker->attend_any = true;
            break;
        }
        worker->attend[slot] = false;
        if (bh_decode_has_slot(&self->batch, slot)) {
            continue;
        }
        switch (bh_worker_look(worker, slot, &live)) {
        case BH_CALL_RUN:
            if (bh_decode_join(&self->batch, &live)) {
                joined++;
                done++;
            } else {
                worker->attend[slot] =
                    true; /* looked at again when a row is free, or by the scan */
            }
            break;
        case BH_CALL_RELEASE:
            bh_worker_report(worker, &live, BH_REPORT_STOPPED, 0, 0);
            done++;
            break;
        case BH_CALL_NOTHING:
        default:
            break;
        }
    }
    return done;
}

static uint32_t
decode_step(void *state, uint64_t now_ns)
{
    struct decode *self = state;
    struct bh_worker *worker = &self->batch.worker;
    BH_HOOK("decode.step:before");
    uint32_t done = bh_worker_hints(worker, dirty_push, self);
    done += attend(self);
    done += scrub(self, now_ns);
    if (bh_decode_begin(&self->batch) == 0) {
        if (bh_turn_held(&worker->world->turn, worker->turn_member)) {
            bh_worker_pass_turn(worker, true);
        }
        return done;
    }
    (void)bh_worker_take_turn(worker);
    while (bh_forward_layer(worker->forward) == BH_AGAIN) {
        bh_role_beat(worker->world);
    }
    bh_decode_finish(&self->batch);
    (void)attend(self);
    bh_worker_pass_turn(worker, !bh_decode_runnable(&self->batch));
    return done + 1;
}

static void
decode_tend(void *state, uint64_t now_ns)
{
    struct decode *self = state;
    if (now_ns - self->scanned_ns >= SCAN_NS) {
        self->scanned_ns = now_ns;
        bh_worker_attend_all(&self->batch.worker);
        dirty_scan(self);
    }
}

static bool
decode_pending(void *state)
{
    struct decode *self = state;
    struct bh_hint hint;
    return self->dirty_cnt > 0 || self->batch.worker.attend_any ||
           bh_decode_runnable(&self->batch) ||
           bh_ring_peek(&self->batch.worker.world->rx[BH_ROLE_LEDGER], &hint) != BH_EMPTY;
}

const struct bh_role bh_role_decode = {.id = BH_ROLE_DECODE,
                                       .open = decode_open,
                                       .start = decode_start,
                                       .step = decode_step,
                                       .tend = decode_tend,
                                       .pending = decode_pending};
