/* The three calls into Concurrency Kit, in a translation unit of their own: ck's inline assembly
   is no atomic to ThreadSanitizer, so that unit is never instrumented, and shm/ring.c tells the
   sanitizer what the ring orders. For shm/ring.c only.

   The shared header of a ck_ring holds its size and mask beside the cursors, writable for both
   sides. A peer that changed the mask would make this side store outside the ring. So ck works
   on a private copy of the header with the true mask, and only cursors are exchanged. */
#ifndef BH_SHM_CK_RING_CALLS_H
#define BH_SHM_CK_RING_CALLS_H

#include <ck_ring.h>

#include "shm/handle.h"

/* How far the producer is ahead of the consumer, by the shared cursors; above BH_RING_DEPTH - 1
   one of them was spoiled. */
unsigned int bh_ck_ring_distance(const struct ck_ring *shared);

/* Producer: false when full. */
bool bh_ck_ring_put(struct ck_ring *shared, struct bh_hint *slots, struct bh_hint hint);

/* Consumer: copy the hint at the head and leave it there; false when empty. */
bool bh_ck_ring_look(const struct ck_ring *shared, struct bh_hint *slots, struct bh_hint *out);

/* Consumer: move the head over `cnt` slots. */
void bh_ck_ring_advance(struct ck_ring *shared, unsigned int cnt);

#endif
