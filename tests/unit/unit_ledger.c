/* The ledger's table, row by row: puppets store the words of everybody else, the real role answers.
   What is compared are words, against the protocol's text and hand counts, not against its own code. */
#include "tests/unit/ledger_rig.h"

#include "shm/hook.h"

static struct rig rig;

static const struct rig_ask small = {.tenant = 0, .prompt_cnt = 20, .max_tokens = 12};

static void
make(void)
{
    rig_open(&rig, 40);
}

static void
drop(void)
{
    rig_check(&rig);
    rig_close(&rig);
}

TestSuite(ledger, .init = make, .fini = drop);

#define cr_state(slot, expected) cr_assert_eq(rig_request(&rig, slot).state, expected)
#define cr_end(slot, expected_state, expected_cause)                                               \
    do {                                                                                           \
        cr_assert_eq(rig_request(&rig, slot).state, expected_state);                               \
        cr_assert_eq(rig_request(&rig, slot).cause, expected_cause);                               \
    } while (0)

/* ---- the ordinary way ---- */

Test(ledger, ordinary_life)
{
    rig_submit(&rig, 3, small);
    cr_state(3, BH_REQUEST_PREFILL);
    struct bh_order order = rig_order(&rig, 3);
    cr_assert_eq(order.verb, BH_ORDER_RUN);
    cr_assert_eq(order.role, BH_ROLE_PREFILL);
    cr_assert_eq(order.epoch, 1);
    cr_assert_eq(order.seq, 1);
    /* 20 prompt tokens and the next one lie in two pages; prefill covers 19. */
    cr_assert_eq(rig_list(&rig, 3).cnt, 2);
    cr_assert_eq(rig_list(&rig, 3).shared, 0);
    cr_assert_eq(rig_world(&rig)->requests.rows[3].tokens, 19);
    for (uint32_t ord = 0; ord < 2; ord++) {
        struct bh_page_view page = rig_page(&rig, 3, ord);
        cr_assert_eq(page.state, BH_PAGE_HELD);
        cr_assert_eq(page.owner, 3);
        cr_assert_eq(page.gen, 1);
    }
    rig_report(&rig, 3, BH_REPORT_OK, 19);
    cr_state(3, BH_REQUEST_DECODE);
    order = rig_order(&rig, 3);
    cr_assert_eq(order.role, BH_ROLE_DECODE);
    cr_assert_eq(order.seq, 2);
    cr_assert_eq(rig_page(&rig, 3, 0).state, BH_PAGE_HELD, "nobody has proved it yet");
    rig_report(&rig, 3, BH_REPORT_JOINED, 2);
    cr_assert_eq(rig_page(&rig, 3, 0).state, BH_PAGE_CACHED);
    cr_assert_eq(rig_page(&rig, 3, 1).state, BH_PAGE_HELD, "an open page is never shared");
    rig_log(&rig, 3, 12, BH_FINISH_LENGTH);
    rig_report(&rig, 3, BH_REPORT_OK, 12);
    cr_end(3, BH_REQUEST_DONE, BH_CAUSE_LENGTH);
    cr_assert_eq(rig_list(&rig, 3).cnt, 0);
    cr_assert_eq(rig_order(&rig, 3).verb, BH_ORDER_NONE);
    cr_assert_eq(rig_order(&rig, 3).seq, 2, "orders are numbered for ever");
    rig_tend(&rig);
    cr_state(3, BH_REQUEST_DONE);
    rig_gone(&rig, 3, BH_EDGE_CLOSED);
    cr_state(3, BH_REQUEST_FREE);
    cr_assert_eq(rig_request(&rig, 3).gen, 2);
    cr_assert_eq(rig_pages_in(&rig, BH_PAGE_CACHED), 1);
    cr_assert_eq(rig_pages_in(&rig, BH_PAGE_DIRTY), 1);
    rig_scrub(&rig);
    cr_assert_eq(rig_pages_in(&rig, BH_PAGE_FREE), 38);
    cr_assert_eq(rig_metric(&rig, BH_METRIC_requests_done_length), 1);
    cr_assert_eq(rig_metric(&rig, BH_METRIC_pages_granted), 2);
    cr_assert_eq(rig_metric(&rig, BH_METRIC_prompt_tokens), 20);
}

Test(ledger, a_done_request_leaves_its_sealed_log_pages)
{
    /* 20 + 30 tokens, 49 of them with KV: three full pages of 16, and an open one. */
    rig_to_joined(&rig, 0, (struct rig_ask){.prompt_cnt = 20, .max_tokens = 30});
    rig_report(&rig, 0, BH_REPORT_WANT, 4);
    cr_assert_eq(rig_list(&rig, 0).cnt, 4);
    rig_log(&rig, 0, 30, BH_FINISH_LENGTH);
    rig_report(&rig, 0, BH_REPORT_OK, 30);
    cr_assert_eq(rig_pages_in(&rig, BH_PAGE_CACHED), 3);
    cr_assert_eq(rig_pages_in(&rig, BH_PAGE_DIRTY), 1);
}

Test(ledger, hints_are_not_needed)
{
    rig_submit_quietly(&rig, 1, small);
    bh_ring_skip(&rig_world(&rig)->rx[BH_ROLE_TOKENIZER]);
    rig_run(&rig);
    cr_state(1, BH_REQUEST_FREE);
    rig_tend(&rig);
    cr_state(1, BH_REQUEST_PREFILL);
}

