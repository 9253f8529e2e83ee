/* Starting one incarnation of a role. */
#ifndef BH_SUPERVISOR_SPAWN_H
#define BH_SUPERVISOR_SPAWN_H

#include "src/supervisor/engine.h"

/* bh_spawn - store the next epoch of `role`, then fork and exec /proc/self/exe as `role NAME` with
   exactly the descriptors of its row of the topology. The child is STARTING afterwards.
   BH_ESYS: the system refused (logged); the epoch is stored, and the caller counts it as a death. */
BH_MUST_USE enum bh_status bh_spawn(struct bh_engine *engine, uint32_t role, uint64_t now_ns);

/* bh_spawn_kill - SIGKILL through the pidfd; works on a stopped process too. No-op unless the role is
   STARTING or UP. */
void bh_spawn_kill(struct bh_engine *engine, uint32_t role, const char *reason);

/* bh_spawn_kill_all - the end of the engine: kill every role and wait for each. */
void bh_spawn_kill_all(struct bh_engine *engine);

#endif
