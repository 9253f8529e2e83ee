/* Status: a role's numbers and its flight record. Names, help and buckets are in metrics.c. */
#include "shm/status.h"

#include <string.h>

#define STATUSBOARD_VERSION 1u

/* Larger sums would not fit the word; no second or token count of this engine comes near. */
#define SUM_STEP_MAX 1e15

size_t
bh_statusboard_footprint(const struct bh_limits *limits)
{
    if (!bh_limits_ok(limits)) {
        return 0;
    }
    return (size_t)bh_round_up(sizeof(struct bh_object_head) + sizeof(struct bh_status_block),
                               BH_CACHE_LINE);
}

enum bh_status
bh_statusboard_new(void *mem, const struct bh_limits *limits)
{
    size_t bytes = bh_statusboard_footprint(limits);
    enum bh_status status = bh_object_prepare(mem, bytes);
    if (status != BH_OK) {
        return status;
    }
    memset((uint8_t *)mem + sizeof(struct bh_object_head), 0, sizeof(struct bh_status_block));
    bh_object_publish(mem, bh_object_layout("statusboard", STATUSBOARD_VERSION, limits), bytes);
    return BH_OK;
}

enum bh_status
bh_statusboard_join(void *mem,
                    size_t bytes,
                    const struct bh_limits *limits,
                    struct bh_statusboard *out)
{
    size_t footprint = bh_statusboard_footprint(limits);
    if (footprint == 0) {
        return BH_EINVAL;
    }
    uint64_t layout = bh_object_layout("statusboard", STATUSBOARD_VERSION, limits);
    enum bh_status status = bh_object_check(mem, bytes, layout, footprint);
    if (status == BH_OK) {
        void *block = (uint8_t *)mem + sizeof(struct bh_object_head);
        *out = (struct bh_statusboard){.head = mem, .block = block};
    }
    return status;
}

void
bh_statusboard_leave(struct bh_statusboard *board)
{
    *board = (struct bh_statusboard){0};
}

enum bh_status
bh_statusboard_verify(const struct bh_statusboard *board)
{
    const struct bh_status_block *block = board->block;
    enum bh_status status = bh_object_verify(board->head);
    if (status != BH_OK) {
        return status;
    }
    if (bh_word_load_relaxed(&block->started) > 1 ||
        (bh_word_load_relaxed(&block->epoch) >> 32) != 0) {
        return BH_ECORRUPT;
    }
    for (size_t i = 0; i < BH_COUNT(block->zero); i++) {
        if (block->zero[i] != 0) {
            return BH_ECORRUPT;
        }
    }
    return BH_OK;
}

void
bh_histogram_observe(struct bh_statusboard *board, enum bh_histogram histogram, double value)
{
    BH_CHECK(histogram < BH_HISTOGRAM_CNT);
    uint32_t bound_cnt;
    const double *bounds = bh_histogram_bounds(histogram, &bound_cnt);
    struct bh_histogram_row *row = &board->block->histograms[histogram];
    /* A clock that stepped back gives a negative time, and a NaN compares with nothing: both
       count as zero instead of spoiling the sum for ever. */
    double counted = value > 0 ? value : 0;
    uint32_t bucket = 0;
    while (bucket < bound_cnt && counted > bounds[bucket]) {
        bucket++;
    }
    struct bh_word *count = &row->buckets[bucket];
    bh_word_store_relaxed(count, bh_word_load_relaxed(count) + 1);
    double micro = counted * 1e6;
    uint64_t step = (uint64_t)(micro < SUM_STEP_MAX ? micro + 0.5 : SUM_STEP_MAX);
    bh_word_store_relaxed(&row->sum_micro, bh_word_load_relaxed(&row->sum_micro) + step);
}

void
bh_flight_note(
    struct bh_statusboard *board, uint64_t now_ns, const char *what, uint64_t a, uint64_t b)
{
    struct bh_status_block *block = board->block;
    uint64_t cnt = bh_word_load_relaxed(&block->flight_cnt);
    struct bh_flight_event *event = &block->flight[cnt % BH_FLIGHT_DEPTH];
    *event = (struct bh_flight_event){.at_ns = now_ns, .a = a, .b = b};
    /* Always NUL-terminated: the rest of `what` is zero already. */
    memcpy(event->what, what, strnlen(what, sizeof(event->what) - 1));
    /* edge flight.event: release; pairs with acquire in bh_flight_read. */
    bh_word_store(&block->flight_cnt, cnt + 1);
}

bool
bh_flight_read(const struct bh_statusboard *board, uint64_t idx, struct bh_flight_event *out)
{
    const struct bh_status_block *block = board->block;
    /* edge flight.event: acquire; pairs with release in bh_flight_note. */
    uint64_t cnt = bh_word_load(&block->flight_cnt);
    if (idx >= cnt) {
        return false;
    }
    struct bh_flight_event event = block->flight[idx % BH_FLIGHT_DEPTH];
    bh_fence_acquire();
    /* The writer touches the place of event cnt - DEPTH before it counts event cnt: an event is
       whole only if that has not begun. */
    if (idx + BH_FLIGHT_DEPTH <= bh_word_load(&block->flight_cnt)) {
        return false;
    }
    event.what[sizeof(event.what) - 1] = 0;
    *out = event;
    return true;
}