Test(ledger, a_full_ring_makes_it_scan)
{
    struct bh_world *egress = &rig.worlds[BH_ROLE_EGRESS];
    rig_submit_quietly(&rig, 1, small);
    bh_ring_skip(&rig_world(&rig)->rx[BH_ROLE_TOKENIZER]);
    for (uint32_t i = 0; i < BH_RING_DEPTH + 5; i++) {
        bh_world_tell(egress, BH_ROLE_LEDGER, bh_hint_make(BH_HINT_EDGE, 0, 1));
    }
    cr_assert(bh_role_ledger.pending(rig.ledger));
    rig_run(&rig);
    cr_state(1, BH_REQUEST_PREFILL);
    cr_assert_not(bh_role_ledger.pending(rig.ledger));
}

/* ---- row 1: who becomes a request ---- */

Test(ledger, over_long_is_rejected_before_any_page)
{
    rig_submit(&rig, 0, (struct rig_ask){.prompt_cnt = 200, .max_tokens = 57});
    cr_end(0, BH_REQUEST_REJECTED, BH_CAUSE_CONTEXT);
    rig_submit(&rig, 1, (struct rig_ask){.prompt_cnt = UINT32_MAX, .max_tokens = UINT32_MAX});
    cr_end(1, BH_REQUEST_REJECTED, BH_CAUSE_CONTEXT);
    cr_assert_eq(rig_pages_in(&rig, BH_PAGE_FREE), 39);
    cr_assert_eq(rig_metric(&rig, BH_METRIC_pages_granted), 0);
    rig_submit(&rig, 2, (struct rig_ask){.prompt_cnt = 200, .max_tokens = 56});
    cr_state(2, BH_REQUEST_PREFILL);
    cr_assert_eq(rig_metric(&rig, BH_METRIC_requests_rejected), 2);
    rig_gone(&rig, 0, BH_EDGE_CLOSED);
    cr_assert_eq(rig_request(&rig, 0).gen, 2);
}

Test(ledger, a_malformed_record_is_rejected)
{
    rig_submit_quietly(&rig, 0, small);
    rig.worlds[BH_ROLE_TOKENIZER].submit.records[0].slot = 4;
    rig_submit_quietly(&rig, 1, small);
    rig.worlds[BH_ROLE_TOKENIZER].submit.records[1].gen = 9;
    rig_submit_quietly(&rig, 2, (struct rig_ask){.tenant = 4, .prompt_cnt = 5, .max_tokens = 5});
    rig_submit_quietly(&rig, 3, (struct rig_ask){.prompt_cnt = 0, .max_tokens = 5});
    rig_submit_quietly(&rig, 4, small);
    rig.worlds[BH_ROLE_TOKENIZER].submit.records[4].temperature = -1.0f;
    rig_run(&rig);
    for (uint32_t slot = 0; slot < 5; slot++) {
        cr_end(slot, BH_REQUEST_REJECTED, BH_CAUSE_INVALID);
        cr_assert_eq(rig_world(&rig)->requests.records[slot].prompt_cnt, 0);
    }
}

Test(ledger, a_submission_of_another_life_is_none)
{
    bh_sub_store(&rig.worlds[BH_ROLE_TOKENIZER].submit, 0, 2);
    rig_tend(&rig);
    cr_state(0, BH_REQUEST_FREE);
}

Test(ledger, the_queue_has_a_limit)
{
    rig_world(&rig)->control.block->queue_max = 2;
    rig_world(&rig)->control.block->tenant_max = 0;
    for (uint32_t slot = 0; slot < 7; slot++) {
        rig_submit(&rig, slot, small);
    }
    for (uint32_t slot = 0; slot < 4; slot++) {
        cr_state(slot, BH_REQUEST_PREFILL);
    }
    cr_state(4, BH_REQUEST_QUEUED);
    cr_state(5, BH_REQUEST_QUEUED);
    cr_end(6, BH_REQUEST_REJECTED, BH_CAUSE_QUEUE_FULL);
    cr_assert_eq(rig_metric(&rig, BH_METRIC_requests_running), 4);
    cr_assert_eq(rig_metric(&rig, BH_METRIC_requests_waiting), 2);
}

Test(ledger, a_tenant_has_a_limit)
{
    rig_world(&rig)->control.block->tenant_max = 2;
    rig_submit(&rig, 0, small);
    rig_submit(&rig, 1, small);
    rig_submit(&rig, 2, small);
    cr_end(2, BH_REQUEST_REJECTED, BH_CAUSE_TENANT_LIMIT);
    rig_submit(&rig, 3, (struct rig_ask){.tenant = 1, .prompt_cnt = 5, .max_tokens = 5});
    cr_state(3, BH_REQUEST_PREFILL);
    rig_gone(&rig, 0, BH_EDGE_GONE);
    rig_submit(&rig, 4, small);
    cr_state(4, BH_REQUEST_PREFILL);
}

/* ---- row 2: ends from outside ---- */

