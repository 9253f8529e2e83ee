/* A team of compute threads that run one function together and wait for each other. The leader is
   the thread that calls; the others spin briefly, then park on a futex, so that an idle team costs
   nothing and a busy one does not enter the kernel between two matrix products. */
#ifndef BH_CORE_TEAM_H
#define BH_CORE_TEAM_H

#include "shm/base.h"

#define BH_TEAM_MAX 64

struct bh_team;

/* Called once on each member: member 0 is the caller of bh_team_run. */
typedef void bh_team_fn(void *arg, uint32_t member_idx, uint32_t member_cnt);

/* bh_team_new - a team of member_cnt (1..BH_TEAM_MAX) including the caller; starts member_cnt - 1
   threads. NULL: the system refused a thread (errno) or no memory. Must be called before the
   seccomp filter is loaded. Deleting joins the threads. */
struct bh_team *bh_team_new(uint32_t member_cnt);
void bh_team_delete(struct bh_team *team);
uint32_t bh_team_cnt(const struct bh_team *team);

/* bh_team_run - run fn(arg, i, cnt) on all members and return when all have returned. Everything the
   caller wrote before is visible to the members, and everything they wrote is visible after. A team
   of one calls fn directly. Not reentrant. */
void bh_team_run(struct bh_team *team, bh_team_fn *fn, void *arg);

/* The contiguous share of [0, total) that falls to one member, in units of `unit`. */
static inline void
bh_team_share(uint32_t total,
              uint32_t unit,
              uint32_t member_idx,
              uint32_t member_cnt,
              uint32_t *from,
              uint32_t *to)
{
    uint64_t units = (total + unit - 1) / unit;
    *from = (uint32_t)bh_min_u64(units * member_idx / member_cnt * unit, total);
    *to = (uint32_t)bh_min_u64(units * (member_idx + 1) / member_cnt * unit, total);
}

#endif
