/* What a process is: five functions, and the loop that calls them. */
#ifndef BH_CORE_ROLE_H
#define BH_CORE_ROLE_H

#include "src/core/world.h"

struct bh_role {
    uint32_t id; /* enum bh_role_id */
    /* open - before the sandbox: read files, import libraries, allocate. *state is the role's own.
       Errors are fatal to this incarnation and have been logged with what to do. */
    enum bh_status (*open)(struct bh_world *world, void **state);
    /* start - unprivileged, before the system-call filter: make threads and io_urings, scan all words. */
    enum bh_status (*start)(void *state);
    /* step - one bounded piece of work; returns how much was done, 0 if there was nothing. */
    uint32_t (*step)(void *state, uint64_t now_ns);
    /* tend - every 100 ms or so: scan what hints may have missed, deadlines, housekeeping. */
    void (*tend)(void *state, uint64_t now_ns);
    /* sleep - NULL: the loop waits for the bell. Else: wait for the bell (world->bell_fds[self]) or
       the role's own events, at most timeout_ns. Called between doze and rise. */
    void (*sleep)(void *state, uint64_t timeout_ns);
    /* pending - is there anything that step would do? Asked after doze, before sleeping. */
    bool (*pending)(void *state);
};

extern const struct bh_role bh_role_tokenizer;
extern const struct bh_role bh_role_ledger;
extern const struct bh_role bh_role_prefill;
extern const struct bh_role bh_role_decode;
extern const struct bh_role bh_role_egress;

/* bh_role_main - the whole life of a role process: join the world, open, give up privileges, start,
   load the filter, loop. Returns an exit status; only errors return. */
int bh_role_main(const struct bh_role *role);

/* bh_role_started - has incarnation `epoch` of the role that writes this block finished its start()? */
static inline bool
bh_role_started(const struct bh_statusboard *board, uint32_t epoch)
{
    /* edge status.epoch: acquire; pairs with release in bh_role_main. `started` was cleared before the
       epoch was stored, so a 1 that is seen after it is not the predecessor's. */
    return bh_word_load(&board->block->epoch) == epoch &&
           bh_word_load_relaxed(&board->block->started) == 1;
}

/* bh_role_beat - say "alive" from inside a long step (between two layers). */
void bh_role_beat(struct bh_world *world);

#endif