Test(ledger, gone_stop_and_deadline_end_a_request)
{
    uint64_t deadline_ns = rig.now_ns + 1000000000u;
    for (uint32_t slot = 0; slot < 3; slot++) {
        rig_to_joined(
            &rig,
            slot,
            (struct rig_ask){.prompt_cnt = 20, .max_tokens = 9, .deadline_ns = deadline_ns});
    }
    rig_edge(&rig, 0, 7, BH_EDGE_GONE);
    cr_state(0, BH_REQUEST_DECODE);
    rig_gone(&rig, 0, BH_EDGE_GONE);
    cr_end(0, BH_REQUEST_CANCELLED, BH_CAUSE_GONE);
    rig_gone(&rig, 1, BH_EDGE_STOP);
    cr_end(1, BH_REQUEST_DONE, BH_CAUSE_STOP);
    rig.now_ns = deadline_ns - 1;
    bh_role_ledger.tend(rig.ledger, rig.now_ns);
    cr_state(2, BH_REQUEST_DECODE);
    bh_role_ledger.tend(rig.ledger, deadline_ns);
    cr_end(2, BH_REQUEST_FAILED, BH_CAUSE_DEADLINE);
    rig_gone(&rig, 2, BH_EDGE_GONE);
    cr_end(2, BH_REQUEST_FAILED, BH_CAUSE_DEADLINE);
}

Test(ledger, an_answer_that_was_sent_before_the_report_is_done_not_cancelled)
{
    rig_to_joined(&rig, 0, (struct rig_ask){.prompt_cnt = 20, .max_tokens = 9});
    rig_to_joined(&rig, 1, (struct rig_ask){.prompt_cnt = 20, .max_tokens = 9});
    rig_log(&rig, 0, 9, BH_FINISH_LENGTH);
    rig_gone(&rig, 0, BH_EDGE_CLOSED);
    cr_state(0, BH_REQUEST_DECODE);
    rig_report(&rig, 0, BH_REPORT_OK, 9);
    cr_state(0, BH_REQUEST_FREE);
    cr_assert_eq(rig_metric(&rig, BH_METRIC_requests_done_length), 1);
    cr_assert_eq(rig_metric(&rig, BH_METRIC_requests_cancelled), 0);
    rig_log(&rig, 1, 4, BH_FINISH_NONE);
    rig_gone(&rig, 1, BH_EDGE_CLOSED);
    cr_assert_eq(rig_metric(&rig, BH_METRIC_requests_cancelled), 1, "nobody serves its client");
}

Test(ledger, drain_goes_on_until_it_cancels)
{
    struct bh_word *drain = &rig_world(&rig)->control.block->drain;
    rig_to_joined(&rig, 0, small);
    bh_word_store(drain, BH_DRAIN_REFUSE);
    rig_submit(&rig, 1, small);
    cr_state(0, BH_REQUEST_DECODE);
    cr_state(1, BH_REQUEST_PREFILL);
    bh_word_store(drain, BH_DRAIN_CANCEL);
    rig_run(&rig);
    cr_end(0, BH_REQUEST_CANCELLED, BH_CAUSE_SHUTDOWN);
    cr_end(1, BH_REQUEST_CANCELLED, BH_CAUSE_SHUTDOWN);
}

/* ---- row 3: faults ---- */

Test(ledger, a_fault_fails_one_request_and_quarantines_its_pages)
{
    rig_to_joined(&rig, 0, small);
    rig_to_joined(&rig, 1, small);
    cr_assert_eq(rig_list(&rig, 1).shared, 1);
    /* Slot 1 finds fault with its shared page: that one is suspect, and its own. */
    rig_report(&rig, 1, BH_REPORT_FAULT, 0);
    cr_end(1, BH_REQUEST_FAILED, BH_CAUSE_VIOLATION);
    cr_state(0, BH_REQUEST_DECODE);
    cr_assert_eq(rig_pages_in(&rig, BH_PAGE_QUARANTINED), 1);
    struct bh_page_view shared = rig_page(&rig, 0, 0);
    cr_assert_eq(shared.state, BH_PAGE_CACHED, "slot 0 may still be reading it");
    cr_assert_eq(shared.flags, BH_PAGE_FLAGGED);
    rig_submit(&rig, 2, small);
    cr_assert_eq(rig_list(&rig, 2).shared, 0, "no hits from a flagged page");
    rig_to_free(&rig, 0);
    cr_assert_eq(rig_pages_in(&rig, BH_PAGE_QUARANTINED), 2);
    rig_scrub(&rig);
    rig_tend(&rig);
    cr_assert_eq(rig_pages_in(&rig, BH_PAGE_QUARANTINED), 2, "both workers may have it still");
    rig_reap(&rig, BH_ROLE_DECODE);
    rig_rise(&rig, BH_ROLE_DECODE);
    cr_assert_eq(rig_pages_in(&rig, BH_PAGE_QUARANTINED), 2);
    rig_reap(&rig, BH_ROLE_PREFILL);
    cr_assert_eq(rig_pages_in(&rig, BH_PAGE_QUARANTINED), 0);
    rig_scrub(&rig);
    cr_assert_eq(rig_pages_in(&rig, BH_PAGE_DIRTY), 0);
}

