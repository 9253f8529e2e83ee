/* What a worker makes of words and hints: which orders it takes, which it only lets go of, and what it
   demands of the pages of a sequence. Local worlds, no model, no pages' bytes. */
#include "src/worker/worker.h"

#include <criterion/criterion.h>
#include <stdlib.h>

#define SLOT        2u
#define GEN         7u
#define SEQ         5u
#define PAGE_TOKENS 16u
#define PROMPT      40u

struct rig {
    struct bh_world worlds[BH_ROLE_CNT];
    struct bh_worker worker; /* decode's, without a model */
    uint32_t dirty;          /* page of the last DIRTY hint */
};

static struct rig rig;

static struct bh_world *
ledger(void)
{
    return &rig.worlds[BH_ROLE_LEDGER];
}

static struct bh_world *
decode(void)
{
    return &rig.worlds[BH_ROLE_DECODE];
}

static void
set_up(void)
{
    struct bh_limits limits = {
        .slots = 4,
        .conns = 4,
        .tenants = 2,
        .ctx = 64,
        .page_cnt = 9,
        .list_max = 4,
        .rows_max = 2,
        .chunk_max = 32,
        .reply_bytes = 4096,
        .vocab = 100,
        .kv = {.layers = 2,
               .kv_heads = 1,
               .head_dim = 8,
               .page_tokens = PAGE_TOKENS,
               .elem_bytes = 2},
    };
    cr_assert_eq(bh_world_new_local(&limits, rig.worlds), BH_OK);
    ledger()->control.block->hash_seed = 11;
    rig.worker = (struct bh_worker){.world = decode(),
                                    .reports = &decode()->decode_reports,
                                    .attend = calloc(limits.slots, sizeof(bool))};
    struct bh_record *record = &ledger()->requests.records[SLOT];
    *record = (struct bh_record){.slot = SLOT,
                                 .gen = GEN,
                                 .conn_gen = 1,
                                 .question = 1,
                                 .choice_cnt = 1,
                                 .next_slot = UINT32_MAX,
                                 .prompt_cnt = PROMPT,
                                 .max_tokens = 8,
                                 .logprobs = -1,
                                 .top_p = 1.0f,
                                 .name_space = 1234};
    for (uint32_t i = 0; i < PROMPT; i++) {
        bh_submit_prompt(&rig.worlds[BH_ROLE_TOKENIZER].submit, SLOT)[i] = i * 7 % 100;
    }
}

static void
tear_down(void)
{
    free(rig.worker.attend);
    bh_world_delete_local(rig.worlds);
}

TestSuite(worker, .init = set_up, .fini = tear_down);

static void
request(enum bh_request_state state)
{
    bh_request_store(
        &ledger()->requests, SLOT, (struct bh_request_view){.gen = GEN, .state = state});
}

static void
order(enum bh_order_verb verb, uint32_t role, uint32_t epoch)
{
    bh_order_store(&ledger()->requests,
                   SLOT,
                   (struct bh_order){.seq = SEQ, .verb = verb, .role = role, .epoch = epoch});
}

static uint64_t
metric(enum bh_metric which)
{
    return bh_metric_get(&decode()->status[BH_ROLE_DECODE], which);
}

static enum bh_call
look(struct bh_live *live)
{
    return bh_worker_look(&rig.worker, SLOT, live);
}

Test(worker, an_order_for_a_live_request_is_taken)
{
    struct bh_live live;
    request(BH_REQUEST_DECODE);
    order(BH_ORDER_RUN, BH_ROLE_DECODE, 1);
    cr_assert_eq(look(&live), BH_CALL_RUN);
    cr_assert_eq(live.req.slot, SLOT);
    cr_assert_eq(live.req.gen, GEN);
    cr_assert_eq(live.order.seq, SEQ);
    cr_assert_eq(metric(BH_METRIC_orders_refused), 0);
}

Test(worker, nobody_elses_order_is_touched)
{
    struct bh_live live;
    request(BH_REQUEST_DECODE);
    order(BH_ORDER_NONE, BH_ROLE_DECODE, 1);
    cr_assert_eq(look(&live), BH_CALL_NOTHING);
    order(BH_ORDER_RUN, BH_ROLE_PREFILL, 1);
    cr_assert_eq(look(&live), BH_CALL_NOTHING);
    order(BH_ORDER_RUN, BH_ROLE_DECODE, 2);
    cr_assert_eq(look(&live), BH_CALL_NOTHING);
    cr_assert_eq(metric(BH_METRIC_orders_refused), 0);
}

