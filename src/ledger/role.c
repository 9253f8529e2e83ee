/* The ledger role: hints lead it to words, the table in reconcile.c says what to store next. Losing a
   hint costs time and nothing else, because tend looks at all words ten times a second; a death of
   this process costs nothing either, because start looks at all words before anything else. */
#include <stdlib.h>

#include "shm/hook.h"
#include "src/core/log.h"
#include "src/ledger/ledger.h"

#define HINTS_MAX 64u /* of one ring in one step, so that no ring starves another */

static const uint32_t producers[] = {
    BH_ROLE_TOKENIZER, BH_ROLE_EGRESS, BH_ROLE_PREFILL, BH_ROLE_DECODE};

static enum bh_status
ledger_open(struct bh_world *world, void **state)
{
    struct bh_ledger *ledger = calloc(1, sizeof(*ledger));
    if (ledger == NULL) {
        bh_log("memory=refused the ledger has no memory for its tables; free some memory");
        return BH_ESYS;
    }
    ledger->world = world;
    ledger->tried_slot = UINT32_MAX;
    ledger->notes = calloc(world->limits.slots, sizeof(*ledger->notes));
    ledger->hits = calloc(world->limits.list_max, sizeof(*ledger->hits));
    if (!bh_queue_new(&ledger->queue, world->limits.slots, world->limits.tenants) ||
        !bh_stock_new(&ledger->stock, world) || ledger->notes == NULL || ledger->hits == NULL) {
        bh_log("memory=refused pages=%u slots=%u the ledger has no memory for its tables; lower "
               "--pool-tokens or free some memory",
               world->limits.page_cnt,
               world->limits.slots);
        bh_queue_delete(&ledger->queue);
        bh_stock_delete(&ledger->stock);
        free(ledger->notes);
        free(ledger->hits);
        free(ledger);
        return BH_ESYS;
    }
    *state = ledger;
    return BH_OK;
}

/* Words that tell of other roles: anything new there concerns every slot. Relaxed, because a change
   only leads to a scan, which loads what it concludes from with acquire. */
static bool
roles_changed(struct bh_ledger *ledger)
{
    const struct bh_control *control = &ledger->world->control;
    uint64_t fences = bh_word_load_relaxed(&control->block->fences);
    uint64_t drain = bh_word_load_relaxed(&control->block->drain);
    bool changed = fences != ledger->fences_seen || drain != ledger->drain_seen;
    for (uint32_t role = 0; role < BH_ROLE_CNT; role++) {
        changed = changed || bh_role_epoch(control, role) != ledger->epochs_seen[role];
    }
    return changed;
}

static void
roles_note(struct bh_ledger *ledger)
{
    const struct bh_control *control = &ledger->world->control;
    ledger->fences_seen = bh_word_load_relaxed(&control->block->fences);
    ledger->drain_seen = bh_word_load_relaxed(&control->block->drain);
    for (uint32_t role = 0; role < BH_ROLE_CNT; role++) {
        ledger->epochs_seen[role] = bh_role_epoch(control, role);
    }
}

/* A tokenizer died between asking a question and submitting its request: that life of the slot will
   never be a request. Its handle dies, which egress sees and answers. */
static void
sweep_tokenizer(struct bh_ledger *ledger)
{
    struct bh_world *world = ledger->world;
    for (uint32_t slot = 0; slot < world->limits.slots; slot++) {
        struct bh_request_view view = bh_request_load(&world->requests, slot);
        if (view.state != BH_REQUEST_FREE || view.gen == UINT32_MAX ||
            bh_sub_load(&world->submit, slot) == view.gen) {
            continue;
        }
        bh_request_store(&world->requests,
                         slot,
                         (struct bh_request_view){.gen = view.gen + 1, .state = BH_REQUEST_FREE});
        BH_HOOK("ledger.sweep:slot");
        bh_world_tell(world, BH_ROLE_EGRESS, bh_hint_make(BH_HINT_STATE, slot, view.gen));
    }
}

/* Is anything still ordered from an incarnation of `role` that is gone? */
static bool
ordered_to_dead(const struct bh_ledger *ledger, uint32_t role, uint32_t reaped)
{
    const struct bh_requests *requests = &ledger->world->requests;
    for (uint32_t slot = 0; slot < requests->slots; slot++) {
        struct bh_order order = bh_order_load(requests, slot);
        if (order.verb != BH_ORDER_NONE && order.role == role && order.epoch <= reaped) {
            return true;
        }
    }
    return false;
}

/* After a scan: say of each reaped role that nothing waits for it any more, so that its successor may
   start. A role that died during the scan is answered for by the next one. */
