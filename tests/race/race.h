/* What the race tests share: TAP, a seed, a deadline. Plain programs without a test library, so
   that they run under ThreadSanitizer, whose start-up such libraries break. All threads use one
   mapping: it sees a race only there.

   Fixed seed, printed; --seed N changes it. Nothing sleeps to wait: threads yield until a word
   changes, and give up at a deadline, which is a failure. Long loops end early when their budget
   of time is spent: a loaded machine makes fewer rounds, not a failure. */
#ifndef BH_RACE_RACE_H
#define BH_RACE_RACE_H

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "shm/base.h"
#include "tests/unit/shm_fixture.h"

#define RACE_DEADLINE_NS UINT64_C(30000000000)
#define RACE_BUDGET_NS   UINT64_C(2000000000)

static uint64_t race_end_ns;
static uint32_t race_done_cnt;
static uint32_t race_failed_cnt;

static inline uint64_t
race_now_ns(void)
{
    struct timespec now;
    BH_CHECK(clock_gettime(CLOCK_MONOTONIC, &now) == 0);
    return (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
}

/* A number from a seed and a counter, alike on every machine. */
static inline uint64_t
race_random(uint64_t *state)
{
    *state += UINT64_C(0x9e3779b97f4a7c15);
    uint64_t mixed = *state;
    mixed = (mixed ^ (mixed >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    mixed = (mixed ^ (mixed >> 27)) * UINT64_C(0x94d049bb133111eb);
    return mixed ^ (mixed >> 31);
}

/* Begins the program: parses --seed, prints the plan, sets the deadline. Returns the seed. */
static inline uint64_t
race_begin(int argc, char **argv, uint32_t test_cnt)
{
    uint64_t seed = 1;
    if (argc == 3 && strcmp(argv[1], "--seed") == 0) {
        seed = strtoull(argv[2], NULL, 10);
    }
    race_end_ns = race_now_ns() + RACE_DEADLINE_NS;
    printf("TAP version 13\n1..%u\n# seed %llu\n", test_cnt, (unsigned long long)seed);
    return seed;
}

static inline void
race_report(bool ok, const char *what)
{
    race_done_cnt++;
    race_failed_cnt += ok ? 0 : 1;
    printf("%s %u - %s\n", ok ? "ok" : "not ok", race_done_cnt, what);
    fflush(stdout);
}

static inline int
race_finish(void)
{
    return race_failed_cnt == 0 ? 0 : 1;
}

/* One turn of a waiting loop; false when the deadline has passed. */
static inline bool
race_wait(void)
{
    sched_yield();
    return race_now_ns() < race_end_ns;
}

static inline void
race_start(pthread_t *thread, void *(*body)(void *), void *arg)
{
    BH_CHECK(pthread_create(thread, NULL, body, arg) == 0);
}

static inline void
race_join(pthread_t thread)
{
    BH_CHECK(pthread_join(thread, NULL) == 0);
}

/* An object of `kind` made in zeroed memory and joined. */
#define RACE_MAKE(kind, side)                                                                      \
    do {                                                                                           \
        size_t made_bytes = bh_##kind##_footprint(&FIXTURE_LIMITS);                                \
        void *made = fixture_memory(made_bytes, 0);                                                \
        BH_CHECK(bh_##kind##_new(made, &FIXTURE_LIMITS) == BH_OK);                                 \
        BH_CHECK(bh_##kind##_join(made, made_bytes, &FIXTURE_LIMITS, (side)) == BH_OK);            \
    } while (0)

#endif
