/* Doorbells: who sleeps. One flag per role; the wake-up itself is an eventfd (core/os).

   Purpose    Lets an idle role sleep without losing a fact that arrives at that moment, and lets a
              producer skip the system call when nobody sleeps.
   Layout     head 64 | one line per role: sleeping flag
   Writers    Everybody (cleared by producers, set by the owner); carries no fact.
   Ordering   Sleeper: sleeping = 1; SC fence; look once more; wait. Producer: fact; SC fence; look at
              sleeping. Without both fences each may miss the other's store (edge bell.sleep).
   Progress   Wait-free. The sleeper also wakes every 100 ms.
   Death      A producer killed before its wake is covered by the supervisor, which rings every bell
              when it reaps.
   Cost       A fence and one load a fact. */
#ifndef BH_SHM_BELL_H
#define BH_SHM_BELL_H

#include "shm/atomic.h"
#include "shm/object.h"

struct bh_bell_row {
    struct bh_swap sleeping;
    uint32_t zero[15];
};
static_assert(sizeof(struct bh_bell_row) == BH_CACHE_LINE, "one line a role");

struct bh_bells {
    struct bh_object_head *head;
    struct bh_bell_row *rows; /* [BH_ROLE_CNT] */
};

size_t bh_bells_footprint(const struct bh_limits *limits);
BH_MUST_USE enum bh_status bh_bells_new(void *mem, const struct bh_limits *limits);
BH_MUST_USE enum bh_status
bh_bells_join(void *mem, size_t bytes, const struct bh_limits *limits, struct bh_bells *out);
void bh_bells_leave(struct bh_bells *bells);
BH_MUST_USE enum bh_status bh_bells_verify(const struct bh_bells *bells);

/* bh_bell_doze - announce that `role` is about to sleep; it must look at all its rings and words once
   more afterwards, and sleep only if there is nothing. */
void bh_bell_doze(struct bh_bells *bells, uint32_t role);
/* bh_bell_rise - awake again. */
void bh_bell_rise(struct bh_bells *bells, uint32_t role);
/* bh_bell_pull - after a fact was stored for `role`: does it sleep, so that its eventfd must be
   written? True at most once per doze. */
bool bh_bell_pull(struct bh_bells *bells, uint32_t role);

#endif