Test(worker, an_order_for_a_request_that_is_over_is_refused)
{
    static const enum bh_request_state over[] = {BH_REQUEST_FREE,
                                                 BH_REQUEST_QUEUED,
                                                 BH_REQUEST_PREFILL,
                                                 BH_REQUEST_DONE,
                                                 BH_REQUEST_REJECTED,
                                                 BH_REQUEST_CANCELLED,
                                                 BH_REQUEST_FAILED};
    order(BH_ORDER_RUN, BH_ROLE_DECODE, 1);
    for (uint32_t i = 0; i < BH_COUNT(over); i++) {
        struct bh_live live;
        request(over[i]);
        cr_assert_eq(look(&live), BH_CALL_RELEASE);
        cr_assert_eq(live.order.seq, SEQ);
        cr_assert_eq(metric(BH_METRIC_orders_refused), i + 1);
    }
}

Test(worker, a_stop_is_let_go_of_and_is_no_refusal)
{
    struct bh_live live;
    request(BH_REQUEST_DECODE);
    order(BH_ORDER_STOP, BH_ROLE_DECODE, 1);
    cr_assert_eq(look(&live), BH_CALL_RELEASE);
    cr_assert_eq(metric(BH_METRIC_orders_refused), 0);
}

Test(worker, an_answered_order_is_not_answered_again)
{
    static const enum bh_report_phase released[] = {
        BH_REPORT_OK, BH_REPORT_STOPPED, BH_REPORT_FAULT};
    struct bh_live live = {.req = {.slot = SLOT, .gen = GEN}, .order = {.seq = SEQ}};
    request(BH_REQUEST_DECODE);
    order(BH_ORDER_RUN, BH_ROLE_DECODE, 1);
    for (uint32_t i = 0; i < BH_COUNT(released); i++) {
        bh_worker_report(
            &rig.worker, &live, released[i], released[i] == BH_REPORT_FAULT ? 1 : 0, 3);
        struct bh_live again;
        cr_assert_eq(look(&again), BH_CALL_NOTHING);
    }
    bh_worker_report(&rig.worker, &live, BH_REPORT_JOINED, 0, 3);
    struct bh_live still;
    cr_assert_eq(look(&still), BH_CALL_RUN, "joined is not released");
    live.order.seq = SEQ - 1;
    bh_worker_report(&rig.worker, &live, BH_REPORT_OK, 0, 3);
    cr_assert_eq(look(&still), BH_CALL_RUN, "the answer to an earlier order answers nothing");
}

static void
on_dirty(void *role, uint32_t page_idx)
{
    struct rig *self = role;
    self->dirty = page_idx;
}

static uint32_t
take_hint(enum bh_hint_kind kind, uint32_t idx)
{
    bh_world_tell(ledger(), BH_ROLE_DECODE, bh_hint_make(kind, idx, GEN));
    return bh_worker_hints(&rig.worker, on_dirty, &rig);
}

Test(worker, hints_lead_to_words)
{
    cr_assert_eq(take_hint(BH_HINT_ORDER, SLOT), 1);
    cr_assert(rig.worker.attend[SLOT] && rig.worker.attend_any);
    cr_assert_not(rig.worker.attend[SLOT + 1]);
    cr_assert_eq(take_hint(BH_HINT_DIRTY, 8), 1);
    cr_assert_eq(rig.dirty, 8);
    cr_assert_eq(metric(BH_METRIC_hints_refused), 0);
}

Test(worker, a_forged_order_hint_is_worth_nothing)
{
    struct bh_live live;
    request(BH_REQUEST_CANCELLED);
    order(BH_ORDER_NONE, 0, 0);
    cr_assert_eq(take_hint(BH_HINT_ORDER, SLOT), 1);
    cr_assert_eq(look(&live), BH_CALL_NOTHING, "only the words say what is ordered");
}

Test(worker, hints_out_of_range_are_refused)
{
    static const struct {
        uint32_t kind;
        uint32_t idx;
    } bad[] = {{BH_HINT_ORDER, 4},
               {BH_HINT_LIST, 0xffffffu},
               {BH_HINT_DIRTY, 0},
               {BH_HINT_DIRTY, 9},
               {BH_HINT_REPORT, 1},
               {BH_HINT_NONE, 1},
               {0xee, 1}};
    for (uint32_t i = 0; i < BH_COUNT(bad); i++) {
        rig.dirty = 77;
        cr_assert_eq(take_hint((enum bh_hint_kind)bad[i].kind, bad[i].idx), 1);
        cr_assert_eq(metric(BH_METRIC_hints_refused), i + 1);
        cr_assert_eq(rig.dirty, 77);
        cr_assert_not(rig.worker.attend_any);
    }
}

