/* The table of requests: what the ledger sees of a slot, and the one store it makes then. Rows are
   tried in order, the first that matches wins, and the slot is looked at again until none does.
   Nothing here remembers where it was: a new ledger that finds the words in the middle of anything
   goes on from the words.

   Words of other processes are copied once and never trusted: a report that its order cannot have
   ends the request, not this process. */
#include "shm/hook.h"
#include "src/core/config.h"
#include "src/ledger/ledger.h"

static const struct bh_reports *
reports_of(const struct bh_world *world, uint32_t role)
{
    return role == BH_ROLE_PREFILL ? &world->prefill_reports : &world->decode_reports;
}

struct bh_facts
bh_ledger_facts(const struct bh_ledger *ledger, uint32_t slot)
{
    const struct bh_world *world = ledger->world;
    struct bh_facts facts = {.request = bh_request_load(&world->requests, slot),
                             .order = bh_order_load(&world->requests, slot),
                             .list = bh_list_load(&world->requests, slot)};
    /* What proves that a worker is through is loaded before what it wrote: reaped, then its report,
       then the log. The other way round, a last token could be missed and drawn again. */
    if (facts.order.verb != BH_ORDER_NONE) {
        BH_CHECK(facts.order.role == BH_ROLE_PREFILL || facts.order.role == BH_ROLE_DECODE);
        facts.reaped = bh_role_reaped(&world->control, facts.order.role) >= facts.order.epoch;
        struct bh_report report = bh_report_load(reports_of(world, facts.order.role), slot);
        facts.report =
            report.seq == facts.order.seq ? report : (struct bh_report){.phase = BH_REPORT_NONE};
        /* A phase that does not exist releases nothing. */
        facts.released =
            bh_report_released(facts.report.phase) && facts.report.phase <= BH_REPORT_FAULT;
    }
    facts.quiet = facts.order.verb == BH_ORDER_NONE || facts.released || facts.reaped;
    /* Egress closes an answer after it saw the log's finish: loaded in this order, a finish is never
       missed where CLOSED is seen. */
    struct bh_edge_view edge = bh_edge_load(&world->edge, slot);
    facts.edge = edge.gen == facts.request.gen ? edge.flags : 0;
    struct bh_log_view log = bh_log_load(&world->tokenlog, slot);
    if (log.gen == facts.request.gen) {
        facts.log = log;
    }
    return facts;
}

static bool
state_running(enum bh_request_state state)
{
    return state == BH_REQUEST_PREFILL || state == BH_REQUEST_DECODE;
}

static void
outcome_count(struct bh_ledger *ledger, enum bh_request_state state, enum bh_cause cause)
{
    switch (state) {
    case BH_REQUEST_DONE:
        bh_ledger_count(ledger,
                        cause == BH_CAUSE_LENGTH ? BH_METRIC_requests_done_length
                                                 : BH_METRIC_requests_done_stop,
                        1);
        break;
    case BH_REQUEST_REJECTED:
        bh_ledger_count(ledger, BH_METRIC_requests_rejected, 1);
        break;
    case BH_REQUEST_CANCELLED:
        bh_ledger_count(ledger, BH_METRIC_requests_cancelled, 1);
        break;
    case BH_REQUEST_FAILED:
        bh_ledger_count(ledger, BH_METRIC_requests_failed, 1);
        break;
    default:
        break;
    }
}

void
bh_ledger_move(struct bh_ledger *ledger,
               uint32_t slot,
               enum bh_request_state state,
               enum bh_cause cause)
{
    struct bh_world *world = ledger->world;
    struct bh_request_view from = bh_request_load(&world->requests, slot);
    BH_CHECK(!bh_request_terminal(from.state) && state != BH_REQUEST_FREE);
    bh_request_store(&world->requests,
                     slot,
                     (struct bh_request_view){.gen = from.gen, .state = state, .cause = cause});
    BH_HOOK("ledger.state:stored");
    uint32_t tenant = bh_ledger_record(ledger, slot)->tenant;
    ledger->running += state_running(state) ? 1 : 0;
    ledger->running -= state_running(from.state) ? 1 : 0;
    if (!bh_request_live(from.state) && bh_request_live(state)) {
        bh_queue_arrive(&ledger->queue, tenant);
    }
    if (bh_request_live(from.state) && !bh_request_live(state)) {
        bh_queue_depart(&ledger->queue, tenant);
    }
    bh_queue_remove(&ledger->queue, slot);
    if (state == BH_REQUEST_QUEUED) {
        bh_queue_push(&ledger->queue,
                      (struct bh_queue_item){.slot = slot,
                                             .tenant = tenant,
                                             .ticket = world->requests.rows[slot].ticket});
    }
    outcome_count(ledger, state, cause);
    bh_world_tell(world, BH_ROLE_EGRESS, bh_hint_make(BH_HINT_STATE, slot, from.gen));
}

