/* What roles say of themselves and the supervisor of all: status, control and bells. */
#include "shm/status.h"

#include <criterion/criterion.h>
#include <math.h>
#include <signal.h>

#include "shm/bell.h"
#include "shm/control.h"
#include "tests/unit/shm_fixture.h"

static struct bh_statusboard
make_board(void)
{
    size_t bytes = bh_statusboard_footprint(&FIXTURE_LIMITS);
    void *mem = fixture_memory(bytes, 0xa5);
    struct bh_statusboard board;
    cr_assert_eq(bh_statusboard_new(mem, &FIXTURE_LIMITS), BH_OK);
    cr_assert_eq(bh_statusboard_join(mem, bytes, &FIXTURE_LIMITS, &board), BH_OK);
    return board;
}

Test(status, metrics_count_apart)
{
    struct bh_statusboard board = make_board();
    for (int metric = 0; metric < BH_METRIC_CNT; metric++) {
        cr_assert_eq(bh_metric_get(&board, (enum bh_metric)metric), 0);
        bh_metric_add(&board, (enum bh_metric)metric, (uint64_t)metric + 1);
        bh_metric_add(&board, (enum bh_metric)metric, 1);
    }
    for (int metric = 0; metric < BH_METRIC_CNT; metric++) {
        cr_assert_eq(bh_metric_get(&board, (enum bh_metric)metric), (uint64_t)metric + 2);
    }
    bh_metric_set(&board, BH_METRIC_pages_free, 5);
    cr_assert_eq(bh_metric_get(&board, BH_METRIC_pages_free), 5);
}

Test(status, violations_find_their_counter)
{
    static const enum bh_metric EXPECTED[] = {BH_METRIC_violations_generation,
                                              BH_METRIC_violations_filled,
                                              BH_METRIC_violations_place,
                                              BH_METRIC_violations_writer,
                                              BH_METRIC_violations_namespace,
                                              BH_METRIC_violations_digest,
                                              BH_METRIC_violations_recheck,
                                              BH_METRIC_violations_nonfinite,
                                              BH_METRIC_violations_handle};
    for (int violation = 1; violation <= 9; violation++) {
        cr_assert_eq(bh_metric_violation((enum bh_violation)violation), EXPECTED[violation - 1]);
    }
}

Test(status, no_violation_has_no_counter, .signal = SIGABRT)
{
    (void)bh_metric_violation(BH_VIOLATION_NONE);
}

Test(status, names_are_whole_and_distinct)
{
    for (int i = 0; i < BH_METRIC_CNT; i++) {
        struct bh_metric_info info = bh_metric_info((enum bh_metric)i);
        bool counter = strcmp(info.kind, "counter") == 0;
        cr_assert(counter || strcmp(info.kind, "gauge") == 0, "%s", info.prometheus);
        cr_assert_eq(counter, strstr(info.prometheus, "_total") != NULL, "%s", info.prometheus);
        cr_assert_gt(strlen(info.help), 10);
        for (int j = 0; j < i; j++) {
            cr_assert_str_neq(info.prometheus, bh_metric_info((enum bh_metric)j).prometheus);
        }
    }
    struct bh_metric_info ttft = bh_histogram_info(BH_HISTOGRAM_ttft_seconds);
    cr_assert_str_eq(ttft.prometheus, "vllm:time_to_first_token_seconds");
    cr_assert_str_eq(ttft.kind, "histogram");
}

Test(status, bounds_ascend_and_leave_room_for_infinity)
{
    for (int i = 0; i < BH_HISTOGRAM_CNT; i++) {
        uint32_t cnt = 0;
        const double *bounds = bh_histogram_bounds((enum bh_histogram)i, &cnt);
        cr_assert_gt(cnt, 10);
        cr_assert_lt(cnt, BH_BUCKETS_MAX);
        for (uint32_t j = 1; j < cnt; j++) {
            cr_assert_gt(bounds[j], bounds[j - 1]);
        }
    }
}

