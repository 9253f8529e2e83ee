/* Status: what one role says about itself: heartbeat, metrics, flight record.

   Purpose    The supervisor sees from the beat that a role is alive; egress prints the metrics;
              bulkheadctl reads the flight record of a role that died.
   Layout     head 64 | beat, epoch, pid line | metrics words | histogram words | flight events
   Writers    Its role, alone (each role has its own object).
   Ordering   Relaxed: numbers only, nothing is concluded from them but "it moved" (beat).
              edge flight.event: an event before the cursor that counts it.
   Progress   Wait-free.
   Death      The last values stand; counters of a role go on where its predecessor stopped.
   Cost       One relaxed store a count. */
#ifndef BH_SHM_STATUS_H
#define BH_SHM_STATUS_H

#include "shm/atomic.h"
#include "shm/object.h"

#define BH_FLIGHT_DEPTH 512u
#define BH_BUCKETS_MAX  24u

enum bh_metric {
#define METRIC(name, kind, prometheus, help) BH_METRIC_##name,
#define HISTOGRAM(name, prometheus, buckets, help)
#include "shm/metrics.def"
#undef METRIC
#undef HISTOGRAM
    BH_METRIC_CNT
};

enum bh_histogram {
#define METRIC(name, kind, prometheus, help)
#define HISTOGRAM(name, prometheus, buckets, help) BH_HISTOGRAM_##name,
#include "shm/metrics.def"
#undef METRIC
#undef HISTOGRAM
    BH_HISTOGRAM_CNT
};

/* One event of the flight record. `what` is a literal's bytes, cut to fit; never client text. */
struct bh_flight_event {
    uint64_t at_ns;
    char what[24];
    uint64_t a;
    uint64_t b;
};

struct bh_histogram_row {
    struct bh_word buckets[BH_BUCKETS_MAX]; /* not cumulative; the last used one is +Inf */
    struct bh_word sum_micro;               /* sum in millionths of the unit */
};

struct bh_status_block {
    struct bh_word beat;
    struct bh_word epoch;
    struct bh_word pid;
    struct bh_word started; /* 1: this incarnation finished its start() */
    uint64_t zero[4];
    struct bh_word metrics[BH_METRIC_CNT];
    struct bh_histogram_row histograms[BH_HISTOGRAM_CNT];
    struct bh_word flight_cnt;
    struct bh_flight_event flight[BH_FLIGHT_DEPTH];
};

struct bh_statusboard {
    struct bh_object_head *head;
    struct bh_status_block *block;
};

size_t bh_statusboard_footprint(const struct bh_limits *limits);
BH_MUST_USE enum bh_status bh_statusboard_new(void *mem, const struct bh_limits *limits);
BH_MUST_USE enum bh_status bh_statusboard_join(void *mem,
                                               size_t bytes,
                                               const struct bh_limits *limits,
                                               struct bh_statusboard *out);
void bh_statusboard_leave(struct bh_statusboard *board);
BH_MUST_USE enum bh_status bh_statusboard_verify(const struct bh_statusboard *board);

static inline void
bh_metric_add(struct bh_statusboard *board, enum bh_metric metric, uint64_t add)
{
    struct bh_word *word = &board->block->metrics[metric];
    bh_word_store_relaxed(word, bh_word_load_relaxed(word) + add);
}

static inline void
bh_metric_set(struct bh_statusboard *board, enum bh_metric metric, uint64_t value)
{
    bh_word_store_relaxed(&board->block->metrics[metric], value);
}

static inline uint64_t
bh_metric_get(const struct bh_statusboard *board, enum bh_metric metric)
{
    return bh_word_load_relaxed(&board->block->metrics[metric]);
}

/* bh_metric_violation - the counter of one kind of violation (1..9). */
enum bh_metric bh_metric_violation(enum bh_violation violation);

/* bh_histogram_observe - count one value (seconds or tokens). */
void bh_histogram_observe(struct bh_statusboard *board, enum bh_histogram histogram, double value);

/* bh_histogram_bounds - upper bounds of the buckets before +Inf; *cnt is at most BH_BUCKETS_MAX - 1. */
const double *bh_histogram_bounds(enum bh_histogram histogram, uint32_t *cnt);

/* Names and help of metrics, from metrics.def. kind: "counter", "gauge" or "histogram". */
struct bh_metric_info {
    const char *prometheus;
    const char *kind;
    const char *help;
};
struct bh_metric_info bh_metric_info(enum bh_metric metric);
struct bh_metric_info bh_histogram_info(enum bh_histogram histogram);

/* bh_flight_note - append one event; overwrites the oldest. */
void bh_flight_note(
    struct bh_statusboard *board, uint64_t now_ns, const char *what, uint64_t a, uint64_t b);

/* bh_flight_read - copy event number `idx` (from 0, in order of writing); false if it was not written
   yet, or was overwritten before the copy was complete. */
bool bh_flight_read(const struct bh_statusboard *board, uint64_t idx, struct bh_flight_event *out);

#endif
