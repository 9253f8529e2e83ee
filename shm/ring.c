/* The ring: hints through ck_ring, with a bound on how far the other side's cursor is believed. */
#include "shm/ring.h"

#include <string.h>

#include "shm/ck_ring_calls.h"
#include "shm/hook.h"

#define RING_VERSION 1u

#if defined(__SANITIZE_THREAD__)
#define RING_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define RING_TSAN 1
#endif
#endif

#ifdef RING_TSAN
void __tsan_acquire(void *address);
void __tsan_release(void *address);
#define ORDER_ACQUIRE(address) __tsan_acquire(address)
#define ORDER_RELEASE(address) __tsan_release(address)
#else
#define ORDER_ACQUIRE(address) ((void)(address))
#define ORDER_RELEASE(address) ((void)(address))
#endif

struct bh_ring_shared {
    struct bh_object_head head;
    _Alignas(BH_CACHE_LINE) struct ck_ring ck;
    _Alignas(BH_CACHE_LINE) struct bh_word dropped;
    _Alignas(BH_CACHE_LINE) struct bh_hint slots[BH_RING_DEPTH];
};
static_assert((BH_RING_DEPTH & (BH_RING_DEPTH - 1)) == 0, "ck_ring masks its cursors");
static_assert(sizeof(struct bh_hint) == 8, "a hint is one store");

size_t
bh_ring_footprint(const struct bh_limits *limits)
{
    return bh_limits_ok(limits) ? sizeof(struct bh_ring_shared) : 0;
}

static uint64_t
fingerprint(const struct bh_limits *limits)
{
    return bh_object_layout("ring", RING_VERSION, limits);
}

enum bh_status
bh_ring_new(void *mem, const struct bh_limits *limits)
{
    size_t bytes = bh_ring_footprint(limits);
    enum bh_status status = bh_object_prepare(mem, bytes);
    if (status != BH_OK) {
        return status;
    }
    struct bh_ring_shared *shared = mem;
    memset(&shared->ck, 0, bytes - offsetof(struct bh_ring_shared, ck));
    shared->ck.size = BH_RING_DEPTH;
    shared->ck.mask = BH_RING_DEPTH - 1;
    bh_object_publish(mem, fingerprint(limits), bytes);
    return BH_OK;
}

static enum bh_status
join(void *mem, size_t bytes, const struct bh_limits *limits)
{
    size_t footprint = bh_ring_footprint(limits);
    if (footprint == 0) {
        return BH_EINVAL;
    }
    return bh_object_check(mem, bytes, fingerprint(limits), footprint);
}

enum bh_status
bh_ring_join_tx(void *mem, size_t bytes, const struct bh_limits *limits, struct bh_ring_tx *out)
{
    enum bh_status status = join(mem, bytes, limits);
    if (status == BH_OK) {
        *out = (struct bh_ring_tx){.shared = mem};
    }
    return status;
}

enum bh_status
bh_ring_join_rx(void *mem, size_t bytes, const struct bh_limits *limits, struct bh_ring_rx *out)
{
    enum bh_status status = join(mem, bytes, limits);
    if (status == BH_OK) {
        struct bh_ring_shared *shared = mem;
        /* edge ring.dropped: acquire; pairs with release in bh_ring_publish. */
        *out =
            (struct bh_ring_rx){.shared = shared, .dropped_seen = bh_word_load(&shared->dropped)};
    }
    return status;
}

void
bh_ring_leave_tx(struct bh_ring_tx *ring)
{
    *ring = (struct bh_ring_tx){0};
}

void
bh_ring_leave_rx(struct bh_ring_rx *ring)
{
    *ring = (struct bh_ring_rx){0};
}

enum bh_status
bh_ring_verify(const struct bh_ring_rx *ring)
{
    const struct bh_ring_shared *shared = ring->shared;
    enum bh_status status = bh_object_verify(&shared->head);
    if (status != BH_OK) {
        return status;
    }
    return bh_ck_ring_distance(&shared->ck) < BH_RING_DEPTH ? BH_OK : BH_ECORRUPT;
}

enum bh_status
bh_ring_publish(struct bh_ring_tx *ring, struct bh_hint hint)
{
    struct bh_ring_shared *shared = ring->shared;
    /* A consumer's cursor that is out of bounds looks like a full ring: the hint is dropped and
       counted, the consumer scans, and nothing is overwritten that it might still read. */
    if (bh_ck_ring_distance(&shared->ck) < BH_RING_DEPTH - 1) {
        /* edge ring.publish: release; pairs with acquire in bh_ring_peek.
           Makes whatever the hint points at visible to who sees the hint. */
        ORDER_RELEASE(&shared->ck);
        BH_HOOK("ring.publish:before_tail");
        if (bh_ck_ring_put(&shared->ck, shared->slots, hint)) {
            BH_HOOK("ring.publish:after_tail");
            if (BH_FAULT("ring.publish:spoil")) {
                bh_ck_ring_advance(&shared->ck, BH_RING_DEPTH);
            }
            return BH_OK;
        }
    }
    /* edge ring.dropped: release; pairs with acquire in bh_ring_lost.
       The fact behind the dropped hint is visible to the scan that the counter causes. */
    bh_word_store(&shared->dropped, bh_word_load_relaxed(&shared->dropped) + 1);
    return BH_FULL;
}

enum bh_status
bh_ring_peek(struct bh_ring_rx *ring, struct bh_hint *out)
{
    struct bh_ring_shared *shared = ring->shared;
    if (bh_ck_ring_distance(&shared->ck) >= BH_RING_DEPTH) {
        return BH_ECORRUPT;
    }
    struct bh_hint hint;
    if (!bh_ck_ring_look(&shared->ck, shared->slots, &hint)) {
        return BH_EMPTY;
    }
    /* edge ring.publish: acquire; pairs with release in bh_ring_publish. */
    ORDER_ACQUIRE(&shared->ck);
    *out = hint;
    return BH_OK;
}

void
bh_ring_consume(struct bh_ring_rx *ring)
{
    struct bh_ring_shared *shared = ring->shared;
    unsigned int distance = bh_ck_ring_distance(&shared->ck);
    BH_HOOK("ring.consume:before_head");
    /* Nothing there, or a spoiled cursor: stay. The peer may have moved its tail since the peek, so
       this is no bug of ours. */
    if (distance > 0 && distance < BH_RING_DEPTH) {
        bh_ck_ring_advance(&shared->ck, 1);
    }
}

bool
bh_ring_lost(struct bh_ring_rx *ring)
{
    /* edge ring.dropped: acquire; pairs with release in bh_ring_publish. */
    uint64_t dropped = bh_word_load(&ring->shared->dropped);
    bool lost = dropped != ring->dropped_seen;
    ring->dropped_seen = dropped;
    return lost;
}

void
bh_ring_skip(struct bh_ring_rx *ring)
{
    struct bh_ring_shared *shared = ring->shared;
    bh_ck_ring_advance(&shared->ck, bh_ck_ring_distance(&shared->ck));
    /* edge ring.publish: acquire; pairs with release in bh_ring_publish.
       The scan that follows sees every fact whose hint was skipped. */
    ORDER_ACQUIRE(&shared->ck);
}
