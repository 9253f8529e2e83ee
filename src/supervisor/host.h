/* What this machine has for us: memory and processors, as the container we may be in limits them. */
#ifndef BH_SUPERVISOR_HOST_H
#define BH_SUPERVISOR_HOST_H

#include "shm/base.h"

struct bh_host {
    uint64_t memory_bytes;    /* of the machine, or the container's limit if that is lower */
    uint64_t available_bytes; /* of it, not taken */
    uint32_t cpu_cnt;         /* processors this process may run on */
};

/* bh_host_read - BH_ESYS: /proc/meminfo is missing or unreadable. */
BH_MUST_USE enum bh_status bh_host_read(struct bh_host *out);

/* bh_host_meminfo - a field of the text of /proc/meminfo, in bytes; false if it is not there. */
bool bh_host_meminfo(const char *text, const char *field, uint64_t *bytes);

/* bh_host_rss - memory of a process in bytes: all of it, and the part that is not shared. Zeros when
   it is gone. */
void bh_host_rss(int pid, uint64_t *rss_bytes, uint64_t *private_bytes);

#endif