static void
sweep(struct bh_ledger *ledger)
{
    struct bh_world *world = ledger->world;
    for (uint32_t role = BH_ROLE_TOKENIZER; role < BH_ROLE_CNT; role++) {
        uint32_t reaped = bh_role_reaped(&world->control, role);
        struct bh_word *swept = &world->requests.swept[role];
        if (reaped <= (uint32_t)bh_word_load(swept) || ordered_to_dead(ledger, role, reaped)) {
            continue;
        }
        if (role == BH_ROLE_TOKENIZER) {
            sweep_tokenizer(ledger);
        }
        BH_HOOK("ledger.sweep:before_swept");
        /* edge role.swept: release; pairs with acquire in the supervisor's fence.
           Every store of the sweep is visible to the newborn that is started on it. */
        bh_word_store(swept, reaped);
        bh_flight_note(&world->status[BH_ROLE_LEDGER], ledger->now_ns, "swept", role, reaped);
    }
}

static void
gauges(struct bh_ledger *ledger)
{
    struct bh_statusboard *board = &ledger->world->status[BH_ROLE_LEDGER];
    const uint32_t *cnt = ledger->stock.cnt;
    bh_metric_set(board, BH_METRIC_requests_running, ledger->running);
    bh_metric_set(board, BH_METRIC_requests_waiting, ledger->queue.cnt);
    bh_metric_set(board, BH_METRIC_pages_free, cnt[BH_PAGE_FREE]);
    bh_metric_set(board, BH_METRIC_pages_held, cnt[BH_PAGE_HELD]);
    bh_metric_set(board, BH_METRIC_pages_cached, cnt[BH_PAGE_CACHED]);
    bh_metric_set(board, BH_METRIC_pages_dirty, cnt[BH_PAGE_DIRTY]);
    bh_metric_set(board, BH_METRIC_pages_quarantined, cnt[BH_PAGE_QUARANTINED]);
}

/* Look at every word there is. */
static uint32_t
scan(struct bh_ledger *ledger)
{
    ledger->scan_due = false;
    roles_note(ledger);
    uint32_t work = bh_stock_tend(&ledger->stock) ? 1 : 0;
    for (uint32_t slot = 0; slot < ledger->world->limits.slots; slot++) {
        work += bh_ledger_reconcile(ledger, slot);
    }
    sweep(ledger);
    return work;
}

/* Pins from lists, the queue from tickets: what the predecessor knew and the words still say. */
static void
slot_load(struct bh_ledger *ledger, uint32_t slot)
{
    const struct bh_world *world = ledger->world;
    const struct bh_request_row *row = &world->requests.rows[slot];
    struct bh_facts facts = bh_ledger_facts(ledger, slot);
    for (uint32_t ord = 0; ord < facts.list.cnt; ord++) {
        uint32_t idx = bh_page_idx(bh_list_page(&world->requests, slot, ord));
        BH_CHECK(idx > 0 && idx < world->limits.page_cnt);
        bh_stock_pin(&ledger->stock, idx);
    }
    ledger->ticket_next = bh_max_u64(ledger->ticket_next, row->ticket + 1);
    if (!bh_request_live(facts.request.state)) {
        return;
    }
    uint32_t tenant = bh_ledger_record(ledger, slot)->tenant;
    bool queued = facts.request.state == BH_REQUEST_QUEUED;
    ledger->notes[slot].charged = facts.log.cnt;
    ledger->notes[slot].admitted = !queued || facts.log.cnt > 0;
    bh_queue_arrive(&ledger->queue, tenant);
    if (queued) {
        bh_queue_push(
            &ledger->queue,
            (struct bh_queue_item){.slot = slot, .tenant = tenant, .ticket = row->ticket});
    } else {
        ledger->running++;
    }
}

static enum bh_status
ledger_start(void *state)
{
    struct bh_ledger *ledger = state;
    for (uint32_t i = 0; i < BH_COUNT(producers); i++) {
        struct bh_ring_rx *ring = &ledger->world->rx[producers[i]];
        bh_ring_skip(ring);
        (void)bh_ring_lost(ring);
    }
    for (uint32_t slot = 0; slot < ledger->world->limits.slots; slot++) {
        slot_load(ledger, slot);
    }
    bh_stock_load(&ledger->stock);
    scan(ledger);
    bh_ledger_settle(ledger);
    gauges(ledger);
    return BH_OK;
}

