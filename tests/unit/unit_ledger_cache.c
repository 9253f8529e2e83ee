/* The prefix cache as requests meet it: what is a hit, what is none, and what is never shared. */
#include "tests/unit/ledger_rig.h"

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

TestSuite(ledger_cache, .init = make, .fini = drop);

Test(ledger_cache, hits_are_whole_pages_and_leave_one_token)
{
    rig_to_joined(&rig, 0, (struct rig_ask){.prompt_cnt = 33, .max_tokens = 4});
    rig_to_free(&rig, 0);
    /* 32 tokens: the last one must be fed, so only the first page is shared. */
    rig_submit(&rig, 1, (struct rig_ask){.prompt_cnt = 32, .max_tokens = 4});
    cr_assert_eq(rig_list(&rig, 1).shared, 1);
    cr_assert_eq(rig_list(&rig, 1).cnt, 3);
    rig_submit(&rig, 2, (struct rig_ask){.prompt_cnt = 33, .max_tokens = 4});
    cr_assert_eq(rig_list(&rig, 2).shared, 2);
    cr_assert_eq(bh_list_page(&rig_world(&rig)->requests, 1, 0).bits,
                 bh_list_page(&rig_world(&rig)->requests, 2, 0).bits);
    cr_assert_eq(rig_metric(&rig, BH_METRIC_cache_hit_tokens), 48);
    cr_assert_eq(rig_metric(&rig, BH_METRIC_cache_query_tokens), 98);
    cr_assert_eq(rig_pages_in(&rig, BH_PAGE_CACHED), 2);
}

Test(ledger_cache, hits_stop_at_namespaces_tenants_and_tokens)
{
    rig_to_joined(&rig, 0, (struct rig_ask){.prompt_cnt = 40, .max_tokens = 4});
    static const struct rig_ask asks[] = {
        {.prompt_cnt = 40, .max_tokens = 4, .name_space = 1234},
        {.prompt_cnt = 40, .max_tokens = 4, .tenant = 1, .name_space = 5000},
        {.prompt_cnt = 40, .max_tokens = 4, .flags = BH_RECORD_PROMPT_LOGPROBS},
        {.prompt_cnt = 40, .max_tokens = 4, .first_token = 1},
        {.prompt_cnt = 40, .max_tokens = 4}};
    for (uint32_t i = 0; i < BH_COUNT(asks); i++) {
        rig_submit(&rig, i + 1, asks[i]);
        cr_assert_eq(rig_list(&rig, i + 1).shared, i == 4 ? 2 : 0, "ask %u", i);
        rig_gone(&rig, i + 1, BH_EDGE_GONE);
        rig_report(&rig, i + 1, BH_REPORT_STOPPED, 0);
    }
}

Test(ledger_cache, of_two_equal_pages_the_first_is_kept)
{
    rig_submit(&rig, 0, small);
    rig_submit(&rig, 1, small);
    for (uint32_t slot = 0; slot < 2; slot++) {
        rig_report(&rig, slot, BH_REPORT_OK, 19);
        rig_report(&rig, slot, BH_REPORT_JOINED, 2);
    }
    cr_assert_eq(rig_page(&rig, 0, 0).state, BH_PAGE_CACHED);
    cr_assert_eq(rig_page(&rig, 1, 0).state, BH_PAGE_HELD);
    rig_to_free(&rig, 1);
    cr_assert_eq(rig_pages_in(&rig, BH_PAGE_CACHED), 1);
}

Test(ledger_cache, what_nobody_proved_is_never_shared)
{
    /* A stop string in an answer that is being prefilled again: DONE, but the pages prove nothing. */
    rig_to_joined(&rig, 0, (struct rig_ask){.prompt_cnt = 8, .max_tokens = 40});
    rig_log(&rig, 0, 20, BH_FINISH_NONE);
    rig_reap(&rig, BH_ROLE_DECODE);
    cr_assert_eq(rig_request(&rig, 0).state, BH_REQUEST_PREFILL);
    rig_gone(&rig, 0, BH_EDGE_STOP);
    rig_report(&rig, 0, BH_REPORT_STOPPED, 0);
    cr_assert_eq(rig_request(&rig, 0).state, BH_REQUEST_DONE);
    cr_assert_eq(rig_pages_in(&rig, BH_PAGE_CACHED), 0);
    cr_assert_eq(rig_pages_in(&rig, BH_PAGE_DIRTY), 1);
}
