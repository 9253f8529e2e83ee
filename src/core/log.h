/* The log: one line an event on stderr, key=value, unit in the key. At start, at changes of state and
   for rare faults; never per request or token, and never a client's text. */
#ifndef BH_CORE_LOG_H
#define BH_CORE_LOG_H

#include "shm/base.h"

/* bh_log - "bulkhead ROLE: message\n" in one write. Lines above 1000 bytes are cut. */
void bh_log(const char *format, ...) BH_PRINTF(1, 2);
/* bh_log_role - name printed in front; a literal. */
void bh_log_role(const char *name);
/* bh_log_limited - like bh_log, but at most one line a second from each call site; the next one says
   how many were left out. */
struct bh_log_site {
    uint64_t last_ns;
    uint64_t left_out;
};
void bh_log_limited(struct bh_log_site *site, uint64_t now_ns, const char *format, ...)
    BH_PRINTF(3, 4);

#endif