static void
order_store(struct bh_ledger *ledger, uint32_t slot, struct bh_order order)
{
    struct bh_world *world = ledger->world;
    bh_order_store(&world->requests, slot, order);
    BH_HOOK("ledger.order:stored");
    if (order.verb != BH_ORDER_NONE) {
        uint32_t gen = bh_request_load(&world->requests, slot).gen;
        bh_world_tell(world, order.role, bh_hint_make(BH_HINT_ORDER, slot, gen));
    }
}

static void
order_none(struct bh_ledger *ledger, uint32_t slot, const struct bh_facts *facts)
{
    order_store(ledger, slot, (struct bh_order){.seq = facts->order.seq, .verb = BH_ORDER_NONE});
}

/* RUN for the present incarnation of a role, if it is up. Incarnations are not told from each other
   by more than 24 bits, so there are no orders beyond them. */
static bool
order_run(struct bh_ledger *ledger, uint32_t slot, const struct bh_facts *facts, uint32_t role)
{
    const struct bh_control *control = &ledger->world->control;
    uint32_t epoch = bh_role_epoch(control, role);
    if (epoch <= bh_role_reaped(control, role) || epoch > 0xffffffu) {
        return false;
    }
    order_store(
        ledger,
        slot,
        (struct bh_order){
            .seq = facts->order.seq + 1, .verb = BH_ORDER_RUN, .role = role, .epoch = epoch});
    return true;
}

/* A worker died under this request: counted once an order. Returns whether it may go on. */
static bool
death_survived(struct bh_ledger *ledger, uint32_t slot, const struct bh_facts *facts)
{
    struct bh_request_row *row = &ledger->world->requests.rows[slot];
    if (row->deaths_seq != facts->order.seq) {
        /* Killed between the two, this ledger forgets a worker's death rather than count it twice. */
        row->deaths_seq = facts->order.seq;
        row->deaths++;
    }
    return row->deaths < BH_DEATHS_MAX;
}

/* Row 2. An edge that says only CLOSED is one whose client nobody serves any more, unless the log has
   its end: then the whole answer was sent before decode's report came, and row 5 is to see it. */
static bool
row_ended(struct bh_ledger *ledger, uint32_t slot, const struct bh_facts *facts)
{
    if (!bh_request_live(facts->request.state)) {
        return false;
    }
    uint64_t deadline_ns = bh_ledger_record(ledger, slot)->deadline_ns;
    if ((facts->edge & BH_EDGE_GONE) != 0) {
        bh_ledger_move(ledger, slot, BH_REQUEST_CANCELLED, BH_CAUSE_GONE);
    } else if ((facts->edge & BH_EDGE_STOP) != 0) {
        bh_ledger_move(ledger, slot, BH_REQUEST_DONE, BH_CAUSE_STOP);
    } else if ((facts->edge & BH_EDGE_CLOSED) != 0 && facts->log.finish == BH_FINISH_NONE) {
        bh_ledger_move(ledger, slot, BH_REQUEST_CANCELLED, BH_CAUSE_GONE);
    } else if (deadline_ns != 0 && ledger->now_ns >= deadline_ns) {
        bh_ledger_move(ledger, slot, BH_REQUEST_FAILED, BH_CAUSE_DEADLINE);
    } else if (bh_word_load_relaxed(&ledger->world->control.block->drain) == BH_DRAIN_CANCEL) {
        bh_ledger_move(ledger, slot, BH_REQUEST_CANCELLED, BH_CAUSE_SHUTDOWN);
    } else {
        return false;
    }
    return true;
}

