/* The turn: one word that its members swap. */
#include "shm/turn.h"

#include <string.h>

#include "shm/hook.h"

#define TURN_VERSION 1u

/* A swap fails only because another member moved meanwhile. After so many the caller is told to
   wait and ask again, so that no loop here is unbounded even if another process scribbles on the
   word. */
#define SWAP_TRIES 64u

struct turn_word {
    uint32_t seq;
    uint32_t absent; /* bit m: member m was overruled and has not asked since */
    uint32_t holder; /* member + 1; 0: nobody */
};

static struct turn_word
unpack(uint32_t bits)
{
    return (struct turn_word){
        .seq = bits >> 16, .absent = (bits >> 8) & 0xffu, .holder = bits & 0xffu};
}

/* The word that follows another: the sequence moves with every change, so that a waiter that slept
   through a full round does not take the same holder for one that did not move. */
static uint32_t
successor(struct turn_word before, uint32_t absent, uint32_t holder)
{
    return (((before.seq + 1) & 0xffffu) << 16) | ((absent & 0xffu) << 8) | holder;
}

size_t
bh_turn_footprint(const struct bh_limits *limits)
{
    if (!bh_limits_ok(limits)) {
        return 0;
    }
    return sizeof(struct bh_object_head) + sizeof(struct bh_turn_block);
}

enum bh_status
bh_turn_new(void *mem, const struct bh_limits *limits)
{
    size_t bytes = bh_turn_footprint(limits);
    enum bh_status status = bh_object_prepare(mem, bytes);
    if (status != BH_OK) {
        return status;
    }
    memset((uint8_t *)mem + sizeof(struct bh_object_head), 0, sizeof(struct bh_turn_block));
    bh_object_publish(mem, bh_object_layout("turn", TURN_VERSION, limits), bytes);
    return BH_OK;
}

enum bh_status
bh_turn_join(void *mem, size_t bytes, const struct bh_limits *limits, struct bh_turn *out)
{
    size_t footprint = bh_turn_footprint(limits);
    if (footprint == 0) {
        return BH_EINVAL;
    }
    uint64_t layout = bh_object_layout("turn", TURN_VERSION, limits);
    enum bh_status status = bh_object_check(mem, bytes, layout, footprint);
    if (status == BH_OK) {
        void *block = (uint8_t *)mem + sizeof(struct bh_object_head);
        *out = (struct bh_turn){.head = mem, .block = block};
    }
    return status;
}

void
bh_turn_leave(struct bh_turn *turn)
{
    *turn = (struct bh_turn){0};
}

enum bh_status
bh_turn_verify(const struct bh_turn *turn)
{
    enum bh_status status = bh_object_verify(turn->head);
    if (status != BH_OK) {
        return status;
    }
    /* edge turn.word: nothing is concluded here but that the fields are in their ranges. */
    if (unpack(bh_swap_load(&turn->block->word)).holder > BH_TURN_MEMBERS_MAX) {
        return BH_ECORRUPT;
    }
    for (uint32_t member = 0; member < BH_TURN_MEMBERS_MAX; member++) {
        if (bh_swap_load(&turn->block->members[member].want) > 1) {
            return BH_ECORRUPT;
        }
    }
    return BH_OK;
}

bool
bh_turn_ask(struct bh_turn *turn, uint32_t member, uint32_t *seen)
{
    BH_CHECK(member < BH_TURN_MEMBERS_MAX);
    const uint32_t own_bit = 1u << member;
    struct bh_swap *word = &turn->block->word;
    /* edge turn.want: release; pairs with acquire in bh_turn_wanted. */
    bh_swap_store(&turn->block->members[member].want, 1);
    BH_HOOK("turn.ask:after_want");
    /* edge turn.word: acquire; pairs with release in bh_turn_pass. */
    uint32_t bits = bh_swap_load(word);
    for (uint32_t i = 0; i < SWAP_TRIES; i++) {
        struct turn_word now = unpack(bits);
        bool present = (now.absent & own_bit) == 0;
        if (present && now.holder == member + 1) {
            return true;
        }
        if (present && now.holder != 0) {
            break;
        }
        /* Be present, and take what is nobody's, in one swap. */
        uint32_t holder = now.holder == 0 ? member + 1 : now.holder;
        uint32_t next = successor(now, now.absent & ~own_bit, holder);
        if (bh_swap_try(word, &bits, next)) {
            bits = next;
        }
    }
    *seen = bits;
    return false;
}

