/* The door to the system for roles: clock, randomness, waiting. Nothing else of src/ makes system
   calls, but io_uring in its own pair of files (uring.c), the supervisor and the sandbox. */
#ifndef BH_CORE_OS_H
#define BH_CORE_OS_H

#include "shm/atomic.h"

uint64_t bh_os_now_ns(void);                /* CLOCK_MONOTONIC */
uint64_t bh_os_unix_s(void);                /* CLOCK_REALTIME */
void bh_os_random(void *out, size_t bytes); /* getrandom; aborts if the system has none */

/* Eventfds: signal adds one; wait returns true if it was signalled within timeout_ns and clears it. */
void bh_os_event_signal(int fd);
bool bh_os_event_wait(int fd, uint64_t timeout_ns);

/* Futex on a shared word: wait while it is `expected`, at most timeout_ns (spurious returns happen). */
void bh_os_futex_wait(struct bh_swap *word, uint32_t expected, uint64_t timeout_ns);
void bh_os_futex_wake(struct bh_swap *word, uint32_t cnt);

#endif