/* The request's own pages are all suspect, and the one the report names even if it is shared. */
static void
flag_pages(struct bh_ledger *ledger, uint32_t slot, const struct bh_facts *facts)
{
    for (uint32_t ord = 0; ord < facts->list.cnt; ord++) {
        if (ord >= facts->list.shared || ord == facts->report.arg) {
            bh_stock_flag(&ledger->stock,
                          bh_page_idx(bh_list_page(&ledger->world->requests, slot, ord)));
        }
    }
}

/* Row 3. */
static bool
row_fault(struct bh_ledger *ledger, uint32_t slot, const struct bh_facts *facts)
{
    if (!bh_request_live(facts->request.state) || facts->report.phase != BH_REPORT_FAULT) {
        return false;
    }
    struct bh_world *world = ledger->world;
    flag_pages(ledger, slot, facts);
    bh_flight_note(&world->status[BH_ROLE_LEDGER],
                   ledger->now_ns,
                   "fault",
                   slot,
                   ((uint64_t)facts->report.cause << 32) | facts->report.arg);
    bh_ledger_move(ledger, slot, BH_REQUEST_FAILED, BH_CAUSE_VIOLATION);
    return true;
}

static void
coverage_failed(struct bh_ledger *ledger, uint32_t slot, const struct bh_facts *facts)
{
    bh_ledger_count(ledger, BH_METRIC_coverage_mismatches, 1);
    bh_flight_note(&ledger->world->status[BH_ROLE_LEDGER],
                   ledger->now_ns,
                   "coverage",
                   slot,
                   ((uint64_t)facts->report.phase << 32) | facts->report.arg);
    bh_ledger_move(ledger, slot, BH_REQUEST_FAILED, BH_CAUSE_COVERAGE);
}

/* Row 4: prefill says how many tokens it wrote, and that is compared with what it was ordered to
   write. The cheapest alarm there is. */
static bool
row_prefilled(struct bh_ledger *ledger, uint32_t slot, const struct bh_facts *facts)
{
    if (facts->request.state != BH_REQUEST_PREFILL || facts->order.verb != BH_ORDER_RUN ||
        facts->order.role != BH_ROLE_PREFILL || facts->report.phase != BH_REPORT_OK) {
        return false;
    }
    if (facts->report.arg != ledger->world->requests.rows[slot].tokens &&
        !BH_FAULT("ledger.prefilled:unchecked")) {
        coverage_failed(ledger, slot, facts);
    } else {
        bh_ledger_move(ledger, slot, BH_REQUEST_DECODE, BH_CAUSE_NONE);
    }
    return true;
}

/* Row 5. */
static bool
row_finished(struct bh_ledger *ledger, uint32_t slot, const struct bh_facts *facts)
{
    bool through = facts->released || facts->reaped;
    if (facts->request.state != BH_REQUEST_DECODE || facts->order.verb == BH_ORDER_NONE ||
        facts->order.role != BH_ROLE_DECODE || !through) {
        return false;
    }
    if (facts->log.finish != BH_FINISH_STOP && facts->log.finish != BH_FINISH_LENGTH) {
        return false;
    }
    bh_ledger_move(ledger,
                   slot,
                   BH_REQUEST_DONE,
                   facts->log.finish == BH_FINISH_STOP ? BH_CAUSE_STOP : BH_CAUSE_LENGTH);
    return true;
}

/* Between rows 5 and 6: what no correct worker says or writes. Without this row such a request would
   wait for ever, or make the ledger count beyond its tables. */
static bool
row_breach(struct bh_ledger *ledger, uint32_t slot, const struct bh_facts *facts)
{
    if (!bh_request_live(facts->request.state)) {
        return false;
    }
    bool run = facts->order.verb == BH_ORDER_RUN;
    bool decode = facts->order.role == BH_ROLE_DECODE;
    enum bh_report_phase phase = facts->report.phase;
    bool breach = facts->log.cnt > bh_ledger_record(ledger, slot)->max_tokens ||
                  facts->log.finish > BH_FINISH_LENGTH || phase > BH_REPORT_FAULT ||
                  (run && phase == BH_REPORT_STOPPED) || (run && decode && phase == BH_REPORT_OK) ||
                  (run && decode && phase == BH_REPORT_WANT &&
                   facts->report.arg > bh_ledger_need_max(ledger, slot));
    if (!breach) {
        return false;
    }
    coverage_failed(ledger, slot, facts);
    return true;
}