/* Act on one hint. False: it names nothing that exists, or is not this producer's to send. */
static bool
hint_act(void *role, uint32_t producer, struct bh_hint hint)
{
    struct bh_ledger *ledger = role;
    static const uint32_t kinds[BH_ROLE_CNT] = {[BH_ROLE_TOKENIZER] = BH_HINT_SUBMIT,
                                                [BH_ROLE_EGRESS] = BH_HINT_EDGE,
                                                [BH_ROLE_PREFILL] = BH_HINT_REPORT,
                                                [BH_ROLE_DECODE] = BH_HINT_REPORT};
    const struct bh_limits *limits = &ledger->world->limits;
    uint32_t idx = bh_hint_idx(hint);
    uint32_t kind = bh_hint_kind(hint);
    if (producer == BH_ROLE_DECODE && kind == BH_HINT_SCRUBBED) {
        if (idx == 0 || idx >= limits->page_cnt) {
            return false;
        }
        (void)bh_stock_scrubbed(&ledger->stock, idx);
        return true;
    }
    if (kind != kinds[producer] || idx >= limits->slots) {
        return false;
    }
    (void)bh_ledger_reconcile(ledger, idx);
    return true;
}

static uint32_t
ledger_step(void *state, uint64_t now_ns)
{
    struct bh_ledger *ledger = state;
    ledger->now_ns = now_ns;
    uint32_t work = 0;
    for (uint32_t i = 0; i < BH_COUNT(producers); i++) {
        work += bh_world_hints(
            ledger->world, producers[i], HINTS_MAX, hint_act, ledger, &ledger->scan_due);
    }
    if (ledger->scan_due || roles_changed(ledger)) {
        work += 1 + scan(ledger);
    }
    if (work > 0) {
        work += bh_ledger_settle(ledger);
        gauges(ledger);
    }
    return work;
}

#ifdef BH_HOOKS
/* What a broken ledger could do to a running request: end a page that a worker reads. The list names
   another page from then on; the worker's copy of the list does not. */
static void
page_regrant(struct bh_ledger *ledger, uint32_t slot, uint32_t ord)
{
    struct bh_requests *requests = &ledger->world->requests;
    struct bh_page other;
    uint32_t idx = bh_page_idx(bh_list_page(requests, slot, ord));
    if (bh_stock_take(&ledger->stock, slot, &other) == BH_OK) {
        bh_stock_pin(&ledger->stock, bh_page_idx(other));
        bh_list_page_store(requests, slot, ord, other);
        bh_stock_unpin(&ledger->stock, idx);
        bh_stock_end(&ledger->stock, idx);
    }
}

/* The first page that a request in `state` holds, and whose worker is at work. */
static bool
page_in_work(const struct bh_ledger *ledger,
             enum bh_request_state state,
             uint32_t *slot,
             uint32_t *ord)
{
    const struct bh_world *world = ledger->world;
    for (*slot = 0; *slot < world->limits.slots; (*slot)++) {
        struct bh_facts facts = bh_ledger_facts(ledger, *slot);
        bool at_work = facts.request.state == state && !facts.quiet;
        for (*ord = 0; at_work && *ord < facts.list.cnt; (*ord)++) {
            uint32_t idx = bh_page_idx(bh_list_page(&world->requests, *slot, *ord));
            if (bh_page_load(&world->pagetable, idx).state == BH_PAGE_HELD) {
                return true;
            }
        }
    }
    return false;
}

/* Each place is passed once a tick, and only while it could fire. */
static void
regrant_if_injected(struct bh_ledger *ledger)
{
    uint32_t slot;
    uint32_t ord;
    if (page_in_work(ledger, BH_REQUEST_DECODE, &slot, &ord) && BH_FAULT("ledger.page:regrant")) {
        page_regrant(ledger, slot, ord);
    }
    if (page_in_work(ledger, BH_REQUEST_PREFILL, &slot, &ord) &&
        BH_FAULT("ledger.page:regrant_prefill")) {
        page_regrant(ledger, slot, ord);
    }
}
#endif

static void
ledger_tend(void *state, uint64_t now_ns)
{
    struct bh_ledger *ledger = state;
    ledger->now_ns = now_ns;
#ifdef BH_HOOKS
    regrant_if_injected(ledger);
#endif
    if (scan(ledger) + bh_ledger_settle(ledger) > 0) {
        gauges(ledger);
    }
}

static bool
ledger_pending(void *state)
{
    struct bh_ledger *ledger = state;
    for (uint32_t i = 0; i < BH_COUNT(producers); i++) {
        struct bh_ring_rx *ring = &ledger->world->rx[producers[i]];
        struct bh_hint hint;
        ledger->scan_due = bh_ring_lost(ring) || ledger->scan_due;
        if (bh_ring_peek(ring, &hint) != BH_EMPTY) {
            return true;
        }
    }
    return ledger->scan_due || roles_changed(ledger);
}

const struct bh_role bh_role_ledger = {.id = BH_ROLE_LEDGER,
                                       .open = ledger_open,
                                       .start = ledger_start,
                                       .step = ledger_step,
                                       .tend = ledger_tend,
                                       .pending = ledger_pending};
