/* Joining the world: every region of the topology is mapped with its right and joined by its object's
   own checks. Nothing is assumed about who made the memory: a wrong size, magic or layout is refused
   here, before a role does anything with it. */
#include "src/core/world.h"

#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include "shm/hook.h"
#include "shm/region.h"
#include "src/core/os.h"

/* How a region of each kind joins into the member of its name. `control` brings the limits that all
   others need; raw bytes are as long as control says. */
#define JOIN_control(name)   bh_control_join(mem, bytes, &world->name)
#define JOIN_requests(name)  bh_requests_join(mem, bytes, &world->limits, &world->name)
#define JOIN_pagetable(name) bh_pagetable_join(mem, bytes, &world->limits, &world->name)
#define JOIN_pool(name)      bh_pool_join(mem, bytes, &world->limits, &world->name)
#define JOIN_reports(name)   bh_reports_join(mem, bytes, &world->limits, &world->name)
#define JOIN_tokenlog(name)  bh_tokenlog_join(mem, bytes, &world->limits, &world->name)
#define JOIN_submit(name)    bh_submit_join(mem, bytes, &world->limits, &world->name)
#define JOIN_edge(name)      bh_edge_join(mem, bytes, &world->limits, &world->name)
#define JOIN_bells(name)     bh_bells_join(mem, bytes, &world->limits, &world->name)
#define JOIN_turn(name)      bh_turn_join(mem, bytes, &world->limits, &world->name)
#define JOIN_bytes(name)     bytes_join(mem, bytes, world->control.block->name##_bytes, &world->name)

static enum bh_status
bytes_join(const void *mem, size_t bytes, uint64_t used_bytes, const uint8_t **out)
{
    if (bytes < used_bytes) {
        return BH_EINVAL;
    }
    *out = mem;
    return BH_OK;
}

/* The supervisor is no end of any ring: it joins one only to see that it can be verified. */
static enum bh_status
ring_join(struct bh_world *world, const struct bh_item *ring, void *mem, size_t bytes)
{
    if (world->self == ring->producer) {
        return bh_ring_join_tx(mem, bytes, &world->limits, &world->tx[ring->consumer]);
    }
    if (world->self == ring->consumer) {
        return bh_ring_join_rx(mem, bytes, &world->limits, &world->rx[ring->producer]);
    }
    struct bh_ring_rx look;
    return bh_ring_join_rx(mem, bytes, &world->limits, &look);
}

