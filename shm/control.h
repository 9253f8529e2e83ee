/* Control: what the supervisor tells everybody.

   Purpose    The limits, the model's name and dimensions, incarnations of roles, fences, drain.
   Layout     head 64 | struct bh_control_block
   Writers    The supervisor, alone.
   Ordering   edge role.reaped: stored after waitid returned; whatever the dead role wrote is visible.
              edge role.epoch: stored before the newborn starts.
   Progress   Wait-free.
   Death      The engine ends with its supervisor.
   Cost       None on hot paths but one load of `fences` a loop. */
#ifndef BH_SHM_CONTROL_H
#define BH_SHM_CONTROL_H

#include "shm/atomic.h"
#include "shm/object.h"
#include "shm/record.h"

enum bh_drain {
    BH_DRAIN_NO = 0,
    BH_DRAIN_REFUSE = 1 /* no new requests */,
    BH_DRAIN_CANCEL = 2 /* end live ones */
};

struct bh_control_block {
    struct bh_limits limits;
    char model_name[BH_MODEL_NAME_MAX]; /* NUL-terminated: the id clients use */
    uint64_t vocab_bytes;               /* GGUF header bytes in the vocabulary region */
    uint64_t model_file_bytes;
    uint64_t weights_bytes; /* packed weights in the weights region */
    uint64_t params;        /* number of weights, for /v1/models */
    uint32_t ctx_train;
    uint32_t threads;                   /* compute threads of each worker */
    uint32_t auth;                      /* 1: API keys are required */
    uint32_t d_model;                   /* width, for /v1/models */
    uint32_t queue_max;                 /* queued requests before 503 */
    uint32_t tenant_max;                /* alive requests of one tenant before 429 */
    uint64_t started_s;                 /* Unix time */
    uint64_t hash_seed;                 /* random per boot: cache keys, namespaces */
    struct bh_word epoch[BH_ROLE_CNT];  /* present incarnation, from 1; 0: none yet */
    struct bh_word reaped[BH_ROLE_CNT]; /* incarnations up to it are gone for ever */
    struct bh_word fences;              /* counts every reaping */
    struct bh_word drain;               /* enum bh_drain */
    struct bh_word ready;               /* 1: all roles have started */
};

struct bh_control {
    struct bh_object_head *head;
    struct bh_control_block *block;
};

size_t bh_control_footprint(const struct bh_limits *limits);
BH_MUST_USE enum bh_status bh_control_new(void *mem, const struct bh_limits *limits);
/* join needs no limits from outside: they are in the block, and are checked. */
BH_MUST_USE enum bh_status bh_control_join(void *mem, size_t bytes, struct bh_control *out);
void bh_control_leave(struct bh_control *control);
BH_MUST_USE enum bh_status bh_control_verify(const struct bh_control *control);

static inline uint32_t
bh_role_epoch(const struct bh_control *control, uint32_t role)
{
    /* edge role.epoch: acquire; pairs with release in bh_role_epoch_store. */
    return (uint32_t)bh_word_load(&control->block->epoch[role]);
}

static inline uint32_t
bh_role_reaped(const struct bh_control *control, uint32_t role)
{
    /* edge role.reaped: acquire; pairs with release in bh_role_reaped_store. */
    return (uint32_t)bh_word_load(&control->block->reaped[role]);
}

/* A role is up when its present incarnation is not known to be gone. */
static inline bool
bh_role_up(const struct bh_control *control, uint32_t role)
{
    return bh_role_epoch(control, role) > bh_role_reaped(control, role);
}

/* For the supervisor only. */
static inline void
bh_role_epoch_store(struct bh_control *control, uint32_t role, uint32_t epoch)
{
    /* edge role.epoch: release; pairs with acquire in bh_role_epoch. */
    bh_word_store(&control->block->epoch[role], epoch);
}

static inline void
bh_role_reaped_store(struct bh_control *control, uint32_t role, uint32_t epoch)
{
    /* edge role.reaped: release; pairs with acquire in bh_role_reaped. */
    bh_word_store(&control->block->reaped[role], epoch);
}

#endif