Test(worker, lost_hints_become_a_scan)
{
    for (uint32_t i = 0; i < BH_RING_DEPTH + 3; i++) {
        bh_world_tell(ledger(), BH_ROLE_DECODE, bh_hint_make(BH_HINT_ORDER, 0, GEN));
    }
    (void)bh_worker_hints(&rig.worker, on_dirty, &rig);
    for (uint32_t slot = 0; slot < 4; slot++) {
        cr_assert(rig.worker.attend[slot]);
    }
}

Test(worker, a_fault_is_counted_by_its_kind)
{
    struct bh_live live = {.req = {.slot = SLOT, .gen = GEN}, .order = {.seq = SEQ}};
    bh_worker_fault(&rig.worker, &live, BH_VIOLATION_DIGEST, 2);
    for (uint32_t kind = BH_VIOLATION_GENERATION; kind <= BH_VIOLATION_HANDLE; kind++) {
        cr_assert_eq(metric(bh_metric_violation((enum bh_violation)kind)),
                     kind == BH_VIOLATION_DIGEST ? 1 : 0);
    }
    struct bh_report report = bh_report_load(&ledger()->decode_reports, SLOT);
    cr_assert_eq(report.seq, SEQ);
    cr_assert_eq(report.phase, BH_REPORT_FAULT);
    cr_assert_eq(report.cause, BH_VIOLATION_DIGEST);
    cr_assert_eq(report.arg, 2);
}

/* Pages 3, 4, 5 at generation 9, held by the slot, the first `shared` of them cached. */
static void
list(uint32_t shared)
{
    for (uint32_t ord = 0; ord < 3; ord++) {
        bh_list_page_store(&ledger()->requests, SLOT, ord, bh_page_make(0, 3 + ord, 9));
        bh_page_store(&ledger()->pagetable,
                      3 + ord,
                      (struct bh_page_view){.gen = 9,
                                            .state = ord < shared ? BH_PAGE_CACHED : BH_PAGE_HELD,
                                            .owner = ord < shared ? 0 : SLOT});
    }
    bh_list_store(&ledger()->requests, SLOT, (struct bh_list){.cnt = 3, .shared = shared});
}

static const struct bh_live LIVE = {
    .req = {.slot = SLOT, .gen = GEN},
    .state = BH_REQUEST_DECODE,
    .order = {.seq = SEQ, .verb = BH_ORDER_RUN, .role = BH_ROLE_DECODE, .epoch = 1}};

Test(worker, a_sequence_demands_what_the_words_say)
{
    struct bh_sequence sequence;
    uint32_t ord = 99;
    list(1);
    cr_assert(bh_sequence_new(&sequence, &decode()->limits));
    cr_assert_eq(bh_sequence_open(&sequence, decode(), &LIVE, &ord), BH_VIOLATION_NONE);
    cr_assert_eq(sequence.page_cnt, 3);
    bh_sequence_chain(&sequence, decode(), PROMPT);
    uint64_t chain = bh_chain_start(11, 1234);
    for (uint32_t j = 0; j < 3; j++) {
        const struct bh_stamp_want *want = &sequence.wants[j];
        cr_assert_eq(want->gen, 9);
        cr_assert_eq(want->page_idx, 3 + j);
        cr_assert_eq(want->ordinal, j);
        cr_assert_eq(want->writer_slot, SLOT);
        cr_assert_eq(want->writer_gen, GEN);
        cr_assert_eq(want->shared, j == 0 ? 1 : 0);
        cr_assert_eq(want->name_space, 1234);
        if (j < PROMPT / PAGE_TOKENS) {
            chain = bh_chain_next(
                chain, bh_submit_prompt(&decode()->submit, SLOT) + j * PAGE_TOKENS, PAGE_TOKENS);
            cr_assert_eq(want->chain, chain);
        }
    }
    cr_assert_eq(sequence.chained, 2, "a page that is not full has no chain");
    bh_sequence_delete(&sequence);
}

/* What names a page in its chain hash is what is computed, though the tokenizer's memory changes between
   the two: else one prompt's KV could be cached under another's key. */
Test(worker, a_token_is_read_once)
{
    struct bh_sequence sequence;
    uint32_t ord = 99;
    list(0);
    cr_assert(bh_sequence_new(&sequence, &decode()->limits));
    cr_assert_eq(bh_sequence_open(&sequence, decode(), &LIVE, &ord), BH_VIOLATION_NONE);
    uint32_t *prompt = bh_submit_prompt(&ledger()->submit, SLOT);
    uint64_t chain = bh_chain_next(bh_chain_start(11, 1234), prompt, PAGE_TOKENS);
    uint32_t token = prompt[3];
    bh_sequence_chain(&sequence, decode(), PAGE_TOKENS);
    prompt[3] = token + 1;
    cr_assert_eq(bh_sequence_token(&sequence, decode(), 3), token);
    cr_assert_eq(sequence.chains[0], chain);
    prompt[PAGE_TOKENS] = 77;
    cr_assert_eq(
        bh_sequence_token(&sequence, decode(), PAGE_TOKENS), 77, "not read before it is needed");
    bh_sequence_delete(&sequence);
}

