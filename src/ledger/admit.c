/* Rows 1 and 15: into the queue, and out of it onto pages. A request that is too long, malformed or
   beyond a cap is refused here, before it has any page, and is never made shorter; one that is
   admitted gets pages for all it is about to compute, or none. */
#include <string.h>

#include "shm/hook.h"
#include "src/ledger/ledger.h"

uint32_t
bh_ledger_need_max(const struct bh_ledger *ledger, uint32_t slot)
{
    const struct bh_record *record = bh_ledger_record(ledger, slot);
    return bh_ledger_pages(ledger, (uint64_t)record->prompt_cnt + record->max_tokens);
}

/* Why this record may not become a request; BH_CAUSE_NONE if it may. The tokenizer has checked all of
   it, but its word is not enough: it is the process that reads strangers' bytes. */
static enum bh_cause
record_refusal(const struct bh_ledger *ledger, const struct bh_record *record, struct bh_req req)
{
    const struct bh_world *world = ledger->world;
    const struct bh_control_block *control = world->control.block;
    if (record->slot != req.slot || record->gen != req.gen) {
        return BH_CAUSE_INVALID;
    }
    uint64_t tokens = (uint64_t)record->prompt_cnt + record->max_tokens;
    if (tokens > world->limits.ctx) {
        return BH_CAUSE_CONTEXT;
    }
    if (!bh_record_check(record, req, &world->limits)) {
        return BH_CAUSE_INVALID;
    }
    if (bh_ledger_pages(ledger, tokens) > bh_stock_usable(&ledger->stock)) {
        return BH_CAUSE_CAPACITY;
    }
    if (control->queue_max != 0 && ledger->queue.cnt >= control->queue_max) {
        return BH_CAUSE_QUEUE_FULL;
    }
    if (control->tenant_max != 0 &&
        ledger->queue.tenants[record->tenant].alive >= control->tenant_max) {
        return BH_CAUSE_TENANT_LIMIT;
    }
    return BH_CAUSE_NONE;
}

/* Row 1. */
bool
bh_ledger_submit(struct bh_ledger *ledger, uint32_t slot, const struct bh_facts *facts)
{
    struct bh_world *world = ledger->world;
    struct bh_req req = {.slot = slot, .gen = facts->request.gen};
    if (facts->request.state != BH_REQUEST_FREE || req.gen == UINT32_MAX ||
        bh_sub_load(&world->submit, slot) != req.gen) {
        return false;
    }
    /* One copy, then the copy is checked: whatever the tokenizer does to its own bytes afterwards
       changes nothing. */
    struct bh_record record = world->submit.records[slot];
    enum bh_cause cause = record_refusal(ledger, &record, req);
    if (cause == BH_CAUSE_INVALID) {
        memset(&record, 0, sizeof(record));
        record.slot = slot;
        record.gen = req.gen;
    }
    world->requests.records[slot] = record;
    struct bh_request_row *row = &world->requests.rows[slot];
    row->ticket = ledger->ticket_next++;
    row->tokens = 0;
    row->deaths = 0;
    row->deaths_seq = 0;
    row->cached = 0;
    BH_HOOK("ledger.submit:record");
    ledger->notes[slot] = (struct bh_slot_note){.queued_ns = ledger->now_ns};
    bh_ledger_move(
        ledger, slot, cause == BH_CAUSE_NONE ? BH_REQUEST_QUEUED : BH_REQUEST_REJECTED, cause);
    return true;
}

/* What is counted once in a request's life, however often it is admitted. */
static void
admitted_note(struct bh_ledger *ledger, uint32_t slot, uint32_t hit_cnt)
{
    const struct bh_record *record = bh_ledger_record(ledger, slot);
    struct bh_slot_note *note = &ledger->notes[slot];
    if (note->admitted) {
        return;
    }
    uint64_t hit_tokens = (uint64_t)hit_cnt * ledger->world->limits.kv.page_tokens;
    hit_tokens = bh_min_u64(hit_tokens, record->prompt_cnt);
    note->admitted = true;
    ledger->world->requests.rows[slot].cached = hit_tokens;
    bh_ledger_count(ledger, BH_METRIC_prompt_tokens, record->prompt_cnt);
    bh_ledger_count(ledger, BH_METRIC_cache_query_tokens, record->prompt_cnt);
    bh_ledger_count(ledger, BH_METRIC_cache_hit_tokens, hit_tokens);
    bh_queue_charge(&ledger->queue, record->tenant, record->prompt_cnt - hit_tokens + 1);
    if (note->queued_ns != 0 && ledger->now_ns >= note->queued_ns) {
        bh_histogram_observe(&ledger->world->status[BH_ROLE_LEDGER],
                             BH_HISTOGRAM_queue_seconds,
                             (double)(ledger->now_ns - note->queued_ns) / 1e9);
    }
}