Test(ledger, a_fault_counts_though_the_client_has_left)
{
    rig_to_joined(&rig, 0, small);
    uint32_t pages = rig_list(&rig, 0).cnt;
    struct bh_world *decode = &rig.worlds[BH_ROLE_DECODE];
    struct bh_order order = bh_order_load(&decode->requests, 0);
    struct bh_report fault = {
        .seq = order.seq, .phase = BH_REPORT_FAULT, .cause = BH_VIOLATION_WRITER, .arg = 0};
    bh_report_store(&decode->decode_reports, 0, fault);
    rig_edge(&rig, 0, rig_request(&rig, 0).gen, BH_EDGE_GONE | BH_EDGE_CLOSED);
    cr_assert_eq(rig_pages_in(&rig, BH_PAGE_QUARANTINED), pages);
    cr_assert_eq(rig_pages_in(&rig, BH_PAGE_CACHED), 0, "a suspect page may be hit");
}

Test(ledger, a_fault_under_an_old_order_is_none)
{
    rig_to_joined(&rig, 0, small);
    bh_report_store(&rig.worlds[BH_ROLE_DECODE].decode_reports,
                    0,
                    (struct bh_report){.seq = 1, .phase = BH_REPORT_FAULT, .cause = 1});
    rig_tend(&rig);
    cr_state(0, BH_REQUEST_DECODE);
}

/* ---- row 4: coverage ---- */

Test(ledger, prefill_must_have_written_what_was_ordered)
{
    for (uint32_t slot = 0; slot < 3; slot++) {
        rig_submit(&rig, slot, small);
    }
    rig_report(&rig, 0, BH_REPORT_OK, 18);
    rig_report(&rig, 1, BH_REPORT_OK, 19);
    rig_report(&rig, 2, BH_REPORT_OK, 20);
    cr_end(0, BH_REQUEST_FAILED, BH_CAUSE_COVERAGE);
    cr_state(1, BH_REQUEST_DECODE);
    cr_end(2, BH_REQUEST_FAILED, BH_CAUSE_COVERAGE);
    cr_assert_eq(rig_metric(&rig, BH_METRIC_coverage_mismatches), 2);
}

/* ---- row 5: the finish ---- */

Test(ledger, a_finish_counts_once_decode_let_go_or_is_gone)
{
    rig_to_joined(&rig, 0, small);
    rig_to_joined(&rig, 1, small);
    rig_log(&rig, 0, 3, BH_FINISH_STOP);
    rig_log(&rig, 1, 12, BH_FINISH_LENGTH);
    rig_tend(&rig);
    cr_state(0, BH_REQUEST_DECODE);
    rig_report(&rig, 0, BH_REPORT_OK, 3);
    cr_end(0, BH_REQUEST_DONE, BH_CAUSE_STOP);
    rig_reap(&rig, BH_ROLE_DECODE);
    cr_end(1, BH_REQUEST_DONE, BH_CAUSE_LENGTH);
}

/* ---- reports that no order can have ---- */

Test(ledger, nonsense_ends_the_request_and_nothing_else)
{
    static const struct {
        enum bh_report_phase phase;
        uint32_t arg;
    } bad[] = {{(enum bh_report_phase)6, 0},
               {(enum bh_report_phase)15, 0xffffff},
               {BH_REPORT_STOPPED, 0},
               {BH_REPORT_OK, 0},
               {BH_REPORT_WANT, 3},
               {BH_REPORT_WANT, 0xffffff}};
    for (uint32_t i = 0; i < BH_COUNT(bad); i++) {
        /* 20 + 12 tokens are two pages: to want a third is nonsense. */
        rig_to_joined(&rig, i, small);
        rig_report(&rig, i, bad[i].phase, bad[i].arg);
        cr_end(i, BH_REQUEST_FAILED, BH_CAUSE_COVERAGE);
        bool released = bad[i].phase == BH_REPORT_STOPPED || bad[i].phase == BH_REPORT_OK;
        cr_assert_eq(rig_list(&rig, i).cnt, released ? 0 : 2);
        if (!released) {
            rig_report(&rig, i, BH_REPORT_STOPPED, 0);
            cr_assert_eq(rig_list(&rig, i).cnt, 0);
        }
    }
    rig_to_joined(&rig, 6, small);
    rig_log(&rig, 6, 13, BH_FINISH_NONE);
    rig_tend(&rig);
    cr_end(6, BH_REQUEST_FAILED, BH_CAUSE_COVERAGE);
    rig_to_joined(&rig, 7, small);
    rig_log(&rig, 7, 1, (enum bh_finish)3);
    rig_report(&rig, 7, BH_REPORT_STOPPED, 0);
    cr_end(7, BH_REQUEST_FAILED, BH_CAUSE_COVERAGE);
}

