/* What a role gives up before it runs: descriptors it should not have been given, its user, its
   capabilities, the file system, the network, signals to others, and life without its supervisor. The
   system-call filter (sandbox.h) comes later, after the role has made its threads and rings. */
#ifndef BH_CORE_PRIVILEGES_H
#define BH_CORE_PRIVILEGES_H

#include "src/core/world.h"

/* User and group of role r when the engine is started as root: one each, so that no role can reopen
   another's memory or send it a signal. */
#define BH_ROLE_UID_BASE 64000u

/* bh_privileges_check_fds - are exactly the descriptors open that the topology gives `role`? Closes
   nothing; logs which one is missing or too many. Needs /proc. */
bool bh_privileges_check_fds(uint32_t role);

/* bh_privileges_drop - give up all of the above, for this thread and all it will create. Call it
   before threads exist. Where the kernel is older than a mechanism, or the start was not by root, one
   log line says what is missing, and the rest holds.
   BH_ESYS errno: a mechanism that exists refused; logged. BH_EINVAL: the supervisor is gone */
BH_MUST_USE enum bh_status bh_privileges_drop(const struct bh_world *world);

#endif
