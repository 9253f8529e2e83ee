/* The ring between two threads: order, completeness, and that a hint makes the plain bytes
   behind it visible; losses are counted and made up by scanning; a consumer that is replaced
   loses no fact. */
#include "shm/ring.h"

#include "tests/race/race.h"

#define HINT_CNT 60000u

struct shared {
    struct bh_ring_tx tx;
    void *mem;
    struct bh_word facts;       /* how many payloads exist: what a scan reads */
    uint32_t payload[HINT_CNT]; /* plain bytes; only the ring or the word makes them visible */
    uint32_t dropped;           /* the producer's own count */
    uint64_t seed;
};

static uint32_t
payload_of(uint32_t number)
{
    return number * 2654435761u + 17u;
}

static void *
produce(void *arg)
{
    struct shared *shared = arg;
    uint64_t random = shared->seed;
    for (uint32_t i = 0; i < HINT_CNT; i++) {
        shared->payload[i] = payload_of(i);
        /* edge race.fact: release; pairs with acquire in scan. */
        bh_word_store(&shared->facts, i + 1);
        if (bh_ring_publish(&shared->tx, bh_hint_make(BH_HINT_ORDER, 1, i)) == BH_FULL) {
            shared->dropped++;
        }
        if (race_random(&random) % 512 == 0) {
            sched_yield();
        }
    }
    return NULL;
}

/* What a consumer does that may have missed hints: look at the words. */
static uint32_t
scan(struct shared *shared, bool *ok)
{
    /* edge race.fact: acquire; pairs with release in produce. */
    uint32_t cnt = (uint32_t)bh_word_load(&shared->facts);
    for (uint32_t i = 0; i < cnt; i++) {
        *ok = *ok && shared->payload[i] == payload_of(i);
    }
    return cnt;
}

static struct shared *
begin(uint64_t seed, struct bh_ring_rx *rx)
{
    struct shared *shared = fixture_memory(sizeof(*shared), 0);
    size_t bytes = bh_ring_footprint(&FIXTURE_LIMITS);
    shared->mem = fixture_memory(bytes, 0);
    shared->seed = seed;
    BH_CHECK(bh_ring_new(shared->mem, &FIXTURE_LIMITS) == BH_OK);
    BH_CHECK(bh_ring_join_tx(shared->mem, bytes, &FIXTURE_LIMITS, &shared->tx) == BH_OK);
    BH_CHECK(bh_ring_join_rx(shared->mem, bytes, &FIXTURE_LIMITS, rx) == BH_OK);
    return shared;
}

/* Reads hints until the fact count is complete and the ring empty; counts them. */
static uint32_t
drain(struct shared *shared, struct bh_ring_rx *rx, uint64_t random, bool *ok)
{
    uint32_t seen = 0;
    int64_t last = -1;
    for (;;) {
        struct bh_hint hint;
        /* Complete before empty: a hint published after the last look would be missed. */
        bool complete = bh_word_load(&shared->facts) == HINT_CNT;
        enum bh_status status = bh_ring_peek(rx, &hint);
        if (status == BH_EMPTY) {
            if (complete || !race_wait()) {
                *ok = *ok && complete;
                return seen;
            }
            continue;
        }
        if (status != BH_OK) {
            *ok = false;
            return seen;
        }
        uint32_t number = bh_hint_gen(hint);
        *ok = *ok && (int64_t)number > last && number < HINT_CNT &&
              shared->payload[number] == payload_of(number);
        last = number;
        seen++;
        bh_ring_consume(rx);
        if (race_random(&random) % 256 == 0) {
            sched_yield();
        }
    }
}

static void
hints_arrive_in_order_or_are_counted(uint64_t seed)
{
    struct bh_ring_rx rx;
    struct shared *shared = begin(seed, &rx);
    bool ok = true;
    pthread_t producer;
    race_start(&producer, produce, shared);
    uint32_t seen = drain(shared, &rx, seed ^ 1, &ok);
    race_join(producer);
    /* The last hint may have come between the last look and the end. */
    struct bh_hint hint;
    while (bh_ring_peek(&rx, &hint) == BH_OK) {
        seen++;
        bh_ring_consume(&rx);
    }
    bool lost = bh_ring_lost(&rx);
    printf("# seen %u dropped %u\n", seen, shared->dropped);
    race_report(ok, "hints come in order and show the bytes behind them");
    race_report(seen + shared->dropped == HINT_CNT, "every hint is seen or counted as dropped");
    race_report(lost == (shared->dropped > 0), "the consumer learns of losses, and only of losses");
    free(shared->mem);
    free(shared);
}

static void
replaced_consumers_lose_no_fact(uint64_t seed)
{
    struct bh_ring_rx rx;
    struct shared *shared = begin(seed, &rx);
    size_t bytes = bh_ring_footprint(&FIXTURE_LIMITS);
    bool ok = true;
    uint32_t known = 0;
    uint32_t lives = 0;
    uint64_t random = seed ^ 2;
    pthread_t producer;
    race_start(&producer, produce, shared);
    while (known < HINT_CNT && race_wait()) {
        /* A newborn: join, forget the ring, look at the words; then a while of hints. */
        ok = ok && bh_ring_join_rx(shared->mem, bytes, &FIXTURE_LIMITS, &rx) == BH_OK;
        bh_ring_skip(&rx);
        known = scan(shared, &ok);
        lives++;
        uint64_t turns = race_random(&random) % 2000;
        for (uint64_t i = 0; i < turns && known < HINT_CNT; i++) {
            struct bh_hint hint;
            if (bh_ring_lost(&rx)) {
                known = scan(shared, &ok);
            }
            if (bh_ring_peek(&rx, &hint) != BH_OK) {
                sched_yield();
                continue;
            }
            uint32_t number = bh_hint_gen(hint);
            ok = ok && shared->payload[number] == payload_of(number);
            known = number + 1 > known ? number + 1 : known;
            /* Dies here half of the time: after acting, before consuming. */
            if (i + 1 < turns || (lives & 1) == 0) {
                bh_ring_consume(&rx);
            }
        }
    }
    race_join(producer);
    printf("# %u consumers\n", lives);
    race_report(ok && known == HINT_CNT, "replaced consumers know every fact in the end");
    free(shared->mem);
    free(shared);
}

/* The oracle of the first test fires: a consumer that does not ask for losses misses hints. */
static void
a_deaf_consumer_misses_hints(uint64_t seed)
{
    struct bh_ring_rx rx;
    struct shared *shared = begin(seed, &rx);
    pthread_t producer;
    race_start(&producer, produce, shared);
    race_join(producer);
    bool ok = true;
    uint32_t seen = drain(shared, &rx, seed, &ok);
    race_report(ok && seen == BH_RING_DEPTH - 1 && shared->dropped == HINT_CNT - seen,
                "a ring nobody reads keeps its depth and drops the rest");
    race_report(bh_ring_lost(&rx) && scan(shared, &ok) == HINT_CNT && ok,
                "the scan after a loss finds what the ring does not hold");
    free(shared->mem);
    free(shared);
}

int
main(int argc, char **argv)
{
    uint64_t seed = race_begin(argc, argv, 6);
    hints_arrive_in_order_or_are_counted(seed);
    replaced_consumers_lose_no_fact(seed);
    a_deaf_consumer_misses_hints(seed);
    return race_finish();
}
