/* The words of decode, egress and the workers: token log, edge and reports. Each is packed by
   hand-written constants, and each verify fires on spoiled words and not on good ones. */
#include "shm/edge.h"

#include <criterion/criterion.h>

#include "shm/report.h"
#include "shm/tokenlog.h"
#include "tests/unit/shm_fixture.h"

#define MAKE(object)                                                                               \
    static struct bh_##object make_##object(void)                                                  \
    {                                                                                              \
        size_t bytes = bh_##object##_footprint(&FIXTURE_LIMITS);                                   \
        void *mem = fixture_memory(bytes, 0xa5);                                                   \
        struct bh_##object side;                                                                   \
        cr_assert_eq(bh_##object##_new(mem, &FIXTURE_LIMITS), BH_OK);                              \
        cr_assert_eq(bh_##object##_join(mem, bytes, &FIXTURE_LIMITS, &side), BH_OK);               \
        return side;                                                                               \
    }
MAKE(tokenlog)
MAKE(edge)
MAKE(reports)

Test(words, log_keeps_its_fields)
{
    struct bh_tokenlog log = make_tokenlog();
    cr_assert_eq(bh_log_load(&log, 3).cnt, 0);
    bh_log_store(
        &log, 3, (struct bh_log_view){.gen = 0x01020304u, .finish = BH_FINISH_LENGTH, .cnt = 0x40});
    cr_assert_eq(bh_word_load(&log.words[3]), UINT64_C(0x0102030402000040));
    struct bh_log_view view = bh_log_load(&log, 3);
    cr_assert_eq(view.gen, 0x01020304u);
    cr_assert_eq(view.finish, BH_FINISH_LENGTH);
    cr_assert_eq(view.cnt, 0x40);
    cr_assert_eq(bh_log_load(&log, 2).gen, 0);
}

Test(words, log_has_room_for_a_whole_sequence_of_every_slot)
{
    struct bh_tokenlog log = make_tokenlog();
    for (uint32_t slot = 0; slot < 4; slot++) {
        for (uint32_t idx = 0; idx < 64; idx++) {
            *bh_log_token(&log, slot, idx) = slot * 1000 + idx;
            bh_log_logprob_at(&log, slot, idx)->logprob = (float)(slot * 100 + idx);
            bh_log_logprob_at(&log, slot, idx)->top[19].token = idx;
        }
    }
    for (uint32_t slot = 0; slot < 4; slot++) {
        for (uint32_t idx = 0; idx < 64; idx++) {
            cr_assert_eq(*bh_log_token(&log, slot, idx), slot * 1000 + idx);
            cr_assert_eq(bh_log_logprob_at(&log, slot, idx)->logprob, (float)(slot * 100 + idx));
        }
    }
    uint8_t *end = (uint8_t *)(bh_log_logprob_at(&log, 3, 63) + 1);
    cr_assert_leq(end, (uint8_t *)log.head + bh_tokenlog_footprint(&FIXTURE_LIMITS));
    cr_assert_eq(bh_tokenlog_verify(&log), BH_OK);
}

Test(words, log_verify)
{
    struct bh_tokenlog log = make_tokenlog();
    const struct bh_log_view bad[] = {
        {.gen = 1, .finish = (enum bh_finish)3}, {.gen = 1, .cnt = 65}, {.gen = 0, .cnt = 1}};
    for (size_t i = 0; i < BH_COUNT(bad); i++) {
        bh_log_store(&log, 1, bad[i]);
        cr_assert_eq(bh_tokenlog_verify(&log), BH_ECORRUPT, "word %zu", i);
    }
    bh_log_store(&log, 1, (struct bh_log_view){.gen = 1, .finish = BH_FINISH_STOP, .cnt = 64});
    cr_assert_eq(bh_tokenlog_verify(&log), BH_OK);
}

Test(words, edge_keeps_its_fields)
{
    struct bh_edge edge = make_edge();
    bh_edge_store(&edge,
                  1,
                  (struct bh_edge_view){.gen = 0x01020304u,
                                        .flags = BH_EDGE_STOP | BH_EDGE_CLOSED,
                                        .stop_at = 0xabcdefu});
    cr_assert_eq(bh_word_load(&edge.edges[1]), UINT64_C(0x0102030406abcdef));
    struct bh_edge_view view = bh_edge_load(&edge, 1);
    cr_assert_eq(view.gen, 0x01020304u);
    cr_assert_eq(view.flags, BH_EDGE_STOP | BH_EDGE_CLOSED);
    cr_assert_eq(view.stop_at, 0xabcdefu);
    bh_answer_store(
        &edge,
        2,
        (struct bh_answer_view){.answered = 0x11234u, .offered = 0xabcdefu, .sent = 0x123456u});
    cr_assert_eq(bh_word_load(&edge.answers[2]), UINT64_C(0x1234abcdef123456));
    struct bh_answer_view answer = bh_answer_load(&edge, 2);
    cr_assert_eq(answer.answered, 0x1234u, "counts modulo 2^16");
    cr_assert_eq(answer.offered, 0xabcdefu);
    cr_assert_eq(answer.sent, 0x123456u);
    bh_conn_closed_store(&edge, 2, 0xfffffffeu);
    cr_assert_eq(bh_conn_closed_load(&edge, 2), 0xfffffffeu);
    cr_assert_eq(bh_edge_verify(&edge), BH_OK);
}

Test(words, edge_verify)
{
    struct bh_edge edge = make_edge();
    bh_edge_store(&edge, 3, (struct bh_edge_view){.gen = 1, .flags = 8});
    cr_assert_eq(bh_edge_verify(&edge), BH_ECORRUPT, "unknown flag");
    bh_edge_store(&edge, 3, (struct bh_edge_view){.gen = 0, .flags = BH_EDGE_GONE});
    cr_assert_eq(bh_edge_verify(&edge), BH_ECORRUPT, "generation 0");
    bh_edge_store(&edge, 3, (struct bh_edge_view){.gen = 1, .flags = BH_EDGE_GONE});
    cr_assert_eq(bh_edge_verify(&edge), BH_OK);
    bh_answer_store(&edge, 2, (struct bh_answer_view){.offered = 4, .sent = 5});
    cr_assert_eq(bh_edge_verify(&edge), BH_ECORRUPT, "sent before it was offered");
    bh_answer_store(&edge, 2, (struct bh_answer_view){.offered = 5, .sent = 4});
    cr_assert_eq(bh_edge_verify(&edge), BH_OK);
    bh_word_store(&edge.closed[2], UINT64_C(1) << 32);
    cr_assert_eq(bh_edge_verify(&edge), BH_ECORRUPT, "a generation is 32 bits");
}

Test(words, reports_keep_their_fields)
{
    struct bh_reports reports = make_reports();
    bh_report_store(
        &reports,
        2,
        (struct bh_report){
            .seq = 0x01020304u, .phase = BH_REPORT_FAULT, .cause = 9, .arg = 0xabcdefu});
    cr_assert_eq(bh_word_load(&reports.words[2]), UINT64_C(0x0102030459abcdef));
    struct bh_report report = bh_report_load(&reports, 2);
    cr_assert_eq(report.seq, 0x01020304u);
    cr_assert_eq(report.phase, BH_REPORT_FAULT);
    cr_assert_eq(report.cause, 9);
    cr_assert_eq(report.arg, 0xabcdefu);
    bh_scrubbed_store(&reports, 8, 0xffffffffu);
    cr_assert_eq(bh_scrubbed_load(&reports, 8), 0xffffffffu);
    cr_assert_eq(bh_scrubbed_load(&reports, 7), 0);
    cr_assert_eq(bh_reports_verify(&reports), BH_OK);
}

Test(words, released_begins_with_ok)
{
    cr_assert_not(bh_report_released(BH_REPORT_NONE));
    cr_assert_not(bh_report_released(BH_REPORT_JOINED));
    cr_assert_not(bh_report_released(BH_REPORT_WANT));
    cr_assert(bh_report_released(BH_REPORT_OK));
    cr_assert(bh_report_released(BH_REPORT_STOPPED));
    cr_assert(bh_report_released(BH_REPORT_FAULT));
}

Test(words, reports_verify)
{
    struct bh_reports reports = make_reports();
    const struct bh_report bad[] = {{.seq = 1, .phase = (enum bh_report_phase)6},
                                    {.seq = 0, .phase = BH_REPORT_OK},
                                    {.seq = 1, .phase = BH_REPORT_OK, .cause = 1},
                                    {.seq = 1, .phase = BH_REPORT_FAULT, .cause = 0},
                                    {.seq = 1, .phase = BH_REPORT_FAULT, .cause = 10}};
    for (size_t i = 0; i < BH_COUNT(bad); i++) {
        bh_report_store(&reports, 3, bad[i]);
        cr_assert_eq(bh_reports_verify(&reports), BH_ECORRUPT, "word %zu", i);
    }
    bh_report_store(
        &reports, 3, (struct bh_report){.seq = 1, .phase = BH_REPORT_FAULT, .cause = 9});
    cr_assert_eq(bh_reports_verify(&reports), BH_OK);
    bh_word_store(&reports.scrubbed[8], UINT64_C(1) << 32);
    cr_assert_eq(bh_reports_verify(&reports), BH_ECORRUPT);
}
