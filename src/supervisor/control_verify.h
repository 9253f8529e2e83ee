/* Verification of all shared memory in a process of its own: it maps the pool and everything else
   read-only, so that neither its time nor a fault in what it reads is the supervisor's. */
#ifndef BH_SUPERVISOR_CONTROL_VERIFY_H
#define BH_SUPERVISOR_CONTROL_VERIFY_H

#include <jansson.h>
#include <sys/types.h>

#include "src/supervisor/engine.h"

#define BH_VERIFY_BYTES_MAX 8192

struct bh_verification {
    pid_t pid; /* 0: none runs */
    int fd;    /* its lines: "name status\n"; -1 when none runs */
    uint64_t deadline_ns;
    char lines[BH_VERIFY_BYTES_MAX];
    size_t len;
};

/* bh_verification_start - BH_OK; BH_FULL: one runs already; BH_ESYS: no process or pipe. */
BH_MUST_USE enum bh_status
bh_verification_start(const struct bh_engine *engine, struct bh_verification *run, uint64_t now_ns);

/* bh_verification_step - its descriptor is readable, or time passed. NULL while it runs; then the
   answer, {"ok": all objects are well, "objects": [{"name", "status"}]}, once. */
json_t *bh_verification_step(struct bh_verification *run, uint64_t now_ns);

/* bh_verification_stop - kill it if it runs. */
void bh_verification_stop(struct bh_verification *run);

#endif
