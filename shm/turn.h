/* The turn: which worker may use the cores now. A courtesy with a time limit, not a lock.

   Purpose    Where prefill and decode share cores, one of them computes at a time: decode after every
              step lets prefill in, prefill between layers lets decode in.
   Layout     head 64 | word {seq 16, absent 8, holder 8} | want flag per member
   Writers    Its members, by compare-and-swap; the word carries no fact and protects no memory.
   Ordering   Acquire-release swaps only so that TSan sees what little order there is (edge turn.word).
   Progress   A taker waits at most T for a holder that does not move; then it overrules it.
   Death      The others lose T once; the absent bit keeps the turn from the dead until it returns.
   Cost       One swap a step. */
#ifndef BH_SHM_TURN_H
#define BH_SHM_TURN_H

#include "shm/atomic.h"
#include "shm/object.h"

#define BH_TURN_MEMBERS_MAX 8u /* member m (0..7) stands in the word as m + 1; 0: nobody holds it */

struct bh_turn_block {
    struct bh_swap word;
    uint32_t zero[15];
    struct {
        struct bh_swap want;
        uint32_t zero[15];
    } members[BH_TURN_MEMBERS_MAX];
};

struct bh_turn {
    struct bh_object_head *head;
    struct bh_turn_block *block;
};

size_t bh_turn_footprint(const struct bh_limits *limits);
BH_MUST_USE enum bh_status bh_turn_new(void *mem, const struct bh_limits *limits);
BH_MUST_USE enum bh_status
bh_turn_join(void *mem, size_t bytes, const struct bh_limits *limits, struct bh_turn *out);
void bh_turn_leave(struct bh_turn *turn);
BH_MUST_USE enum bh_status bh_turn_verify(const struct bh_turn *turn);

/* bh_turn_ask - want it, be present, and take it if it is nobody's. True: this member holds it. False:
   *seen is the word to wait on (bh_os_futex_wait on &block->word) before asking again. */
bool bh_turn_ask(struct bh_turn *turn, uint32_t member, uint32_t *seen);

/* bh_turn_overrule - the word was `seen` for T: take the turn and mark its holder absent. False:
   somebody moved; ask again. */
bool bh_turn_overrule(struct bh_turn *turn, uint32_t member, uint32_t seen);

bool bh_turn_held(const struct bh_turn *turn, uint32_t member);

/* bh_turn_pass - a yield point of the holder. Hands the turn to the next member in cyclic order that
   wants it and is not absent; if there is none, keeps it (`done` false) or lets it go (`done` true).
   Returns true when the word changed, so that waiters must be woken. With `done` the want flag is
   cleared. A member that was overruled meanwhile changes nothing and gets false. */
bool bh_turn_pass(struct bh_turn *turn, uint32_t member, bool done);

/* bh_turn_wanted - does any other, present member want the turn? */
bool bh_turn_wanted(const struct bh_turn *turn, uint32_t member);

#endif
