/* Metrics: their names and help as data, and the bucket tables of the histograms. */
#include "shm/status.h"

/* Bounds that dashboards of other engines already use, so that their panels fit. */
static const double BUCKETS_TTFT[] = {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1,
                                      0.25,  0.5,   0.75, 1,    2.5,  5,    7.5,  10,
                                      20,    40,    80,   160,  640,  2560};
static const double BUCKETS_ITL[] = {
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80};
static const double BUCKETS_LATENCY[] = {0.3, 0.5, 0.8, 1,  1.5, 2,   2.5, 5,   10,   15,  20,
                                         30,  40,  50,  60, 120, 240, 480, 960, 1920, 7680};
static const double BUCKETS_TOKENS[] = {1,     2,   5,    10,   20,   50,    100,
                                        200,   500, 1000, 2000, 5000, 10000, 20000,
                                        50000, 1e5, 2e5,  5e5,  1e6,  2e6,   5e6};

static_assert(BH_COUNT(BUCKETS_TTFT) < BH_BUCKETS_MAX, "the last bucket is +Inf");
static_assert(BH_COUNT(BUCKETS_ITL) < BH_BUCKETS_MAX, "the last bucket is +Inf");
static_assert(BH_COUNT(BUCKETS_LATENCY) < BH_BUCKETS_MAX, "the last bucket is +Inf");
static_assert(BH_COUNT(BUCKETS_TOKENS) < BH_BUCKETS_MAX, "the last bucket is +Inf");

/* The violations stand in both lists in one order: a kind's counter is found by its number. */
static_assert((int)BH_METRIC_violations_filled - (int)BH_METRIC_violations_generation ==
                  (int)BH_VIOLATION_FILLED - (int)BH_VIOLATION_GENERATION,
              "violations are in order");
static_assert((int)BH_METRIC_violations_handle - (int)BH_METRIC_violations_generation ==
                  (int)BH_VIOLATION_HANDLE - (int)BH_VIOLATION_GENERATION,
              "violations are in order");

enum bh_metric
bh_metric_violation(enum bh_violation violation)
{
    BH_CHECK(violation >= BH_VIOLATION_GENERATION && violation <= BH_VIOLATION_HANDLE);
    return (enum bh_metric)((int)BH_METRIC_violations_generation + (int)violation -
                            (int)BH_VIOLATION_GENERATION);
}

const double *
bh_histogram_bounds(enum bh_histogram histogram, uint32_t *cnt)
{
    static const struct {
        const double *bounds;
        uint32_t cnt;
    } TABLE[BH_HISTOGRAM_CNT] = {
#define METRIC(name, kind, prometheus, help)
#define HISTOGRAM(name, prometheus, buckets, help)                                                 \
    [BH_HISTOGRAM_##name] = {BUCKETS_##buckets, BH_COUNT(BUCKETS_##buckets)},
#include "shm/metrics.def"
#undef METRIC
#undef HISTOGRAM
    };
    BH_CHECK(histogram < BH_HISTOGRAM_CNT);
    *cnt = TABLE[histogram].cnt;
    return TABLE[histogram].bounds;
}

struct bh_metric_info
bh_metric_info(enum bh_metric metric)
{
#define COUNTER "counter"
#define GAUGE   "gauge"
    static const struct bh_metric_info TABLE[BH_METRIC_CNT] = {
#define METRIC(name, kind, prometheus, help) [BH_METRIC_##name] = {prometheus, kind, help},
#define HISTOGRAM(name, prometheus, buckets, help)
#include "shm/metrics.def"
#undef METRIC
#undef HISTOGRAM
    };
#undef COUNTER
#undef GAUGE
    BH_CHECK(metric < BH_METRIC_CNT);
    return TABLE[metric];
}

struct bh_metric_info
bh_histogram_info(enum bh_histogram histogram)
{
    static const struct bh_metric_info TABLE[BH_HISTOGRAM_CNT] = {
#define METRIC(name, kind, prometheus, help)
#define HISTOGRAM(name, prometheus, buckets, help)                                                 \
    [BH_HISTOGRAM_##name] = {prometheus, "histogram", help},
#include "shm/metrics.def"
#undef METRIC
#undef HISTOGRAM
    };
    BH_CHECK(histogram < BH_HISTOGRAM_CNT);
    return TABLE[histogram];
}
