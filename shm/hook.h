/* Hooks between shared stores: places where tests kill, stop, interleave or inject a fault. In a
   normal build they are nothing at all; the test binary is compiled with BH_HOOKS.
   A place is named "object.verb:where", for example "pool.seal:before_word". */
#ifndef BH_SHM_HOOK_H
#define BH_SHM_HOOK_H

#include "shm/base.h"

#ifdef BH_HOOKS
/* What a test installs. Returns true where the fault of that name is to be injected now. */
extern bool (*bh_hook_handler)(const char *place);

static inline bool
bh_hook(const char *place)
{
    return bh_hook_handler != NULL && bh_hook_handler(place);
}

#define BH_HOOK(place)  ((void)bh_hook(place))
#define BH_FAULT(place) bh_hook(place)
#else
#define BH_HOOK(place)  ((void)0)
#define BH_FAULT(place) false
#endif

#endif