/* Row 6. */
static bool
row_preempted(struct bh_ledger *ledger, uint32_t slot, const struct bh_facts *facts)
{
    if (!state_running(facts->request.state) || facts->order.verb != BH_ORDER_STOP ||
        !facts->quiet) {
        return false;
    }
    bh_ledger_count(ledger, BH_METRIC_preemptions, 1);
    bh_ledger_move(ledger, slot, BH_REQUEST_QUEUED, BH_CAUSE_NONE);
    return true;
}

/* Row 7: the pages stay; what the dead worker proved or wrote is proved again from their stamps. */
static bool
row_decode_died(struct bh_ledger *ledger, uint32_t slot, const struct bh_facts *facts)
{
    if (facts->request.state != BH_REQUEST_DECODE || facts->order.verb == BH_ORDER_NONE ||
        facts->order.role != BH_ROLE_DECODE || !facts->reaped || facts->released) {
        return false;
    }
    if (death_survived(ledger, slot, facts)) {
        bh_ledger_move(ledger, slot, BH_REQUEST_PREFILL, BH_CAUSE_NONE);
    } else {
        bh_ledger_move(ledger, slot, BH_REQUEST_FAILED, BH_CAUSE_WORKER);
    }
    return true;
}

/* Row 8. */
static bool
row_order_dead(struct bh_ledger *ledger, uint32_t slot, const struct bh_facts *facts)
{
    bool prefill = facts->order.role == BH_ROLE_PREFILL;
    bool here = facts->request.state == BH_REQUEST_PREFILL ||
                (facts->request.state == BH_REQUEST_DECODE && prefill);
    if (!here || facts->order.verb == BH_ORDER_NONE || !facts->reaped) {
        return false;
    }
    bool at_work = facts->request.state == BH_REQUEST_PREFILL && prefill && !facts->released;
    if (at_work && !death_survived(ledger, slot, facts)) {
        bh_ledger_move(ledger, slot, BH_REQUEST_FAILED, BH_CAUSE_WORKER);
    } else {
        order_none(ledger, slot, facts);
    }
    return true;
}

/* Row 9. Nobody decodes in this state, so the log stands still and the number stays true. */
static bool
row_order_prefill(struct bh_ledger *ledger, uint32_t slot, const struct bh_facts *facts)
{
    if (facts->request.state != BH_REQUEST_PREFILL || facts->order.verb != BH_ORDER_NONE) {
        return false;
    }
    ledger->world->requests.rows[slot].tokens =
        (uint64_t)bh_ledger_record(ledger, slot)->prompt_cnt + facts->log.cnt - 1;
    return order_run(ledger, slot, facts, BH_ROLE_PREFILL);
}

/* Row 10. */
static bool
row_order_decode(struct bh_ledger *ledger, uint32_t slot, const struct bh_facts *facts)
{
    if (facts->request.state != BH_REQUEST_DECODE ||
        (facts->order.verb != BH_ORDER_NONE && facts->order.role != BH_ROLE_PREFILL)) {
        return false;
    }
    return order_run(ledger, slot, facts, BH_ROLE_DECODE);
}

bool
bh_ledger_waits(const struct bh_facts *facts)
{
    return facts->request.state == BH_REQUEST_DECODE && facts->order.verb == BH_ORDER_RUN &&
           facts->order.role == BH_ROLE_DECODE && !facts->reaped &&
           facts->report.phase == BH_REPORT_WANT && facts->report.arg > facts->list.cnt;
}

bool
bh_ledger_waiting(const struct bh_ledger *ledger, uint32_t *slot)
{
    const struct bh_requests *requests = &ledger->world->requests;
    bool found = false;
    for (uint32_t s = 0; s < requests->slots; s++) {
        if (bh_request_load(requests, s).state != BH_REQUEST_DECODE ||
            (found && requests->rows[s].ticket > requests->rows[*slot].ticket)) {
            continue;
        }
        struct bh_facts facts = bh_ledger_facts(ledger, s);
        if (bh_ledger_waits(&facts)) {
            *slot = s;
            found = true;
        }
    }
    return found;
}

