/* The memory of a small engine for tests of core: every region as a memory file, every descriptor, and
   the way a starter puts them in place for a role. Deliberately not the supervisor's code, which has
   tests of its own. */
#ifndef BH_UNIT_CORE_ENGINE_H
#define BH_UNIT_CORE_ENGINE_H

#include <criterion/criterion.h>
#include <fcntl.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "shm/control.h"
#include "shm/region.h"
#include "src/core/topology.h"

#define RAW_BYTES 4096u
#define FD_HIGH   300 /* above every number that a role finds a descriptor at */

struct core_engine {
    struct bh_limits limits;
    int fds[BH_ITEM_CNT];
    int readonly_fds[BH_ITEM_CNT];
    void *maps[BH_ITEM_CNT]; /* writable, for the test */
    size_t bytes[BH_ITEM_CNT];
    struct bh_control control;
};

static inline struct bh_limits
core_limits(void)
{
    return (struct bh_limits){
        .slots = 4,
        .conns = 4,
        .tenants = 2,
        .ctx = 64,
        .page_cnt = 5,
        .list_max = 2,
        .rows_max = 2,
        .chunk_max = 32,
        .reply_bytes = 4096,
        .vocab = 100,
        .kv = {.layers = 2, .kv_heads = 1, .head_dim = 32, .page_tokens = 32, .elem_bytes = 2},
    };
}

static inline int
core_raise(int fd)
{
    cr_assert(fd >= 0);
    int high = fcntl(fd, F_DUPFD, FD_HIGH);
    cr_assert(high >= 0);
    close(fd);
    return high;
}

/* All roles have epoch 1 afterwards. */
static inline void
core_engine_make(struct core_engine *engine)
{
    engine->limits = core_limits();
    for (uint32_t id = 0; id < BH_ITEM_CNT; ++id) {
        const struct bh_item *item = bh_topology_item((enum bh_item_id)id);
        engine->readonly_fds[id] = -1;
        if (item->kind == BH_ITEM_DESCRIPTOR) {
            engine->fds[id] = core_raise(eventfd(0, EFD_NONBLOCK));
            continue;
        }
        size_t bytes = bh_topology_footprint((enum bh_item_id)id, &engine->limits);
        engine->bytes[id] = bytes == 0 ? RAW_BYTES : bytes;
        int fd = -1;
        cr_assert_eq(bh_region_create(item->name, engine->bytes[id], &fd), BH_OK);
        engine->fds[id] = core_raise(fd);
        cr_assert_eq(bh_region_readonly(engine->fds[id], &fd), BH_OK);
        engine->readonly_fds[id] = core_raise(fd);
        cr_assert_eq(bh_region_map(engine->fds[id], engine->bytes[id], true, &engine->maps[id]),
                     BH_OK);
        cr_assert_eq(bh_topology_new((enum bh_item_id)id, engine->maps[id], &engine->limits),
                     BH_OK);
    }
    cr_assert_eq(bh_control_join(engine->maps[BH_ITEM_control],
                                 engine->bytes[BH_ITEM_control],
                                 &engine->control),
                 BH_OK);
    for (uint32_t role = 0; role < BH_ROLE_CNT; ++role) {
        bh_role_epoch_store(&engine->control, role, 1);
    }
}

/* In a child: exactly the descriptors of `role`, at their numbers. */
static inline void
core_engine_place(const struct core_engine *engine, uint32_t role)
{
    for (uint32_t id = 0; id < BH_ITEM_CNT; ++id) {
        int target = bh_topology_fd(role, (enum bh_item_id)id);
        if (target < 0) {
            continue;
        }
        const struct bh_item *item = bh_topology_item((enum bh_item_id)id);
        bool readonly = item->rights[role] == BH_RIGHT_READ;
        dup2(readonly ? engine->readonly_fds[id] : engine->fds[id], target);
    }
    close_range((unsigned)bh_topology_fd_end(role), ~0u, 0);
}

#endif
