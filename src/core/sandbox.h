/* The system-call filter of a role: sandbox.def, compiled when the process starts. It is the last act
   before the loop, so it allows only what the loop does; what came before is gone for good. */
#ifndef BH_CORE_SANDBOX_H
#define BH_CORE_SANDBOX_H

#include "shm/base.h"

/* bh_sandbox_enter - load the filter of `role` on every thread of this process. A call without a row
   in sandbox.def kills the process from now on (SIGSYS).
   BH_EINVAL not a role that has a filter; BH_ESYS errno: the kernel refused it, nothing is filtered */
BH_MUST_USE enum bh_status bh_sandbox_enter(uint32_t role);

#endif
