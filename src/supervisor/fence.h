/* The fence: between the last instruction of a dead role and the first of its successor lie, in this
   order, waitid, `reaped`, the ledger's sweep, `epoch`, exec. */
#ifndef BH_SUPERVISOR_FENCE_H
#define BH_SUPERVISOR_FENCE_H

#include "src/supervisor/engine.h"

/* bh_fence_start - spawn every role, the ledger first. False: stop (logged). */
BH_MUST_USE bool bh_fence_start(struct bh_engine *engine, uint64_t now_ns);

/* bh_fence_tick - once a tick: beats, start-up grace, and whether all have started. `counted` is
   false for a tick that came late; see bh_pulse_dead. */
void bh_fence_tick(struct bh_engine *engine, uint64_t now_ns, bool counted);

/* bh_fence_reap - the pidfd of `role` is readable: wait for it, store reaped, ring every bell. Sets
   engine->failed when it has died too often. */
void bh_fence_reap(struct bh_engine *engine, uint32_t role, uint64_t now_ns);

/* bh_fence_advance - as often as the loop turns: move on those that wait for a sweep or a pause.
   Returns the longest time the loop may sleep before calling again, in ns. */
uint64_t bh_fence_advance(struct bh_engine *engine, uint64_t now_ns);

#endif
