/* The team: everyone runs once a call, what was written before is seen, idle members sleep and wake. */
#include "src/core/team.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <time.h>

struct tally {
    uint32_t input;
    uint32_t seen[BH_TEAM_MAX];
    uint32_t cnt[BH_TEAM_MAX];
    uint32_t member_cnt;
};

static void
count_share(void *arg, uint32_t member_idx, uint32_t member_cnt)
{
    struct tally *tally = arg;
    tally->cnt[member_idx]++;
    tally->seen[member_idx] = tally->input;
    if (member_idx == 0) {
        tally->member_cnt = member_cnt;
    }
}

static void
check_team(uint32_t member_cnt, uint32_t runs)
{
    struct tally tally = {0};
    struct bh_team *team = bh_team_new(member_cnt);
    cr_assert_not_null(team);
    cr_assert_eq(bh_team_cnt(team), member_cnt);
    for (uint32_t run = 1; run <= runs; run++) {
        tally.input = run;
        bh_team_run(team, count_share, &tally);
        for (uint32_t i = 0; i < member_cnt; i++) {
            cr_assert(tally.cnt[i] == run && tally.seen[i] == run);
        }
    }
    for (uint32_t i = member_cnt; i < BH_TEAM_MAX; i++) {
        cr_assert_eq(tally.cnt[i], 0);
    }
    cr_assert_eq(tally.member_cnt, member_cnt);
    bh_team_delete(team);
}

Test(team, everyone_runs_once_a_call)
{
    check_team(1, 100);
    check_team(2, 5000);
    check_team(5, 200);
    check_team(BH_TEAM_MAX, 20);
}

Test(team, refuses_sizes_outside_its_limits)
{
    cr_assert_null(bh_team_new(0));
    cr_assert_eq(errno, EINVAL);
    cr_assert_null(bh_team_new(BH_TEAM_MAX + 1));
    bh_team_delete(NULL);
}

/* Members that parked in the kernel come back; a team that was never run can be deleted. */
Test(team, sleeps_and_wakes)
{
    struct tally tally = {0};
    struct bh_team *team = bh_team_new(3);
    cr_assert_not_null(team);
    for (uint32_t run = 1; run <= 5; run++) {
        struct timespec nap = {.tv_nsec = 2000000}; /* a hundred times what a member spins */
        (void)nanosleep(&nap, NULL);
        tally.input = run;
        bh_team_run(team, count_share, &tally);
        cr_assert(tally.cnt[0] == run && tally.cnt[1] == run && tally.cnt[2] == run);
    }
    struct timespec before;
    struct timespec after;
    struct timespec nap = {.tv_nsec = 50000000};
    (void)nanosleep(&nap, NULL);
    (void)clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &before);
    (void)nanosleep(&nap, NULL);
    (void)clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &after);
    int64_t used_ns =
        (after.tv_sec - before.tv_sec) * 1000000000 + (after.tv_nsec - before.tv_nsec);
    cr_assert_lt(used_ns, 10000000, "an idle team used %lld ns of 50 ms", (long long)used_ns);
    bh_team_delete(team);
    team = bh_team_new(4);
    bh_team_delete(team);
}

Test(team, shares_cover_everything_once)
{
    for (uint32_t total = 0; total < 70; total++) {
        for (uint32_t members = 1; members < 9; members++) {
            uint32_t next = 0;
            for (uint32_t i = 0; i < members; i++) {
                uint32_t from = 0;
                uint32_t to = 0;
                bh_team_share(total, 16, i, members, &from, &to);
                cr_assert(from == next && to >= from && (from % 16 == 0 || from == total));
                next = to;
            }
            cr_assert_eq(next, total);
        }
    }
}
