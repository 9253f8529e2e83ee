/* The ring: hints from one process to another, single producer, single consumer, on ck_ring.

   Purpose    Says "look there" at once, so that nobody has to scan. May lose hints; never facts.
   Layout     head 64 | ck_ring | dropped counter on its own line | slots [BH_RING_DEPTH] of 8 bytes
   Writers    Producer: tail, slots, dropped. Consumer: head. Both map it writable (ck_ring needs that),
              so neither side believes the other's cursor: out of bounds is BH_ECORRUPT.
   Ordering   edge ring.publish: the slot before the tail (inside ck_ring; TSan is told in ring.c).
   Progress   Wait-free on both sides; a full ring drops the hint and counts it.
   Death      A dead producer leaves an unpublished slot, a dead consumer an unconsumed one: the
              successor sets head = tail and scans the words instead.
   Cost       8 bytes a hint; two lines shared by the sides. */
#ifndef BH_SHM_RING_H
#define BH_SHM_RING_H

#include "shm/handle.h"
#include "shm/object.h"

#define BH_RING_DEPTH 1024u /* slots; a power of two. One is always empty */

struct bh_ring_shared; /* head, ck_ring, dropped, slots */

struct bh_ring_tx {
    struct bh_ring_shared *shared;
};

struct bh_ring_rx {
    struct bh_ring_shared *shared;
    uint64_t dropped_seen;
};

size_t bh_ring_footprint(const struct bh_limits *limits);
BH_MUST_USE enum bh_status bh_ring_new(void *mem, const struct bh_limits *limits);
BH_MUST_USE enum bh_status
bh_ring_join_tx(void *mem, size_t bytes, const struct bh_limits *limits, struct bh_ring_tx *out);
BH_MUST_USE enum bh_status
bh_ring_join_rx(void *mem, size_t bytes, const struct bh_limits *limits, struct bh_ring_rx *out);
void bh_ring_leave_tx(struct bh_ring_tx *ring);
void bh_ring_leave_rx(struct bh_ring_rx *ring);
/* Cursors at most BH_RING_DEPTH - 1 apart. */
BH_MUST_USE enum bh_status bh_ring_verify(const struct bh_ring_rx *ring);

/* bh_ring_publish - BH_OK, or BH_FULL: the hint is dropped and counted; nothing else to do. */
enum bh_status bh_ring_publish(struct bh_ring_tx *ring, struct bh_hint hint);

/* bh_ring_peek - the hint at the head, left there: act on it, then consume, so that a consumer that
   dies in between finds it again.
   BH_EMPTY nothing there; BH_ECORRUPT the producer's cursor is impossible: skip, then scan */
BH_MUST_USE enum bh_status bh_ring_peek(struct bh_ring_rx *ring, struct bh_hint *out);
void bh_ring_consume(struct bh_ring_rx *ring);

/* bh_ring_lost - has the producer dropped hints since the last call? Then scan all its words. */
bool bh_ring_lost(struct bh_ring_rx *ring);
/* bh_ring_skip - forget everything in the ring (head = tail); a scan must follow. */
void bh_ring_skip(struct bh_ring_rx *ring);

#endif