Test(ledger, broken_hints_are_refused_and_counted)
{
    rig_submit(&rig, 0, small);
    static const struct {
        uint32_t from;
        uint32_t kind;
        uint32_t idx;
    } bad[] = {{BH_ROLE_TOKENIZER, BH_HINT_SUBMIT, RIG_SLOTS},
               {BH_ROLE_TOKENIZER, BH_HINT_EDGE, 0},
               {BH_ROLE_EGRESS, BH_HINT_EDGE, 0xffffff},
               {BH_ROLE_EGRESS, BH_HINT_REPORT, 0},
               {BH_ROLE_PREFILL, BH_HINT_SCRUBBED, 1},
               {BH_ROLE_PREFILL, 0xff, 0},
               {BH_ROLE_DECODE, BH_HINT_SCRUBBED, 0},
               {BH_ROLE_DECODE, BH_HINT_SCRUBBED, 40},
               {BH_ROLE_DECODE, BH_HINT_NONE, 0}};
    for (uint32_t i = 0; i < BH_COUNT(bad); i++) {
        bh_world_tell(&rig.worlds[bad[i].from],
                      BH_ROLE_LEDGER,
                      bh_hint_make((enum bh_hint_kind)bad[i].kind, bad[i].idx, 1));
        rig_run(&rig);
        cr_assert_eq(rig_metric(&rig, BH_METRIC_hints_refused), i + 1);
    }
    cr_state(0, BH_REQUEST_PREFILL);
}

/* ---- rows 6 and 11: growth and preemption ---- */

Test(ledger, growth_is_page_by_page_and_bounded)
{
    rig_to_joined(&rig, 0, (struct rig_ask){.prompt_cnt = 20, .max_tokens = 60});
    cr_assert_eq(rig_list(&rig, 0).cnt, 2);
    rig_report(&rig, 0, BH_REPORT_WANT, 2);
    cr_assert_eq(rig_list(&rig, 0).cnt, 2);
    rig_report(&rig, 0, BH_REPORT_WANT, 5);
    cr_assert_eq(rig_list(&rig, 0).cnt, 5);
    for (uint32_t ord = 1; ord < 5; ord++) {
        cr_assert_eq(rig_page(&rig, 0, ord).state, BH_PAGE_HELD);
        cr_assert_eq(rig_page(&rig, 0, ord).owner, 0);
    }
}

/* Two requests of 100 tokens that may become 200, in a pool of 16 pages. */
static void
fill_small_pool(void)
{
    rig_close(&rig);
    rig_open(&rig, 17);
    for (uint32_t slot = 0; slot < 2; slot++) {
        rig_to_joined(
            &rig,
            slot,
            (struct rig_ask){.prompt_cnt = 100, .max_tokens = 100, .first_token = 200 * slot});
        cr_assert_eq(rig_list(&rig, slot).cnt, 7);
    }
    rig_log(&rig, 0, 40, BH_FINISH_NONE);
    rig_report(&rig, 0, BH_REPORT_WANT, 9);
    cr_assert_eq(rig_list(&rig, 0).cnt, 9);
    cr_assert_eq(rig_pages_in(&rig, BH_PAGE_FREE), 0);
}

Test(ledger, the_younger_makes_way_and_comes_back)
{
    fill_small_pool();
    uint64_t ticket = rig_world(&rig)->requests.rows[1].ticket;
    rig_report(&rig, 0, BH_REPORT_WANT, 10);
    cr_assert_eq(rig_order(&rig, 1).verb, BH_ORDER_STOP);
    cr_assert_eq(rig_order(&rig, 0).verb, BH_ORDER_RUN);
    /* However long it takes: nothing leaves a page's life but quiet. */
    for (uint32_t i = 0; i < 100; i++) {
        rig_tend(&rig);
        rig_scrub(&rig);
    }
    cr_state(1, BH_REQUEST_DECODE);
    cr_assert_eq(rig_list(&rig, 1).cnt, 7);
    cr_assert_eq(rig_page(&rig, 1, 6).state, BH_PAGE_HELD);
    rig_report(&rig, 1, BH_REPORT_STOPPED, 0);
    cr_state(1, BH_REQUEST_QUEUED);
    cr_assert_eq(rig_world(&rig)->requests.rows[1].ticket, ticket);
    cr_assert_eq(rig_pages_in(&rig, BH_PAGE_DIRTY), 1);
    cr_assert_eq(rig_list(&rig, 0).cnt, 9, "a dirty page is not free yet");
    rig_scrub(&rig);
    cr_assert_eq(rig_list(&rig, 0).cnt, 10);
    cr_state(1, BH_REQUEST_QUEUED);
    cr_assert_eq(rig_metric(&rig, BH_METRIC_preemptions), 1);
    rig_log(&rig, 0, 1, BH_FINISH_STOP);
    rig_report(&rig, 0, BH_REPORT_OK, 41);
    rig_scrub(&rig);
    cr_state(1, BH_REQUEST_PREFILL);
    cr_assert_eq(rig_list(&rig, 1).shared, 5, "all of its prompt but the page kept as reserve");
}

Test(ledger, the_older_does_not_make_way)
{
    fill_small_pool();
    rig_report(&rig, 1, BH_REPORT_WANT, 8);
    cr_assert_eq(rig_order(&rig, 0).verb, BH_ORDER_RUN);
    cr_assert_eq(rig_order(&rig, 1).verb, BH_ORDER_RUN);
    /* Nobody is admitted meanwhile, however small. */
    rig_submit(&rig, 2, (struct rig_ask){.tenant = 1, .prompt_cnt = 1, .max_tokens = 1});
    cr_state(2, BH_REQUEST_QUEUED);
    rig_log(&rig, 0, 1, BH_FINISH_STOP);
    rig_report(&rig, 0, BH_REPORT_OK, 41);
    rig_scrub(&rig);
    cr_assert_eq(rig_list(&rig, 1).cnt, 8);
    rig_scrub(&rig);
    cr_state(2, BH_REQUEST_PREFILL);
}

