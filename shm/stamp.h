/* The stamp: what a KV block says about itself, and the proof that it may be read.

   Every (page, layer) block of a pool begins with 64 bytes written by whoever wrote the K and V
   behind them. A reader compares them with what it expects *in the loop that loads the block*.
   "Reserved" is not "written": the generation alone would pass a page that was rightly granted and
   never filled, so the stamp also says how many tokens were written in this life, which page of
   which sequence they are, and for which request. kernels/ may include this file: it is a base
   type, without rings, tables or processes. */
#ifndef BH_SHM_STAMP_H
#define BH_SHM_STAMP_H

#include "shm/atomic.h"

/* Layout of `word`, stored last: generation 32 | filled 24 | flags 8. */
#define BH_STAMP_SEALED 1u

struct bh_stamp {
    struct bh_word word;  /*  0 generation, filled, flags */
    uint32_t page_idx;    /*  8 index of the page in its pool */
    uint16_t layer;       /* 12 */
    uint16_t kind;        /* 14 state kind; 0 is K and V */
    uint32_t ordinal;     /* 16 which page of the sequence this is */
    uint32_t writer_slot; /* 20 request slot that wrote it */
    uint32_t writer_gen;  /* 24 generation of that slot */
    uint32_t zero;        /* 28 */
    uint64_t name_space;  /* 32 cache namespace of the writer */
    uint64_t chain;       /* 40 hash of (namespace, tokens up to the page's end); set by sealing */
    uint64_t digest;      /* 48 XXH3 of the bytes behind the stamp; set by sealing */
    uint64_t zero2;       /* 56 */
};
static_assert(sizeof(struct bh_stamp) == 64, "a stamp is one cache line");

static inline uint64_t
bh_stamp_word(uint32_t gen, uint32_t filled, uint32_t flags)
{
    return ((uint64_t)gen << 32) | ((uint64_t)(filled & 0xffffffu) << 8) | (flags & 0xffu);
}

static inline uint32_t
bh_stamp_gen(uint64_t word)
{
    return (uint32_t)(word >> 32);
}

static inline uint32_t
bh_stamp_filled(uint64_t word)
{
    return (uint32_t)(word >> 8) & 0xffffffu;
}

static inline uint32_t
bh_stamp_flags(uint64_t word)
{
    return (uint32_t)word & 0xffu;
}

/* Why a block was refused. Zero is the only good value; the rest go into reports and metrics. */
enum bh_violation {
    BH_VIOLATION_NONE = 0,
    BH_VIOLATION_GENERATION = 1, /* the block was written in another life of the page */
    BH_VIOLATION_FILLED = 2,     /* fewer tokens were written than would be read */
    BH_VIOLATION_PLACE = 3,      /* page index, layer or ordinal is another one's */
    BH_VIOLATION_WRITER = 4,     /* written for another request, and not shared */
    BH_VIOLATION_NAMESPACE = 5,  /* shared, but sealed for another namespace or prefix */
    BH_VIOLATION_DIGEST = 6,     /* the bytes are not those that were sealed */
    BH_VIOLATION_RECHECK = 7,    /* the page table moved on while the page was read */
    BH_VIOLATION_NONFINITE = 8,  /* a logit was NaN or infinite */
    BH_VIOLATION_HANDLE = 9,     /* a handle points outside the pool, or at the null page */
};

/* What a reader demands of one page of its sequence. Shared pages (listed from the prefix cache)
   must be sealed for `name_space` with the reader's own `chain`; own pages must name the writer. */
struct bh_stamp_want {
    uint32_t gen;
    uint32_t page_idx;
    uint32_t ordinal;
    uint32_t writer_slot;
    uint32_t writer_gen;
    uint32_t shared; /* 0 or 1 */
    uint64_t name_space;
    uint64_t chain; /* used only when shared */
};

/* bh_stamp_prove - is this block what `want` says, with at least `filled` tokens written?
   Loads the word with acquire, so that bytes loaded afterwards are those written before it. The
   cost is one cache line, which the reader needs anyway. Cannot fail; the answer is the reason. */
static inline enum bh_violation
bh_stamp_prove(const struct bh_stamp *stamp,
               const struct bh_stamp_want *want,
               uint32_t layer,
               uint32_t filled)
{
    /* edge stamp.word: acquire; pairs with release in bh_pool_stamp. */
    uint64_t word = bh_word_load(&stamp->word);
    if (BH_UNLIKELY(bh_stamp_gen(word) != want->gen || want->gen == 0)) {
        return BH_VIOLATION_GENERATION;
    }
    if (BH_UNLIKELY(bh_stamp_filled(word) < filled)) {
        return BH_VIOLATION_FILLED;
    }
    if (BH_UNLIKELY(stamp->page_idx != want->page_idx || stamp->ordinal != want->ordinal ||
                    stamp->layer != layer)) {
        return BH_VIOLATION_PLACE;
    }
    if (want->shared != 0) {
        if (BH_UNLIKELY((bh_stamp_flags(word) & BH_STAMP_SEALED) == 0 ||
                        stamp->name_space != want->name_space || stamp->chain != want->chain)) {
            return BH_VIOLATION_NAMESPACE;
        }
    } else if (BH_UNLIKELY(stamp->writer_slot != want->writer_slot ||
                           stamp->writer_gen != want->writer_gen)) {
        return BH_VIOLATION_WRITER;
    }
    return BH_VIOLATION_NONE;
}

#endif
