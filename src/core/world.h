/* The world of a role: everything it has mapped, joined and checked, and how it tells others.
   What a role may not have is NULL here because it is not in its address space. */
#ifndef BH_CORE_WORLD_H
#define BH_CORE_WORLD_H

#include "shm/bell.h"
#include "shm/control.h"
#include "shm/edge.h"
#include "shm/pagetable.h"
#include "shm/pool.h"
#include "shm/report.h"
#include "shm/request.h"
#include "shm/ring.h"
#include "shm/status.h"
#include "shm/submit.h"
#include "shm/tokenlog.h"
#include "shm/turn.h"
#include "src/core/topology.h"

struct bh_world {
    uint32_t self;  /* enum bh_role_id */
    uint32_t epoch; /* incarnation of this process */
    struct bh_limits limits;
    struct bh_control control;
    struct bh_requests requests;
    struct bh_pagetable pagetable;
    struct bh_pool pool;
    struct bh_reports prefill_reports;
    struct bh_reports decode_reports;
    struct bh_tokenlog tokenlog;
    struct bh_tokenlog promptlog;
    struct bh_submit submit;
    struct bh_edge edge;
    struct bh_bells bells;
    struct bh_turn turn;
    struct bh_statusboard status[BH_ROLE_CNT]; /* status[self] is writable */
    struct bh_ring_tx tx[BH_ROLE_CNT]; /* by consumer; shared is NULL where there is no link */
    struct bh_ring_rx rx[BH_ROLE_CNT]; /* by producer; same */
    const uint8_t *vocab;              /* control.block->vocab_bytes bytes */
    const uint8_t *weights;            /* control.block->weights_bytes bytes */
    int bell_fds[BH_ROLE_CNT];         /* eventfds by owner; -1 where this role has none */
    int listener_fd;
    int handover_tx_fd;
    int handover_rx_fd;
    int keys_fd;
    void *maps[BH_ITEM_CNT]; /* bases, for leave and verify */
    size_t map_bytes[BH_ITEM_CNT];
};

/* bh_world_join - in a freshly started role: map every region its row names, with its right, from the
   descriptors at their numbers, and join the objects.
   BH_ECORRUPT / BH_EINVAL / BH_ESYS: *item says which one. */
BH_MUST_USE enum bh_status
bh_world_join(uint32_t role, struct bh_world *out, enum bh_item_id *item);

/* bh_world_new_local - for tests: the same objects in anonymous memory of this process, all of them
   mapped for every role; worlds[BH_ROLE_CNT], epochs 1, no descriptors but eventfds. Vocabulary and weights stay NULL.
   bh_world_delete_local frees them. */
BH_MUST_USE enum bh_status bh_world_new_local(const struct bh_limits *limits,
                                              struct bh_world worlds[BH_ROLE_CNT]);
void bh_world_delete_local(struct bh_world worlds[BH_ROLE_CNT]);

/* bh_world_tell - after a fact was stored: send the hint (a full ring counts and drops it) and wake
   the consumer if it sleeps. */
void bh_world_tell(struct bh_world *world, uint32_t role, struct bh_hint hint);

/* bh_world_hints - take up to `max` hints that `producer` sent: act on each, then consume it, so that a
   successor of one who dies in between finds it again. `act` returns false for a hint that names nothing
   or is not this producer's to send; those are counted. *scan becomes true when hints were lost or the
   ring is spoiled: it is empty then, and all words must be looked at. Returns how many were taken. */
typedef bool bh_hint_fn(void *role, uint32_t producer, struct bh_hint hint);
uint32_t bh_world_hints(struct bh_world *world,
                        uint32_t producer,
                        uint32_t max,
                        bh_hint_fn *act,
                        void *role,
                        bool *scan);

/* bh_world_verify - every object's verify on everything this process has mapped, in table order.
   Calls report(arg, item name, status) once per object; returns the number of objects that failed. */
typedef void bh_verify_fn(void *arg, const char *name, enum bh_status status);
uint32_t bh_world_verify(const struct bh_world *world, bh_verify_fn *report, void *arg);

#endif