static void
grow(struct bh_ledger *ledger, uint32_t slot, const struct bh_facts *facts)
{
    struct bh_world *world = ledger->world;
    struct bh_page page;
    enum bh_status status = bh_stock_take(&ledger->stock, slot, &page);
    BH_CHECK(status == BH_OK);
    bh_stock_pin(&ledger->stock, bh_page_idx(page));
    bh_list_page_store(&world->requests, slot, facts->list.cnt, page);
    BH_HOOK("ledger.grow:entry");
    bh_list_store(&world->requests,
                  slot,
                  (struct bh_list){.cnt = facts->list.cnt + 1, .shared = facts->list.shared});
    BH_HOOK("ledger.grow:list");
    bh_ledger_count(ledger, BH_METRIC_pages_granted, 1);
    bh_world_tell(world, BH_ROLE_DECODE, bh_hint_make(BH_HINT_LIST, slot, facts->request.gen));
}

/* Who else has pages, seen from a request that waits for one. */
struct others {
    bool returning; /* pages are on their way back from somebody */
    bool has_pages; /* somebody has pages at all */
    bool found;     /* `victim` is the youngest that may be stopped for it */
    uint32_t victim;
};

static struct others
others_look(const struct bh_ledger *ledger, uint32_t slot)
{
    const struct bh_requests *requests = &ledger->world->requests;
    struct others others = {.returning = ledger->stock.cnt[BH_PAGE_DIRTY] > 0};
    uint64_t youngest = requests->rows[slot].ticket;
    for (uint32_t s = 0; s < requests->slots; s++) {
        struct bh_facts facts = bh_ledger_facts(ledger, s);
        if (s == slot || facts.request.state == BH_REQUEST_FREE) {
            continue;
        }
        others.has_pages = others.has_pages || facts.list.cnt > 0;
        others.returning = others.returning || facts.order.verb == BH_ORDER_STOP ||
                           (facts.list.cnt > 0 && !state_running(facts.request.state));
        if (state_running(facts.request.state) && facts.order.verb == BH_ORDER_RUN &&
            !facts.quiet && requests->rows[s].ticket > youngest) {
            youngest = requests->rows[s].ticket;
            others.victim = s;
            others.found = true;
        }
    }
    return others;
}

/* Row 11, for the oldest that waits: those behind it would only take what it needs. */
static bool
row_grow(struct bh_ledger *ledger, uint32_t slot, const struct bh_facts *facts)
{
    uint32_t oldest;
    if (!bh_ledger_waits(facts) || !bh_ledger_waiting(ledger, &oldest) || oldest != slot) {
        return false;
    }
    if (ledger->stock.cnt[BH_PAGE_FREE] > 0) {
        grow(ledger, slot, facts);
        return true;
    }
    if (bh_stock_evict(&ledger->stock, facts->report.arg - facts->list.cnt, 0) > 0) {
        return true;
    }
    struct others others = others_look(ledger, slot);
    if (others.returning) {
        return false;
    }
    if (others.found) {
        struct bh_order order = bh_order_load(&ledger->world->requests, others.victim);
        order.verb = BH_ORDER_STOP;
        order_store(ledger, others.victim, order);
        return true;
    }
    if (!others.has_pages) {
        /* Everything usable is its own already, and it is not enough: the pool has shrunk. */
        bh_ledger_move(ledger, slot, BH_REQUEST_FAILED, BH_CAUSE_CAPACITY);
        return true;
    }
    return false;
}

/* Row 12. */
static bool
row_stop(struct bh_ledger *ledger, uint32_t slot, const struct bh_facts *facts)
{
    if (!bh_request_terminal(facts->request.state) || facts->order.verb != BH_ORDER_RUN ||
        facts->quiet) {
        return false;
    }
    struct bh_order order = facts->order;
    order.verb = BH_ORDER_STOP;
    order_store(ledger, slot, order);
    return true;
}

/* Row 13: the list goes first, then the pages' lives, then the order. Last entries first, so that of
   a prefix the end is evicted before the beginning. */
