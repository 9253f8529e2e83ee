/* Orders, reports and the turn, as both workers handle them. See worker.h. */
#include "src/worker/worker.h"

#include <stdlib.h>

#include "shm/hook.h"
#include "src/core/config.h"
#include "src/core/log.h"
#include "src/core/os.h"
#include "src/core/role.h"

#define TURN_LIMIT_NS (4u * (uint64_t)BH_GAP_MS * 1000000u)

enum bh_status
bh_worker_open(struct bh_worker *worker,
               struct bh_world *world,
               struct bh_reports *reports,
               uint32_t turn_member)
{
    *worker = (struct bh_worker){.world = world, .reports = reports, .turn_member = turn_member};
    worker->attend = calloc(world->limits.slots, sizeof(*worker->attend));
    if (worker->attend == NULL) {
        return BH_ESYS;
    }
    enum bh_status status = bh_model_join(
        world->weights, world->control.block->weights_bytes, BH_MODEL_SERVED, NULL, &worker->model);
    if (status != BH_OK) {
        bh_log("weights=refused status=%d the packed weights and this binary do not match; start "
               "the server again",
               status);
    }
    return status;
}

enum bh_status
bh_worker_start(struct bh_worker *worker, uint32_t rows_max, uint32_t seqs_max)
{
    worker->team = bh_team_new(worker->world->control.block->threads);
    if (worker->team == NULL) {
        bh_log("team=failed threads=%u the system refused a thread; lower --threads",
               worker->world->control.block->threads);
        return BH_ESYS;
    }
    worker->forward =
        bh_forward_new(worker->model, &worker->world->limits.kv, worker->team, rows_max, seqs_max);
    if (worker->forward == NULL) {
        bh_log("scratch=failed rows=%u no memory for a batch", rows_max);
        return BH_ESYS;
    }
    bh_worker_attend_all(worker);
    return BH_OK;
}

void
bh_worker_attend_all(struct bh_worker *worker)
{
    for (uint32_t slot = 0; slot < worker->world->limits.slots; slot++) {
        worker->attend[slot] = true;
    }
    worker->attend_any = true;
}

struct hint_use {
    struct bh_worker *worker;
    bh_dirty_fn *on_dirty;
    void *role;
};

static bool
hint_take(void *arg, uint32_t producer, struct bh_hint hint)
{
    const struct hint_use *use = arg;
    const struct bh_limits *limits = &use->worker->world->limits;
    uint32_t idx = bh_hint_idx(hint);
    (void)producer;
    switch (bh_hint_kind(hint)) {
    case BH_HINT_ORDER:
    case BH_HINT_LIST:
        if (idx >= limits->slots) {
            return false;
        }
        use->worker->attend[idx] = true;
        use->worker->attend_any = true;
        return true;
    case BH_HINT_DIRTY:
        if (use->on_dirty == NULL || idx == 0 || idx >= limits->page_cnt) {
            return false;
        }
        use->on_dirty(use->role, idx);
        return true;
    default:
        return false;
    }
}

uint32_t
bh_worker_hints(struct bh_worker *worker, bh_dirty_fn *on_dirty, void *role)
{
    struct hint_use use = {.worker = worker, .on_dirty = on_dirty, .role = role};
    bool scan = false;
    uint32_t taken =
        bh_world_hints(worker->world, BH_ROLE_LEDGER, BH_RING_DEPTH, hint_take, &use, &scan);
    if (scan) {
        bh_worker_attend_all(worker);
    }
    return taken;
}