static enum bh_status
object_join(struct bh_world *world, enum bh_item_id id, void *mem, size_t bytes)
{
    switch (id) {
#define ROLE(id, name, what)
#define REGION(name, kind, rights, what)                                                           \
    case BH_ITEM_##name:                                                                           \
        return JOIN_##kind(name);
#define STATUS(role, rights)                                                                       \
    case BH_ITEM_status_##role:                                                                    \
        return bh_statusboard_join(mem, bytes, &world->limits, &world->status[BH_ROLE_##role]);
#define LINK(producer, consumer, hints) case BH_ITEM_ring_##producer##_##consumer:
#define DESCRIPTOR(name, rights, what)
#include "src/core/topology.def"
#undef ROLE
#undef REGION
#undef STATUS
#undef LINK
#undef DESCRIPTOR
        return ring_join(world, bh_topology_item(id), mem, bytes);
    default:
        return BH_EINVAL;
    }
}

static void
descriptor_take(struct bh_world *world, enum bh_item_id id, int fd)
{
    switch (id) {
    case BH_ITEM_fd_listener:
        world->listener_fd = fd;
        break;
    case BH_ITEM_fd_handover_tx:
        world->handover_tx_fd = fd;
        break;
    case BH_ITEM_fd_handover_rx:
        world->handover_rx_fd = fd;
        break;
    case BH_ITEM_fd_keys:
        world->keys_fd = fd;
        break;
    default:
        /* bh_topology_check knows that bells stand in the order of roles. */
        world->bell_fds[BH_ROLE_TOKENIZER + (uint32_t)id - BH_ITEM_fd_bell_tokenizer] = fd;
        break;
    }
}

static void
world_clear(struct bh_world *world, uint32_t role)
{
    memset(world, 0, sizeof(*world));
    world->self = role;
    for (uint32_t i = 0; i < BH_ROLE_CNT; ++i) {
        world->bell_fds[i] = -1;
    }
    world->listener_fd = -1;
    world->handover_tx_fd = -1;
    world->handover_rx_fd = -1;
    world->keys_fd = -1;
}

static enum bh_status
item_join(struct bh_world *world, enum bh_item_id id, int fd)
{
    const struct bh_item *item = bh_topology_item(id);
    if (item->kind == BH_ITEM_DESCRIPTOR) {
        descriptor_take(world, id, fd);
        return BH_OK;
    }
    size_t bytes = 0;
    enum bh_status status = bh_region_bytes(fd, &bytes);
    if (status != BH_OK) {
        return status;
    }
    void *mem = NULL;
    bool writable = item->rights[world->self] == BH_RIGHT_WRITE;
    status = bh_region_map(fd, bytes, writable, &mem);
    if (status != BH_OK) {
        return status;
    }
    world->maps[id] = mem;
    world->map_bytes[id] = bytes;
    status = object_join(world, id, mem, bytes);
    if (status == BH_OK && id == BH_ITEM_control) {
        world->limits = world->control.block->limits;
    }
    return status;
}

static void
world_unmap(struct bh_world *world)
{
    for (uint32_t id = 0; id < BH_ITEM_CNT; ++id) {
        if (world->maps[id] != NULL) {
            bh_region_unmap(world->maps[id], world->map_bytes[id]);
        }
    }
    world_clear(world, world->self);
}

enum bh_status
bh_world_join(uint32_t role, struct bh_world *out, enum bh_item_id *item)
{
    if (role == BH_ROLE_SUPERVISOR || role >= BH_ROLE_CNT) {
        return BH_EINVAL;
    }
    struct bh_world world;
    world_clear(&world, role);
    /* Row order: control is the first. */
    for (uint32_t id = 0; id < BH_ITEM_CNT; ++id) {
        int fd = bh_topology_fd(role, (enum bh_item_id)id);
        enum bh_status status = fd < 0 ? BH_OK : item_join(&world, (enum bh_item_id)id, fd);
        if (status != BH_OK) {
            *item = (enum bh_item_id)id;
            world_unmap(&world);
            return status;
        }
    }
    world.epoch = bh_role_epoch(&world.control, role);
    *out = world;
    return BH_OK;
}

/* Everything but the raw bytes, which tests bring themselves. */
static bool
is_object(const struct bh_item *item)
{
    return item->kind != BH_ITEM_DESCRIPTOR && strcmp(item->object, "bytes") != 0;
}

static enum bh_status
local_memory(const struct bh_limits *limits, enum bh_item_id id, void **mem, size_t *bytes)
{
    *bytes = bh_topology_footprint(id, limits);
    if (*bytes == 0) {
        return BH_EINVAL;
    }
    /* NORESERVE: logs and prompts are sparse, and a test touches little of them. */
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    *mem = mmap(NULL, *bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (*mem == MAP_FAILED) {
        *mem = NULL;
        return BH_ESYS;
    }
    return bh_topology_new(id, *mem, limits);
}

static enum bh_status
local_join(struct bh_world worlds[BH_ROLE_CNT], enum bh_item_id id, void *mem, size_t bytes)
{
    for (uint32_t role = 0; role < BH_ROLE_CNT; ++role) {
        worlds[role].maps[id] = mem;
        worlds[role].map_bytes[id] = bytes;
        enum bh_status status = object_join(&worlds[role], id, mem, bytes);
        if (status != BH_OK) {
            return status;
        }
    }
    return BH_OK;
}

enum bh_status
bh_world_new_local(const struct bh_limits *limits, struct bh_world worlds[BH_ROLE_CNT])
{
    for (uint32_t role = 0; role < BH_ROLE_CNT; ++role) {
        world_clear(&worlds[role], role);
        worlds[role].epoch = 1;
        worlds[role].limits = *limits;
    }
    enum bh_status status = BH_OK;
    for (uint32_t id = 0; id < BH_ITEM_CNT && status == BH_OK; ++id) {
        if (!is_object(bh_topology_item((enum bh_item_id)id))) {
            continue;
        }
        void *mem = NULL;
        size_t bytes = 0;
        status = local_memory(limits, (enum bh_item_id)id, &mem, &bytes);
        if (mem != NULL) {
            worlds[0].maps[id] = mem;
            worlds[0].map_bytes[id] = bytes;
        }
        if (status == BH_OK) {
            status = local_join(worlds, (enum bh_item_id)id, mem, bytes);
        }
    }
    for (uint32_t owner = BH_ROLE_TOKENIZER; owner < BH_ROLE_CNT && status == BH_OK; ++owner) {
        int fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
        status = fd < 0 ? BH_ESYS : BH_OK;
        for (uint32_t role = 0; role < BH_ROLE_CNT; ++role) {
            worlds[role].bell_fds[owner] = fd;
        }
    }
    if (status != BH_OK) {
        bh_world_delete_local(worlds);
        return status;
    }
    for (uint32_t role = 0; role < BH_ROLE_CNT; ++role) {
        bh_role_epoch_store(&worlds[BH_ROLE_SUPERVISOR].control, role, 1);
    }
    return BH_OK;
}

void
bh_world_delete_local(struct bh_world worlds[BH_ROLE_CNT])
{
    for (uint32_t owner = 0; owner < BH_ROLE_CNT; ++owner) {
        if (worlds[0].bell_fds[owner] >= 0) {
            close(worlds[0].bell_fds[owner]);
        }
    }
    world_unmap(&worlds[0]);
    for (uint32_t role = 1; role < BH_ROLE_CNT; ++role) {
        world_clear(&worlds[role], role);
    }
}

uint32_t
bh_world_hints(struct bh_world *world,
               uint32_t producer,
               uint32_t max,
               bh_hint_fn *act,
               void *role,
               bool *scan)
{
    struct bh_ring_rx *ring = &world->rx[producer];
    struct bh_hint hint;
    enum bh_status status = BH_EMPTY;
    uint32_t taken = 0;
    for (; taken < max && (status = bh_ring_peek(ring, &hint)) == BH_OK; taken++) {
        if (!act(role, producer, hint)) {
            bh_metric_add(&world->status[world->self], BH_METRIC_hints_refused, 1);
        }
        BH_HOOK("world.hint:before_consume");
        bh_ring_consume(ring);
    }
    bool spoiled = status == BH_ECORRUPT;
    if (spoiled) {
        bh_metric_add(&world->status[world->self], BH_METRIC_hints_refused, 1);
    }
    if (bh_ring_lost(ring) || spoiled) {
        bh_ring_skip(ring);
        *scan = true;
    }
    return taken;
}

void
bh_world_tell(struct bh_world *world, uint32_t role, struct bh_hint hint)
{
    BH_CHECK(role < BH_ROLE_CNT);
    BH_CHECK(world->tx[role].shared != NULL);
    if (bh_ring_publish(&world->tx[role], hint) != BH_OK) {
        bh_metric_add(&world->status[world->self], BH_METRIC_hints_dropped, 1);
    }
    if (bh_bell_pull(&world->bells, role)) {
        bh_os_event_signal(world->bell_fds[role]);
    }
}

#define VERIFY_control(name)   bh_control_verify(&world->name)
#define VERIFY_requests(name)  bh_requests_verify(&world->name)
#define VERIFY_pagetable(name) bh_pagetable_verify(&world->name)
#define VERIFY_pool(name)      bh_pool_verify(&world->name)
#define VERIFY_reports(name)   bh_reports_verify(&world->name)
#define VERIFY_tokenlog(name)  bh_tokenlog_verify(&world->name)
#define VERIFY_submit(name)    bh_submit_verify(&world->name)
#define VERIFY_edge(name)      bh_edge_verify(&world->name)
#define VERIFY_bells(name)     bh_bells_verify(&world->name)
#define VERIFY_turn(name)      bh_turn_verify(&world->name)
#define VERIFY_bytes(name)     BH_OK

static enum bh_status
ring_verify(const struct bh_world *world, enum bh_item_id id)
{
    struct bh_ring_rx look;
    enum bh_status status =
        bh_ring_join_rx(world->maps[id], world->map_bytes[id], &world->limits, &look);
    return status == BH_OK ? bh_ring_verify(&look) : status;
}

static enum bh_status
object_verify(const struct bh_world *world, enum bh_item_id id)
{
    switch (id) {
#define ROLE(id, name, what)
#define REGION(name, kind, rights, what)                                                           \
    case BH_ITEM_##name:                                                                           \
        return VERIFY_##kind(name);
#define STATUS(role, rights)                                                                       \
    case BH_ITEM_status_##role:                                                                    \
        return bh_statusboard_verify(&world->status[BH_ROLE_##role]);
#define LINK(producer, consumer, hints) case BH_ITEM_ring_##producer##_##consumer:
#define DESCRIPTOR(name, rights, what)
#include "src/core/topology.def"
#undef ROLE
#undef REGION
#undef STATUS
#undef LINK
#undef DESCRIPTOR
        return ring_verify(world, id);
    default:
        return BH_EINVAL;
    }
}

uint32_t
bh_world_verify(const struct bh_world *world, bh_verify_fn *report, void *arg)
{
    uint32_t failed = 0;
    struct bh_world look = {.self = world->self, .limits = world->limits};
    for (uint32_t id = 0; id < BH_ITEM_CNT; ++id) {
        const struct bh_item *item = bh_topology_item((enum bh_item_id)id);
        if (world->maps[id] == NULL || !is_object(item)) {
            continue;
        }
        /* Joined again, because a head can be overwritten too. */
        look.maps[id] = world->maps[id];
        look.map_bytes[id] = world->map_bytes[id];
        enum bh_status status =
            object_join(&look, (enum bh_item_id)id, look.maps[id], look.map_bytes[id]);
        if (status == BH_OK) {
            status = object_verify(&look, (enum bh_item_id)id);
        }
        failed += status != BH_OK;
        report(arg, item->name, status);
    }
    return failed;
}
