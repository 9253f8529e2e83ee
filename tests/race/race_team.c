/* The team under the race detector: plain memory passes from the leader to the members and back with
   nothing but bh_team_run between, over calls that follow at once and calls that find everyone asleep. */
#include <time.h>

#include "src/core/team.h"
#include "tests/race/race.h"

#define MEMBERS 4u
#define RUNS    20000u

struct sums {
    uint64_t input[MEMBERS];
    uint64_t output[MEMBERS];
};

static void
add_share(void *arg, uint32_t member_idx, uint32_t member_cnt)
{
    struct sums *sums = arg;
    /* each member reads what another wrote in the run before */
    sums->output[member_idx] = sums->input[(member_idx + 1) % member_cnt] + 1;
}

static bool
turn_about(struct bh_team *team, uint32_t runs, bool sleepy)
{
    struct sums sums = {.input = {0}};
    uint64_t budget_ns = race_now_ns() + RACE_BUDGET_NS;
    for (uint32_t run = 1; run <= runs && race_now_ns() < budget_ns; run++) {
        bh_team_run(team, add_share, &sums);
        for (uint32_t i = 0; i < MEMBERS; i++) {
            if (sums.output[i] != run) {
                return false;
            }
            sums.input[i] = sums.output[i];
        }
        if (sleepy) {
            struct timespec nap = {.tv_nsec = 200000}; /* ten times what a member spins */
            (void)nanosleep(&nap, NULL);
        }
    }
    return true;
}

int
main(int argc, char **argv)
{
    (void)race_begin(argc, argv, 2);
    struct bh_team *team = bh_team_new(MEMBERS);
    BH_CHECK(team != NULL);
    race_report(turn_about(team, RUNS, false), "runs that follow at once");
    race_report(turn_about(team, RUNS / 40, true), "runs that find the members asleep");
    bh_team_delete(team);
    return race_finish();
}