Test(ledger, whoever_runs_is_served_before_whoever_queues)
{
    rig_close(&rig);
    rig_open(&rig, 17);
    static const struct rig_ask asks[] = {
        {.prompt_cnt = 100, .max_tokens = 100},
        {.prompt_cnt = 100, .max_tokens = 100, .first_token = 300},
        {.tenant = 1, .prompt_cnt = 60, .max_tokens = 1}};
    /* Slot 5 wants four pages, slot 6 gives back seven, slot 0 comes first in a scan and asks for
       four: it has to wait although there are enough pages for it at that moment. */
    rig_to_joined(&rig, 5, asks[0]);
    rig_submit(&rig, 6, asks[1]);
    rig_report(&rig, 5, BH_REPORT_WANT, 9);
    rig_submit(&rig, 0, asks[2]);
    cr_state(0, BH_REQUEST_QUEUED);
    rig_report(&rig, 5, BH_REPORT_WANT, 13);
    rig_report(&rig, 6, BH_REPORT_STOPPED, 0);
    cr_assert_eq(rig_pages_in(&rig, BH_PAGE_DIRTY), 7);
    for (uint32_t page = 1; page < 17; page++) {
        struct bh_page_view view = bh_page_load(&rig_world(&rig)->pagetable, page);
        if (view.state == BH_PAGE_DIRTY) {
            bh_scrubbed_store(&rig.worlds[BH_ROLE_DECODE].decode_reports, page, view.gen);
        }
    }
    rig_tend(&rig);
    cr_assert_eq(rig_list(&rig, 5).cnt, 13);
    cr_state(0, BH_REQUEST_QUEUED);
    rig_to_free(&rig, 5);
    rig_scrub(&rig);
    cr_state(0, BH_REQUEST_PREFILL);
}

Test(ledger, a_page_that_nobody_lists_any_more_is_found)
{
    /* All pages of slot 0 are cached and stay listed until decode lets go; slot 1 needs every page. */
    rig_close(&rig);
    rig_open(&rig, 17);
    rig_to_joined(&rig, 0, (struct rig_ask){.prompt_cnt = 17, .max_tokens = 16});
    rig_log(&rig, 0, 16, BH_FINISH_NONE);
    rig_gone(&rig, 0, BH_EDGE_STOP);
    cr_end(0, BH_REQUEST_DONE, BH_CAUSE_STOP);
    cr_assert_eq(rig_pages_in(&rig, BH_PAGE_CACHED), 2);
    rig_submit(&rig, 1, (struct rig_ask){.prompt_cnt = 240, .max_tokens = 16, .first_token = 50});
    cr_state(1, BH_REQUEST_QUEUED);
    rig_report(&rig, 0, BH_REPORT_STOPPED, 0);
    rig_scrub(&rig);
    cr_state(1, BH_REQUEST_PREFILL);
}

Test(ledger, cached_pages_are_evicted_before_anybody_stops)
{
    rig_close(&rig);
    rig_open(&rig, 17);
    rig_to_joined(&rig, 0, (struct rig_ask){.prompt_cnt = 100, .max_tokens = 10});
    rig_to_free(&rig, 0);
    rig_scrub(&rig);
    cr_assert_eq(rig_pages_in(&rig, BH_PAGE_CACHED), 6);
    rig_to_joined(
        &rig, 1, (struct rig_ask){.prompt_cnt = 50, .max_tokens = 200, .first_token = 300});
    rig_report(&rig, 1, BH_REPORT_WANT, 11);
    rig_scrub(&rig);
    cr_assert_eq(rig_list(&rig, 1).cnt, 11);
    cr_assert_eq(rig_pages_in(&rig, BH_PAGE_CACHED), 3 + 4, "of the 6, one for it, one as reserve");
    /* The beginning of a prefix outlives its end. */
    rig_submit(&rig, 2, (struct rig_ask){.prompt_cnt = 60, .max_tokens = 1});
    rig_scrub(&rig);
    cr_assert_eq(rig_list(&rig, 2).shared, 3);
}

/* ---- rows 7 to 10: deaths ---- */

Test(ledger, decode_may_die_twice)
{
    rig_to_joined(&rig, 0, (struct rig_ask){.prompt_cnt = 20, .max_tokens = 50});
    rig_log(&rig, 0, 5, BH_FINISH_NONE);
    uint64_t entry = bh_list_page(&rig_world(&rig)->requests, 0, 1).bits;
    for (uint32_t death = 1; death <= 2; death++) {
        rig_reap(&rig, BH_ROLE_DECODE);
        cr_state(0, BH_REQUEST_PREFILL);
        cr_assert_eq(rig_world(&rig)->requests.rows[0].deaths, death);
        cr_assert_eq(rig_order(&rig, 0).role, BH_ROLE_PREFILL);
        cr_assert_eq(rig_world(&rig)->requests.rows[0].tokens, 24, "20 + 5 but the last");
        cr_assert_eq(bh_list_page(&rig_world(&rig)->requests, 0, 1).bits, entry, "pages are kept");
        rig_rise(&rig, BH_ROLE_DECODE);
        rig_report(&rig, 0, BH_REPORT_OK, 24);
        cr_assert_eq(rig_order(&rig, 0).role, BH_ROLE_DECODE);
        cr_assert_eq(rig_order(&rig, 0).epoch, death + 1);
        rig_report(&rig, 0, BH_REPORT_JOINED, 2);
    }
    rig_reap(&rig, BH_ROLE_DECODE);
    cr_end(0, BH_REQUEST_FAILED, BH_CAUSE_WORKER);
    cr_assert_eq(rig_list(&rig, 0).cnt, 0);
    cr_assert_eq(rig_swept(&rig, BH_ROLE_DECODE), 3);
}

