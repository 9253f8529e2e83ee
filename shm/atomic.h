/* The only door to atomics. Each call names the weakest order that is right, and its caller carries
   an edge comment on both halves:
       // edge ring.publish: release; pairs with acquire in bh_ring_peek.
   tools/tidy.py fails when an edge has one side only. */
#ifndef BH_SHM_ATOMIC_H
#define BH_SHM_ATOMIC_H

#include <stdatomic.h>

#include "shm/base.h"

/* A fact: one 64-bit word with one writer. Facts are stored with release and loaded with acquire,
   so that whatever was written before the fact is visible to whoever saw it. */
struct bh_word {
    _Atomic uint64_t bits;
};
static_assert(sizeof(struct bh_word) == 8, "a fact is one word");

static inline uint64_t
bh_word_load(const struct bh_word *word)
{
    return atomic_load_explicit(&word->bits, memory_order_acquire);
}

static inline void
bh_word_store(struct bh_word *word, uint64_t bits)
{
    atomic_store_explicit(&word->bits, bits, memory_order_release);
}

/* For counters with one writer: no order, because nothing is concluded from them but a number. */
static inline uint64_t
bh_word_load_relaxed(const struct bh_word *word)
{
    return atomic_load_explicit(&word->bits, memory_order_relaxed);
}

static inline void
bh_word_store_relaxed(struct bh_word *word, uint64_t bits)
{
    atomic_store_explicit(&word->bits, bits, memory_order_relaxed);
}

/* A 32-bit word that several processes swap (bell, turn); it never carries a fact. */
struct bh_swap {
    _Atomic uint32_t bits;
};

static inline uint32_t
bh_swap_load(const struct bh_swap *word)
{
    return atomic_load_explicit(&word->bits, memory_order_acquire);
}

static inline void
bh_swap_store(struct bh_swap *word, uint32_t bits)
{
    atomic_store_explicit(&word->bits, bits, memory_order_release);
}

static inline bool
bh_swap_try(struct bh_swap *word, uint32_t *expected, uint32_t desired)
{
    return atomic_compare_exchange_strong_explicit(
        &word->bits, expected, desired, memory_order_acq_rel, memory_order_acquire);
}

static inline uint32_t
bh_swap_add(struct bh_swap *word, uint32_t add)
{
    return atomic_fetch_add_explicit(&word->bits, add, memory_order_acq_rel);
}

/* Needed where a process stores one word and then must see another process's earlier store to a
   second one (the sleeping flag of a bell): no weaker fence orders a store before a later load. */
static inline void
bh_fence_seq_cst(void)
{
    atomic_thread_fence(memory_order_seq_cst);
}

/* Orders plain loads of bytes before a later re-check of the word that guarded them. */
static inline void
bh_fence_acquire(void)
{
    atomic_thread_fence(memory_order_acquire);
}

#endif
