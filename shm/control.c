/* Control: the block from which every role learns the limits, checked as a whole. */
#include "shm/control.h"

#include <string.h>

#define CONTROL_VERSION 1u

static size_t
footprint(void)
{
    return (size_t)bh_round_up(sizeof(struct bh_object_head) + sizeof(struct bh_control_block),
                               BH_CACHE_LINE);
}

size_t
bh_control_footprint(const struct bh_limits *limits)
{
    return bh_limits_ok(limits) ? footprint() : 0;
}

enum bh_status
bh_control_new(void *mem, const struct bh_limits *limits)
{
    size_t bytes = bh_control_footprint(limits);
    enum bh_status status = bh_object_prepare(mem, bytes);
    if (status != BH_OK) {
        return status;
    }
    struct bh_control_block *block = (void *)((uint8_t *)mem + sizeof(struct bh_object_head));
    memset(block, 0, sizeof(*block));
    block->limits = *limits;
    bh_object_publish(mem, bh_object_layout("control", CONTROL_VERSION, limits), bytes);
    return BH_OK;
}

enum bh_status
bh_control_join(void *mem, size_t bytes, struct bh_control *out)
{
    /* The limits are inside, so the size and the magic are proved before they are read, and the
       fingerprint after: it covers them. */
    if (mem == NULL || ((uintptr_t)mem % BH_CACHE_LINE) != 0 || bytes < footprint()) {
        return BH_EINVAL;
    }
    struct bh_object_head *head = mem;
    enum bh_status status = bh_object_verify(head);
    if (status != BH_OK) {
        return status;
    }
    struct bh_control_block *block = (void *)((uint8_t *)mem + sizeof(*head));
    struct bh_limits limits = block->limits;
    if (!bh_limits_ok(&limits)) {
        return BH_ECORRUPT;
    }
    uint64_t layout = bh_object_layout("control", CONTROL_VERSION, &limits);
    status = bh_object_check(mem, bytes, layout, footprint());
    if (status == BH_OK) {
        *out = (struct bh_control){.head = head, .block = block};
    }
    return status;
}

void
bh_control_leave(struct bh_control *control)
{
    *control = (struct bh_control){0};
}

enum bh_status
bh_control_verify(const struct bh_control *control)
{
    const struct bh_control_block *block = control->block;
    enum bh_status status = bh_object_verify(control->head);
    if (status != BH_OK) {
        return status;
    }
    if (!bh_limits_ok(&block->limits) ||
        memchr(block->model_name, 0, sizeof(block->model_name)) == NULL || block->auth > 1 ||
        bh_word_load_relaxed(&block->drain) > BH_DRAIN_CANCEL ||
        bh_word_load_relaxed(&block->ready) > 1) { /* relaxed: only ranges are looked at */
        return BH_ECORRUPT;
    }
    for (uint32_t role = 0; role < BH_ROLE_CNT; role++) {
        /* The death before the life: epochs only grow, so the order of the loads cannot lie. */
        uint32_t reaped = bh_role_reaped(control, role);
        if (reaped > bh_role_epoch(control, role)) {
            return BH_ECORRUPT;
        }
    }
    return BH_OK;
}
