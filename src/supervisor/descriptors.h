/* Descriptors that are not memory: bells, the listening socket, the hand-over pair, the key file. */
#ifndef BH_SUPERVISOR_DESCRIPTORS_H
#define BH_SUPERVISOR_DESCRIPTORS_H

#include "src/supervisor/engine.h"

/* Every descriptor of the supervisor is moved up to here or above, so that the numbers which a role
   expects (from BH_FD_FIRST on) are free when they are put in place between fork and exec. */
#define BH_FD_HIGH 256

/* bh_fd_raise - move fd to BH_FD_HIGH or above, close-on-exec. Returns the new one, or -1 (errno); the
   old one is closed in both cases. -1 is passed through. */
int bh_fd_raise(int fd);

/* bh_descriptors_init - every descriptor of the engine is -1. */
void bh_descriptors_init(struct bh_engine *engine);

/* bh_descriptors_keys - open --api-key-file (or /dev/null) and read it once, so that a broken key
   file is refused here with its line and not by a role that then dies again and again. Sets
   tenant_cnt and auth. BH_OK, or logged: BH_EINVAL, BH_ELIMIT, BH_ESYS. */
BH_MUST_USE enum bh_status bh_descriptors_keys(struct bh_engine *engine);

/* bh_descriptors_make - eventfds, the hand-over pair, /dev/null. Logged: BH_ESYS. */
BH_MUST_USE enum bh_status bh_descriptors_make(struct bh_engine *engine);

/* bh_descriptors_ring - wake one role, or all. */
void bh_descriptors_ring(const struct bh_engine *engine, uint32_t role);
void bh_descriptors_ring_all(const struct bh_engine *engine);

/* bh_listener_bind - bind --host:--port and fill in engine->url with the port that was got; it
   listens only from bh_listener_open on. Logged: BH_EINVAL (no such address), BH_ESYS. */
BH_MUST_USE enum bh_status bh_listener_bind(struct bh_engine *engine);
BH_MUST_USE enum bh_status bh_listener_open(struct bh_engine *engine);

#endif