Test(status, values_fall_into_their_buckets)
{
    struct bh_statusboard board = make_board();
    uint32_t cnt = 0;
    const double *bounds = bh_histogram_bounds(BH_HISTOGRAM_itl_seconds, &cnt);
    const struct bh_histogram_row *row = &board.block->histograms[BH_HISTOGRAM_itl_seconds];
    for (uint32_t i = 0; i < cnt; i++) {
        bh_histogram_observe(&board, BH_HISTOGRAM_itl_seconds, bounds[i]);
        cr_assert_eq(bh_word_load_relaxed(&row->buckets[i]), 1, "a bound belongs to its bucket");
    }
    bh_histogram_observe(&board, BH_HISTOGRAM_itl_seconds, 81.0);
    cr_assert_eq(bh_word_load_relaxed(&row->buckets[cnt]), 1, "+Inf");
    double sum = 81.0;
    for (uint32_t i = 0; i < cnt; i++) {
        sum += bounds[i];
    }
    cr_assert_float_eq((double)bh_word_load_relaxed(&row->sum_micro), sum * 1e6, 1.0);
}

Test(status, values_that_are_no_numbers_do_not_spoil_the_sum)
{
    struct bh_statusboard board = make_board();
    const struct bh_histogram_row *row = &board.block->histograms[BH_HISTOGRAM_ttft_seconds];
    bh_histogram_observe(&board, BH_HISTOGRAM_ttft_seconds, NAN);
    bh_histogram_observe(&board, BH_HISTOGRAM_ttft_seconds, -4.0);
    cr_assert_eq(bh_word_load_relaxed(&row->buckets[0]), 2);
    cr_assert_eq(bh_word_load_relaxed(&row->sum_micro), 0);
    bh_histogram_observe(&board, BH_HISTOGRAM_ttft_seconds, INFINITY);
    cr_assert_eq(bh_word_load_relaxed(&row->buckets[22]), 1);
    cr_assert_eq(bh_word_load_relaxed(&row->sum_micro), UINT64_C(1000000000000000));
}

Test(status, the_flight_record_keeps_the_last_events)
{
    struct bh_statusboard board = make_board();
    struct bh_flight_event event;
    cr_assert_not(bh_flight_read(&board, 0, &event), "nothing was written");
    const uint64_t total = BH_FLIGHT_DEPTH + 10;
    for (uint64_t i = 0; i < total; i++) {
        bh_flight_note(
            &board, 1000 + i, i % 2 == 0 ? "short" : "a text longer than its field is", i, i * i);
    }
    cr_assert_eq(bh_word_load(&board.block->flight_cnt), total);
    for (uint64_t i = 0; i < total + 2; i++) {
        bool kept = i > 10 && i < total;
        cr_assert_eq(bh_flight_read(&board, i, &event), kept, "event %lu", (unsigned long)i);
        if (kept) {
            cr_assert_eq(event.at_ns, 1000 + i);
            cr_assert_eq(event.a, i);
            cr_assert_eq(event.b, i * i);
            cr_assert_str_eq(event.what, i % 2 == 0 ? "short" : "a text longer than its ");
        }
    }
}

Test(status, verify_finds_spoiled_fields)
{
    struct bh_statusboard board = make_board();
    bh_word_store(&board.block->started, 2);
    cr_assert_eq(bh_statusboard_verify(&board), BH_ECORRUPT);
    bh_word_store(&board.block->started, 1);
    cr_assert_eq(bh_statusboard_verify(&board), BH_OK);
    board.block->zero[3] = 1;
    cr_assert_eq(bh_statusboard_verify(&board), BH_ECORRUPT);
}

static struct bh_control
make_control(void)
{
    size_t bytes = bh_control_footprint(&FIXTURE_LIMITS);
    void *mem = fixture_memory(bytes, 0xa5);
    struct bh_control control;
    cr_assert_eq(bh_control_new(mem, &FIXTURE_LIMITS), BH_OK);
    cr_assert_eq(bh_control_join(mem, bytes, &control), BH_OK);
    return control;
}