/* Pages, entries, list word, state. Killed anywhere in between, the pages are HELD and unlisted, or
   listed for a request that is still QUEUED: the next ledger ends the former, row 13 the latter. */
static void
grant(struct bh_ledger *ledger, uint32_t slot, struct bh_list list)
{
    struct bh_world *world = ledger->world;
    for (uint32_t ord = 0; ord < list.cnt; ord++) {
        struct bh_page page;
        if (ord < list.shared) {
            uint32_t idx = ledger->hits[ord];
            page = bh_page_make(0, idx, bh_page_load(&world->pagetable, idx).gen);
        } else {
            enum bh_status status = bh_stock_take(&ledger->stock, slot, &page);
            BH_CHECK(status == BH_OK);
        }
        bh_stock_pin(&ledger->stock, bh_page_idx(page));
        bh_list_page_store(&world->requests, slot, ord, page);
        BH_HOOK("ledger.grant:entry");
    }
    bh_list_store(&world->requests, slot, list);
    BH_HOOK("ledger.grant:list");
    bh_ledger_count(ledger, BH_METRIC_pages_granted, list.cnt - list.shared);
}

/* The fair order's next, and nothing stands against admitting anybody now. */
static bool
may_admit(const struct bh_ledger *ledger, uint32_t slot, const struct bh_facts *facts)
{
    uint32_t other;
    return facts->request.state == BH_REQUEST_QUEUED && facts->order.verb == BH_ORDER_NONE &&
           facts->list.cnt == 0 && bh_queue_next(&ledger->queue, &other) && other == slot &&
           ledger->running < ledger->world->limits.rows_max &&
           !(ledger->tried_slot == slot && ledger->tried_version == ledger->stock.version) &&
           !bh_ledger_waiting(ledger, &other);
}

/* Row 15. */
bool
bh_ledger_admit(struct bh_ledger *ledger, uint32_t slot, const struct bh_facts *facts)
{
    if (!may_admit(ledger, slot, facts)) {
        return false;
    }
    const struct bh_record *record = bh_ledger_record(ledger, slot);
    uint32_t need_max = bh_ledger_need_max(ledger, slot);
    if (need_max > bh_stock_usable(&ledger->stock)) {
        bh_ledger_move(ledger,
                       slot,
                       facts->log.cnt == 0 ? BH_REQUEST_REJECTED : BH_REQUEST_FAILED,
                       BH_CAUSE_CAPACITY);
        return true;
    }
    /* Prefill covers all tokens but the last, so only pages wholly inside those can be shared: the
       page of the last token is always the request's own, and so is the one that the next needs. */
    uint64_t tokens = (uint64_t)record->prompt_cnt + facts->log.cnt;
    uint32_t full = (uint32_t)((tokens - 1) / ledger->world->limits.kv.page_tokens);
    uint32_t page_cnt = (uint32_t)bh_min_u64(bh_ledger_pages(ledger, tokens + 1), need_max);
    uint64_t chain;
    uint32_t hit_cnt = bh_ledger_prefix_find(ledger, slot, full, &chain);
    for (uint32_t i = hit_cnt; i > 0; i--) {
        bh_stock_touch(&ledger->stock, ledger->hits[i - 1]);
    }
    /* One free page for each running row is left, so that an admission does not end in preempting. */
    uint32_t goal = page_cnt - hit_cnt + ledger->running;
    if (ledger->stock.cnt[BH_PAGE_FREE] < goal) {
        bool evicted = bh_stock_evict(&ledger->stock, goal, hit_cnt) > 0;
        ledger->tried_slot = slot;
        ledger->tried_version = ledger->stock.version;
        return evicted;
    }
    bh_queue_chose(&ledger->queue, slot);
    grant(ledger, slot, (struct bh_list){.cnt = page_cnt, .shared = hit_cnt});
    ledger->notes[slot].published = hit_cnt;
    ledger->notes[slot].chain = chain;
    ledger->notes[slot].charged = facts->log.cnt;
    admitted_note(ledger, slot, hit_cnt);
    bh_ledger_move(ledger, slot, BH_REQUEST_PREFILL, BH_CAUSE_NONE);
    return true;
}
