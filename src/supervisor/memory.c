/* Making the memory. Fresh memory files are zero and sparse: what nobody touches costs nothing, so
   that logs can have room for the worst case. */
#include "src/supervisor/memory.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "shm/bell.h"
#include "shm/edge.h"
#include "shm/pool.h"
#include "shm/region.h"
#include "shm/report.h"
#include "shm/ring.h"
#include "shm/turn.h"
#include "src/core/log.h"
#include "src/core/os.h"
#include "src/core/team.h"
#include "src/supervisor/descriptors.h"

static enum bh_status
log_failure(const char *what, enum bh_item_id id, enum bh_status status)
{
    bh_log("region %s: %s failed, status=%d: %s",
           bh_topology_item(id)->name,
           what,
           status,
           status == BH_ESYS ? strerror(errno) : "the object refuses these limits");
    return status;
}

static size_t
region_bytes(const struct bh_engine *engine, enum bh_item_id id)
{
    if (id == BH_ITEM_vocab) {
        return bh_gguf_header_bytes(engine->model.gguf);
    }
    if (id == BH_ITEM_weights) {
        return engine->model.packed_bytes;
    }
    return bh_topology_footprint(id, &engine->plan.limits);
}

static enum bh_status
pack_weights(struct bh_engine *engine, uint8_t *out)
{
    char error[BH_MODEL_ERROR_MAX] = "no memory";
    struct bh_team *team = bh_team_new(engine->plan.threads);
    if (team == NULL) {
        bh_log("cannot start %u threads: %s", engine->plan.threads, strerror(errno));
        return BH_ESYS;
    }
    enum bh_status status = bh_model_pack_new(
        engine->model.gguf, engine->model.bytes, team, out, engine->model.packed_bytes, error);
    bh_team_delete(team);
    if (status != BH_OK) {
        bh_log("model %s: packing weights: %s", engine->config.model, error);
    }
    return status;
}

static enum bh_status
fill(struct bh_engine *engine, enum bh_item_id id, void *base)
{
    if (id == BH_ITEM_vocab) {
        memcpy(base, engine->model.bytes, engine->bytes[id]);
        return BH_OK;
    }
    if (id == BH_ITEM_weights) {
        return pack_weights(engine, base);
    }
    enum bh_status status = bh_topology_new(id, base, &engine->plan.limits);
    return status == BH_OK ? BH_OK : log_failure("new", id, status);
}

/* One region: file, second descriptor, contents. Raw bytes are sealed once they are written; from
   then on only read-only maps exist and nobody can make another kind. */
static enum bh_status
make_region(struct bh_engine *engine, enum bh_item_id id)
{
    const struct bh_item *item = bh_topology_item(id);
    size_t bytes = region_bytes(engine, id);
    if (bytes == 0) {
        return log_failure("footprint", id, BH_EINVAL);
    }
    int fd = -1;
    enum bh_status status = bh_region_create(item->name, bytes, &fd);
    if (status != BH_OK) {
        return log_failure("create", id, status);
    }
    engine->bytes[id] = bytes;
    engine->fds[id] = bh_fd_raise(fd);
    if (engine->fds[id] < 0) {
        return log_failure("dup", id, BH_ESYS);
    }
    int readonly = -1;
    status = bh_region_readonly(engine->fds[id], &readonly);
    engine->readonly_fds[id] = bh_fd_raise(readonly);
    if (status != BH_OK || engine->readonly_fds[id] < 0) {
        return log_failure("reopen read-only", id, BH_ESYS);
    }
    void *base = NULL;
    status = bh_region_map(engine->fds[id], bytes, true, &base);
    if (status != BH_OK) {
        return log_failure("map", id, status);
    }
    status = fill(engine, id, base);
    bh_region_unmap(base, bytes);
    if (status != BH_OK) {
        return status;
    }
    if (item->object != NULL && strcmp(item->object, "bytes") == 0) {
        status = bh_region_seal(engine->fds[id]);
        if (status != BH_OK) {
            return log_failure("seal", id, status);
        }
    }
    return BH_OK;
}

enum bh_status
bh_memory_make(struct bh_engine *engine)
{
    for (uint32_t id = 0; id < BH_ITEM_CNT; id++) {
        if (bh_topology_item(id)->kind == BH_ITEM_DESCRIPTOR) {
            continue;
        }
        enum bh_status status = make_region(engine, id);
        if (status != BH_OK) {
            return status;
        }
    }
    return BH_OK;
}

static enum bh_status
map_region(const struct bh_engine *engine, enum bh_item_id id, void **base)
{
    bool writable = bh_topology_item(id)->rights[BH_ROLE_SUPERVISOR] == BH_RIGHT_WRITE;
    int fd = writable ? engine->fds[id] : engine->readonly_fds[id];
    return bh_region_map(fd, engine->bytes[id], writable, base);
}