Test(control, carries_the_limits)
{
    struct bh_control control = make_control();
    cr_assert_eq(memcmp(&control.block->limits, &FIXTURE_LIMITS, sizeof(FIXTURE_LIMITS)), 0);
    size_t bytes = bh_control_footprint(&FIXTURE_LIMITS);
    struct bh_control again;
    control.block->limits.slots++;
    cr_assert_eq(bh_control_join(control.head, bytes, &again), BH_ECORRUPT, "other valid limits");
    control.block->limits.slots = 0;
    cr_assert_eq(bh_control_join(control.head, bytes, &again), BH_ECORRUPT, "impossible limits");
    cr_assert_eq(bh_control_verify(&control), BH_ECORRUPT);
    control.block->limits = FIXTURE_LIMITS;
    cr_assert_eq(bh_control_join(control.head, bytes, &again), BH_OK);
}

Test(control, a_role_is_up_while_its_incarnation_is_not_reaped)
{
    struct bh_control control = make_control();
    cr_assert_not(bh_role_up(&control, BH_ROLE_DECODE), "not started yet");
    bh_role_epoch_store(&control, BH_ROLE_DECODE, 1);
    cr_assert(bh_role_up(&control, BH_ROLE_DECODE));
    cr_assert_not(bh_role_up(&control, BH_ROLE_PREFILL));
    bh_role_reaped_store(&control, BH_ROLE_DECODE, 1);
    cr_assert_not(bh_role_up(&control, BH_ROLE_DECODE));
    bh_role_epoch_store(&control, BH_ROLE_DECODE, 2);
    cr_assert(bh_role_up(&control, BH_ROLE_DECODE));
    cr_assert_eq(bh_control_verify(&control), BH_OK);
    bh_role_reaped_store(&control, BH_ROLE_DECODE, 3);
    cr_assert_eq(bh_control_verify(&control), BH_ECORRUPT, "reaped before it was born");
}

Test(control, verify_finds_spoiled_fields)
{
    struct bh_control control = make_control();
    cr_assert_eq(bh_control_verify(&control), BH_OK);
    memset(control.block->model_name, 'a', sizeof(control.block->model_name));
    cr_assert_eq(bh_control_verify(&control), BH_ECORRUPT, "unterminated name");
    control.block->model_name[BH_MODEL_NAME_MAX - 1] = 0;
    cr_assert_eq(bh_control_verify(&control), BH_OK);
    bh_word_store(&control.block->drain, 3);
    cr_assert_eq(bh_control_verify(&control), BH_ECORRUPT);
    bh_word_store(&control.block->drain, BH_DRAIN_CANCEL);
    control.block->auth = 2;
    cr_assert_eq(bh_control_verify(&control), BH_ECORRUPT);
}

Test(bell, rings_once_for_a_sleeper_and_not_for_others)
{
    size_t bytes = bh_bells_footprint(&FIXTURE_LIMITS);
    void *mem = fixture_memory(bytes, 0xa5);
    struct bh_bells bells;
    cr_assert_eq(bh_bells_new(mem, &FIXTURE_LIMITS), BH_OK);
    cr_assert_eq(bh_bells_join(mem, bytes, &FIXTURE_LIMITS, &bells), BH_OK);
    cr_assert_not(bh_bell_pull(&bells, BH_ROLE_LEDGER), "awake");
    bh_bell_doze(&bells, BH_ROLE_LEDGER);
    cr_assert_not(bh_bell_pull(&bells, BH_ROLE_DECODE), "another role");
    cr_assert(bh_bell_pull(&bells, BH_ROLE_LEDGER));
    cr_assert_not(bh_bell_pull(&bells, BH_ROLE_LEDGER), "once a doze");
    bh_bell_doze(&bells, BH_ROLE_LEDGER);
    bh_bell_rise(&bells, BH_ROLE_LEDGER);
    cr_assert_not(bh_bell_pull(&bells, BH_ROLE_LEDGER), "it rose by itself");
    cr_assert_eq(bh_bells_verify(&bells), BH_OK);
    bh_swap_store(&bells.rows[BH_ROLE_LEDGER].sleeping, 2);
    cr_assert_eq(bh_bells_verify(&bells), BH_ECORRUPT);
}