Test(worker, a_list_that_names_no_page_is_a_violation)
{
    const struct bh_page bad[] = {
        bh_page_make(0, 0, 9), bh_page_make(0, 9, 9), bh_page_make(1, 4, 9), bh_page_make(0, 4, 0)};
    struct bh_sequence sequence;
    cr_assert(bh_sequence_new(&sequence, &decode()->limits));
    for (uint32_t i = 0; i < BH_COUNT(bad); i++) {
        uint32_t ord = 99;
        list(0);
        bh_list_page_store(&ledger()->requests, SLOT, 1, bad[i]);
        cr_assert_eq(bh_sequence_open(&sequence, decode(), &LIVE, &ord), BH_VIOLATION_HANDLE);
        cr_assert_eq(ord, 1);
        cr_assert_not(sequence.open);
    }
    uint32_t ord = 99;
    list(0);
    bh_list_store(&ledger()->requests, SLOT, (struct bh_list){.cnt = 5});
    cr_assert_eq(bh_sequence_open(&sequence, decode(), &LIVE, &ord), BH_VIOLATION_HANDLE);
    list(0);
    ledger()->requests.records[SLOT].gen = GEN + 1;
    cr_assert_eq(bh_sequence_open(&sequence, decode(), &LIVE, &ord), BH_VIOLATION_HANDLE);
    bh_sequence_delete(&sequence);
}

Test(worker, pages_are_current_only_in_the_life_that_was_listed)
{
    static const struct bh_page_view moved[] = {
        {.gen = 10, .state = BH_PAGE_HELD, .owner = SLOT},
        {.gen = 9, .state = BH_PAGE_HELD, .owner = SLOT + 1},
        {.gen = 9, .state = BH_PAGE_FREE},
        {.gen = 10, .state = BH_PAGE_DIRTY},
        {.gen = 10, .state = BH_PAGE_QUARANTINED},
    };
    struct bh_sequence sequence;
    uint32_t ord = 99;
    list(0);
    cr_assert(bh_sequence_new(&sequence, &decode()->limits));
    cr_assert_eq(bh_sequence_open(&sequence, decode(), &LIVE, &ord), BH_VIOLATION_NONE);
    cr_assert(bh_sequence_current(&sequence, decode(), PROMPT, &ord));
    for (uint32_t i = 0; i < BH_COUNT(moved); i++) {
        list(0);
        bh_page_store(&ledger()->pagetable, 4, moved[i]);
        cr_assert_not(bh_sequence_current(&sequence, decode(), PROMPT, &ord));
        cr_assert_eq(ord, 1);
        cr_assert(bh_sequence_current(&sequence, decode(), PAGE_TOKENS, &ord),
                  "its page 0 is as it was");
    }
    list(0);
    bh_page_store(
        &ledger()->pagetable, 4, (struct bh_page_view){.gen = 9, .state = BH_PAGE_CACHED});
    cr_assert(bh_sequence_current(&sequence, decode(), PROMPT, &ord),
              "cached meanwhile: the same life");
    bh_sequence_delete(&sequence);
}

Test(worker, a_sequence_goes_on_under_its_own_order_only)
{
    struct bh_sequence sequence;
    uint32_t ord;
    list(0);
    request(BH_REQUEST_DECODE);
    order(BH_ORDER_RUN, BH_ROLE_DECODE, 1);
    cr_assert(bh_sequence_new(&sequence, &decode()->limits));
    cr_assert_eq(bh_sequence_open(&sequence, decode(), &LIVE, &ord), BH_VIOLATION_NONE);
    cr_assert(bh_sequence_ordered(&sequence, decode()));
    order(BH_ORDER_STOP, BH_ROLE_DECODE, 1);
    cr_assert_not(bh_sequence_ordered(&sequence, decode()));
    order(BH_ORDER_RUN, BH_ROLE_DECODE, 1);
    request(BH_REQUEST_CANCELLED);
    cr_assert_not(bh_sequence_ordered(&sequence, decode()));
    request(BH_REQUEST_DECODE);
    sequence.live.order.seq = SEQ - 1;
    cr_assert_not(bh_sequence_ordered(&sequence, decode()));
    bh_sequence_delete(&sequence);
}
