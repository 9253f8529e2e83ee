/* Doorbells: the flag half. The eventfd that goes with it belongs to core/os. */
#include "shm/bell.h"

#include <string.h>

#include "shm/hook.h"

#define BELLS_VERSION 1u

size_t
bh_bells_footprint(const struct bh_limits *limits)
{
    if (!bh_limits_ok(limits)) {
        return 0;
    }
    return sizeof(struct bh_object_head) + BH_ROLE_CNT * sizeof(struct bh_bell_row);
}

enum bh_status
bh_bells_new(void *mem, const struct bh_limits *limits)
{
    size_t bytes = bh_bells_footprint(limits);
    enum bh_status status = bh_object_prepare(mem, bytes);
    if (status != BH_OK) {
        return status;
    }
    memset(
        (uint8_t *)mem + sizeof(struct bh_object_head), 0, bytes - sizeof(struct bh_object_head));
    bh_object_publish(mem, bh_object_layout("bells", BELLS_VERSION, limits), bytes);
    return BH_OK;
}

enum bh_status
bh_bells_join(void *mem, size_t bytes, const struct bh_limits *limits, struct bh_bells *out)
{
    size_t footprint = bh_bells_footprint(limits);
    if (footprint == 0) {
        return BH_EINVAL;
    }
    uint64_t layout = bh_object_layout("bells", BELLS_VERSION, limits);
    enum bh_status status = bh_object_check(mem, bytes, layout, footprint);
    if (status == BH_OK) {
        void *rows = (uint8_t *)mem + sizeof(struct bh_object_head);
        *out = (struct bh_bells){.head = mem, .rows = rows};
    }
    return status;
}

void
bh_bells_leave(struct bh_bells *bells)
{
    *bells = (struct bh_bells){0};
}

enum bh_status
bh_bells_verify(const struct bh_bells *bells)
{
    enum bh_status status = bh_object_verify(bells->head);
    for (uint32_t role = 0; status == BH_OK && role < BH_ROLE_CNT; role++) {
        /* edge bell.sleep: nothing is concluded here but that the flag is a flag. */
        if (bh_swap_load(&bells->rows[role].sleeping) > 1) {
            status = BH_ECORRUPT;
        }
    }
    return status;
}

void
bh_bell_doze(struct bh_bells *bells, uint32_t role)
{
    BH_CHECK(role < BH_ROLE_CNT);
    /* edge bell.sleep: release; pairs with acquire in bh_bell_pull. */
    bh_swap_store(&bells->rows[role].sleeping, 1);
    BH_HOOK("bell.doze:before_fence");
    /* The flag before the last look at rings and words, which the caller takes now. */
    bh_fence_seq_cst();
}

void
bh_bell_rise(struct bh_bells *bells, uint32_t role)
{
    BH_CHECK(role < BH_ROLE_CNT);
    /* edge bell.sleep: release; pairs with acquire in bh_bell_pull. */
    bh_swap_store(&bells->rows[role].sleeping, 0);
}

bool
bh_bell_pull(struct bh_bells *bells, uint32_t role)
{
    BH_CHECK(role < BH_ROLE_CNT);
    /* The caller's fact before the look at the flag. */
    bh_fence_seq_cst();
    struct bh_swap *sleeping = &bells->rows[role].sleeping;
    /* edge bell.sleep: acquire; pairs with release in bh_bell_doze. */
    uint32_t seen = bh_swap_load(sleeping);
    if (BH_LIKELY(seen == 0)) {
        return false;
    }
    BH_HOOK("bell.pull:before_swap");
    /* One of several producers takes the flag down, and it alone pays for the system call. */
    return bh_swap_try(sleeping, &seen, 0);
}
