/* Calls into ck_ring; compiled without ThreadSanitizer. See the header for why. */
#include "shm/ck_ring_calls.h"

#include "shm/ring.h"

CK_RING_PROTOTYPE(hint, bh_hint)

/* A private header with this build's size, and the shared cursors of the moment. */
static struct ck_ring
snapshot(const struct ck_ring *shared)
{
    return (struct ck_ring){.c_head = ck_pr_load_uint(&shared->c_head),
                            .p_tail = ck_pr_load_uint(&shared->p_tail),
                            .p_head = 0,
                            .size = BH_RING_DEPTH,
                            .mask = BH_RING_DEPTH - 1};
}

unsigned int
bh_ck_ring_distance(const struct ck_ring *shared)
{
    unsigned int head = ck_pr_load_uint(&shared->c_head);
    unsigned int tail = ck_pr_load_uint(&shared->p_tail);
    return tail - head;
}

bool
bh_ck_ring_put(struct ck_ring *shared, struct bh_hint *slots, struct bh_hint hint)
{
    struct ck_ring own = snapshot(shared);
    if (!ck_ring_enqueue_spsc_hint(&own, slots, &hint)) {
        return false;
    }
    /* The slot before the tail that shows it (edge ring.publish). */
    ck_pr_fence_store();
    ck_pr_store_uint(&shared->p_tail, own.p_tail);
    return true;
}

bool
bh_ck_ring_look(const struct ck_ring *shared, struct bh_hint *slots, struct bh_hint *out)
{
    struct ck_ring own = snapshot(shared);
    return ck_ring_dequeue_spsc_hint(&own, slots, out);
}

void
bh_ck_ring_advance(struct ck_ring *shared, unsigned int cnt)
{
    /* The copy of the slot was taken before it is given back: loads, then the store. */
    ck_pr_fence_load_store();
    ck_pr_store_uint(&shared->c_head, ck_pr_load_uint(&shared->c_head) + cnt);
}