bool
bh_turn_overrule(struct bh_turn *turn, uint32_t member, uint32_t seen)
{
    BH_CHECK(member < BH_TURN_MEMBERS_MAX);
    struct turn_word silent = unpack(seen);
    if (silent.holder == 0 || silent.holder == member + 1) {
        return false;
    }
    /* A holder that is no member was never one: any member may write the word. It marks nobody. */
    uint32_t silent_bit = silent.holder <= BH_TURN_MEMBERS_MAX ? 1u << (silent.holder - 1) : 0;
    uint32_t absent = (silent.absent | silent_bit) & ~(1u << member);
    BH_HOOK("turn.overrule:before_swap");
    /* edge turn.word: release; pairs with acquire in bh_turn_ask. */
    return bh_swap_try(&turn->block->word, &seen, successor(silent, absent, member + 1));
}

bool
bh_turn_held(const struct bh_turn *turn, uint32_t member)
{
    /* edge turn.word: acquire; pairs with release in bh_turn_pass. */
    return unpack(bh_swap_load(&turn->block->word)).holder == member + 1;
}

/* The next member after `member`, in cyclic order, that wants the turn and is present;
   BH_TURN_MEMBERS_MAX if there is none. */
static uint32_t
next_wanting(const struct bh_turn *turn, uint32_t member, uint32_t absent)
{
    for (uint32_t step = 1; step < BH_TURN_MEMBERS_MAX; step++) {
        uint32_t other = (member + step) % BH_TURN_MEMBERS_MAX;
        /* edge turn.want: acquire; pairs with release in bh_turn_ask. */
        if ((absent & (1u << other)) == 0 && bh_swap_load(&turn->block->members[other].want) != 0) {
            return other;
        }
    }
    return BH_TURN_MEMBERS_MAX;
}

bool
bh_turn_pass(struct bh_turn *turn, uint32_t member, bool done)
{
    BH_CHECK(member < BH_TURN_MEMBERS_MAX);
    struct bh_swap *word = &turn->block->word;
    if (done) {
        /* edge turn.want: release; pairs with acquire in bh_turn_wanted. */
        bh_swap_store(&turn->block->members[member].want, 0);
        BH_HOOK("turn.pass:after_want");
    }
    uint32_t bits = bh_swap_load(word);
    for (uint32_t i = 0; i < SWAP_TRIES; i++) {
        struct turn_word now = unpack(bits);
        if (now.holder != member + 1) {
            return false; /* overruled meanwhile: it is not ours to give */
        }
        uint32_t heir = next_wanting(turn, member, now.absent);
        if (heir == BH_TURN_MEMBERS_MAX && !done) {
            return false;
        }
        uint32_t holder = heir == BH_TURN_MEMBERS_MAX ? 0 : heir + 1;
        BH_HOOK("turn.pass:before_swap");
        /* edge turn.word: release; pairs with acquire in bh_turn_ask. */
        if (bh_swap_try(word, &bits, successor(now, now.absent, holder))) {
            return true;
        }
    }
    return false;
}

bool
bh_turn_wanted(const struct bh_turn *turn, uint32_t member)
{
    BH_CHECK(member < BH_TURN_MEMBERS_MAX);
    uint32_t absent = unpack(bh_swap_load(&turn->block->word)).absent;
    /* edge turn.want: acquire; pairs with release in bh_turn_ask. */
    return next_wanting(turn, member, absent) != BH_TURN_MEMBERS_MAX;
}