Test(ledger, a_death_is_counted_once_an_order)
{
    rig_to_joined(&rig, 0, small);
    /* What a ledger leaves that is killed after counting, before it stores the state. */
    rig_world(&rig)->requests.rows[0].deaths = 1;
    rig_world(&rig)->requests.rows[0].deaths_seq = rig_order(&rig, 0).seq;
    rig_restart(&rig);
    rig_reap(&rig, BH_ROLE_DECODE);
    cr_state(0, BH_REQUEST_PREFILL);
    cr_assert_eq(rig_world(&rig)->requests.rows[0].deaths, 1);
}

Test(ledger, prefill_dies_at_work)
{
    rig_submit(&rig, 0, small);
    rig_reap(&rig, BH_ROLE_PREFILL);
    cr_state(0, BH_REQUEST_PREFILL);
    cr_assert_eq(rig_order(&rig, 0).verb, BH_ORDER_NONE);
    cr_assert_eq(rig_order(&rig, 0).seq, 1);
    cr_assert_eq(rig_list(&rig, 0).cnt, 2);
    cr_assert_eq(rig_world(&rig)->requests.rows[0].deaths, 1);
    rig_tend(&rig);
    cr_assert_eq(rig_world(&rig)->requests.rows[0].deaths, 1);
    rig_rise(&rig, BH_ROLE_PREFILL);
    cr_assert_eq(rig_order(&rig, 0).verb, BH_ORDER_RUN);
    cr_assert_eq(rig_order(&rig, 0).epoch, 2);
    cr_assert_eq(rig_order(&rig, 0).seq, 2);
}

Test(ledger, prefill_dies_when_it_was_through)
{
    rig_reap(&rig, BH_ROLE_DECODE);
    rig_submit(&rig, 0, small);
    rig_report(&rig, 0, BH_REPORT_OK, 19);
    cr_state(0, BH_REQUEST_DECODE);
    cr_assert_eq(rig_order(&rig, 0).role, BH_ROLE_PREFILL, "decode is not up");
    rig_reap(&rig, BH_ROLE_PREFILL);
    cr_state(0, BH_REQUEST_DECODE);
    cr_assert_eq(rig_order(&rig, 0).verb, BH_ORDER_NONE);
    cr_assert_eq(rig_world(&rig)->requests.rows[0].deaths, 0);
    rig_rise(&rig, BH_ROLE_DECODE);
    cr_assert_eq(rig_order(&rig, 0).role, BH_ROLE_DECODE);
    cr_assert_eq(rig_order(&rig, 0).epoch, 2);
}

Test(ledger, nothing_is_ordered_from_the_dead)
{
    rig_reap(&rig, BH_ROLE_PREFILL);
    rig_submit(&rig, 0, small);
    cr_state(0, BH_REQUEST_PREFILL);
    cr_assert_eq(rig_order(&rig, 0).verb, BH_ORDER_NONE);
    cr_assert_eq(rig_swept(&rig, BH_ROLE_PREFILL), 1);
}

/* ---- rows 12 to 14: the way home ---- */

Test(ledger, pages_wait_for_quiet_not_for_time)
{
    rig_to_joined(&rig, 0, small);
    rig_gone(&rig, 0, BH_EDGE_GONE);
    cr_assert_eq(rig_order(&rig, 0).verb, BH_ORDER_STOP);
    rig_gone(&rig, 0, BH_EDGE_GONE | BH_EDGE_CLOSED);
    for (uint32_t i = 0; i < 1000; i++) {
        rig_tend(&rig);
    }
    cr_assert_eq(rig_list(&rig, 0).cnt, 2);
    cr_assert_eq(rig_page(&rig, 0, 1).state, BH_PAGE_HELD);
    cr_state(0, BH_REQUEST_CANCELLED);
    rig_report(&rig, 0, BH_REPORT_STOPPED, 0);
    cr_state(0, BH_REQUEST_FREE);
    cr_assert_eq(rig_pages_in(&rig, BH_PAGE_HELD), 0);
    cr_assert_eq(rig_pages_in(&rig, BH_PAGE_DIRTY), 1);
    rig_tend(&rig);
    cr_assert_eq(rig_pages_in(&rig, BH_PAGE_DIRTY), 1, "not wiped, not free");
}

Test(ledger, reaping_is_quiet_too)
{
    rig_to_joined(&rig, 0, small);
    rig_gone(&rig, 0, BH_EDGE_GONE);
    cr_assert_eq(rig_list(&rig, 0).cnt, 2);
    rig_reap(&rig, BH_ROLE_DECODE);
    cr_assert_eq(rig_list(&rig, 0).cnt, 0);
    cr_assert_eq(rig_order(&rig, 0).verb, BH_ORDER_NONE);
    cr_assert_eq(rig_swept(&rig, BH_ROLE_DECODE), 1);
}