enum bh_call
bh_worker_look(struct bh_worker *worker, uint32_t slot, struct bh_live *live)
{
    struct bh_world *world = worker->world;
    struct bh_order order = bh_order_load(&world->requests, slot);
    if (order.verb == BH_ORDER_NONE || order.role != world->self || order.epoch != world->epoch) {
        return BH_CALL_NOTHING;
    }
    struct bh_report report = bh_report_load(worker->reports, slot);
    if (report.seq == order.seq && bh_report_released(report.phase)) {
        return BH_CALL_NOTHING;
    }
    if (bh_request_claim(&world->requests, slot, world->self, world->epoch, live) == BH_OK) {
        return BH_CALL_RUN;
    }
    /* The request is over, or the order says STOP. A state that has not caught up with its order yet
       looks the same as one that has ended, so load the order again: only an order that still stands
       as read is answered. */
    struct bh_order again = bh_order_load(&world->requests, slot);
    if (bh_order_pack(again) != bh_order_pack(order)) {
        worker->attend[slot] = true;
        worker->attend_any = true;
        return BH_CALL_NOTHING;
    }
    if (order.verb == BH_ORDER_RUN) {
        bh_metric_add(&world->status[world->self], BH_METRIC_orders_refused, 1);
    }
    *live = (struct bh_live){
        .req = {.slot = slot, .gen = bh_request_load(&world->requests, slot).gen}, .order = order};
    return BH_CALL_RELEASE;
}

void
bh_worker_report(struct bh_worker *worker,
                 const struct bh_live *live,
                 enum bh_report_phase phase,
                 uint32_t cause,
                 uint32_t arg)
{
    BH_HOOK("worker.report:before_word");
    bh_report_store(
        worker->reports,
        live->req.slot,
        (struct bh_report){.seq = live->order.seq, .phase = phase, .cause = cause, .arg = arg});
    BH_HOOK("worker.report:after_word");
    struct bh_hint hint = bh_hint_make(BH_HINT_REPORT, live->req.slot, live->req.gen);
    if (BH_FAULT("worker.report:bad_hint")) {
        hint = bh_hint_make((enum bh_hint_kind)0xee, 0xffffffu, 0xffffffffu);
    }
    bh_world_tell(worker->world, BH_ROLE_LEDGER, hint);
}

void
bh_worker_fault(struct bh_worker *worker,
                const struct bh_live *live,
                enum bh_violation violation,
                uint32_t ord)
{
    struct bh_world *world = worker->world;
    bh_metric_add(&world->status[world->self], bh_metric_violation(violation), 1);
    bh_flight_note(&world->status[world->self],
                   bh_os_now_ns(),
                   "violation",
                   (uint64_t)violation,
                   live->req.slot);
    bh_log("violation=%d slot=%u gen=%u page_ordinal=%u the request is ended and its pages are "
           "quarantined",
           violation,
           live->req.slot,
           live->req.gen,
           ord);
    bh_worker_report(worker, live, BH_REPORT_FAULT, (uint32_t)violation, ord);
}

uint64_t
bh_worker_take_turn(struct bh_worker *worker)
{
    struct bh_turn *turn = &worker->world->turn;
    if (bh_turn_held(turn, worker->turn_member)) {
        return 0;
    }
    uint64_t began = bh_os_now_ns();
    uint32_t seen;
    uint32_t last_seen = 0;
    uint64_t since = began;
    while (!bh_turn_ask(turn, worker->turn_member, &seen)) {
        uint64_t now = bh_os_now_ns();
        if (seen != last_seen) {
            last_seen = seen;
            since = now;
        }
        if (now - since >= TURN_LIMIT_NS) {
            if (bh_turn_overrule(turn, worker->turn_member, seen)) {
                bh_metric_add(
                    &worker->world->status[worker->world->self], BH_METRIC_turns_overruled, 1);
                break;
            }
            bh_role_beat(worker->world);
            continue;
        }
        bh_os_futex_wait(&turn->block->word, seen, TURN_LIMIT_NS - (now - since));
        bh_role_beat(worker->world);
    }
    return bh_os_now_ns() - began;
}

void
bh_worker_pass_turn(struct bh_worker *worker, bool done)
{
    struct bh_turn *turn = &worker->world->turn;
    if (bh_turn_pass(turn, worker->turn_member, done)) {
        bh_os_futex_wake(&turn->block->word, BH_TURN_MEMBERS_MAX);
    }
}