/* Map and join one object; a macro because every object has its own type of side handle. */
#define JOIN(id, kind, handle)                                                                     \
    do {                                                                                           \
        void *base = NULL;                                                                         \
        enum bh_status joined = map_region(engine, (id), &base);                                   \
        if (joined == BH_OK) {                                                                     \
            joined = bh_##kind##_join(base, engine->bytes[id], &engine->plan.limits, (handle));    \
        }                                                                                          \
        if (joined != BH_OK) {                                                                     \
            return log_failure("join", (id), joined);                                              \
        }                                                                                          \
    } while (0)

static void
fill_control(struct bh_engine *engine)
{
    struct bh_control_block *block = engine->view.control.block;
    memcpy(block->model_name, engine->model_name, sizeof(block->model_name));
    block->vocab_bytes = engine->bytes[BH_ITEM_vocab];
    block->model_file_bytes = engine->model.len;
    block->weights_bytes = engine->bytes[BH_ITEM_weights];
    block->params = engine->model.params;
    block->ctx_train = engine->model.dims.ctx_train;
    block->d_model = engine->model.dims.d_model;
    block->threads = engine->plan.threads;
    block->auth = engine->auth ? 1 : 0;
    block->queue_max = BH_SLOTS - BH_ROWS_MAX;
    /* One tenant may not fill the table while others wait; alone, it may. */
    block->tenant_max = engine->tenant_cnt > 1 ? BH_SLOTS / 2 : BH_SLOTS;
    block->started_s = bh_os_unix_s();
    bh_os_random(&block->hash_seed, sizeof(block->hash_seed));
}

enum bh_status
bh_memory_view(struct bh_engine *engine)
{
    struct bh_view *view = &engine->view;
    void *control = NULL;
    enum bh_status status = map_region(engine, BH_ITEM_control, &control);
    if (status == BH_OK) {
        status = bh_control_join(control, engine->bytes[BH_ITEM_control], &view->control);
    }
    if (status != BH_OK) {
        return log_failure("join", BH_ITEM_control, status);
    }
    fill_control(engine);
    JOIN(BH_ITEM_requests, requests, &view->requests);
    JOIN(BH_ITEM_pagetable, pagetable, &view->pagetable);
    JOIN(BH_ITEM_tokenlog, tokenlog, &view->tokenlog);
    JOIN(BH_ITEM_submit, submit, &view->submit);
    for (uint32_t role = 0; role < BH_ROLE_CNT; role++) {
        JOIN(BH_ITEM_status_SUPERVISOR + role, statusboard, &view->status[role]);
    }
    return BH_OK;
}

static enum bh_status
verify_object(const char *kind, void *base, size_t bytes, const struct bh_limits *limits)
{
#define OBJECT(name, type)                                                                         \
    if (strcmp(kind, #name) == 0) {                                                                \
        type handle;                                                                               \
        enum bh_status status = bh_##name##_join(base, bytes, limits, &handle);                    \
        if (status == BH_OK) {                                                                     \
            status = bh_##name##_verify(&handle);                                                  \
            bh_##name##_leave(&handle);                                                            \
        }                                                                                          \
        return status;                                                                             \
    }
#include "shm/objects.def"
#undef OBJECT
    if (strcmp(kind, "ring") == 0) {
        struct bh_ring_rx ring;
        enum bh_status status = bh_ring_join_rx(base, bytes, limits, &ring);
        if (status == BH_OK) {
            status = bh_ring_verify(&ring);
            bh_ring_leave_rx(&ring);
        }
        return status;
    }
    struct bh_control control;
    enum bh_status status = bh_control_join(base, bytes, &control);
    if (status == BH_OK) {
        status = bh_control_verify(&control);
        bh_control_leave(&control);
    }
    return status;
}

void
bh_memory_verify(const struct bh_engine *engine,
                 void (*report)(void *arg, const char *name, enum bh_status status),
                 void *arg)
{
    for (uint32_t id = 0; id < BH_ITEM_CNT; id++) {
        const struct bh_item *item = bh_topology_item(id);
        if (item->object == NULL || strcmp(item->object, "bytes") == 0) {
            continue;
        }
        void *base = NULL;
        size_t bytes = engine->bytes[id];
        enum bh_status status = bh_region_map(engine->readonly_fds[id], bytes, false, &base);
        if (status == BH_OK) {
            status = verify_object(item->object, base, bytes, &engine->plan.limits);
            bh_region_unmap(base, bytes);
        }
        report(arg, item->name, status);
    }
}
