/* Every region of the topology: created, formatted, filled, and mapped as far as the supervisor
   itself looks at it. */
#ifndef BH_SUPERVISOR_MEMORY_H
#define BH_SUPERVISOR_MEMORY_H

#include "src/supervisor/engine.h"

/* bh_memory_make - after the plan and the key file: all regions with both descriptors, control filled
   in, vocabulary and packed weights written and sealed. The model file can be closed afterwards.
   Logged: BH_ESYS, BH_EINVAL (an object refuses the limits), and what packing says. */
BH_MUST_USE enum bh_status bh_memory_make(struct bh_engine *engine);

/* bh_memory_view - map and join what struct bh_view holds. Logged. */
BH_MUST_USE enum bh_status bh_memory_view(struct bh_engine *engine);

/* bh_memory_verify - map one region after another read-only, join it, let its object verify itself.
   Calls report once a region. Touches a stamp of every block of the pool. */
void bh_memory_verify(const struct bh_engine *engine,
                      void (*report)(void *arg, const char *name, enum bh_status status),
                      void *arg);

#endif