/* ---- row 15: fairness ---- */

Test(ledger, tenants_take_turns)
{
    for (uint32_t slot = 0; slot < 6; slot++) {
        rig_submit(&rig, slot, small);
    }
    rig_submit(&rig, 6, (struct rig_ask){.tenant = 1, .prompt_cnt = 20, .max_tokens = 5});
    cr_state(4, BH_REQUEST_QUEUED);
    cr_state(6, BH_REQUEST_QUEUED);
    rig_gone(&rig, 0, BH_EDGE_GONE);
    cr_state(6, BH_REQUEST_PREFILL);
    cr_state(4, BH_REQUEST_QUEUED);
    rig_gone(&rig, 1, BH_EDGE_GONE);
    cr_state(4, BH_REQUEST_PREFILL);
}

/* ---- sweeps and the end of numbers ---- */

Test(ledger, what_a_dead_tokenizer_only_announced_never_is)
{
    rig_submit(&rig, 0, small);
    rig_submit_quietly(&rig, 1, small);
    bh_ring_skip(&rig_world(&rig)->rx[BH_ROLE_TOKENIZER]);
    rig_reap(&rig, BH_ROLE_TOKENIZER);
    cr_state(0, BH_REQUEST_PREFILL);
    cr_state(1, BH_REQUEST_PREFILL);
    for (uint32_t slot = 2; slot < RIG_SLOTS; slot++) {
        cr_assert_eq(rig_request(&rig, slot).state, BH_REQUEST_FREE);
        cr_assert_eq(rig_request(&rig, slot).gen, 2);
    }
    cr_assert_eq(rig_swept(&rig, BH_ROLE_TOKENIZER), 1);
    rig_tend(&rig);
    cr_assert_eq(rig_request(&rig, 2).gen, 2, "once a death");
    rig_reap(&rig, BH_ROLE_EGRESS);
    cr_assert_eq(rig_swept(&rig, BH_ROLE_EGRESS), 1);
}

static bool
decode_dies_during_scan(const char *place)
{
    struct bh_control *control = &rig.worlds[BH_ROLE_SUPERVISOR].control;
    if (strcmp(place, "ledger.order:stored") == 0 && bh_role_up(control, BH_ROLE_DECODE)) {
        bh_role_reaped_store(control, BH_ROLE_DECODE, 1);
    }
    return false;
}

Test(ledger, a_role_is_swept_only_when_nothing_is_ordered_from_it)
{
    rig_to_joined(&rig, 0, small);
    rig_submit(&rig, 1, small);
    bh_role_reaped_store(&rig.worlds[BH_ROLE_SUPERVISOR].control, BH_ROLE_PREFILL, 1);
    bh_hook_handler = decode_dies_during_scan;
    bh_role_ledger.tend(rig.ledger, rig.now_ns);
    bh_hook_handler = NULL;
    cr_assert_eq(rig_swept(&rig, BH_ROLE_PREFILL), 1);
    cr_assert_eq(rig_order(&rig, 0).role, BH_ROLE_DECODE, "the scan was past slot 0");
    cr_assert_eq(rig_swept(&rig, BH_ROLE_DECODE), 0);
    rig_tend(&rig);
    cr_assert_eq(rig_order(&rig, 0).verb, BH_ORDER_NONE);
    cr_assert_eq(rig_swept(&rig, BH_ROLE_DECODE), 1);
}

Test(ledger, generations_end_instead_of_wrapping)
{
    struct bh_world *world = rig_world(&rig);
    for (uint32_t page = 1; page < 40; page++) {
        bh_page_store(&world->pagetable, page, (struct bh_page_view){.gen = UINT32_MAX - 1});
    }
    bh_request_store(
        &world->requests, 0, (struct bh_request_view){.gen = UINT32_MAX - 1, .state = 0});
    rig_restart(&rig);
    rig_to_joined(&rig, 0, small);
    rig_to_free(&rig, 0);
    cr_assert_eq(rig_pages_in(&rig, BH_PAGE_RETIRED), 2, "page 0, and the one that was written");
    cr_assert_eq(rig_request(&rig, 0).gen, UINT32_MAX);
    bh_sub_store(&world->submit, 0, UINT32_MAX);
    rig_tend(&rig);
    cr_state(0, BH_REQUEST_FREE);
}

Test(ledger, a_pool_that_shrank_refuses_what_it_cannot_hold)
{
    rig_close(&rig);
    rig_open(&rig, 18);
    rig_to_joined(&rig, 0, (struct rig_ask){.prompt_cnt = 30, .max_tokens = 1, .first_token = 9});
    rig_report(&rig, 0, BH_REPORT_FAULT, 1);
    cr_assert_eq(rig_pages_in(&rig, BH_PAGE_QUARANTINED), 2);
    rig_submit(&rig, 1, (struct rig_ask){.prompt_cnt = 200, .max_tokens = 56});
    cr_end(1, BH_REQUEST_REJECTED, BH_CAUSE_CAPACITY);
    rig_submit(&rig, 2, (struct rig_ask){.prompt_cnt = 200, .max_tokens = 40});
    cr_state(2, BH_REQUEST_PREFILL);
}
