/* io_uring for the two roles that have sockets. A ring is made disabled, restricted to the operations
   its role needs, and only then enabled: the system-call filter does not see what is done through a
   ring, so the ring has its own. Includes <liburing.h>, with what Debian 12's liburing lacks. */
#ifndef BH_CORE_URING_H
#define BH_CORE_URING_H

#include <liburing.h>

#include "shm/base.h"

struct bh_uring {
    struct io_uring ring;
};

/* bh_uring_new - a ring of `entries` that accepts only the operations ops[0..op_cnt) (IORING_OP_*).
   BH_ESYS with errno: the kernel has no io_uring, or it is switched off. */
BH_MUST_USE enum bh_status
bh_uring_new(struct bh_uring *uring, uint32_t entries, const uint8_t *ops, uint32_t op_cnt);

/* bh_uring_sqe - a free submission entry; submits what is queued when the ring is full. Never NULL. */
struct io_uring_sqe *bh_uring_sqe(struct bh_uring *uring);

/* bh_uring_submit - hand queued entries to the kernel without waiting. */
void bh_uring_submit(struct bh_uring *uring);

/* bh_uring_wait - submit, then wait for a completion or timeout_ns. */
void bh_uring_wait(struct bh_uring *uring, uint64_t timeout_ns);

/* bh_uring_next - take the next completion: its user data and result. False: none. `more`: a multishot
   operation goes on. */
bool bh_uring_next(struct bh_uring *uring, uint64_t *user_data, int32_t *result, bool *more);

#endif
