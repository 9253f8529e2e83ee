/* Beats and deaths: each verdict where it must fall, and one step before. */
#include "src/supervisor/pulse.h"

#include <criterion/criterion.h>

#define SECOND UINT64_C(1000000000)

Test(pulse, silence_is_judged_by_counted_ticks)
{
    struct bh_pulse pulse = {.beat = 5};
    for (uint32_t tick = 1; tick < BH_BEAT_TICKS; tick++) {
        cr_expect_not(bh_pulse_dead(&pulse, 5, true));
    }
    cr_expect(bh_pulse_dead(&pulse, 5, true));
}

Test(pulse, any_move_of_the_beat_is_life)
{
    struct bh_pulse pulse = {.beat = 5};
    for (uint32_t tick = 1; tick < BH_BEAT_TICKS; tick++) {
        cr_expect_not(bh_pulse_dead(&pulse, 5, true));
    }
    cr_expect_not(bh_pulse_dead(&pulse, 4, true), "also backwards: the word is the role's own");
    for (uint32_t tick = 1; tick < BH_BEAT_TICKS; tick++) {
        cr_expect_not(bh_pulse_dead(&pulse, 4, true));
    }
    cr_expect(bh_pulse_dead(&pulse, 4, true));
}

Test(pulse, a_paused_machine_does_not_look_dead)
{
    struct bh_pulse pulse = {.beat = 5};
    for (uint32_t tick = 0; tick < 10 * BH_BEAT_TICKS; tick++) {
        cr_expect_not(bh_pulse_dead(&pulse, 5, false));
    }
    for (uint32_t tick = 1; tick < BH_BEAT_TICKS; tick++) {
        cr_expect_not(bh_pulse_dead(&pulse, 5, true));
    }
    cr_expect(bh_pulse_dead(&pulse, 5, true));
}

Test(pulse, pauses_double_and_come_back)
{
    struct bh_deaths deaths = {0};
    static const uint32_t pauses[] = {50, 100, 200, 400, 800, 1600, 3200, 3200, 3200};
    uint64_t now = 100 * SECOND;
    for (size_t i = 0; i < BH_COUNT(pauses); i++) {
        cr_expect_not(bh_deaths_note(&deaths, now, SECOND));
        cr_expect_eq(deaths.pause_ms, pauses[i]);
    }
    cr_expect_not(bh_deaths_note(&deaths, now, 10 * SECOND - 1));
    cr_expect_eq(deaths.pause_ms, 3200);
    cr_expect_not(bh_deaths_note(&deaths, now, 10 * SECOND));
    cr_expect_eq(deaths.pause_ms, 50);
    cr_expect_eq(deaths.cnt, BH_COUNT(pauses) + 2);
}

Test(pulse, too_many_deaths_within_a_minute)
{
    struct bh_deaths deaths = {0};
    uint64_t now = 1000 * SECOND;
    for (uint32_t i = 1; i < BH_RESTARTS_MAX; i++) {
        cr_expect_not(bh_deaths_note(&deaths, now, 0));
    }
    cr_expect(bh_deaths_note(&deaths, now + 60 * SECOND, 0));
}

Test(pulse, the_same_deaths_over_more_than_a_minute)
{
    struct bh_deaths deaths = {0};
    uint64_t now = 1000 * SECOND;
    for (uint32_t i = 0; i < 10 * BH_RESTARTS_MAX; i++) {
        /* 20 deaths span 19 steps; each step is a 19th of a minute and a bit. */
        now += 60 * SECOND / (BH_RESTARTS_MAX - 1) + 1000;
        cr_expect_not(bh_deaths_note(&deaths, now, 0), "death %u", i);
    }
    now -= SECOND;
    cr_expect(bh_deaths_note(&deaths, now, 0), "one second faster is too fast");
}

static struct bh_renewal_view
renewal_view(uint64_t quarantined)
{
    return (struct bh_renewal_view){
        .quarantined = quarantined, .page_cnt = 1001, .list_max = 100, .workers_up = true};
}

Test(pulse, a_round_of_fencing)
{
    struct bh_renewal renewal = {0};
    uint64_t now = 1000 * SECOND;
    cr_expect_eq(bh_renewal_next(&renewal, renewal_view(0), now), BH_ROLE_SUPERVISOR);
    cr_expect_eq(bh_renewal_next(&renewal, renewal_view(50), now), BH_ROLE_SUPERVISOR);
    cr_expect_eq(bh_renewal_next(&renewal, renewal_view(51), now), BH_ROLE_PREFILL);
    struct bh_renewal_view waiting = renewal_view(51);
    waiting.workers_up = false;
    cr_expect_eq(bh_renewal_next(&renewal, waiting, now), BH_ROLE_SUPERVISOR, "one at a time");
    cr_expect_eq(bh_renewal_next(&renewal, renewal_view(51), now), BH_ROLE_DECODE);
    now += BH_RENEWAL_MS * UINT64_C(1000000);
    cr_expect_eq(bh_renewal_next(&renewal, renewal_view(51), now - 1), BH_ROLE_SUPERVISOR, "rest");
    cr_expect_eq(bh_renewal_next(&renewal, renewal_view(51), now), BH_ROLE_PREFILL);
    cr_expect_eq(bh_renewal_next(&renewal, renewal_view(0), now), BH_ROLE_DECODE, "finished");
}

Test(pulse, no_fencing_while_a_worker_is_away)
{
    struct bh_renewal renewal = {0};
    struct bh_renewal_view view = renewal_view(1000);
    view.workers_up = false;
    cr_expect_eq(bh_renewal_next(&renewal, view, SECOND), BH_ROLE_SUPERVISOR);
}

Test(pulse, a_small_pool_is_fenced_for_when_its_longest_sequence_does_not_fit)
{
    struct bh_renewal renewal = {0};
    struct bh_renewal_view view = {.page_cnt = 102, .list_max = 100, .workers_up = true};
    cr_expect_eq(bh_renewal_next(&renewal, view, SECOND), BH_ROLE_SUPERVISOR);
    view.quarantined = 1; /* the spare page */
    cr_expect_eq(bh_renewal_next(&renewal, view, SECOND), BH_ROLE_SUPERVISOR);
    view.quarantined = 2;
    cr_expect_eq(bh_renewal_next(&renewal, view, SECOND), BH_ROLE_PREFILL);
    view.quarantined = UINT64_MAX; /* a spoiled counter must not wrap */
    renewal = (struct bh_renewal){0};
    cr_expect_eq(bh_renewal_next(&renewal, view, SECOND), BH_ROLE_PREFILL);
}