static bool
row_return(struct bh_ledger *ledger, uint32_t slot, const struct bh_facts *facts)
{
    bool over =
        bh_request_terminal(facts->request.state) || facts->request.state == BH_REQUEST_QUEUED;
    if (!over || !facts->quiet || (facts->list.cnt == 0 && facts->order.verb == BH_ORDER_NONE)) {
        return false;
    }
    struct bh_world *world = ledger->world;
    if (facts->report.phase == BH_REPORT_FAULT) {
        /* The client left, or the deadline passed, at the moment of the fault: the pages are suspect
           all the same. */
        flag_pages(ledger, slot, facts);
    }
    bh_list_store(&world->requests, slot, (struct bh_list){0});
    BH_HOOK("ledger.return:list0");
    for (uint32_t ord = facts->list.cnt; ord > 0; ord--) {
        struct bh_page page = bh_list_page(&world->requests, slot, ord - 1);
        uint32_t idx = bh_page_idx(page);
        bh_stock_unpin(&ledger->stock, idx);
        struct bh_page_view view = bh_page_load(&world->pagetable, idx);
        if (view.state == BH_PAGE_HELD && view.owner == slot && view.gen == bh_page_gen(page)) {
            bh_stock_end(&ledger->stock, idx);
        }
    }
    BH_HOOK("ledger.return:pages");
    order_none(ledger, slot, facts);
    ledger->notes[slot].published = 0;
    return true;
}

/* Row 14. A slot whose generation reaches its end is never submitted again: row 1 refuses it. */
static bool
row_free(struct bh_ledger *ledger, uint32_t slot, const struct bh_facts *facts)
{
    if (!bh_request_terminal(facts->request.state) || facts->order.verb != BH_ORDER_NONE ||
        facts->list.cnt != 0 || (facts->edge & BH_EDGE_CLOSED) == 0) {
        return false;
    }
    struct bh_world *world = ledger->world;
    uint32_t gen = facts->request.gen + 1;
    bh_request_store(
        &world->requests, slot, (struct bh_request_view){.gen = gen, .state = BH_REQUEST_FREE});
    BH_HOOK("ledger.free:stored");
    bh_world_tell(world, BH_ROLE_TOKENIZER, bh_hint_make(BH_HINT_FREE, slot, gen));
    return true;
}

typedef bool row_fn(struct bh_ledger *ledger, uint32_t slot, const struct bh_facts *facts);

static row_fn *const rows[] = {
    bh_ledger_submit,
    row_ended,
    row_fault,
    row_prefilled,
    row_finished,
    row_breach,
    row_preempted,
    row_decode_died,
    row_order_dead,
    row_order_prefill,
    row_order_decode,
    row_grow,
    row_stop,
    row_return,
    row_free,
    bh_ledger_admit,
};

/* What was generated since the last look is charged to the tenant. */
static void
charge(struct bh_ledger *ledger, uint32_t slot, const struct bh_facts *facts)
{
    struct bh_slot_note *note = &ledger->notes[slot];
    if (state_running(facts->request.state) && facts->log.cnt > note->charged) {
        bh_queue_charge(
            &ledger->queue, bh_ledger_record(ledger, slot)->tenant, facts->log.cnt - note->charged);
        note->charged = facts->log.cnt;
    }
}

uint32_t
bh_ledger_reconcile(struct bh_ledger *ledger, uint32_t slot)
{
    /* A life has fewer turns than this between two looks; a worker that makes more by changing its
       words all the time is served again later. */
    uint32_t stores_max = 16 + ledger->world->limits.list_max;
    uint32_t stores = 0;
    while (stores < stores_max) {
        struct bh_facts facts = bh_ledger_facts(ledger, slot);
        charge(ledger, slot, &facts);
        bh_ledger_publish(ledger, slot, &facts);
        bool stored = false;
        for (uint32_t i = 0; i < BH_COUNT(rows) && !stored; i++) {
            stored = rows[i](ledger, slot, &facts);
        }
        if (!stored) {
            break;
        }
        stores++;
    }
    return stores;
}

uint32_t
bh_ledger_settle(struct bh_ledger *ledger)
{
    uint32_t work = 0;
    uint32_t slot;
    uint32_t stores;
    while (bh_ledger_waiting(ledger, &slot) && (stores = bh_ledger_reconcile(ledger, slot)) > 0) {
        work += stores;
    }
    while (bh_queue_next(&ledger->queue, &slot) &&
           (stores = bh_ledger_reconcile(ledger, slot)) > 0) {
        work += stores;
    }
    (void)bh_stock_evict(&ledger->stock, ledger->running, 0);
    return work;
}
