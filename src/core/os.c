/* System calls of roles: clock, randomness, waiting. Nothing here allocates, and nothing here waits
   longer than its caller said. */
#include "src/core/os.h"

#include <errno.h>
#include <linux/futex.h>
#include <poll.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define NS_PER_S UINT64_C(1000000000)

static uint64_t
clock_ns(clockid_t clock)
{
    struct timespec now;
    BH_CHECK(clock_gettime(clock, &now) == 0);
    return (uint64_t)now.tv_sec * NS_PER_S + (uint64_t)now.tv_nsec;
}

static struct timespec
timespec_of(uint64_t ns)
{
    return (struct timespec){.tv_sec = (time_t)(ns / NS_PER_S), .tv_nsec = (long)(ns % NS_PER_S)};
}

uint64_t
bh_os_now_ns(void)
{
    return clock_ns(CLOCK_MONOTONIC);
}

uint64_t
bh_os_unix_s(void)
{
    return clock_ns(CLOCK_REALTIME) / NS_PER_S;
}

void
bh_os_random(void *out, size_t bytes)
{
    uint8_t *to = out;
    while (bytes > 0) {
        ssize_t got = getrandom(to, bytes, 0);
        if (got < 0 && errno == EINTR) {
            continue;
        }
        /* Keys and namespaces are made of these bytes: no second-best source. */
        BH_CHECK(got > 0);
        to += got;
        bytes -= (size_t)got;
    }
}

void
bh_os_event_signal(int fd)
{
    uint64_t one = 1;
    ssize_t wrote;
    do {
        wrote = write(fd, &one, sizeof(one));
    } while (wrote < 0 && errno == EINTR);
    /* A full counter (EAGAIN) is a signal already; a sleeper that misses one looks again in 100 ms. */
}

bool
bh_os_event_wait(int fd, uint64_t timeout_ns)
{
    struct pollfd poll_fd = {.fd = fd, .events = POLLIN};
    struct timespec timeout = timespec_of(timeout_ns);
    if (ppoll(&poll_fd, 1, &timeout, NULL) <= 0 || (poll_fd.revents & POLLIN) == 0) {
        return false;
    }
    uint64_t count = 0;
    /* The owner is the only reader, so what poll saw is still there and this cannot block. */
    return read(fd, &count, sizeof(count)) == (ssize_t)sizeof(count);
}

void
bh_os_futex_wait(struct bh_swap *word, uint32_t expected, uint64_t timeout_ns)
{
    struct timespec timeout = timespec_of(timeout_ns);
    /* Shared, not private: the word is in memory of several processes. Every return is one that the
       caller must expect: it looks at its word again. */
    (void)syscall(SYS_futex, &word->bits, FUTEX_WAIT, expected, &timeout, NULL, 0);
}

void
bh_os_futex_wake(struct bh_swap *word, uint32_t cnt)
{
    (void)syscall(SYS_futex, &word->bits, FUTEX_WAKE, cnt, NULL, NULL, 0);
}
