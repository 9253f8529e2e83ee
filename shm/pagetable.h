/* The page table: state, generation and owner of every page, and what the prefix cache knows of it.

   Purpose    Says in which life a page is, and who may have it.
   Layout     head 64 | words [page_cnt] | cache entries [page_cnt] | cached tokens [page_cnt][page_tokens]
   Writers    The ledger, alone. Workers map it read-only: no worker can forge a generation.
   Ownership  See the states below; one store moves a page, and leaving HELD or CACHED bumps the
              generation in that same store, before any byte of the page may be overwritten.
   Ordering   edge page.word: key and tokens of a cached page are stored before the word that says
              CACHED.
   Progress   Wait-free.
   Death      HELD but named by no list: ended by the next ledger. A key without a CACHED word: overwritten.
   Cost       8 bytes a page to check; 24 + 4 page_tokens bytes more are touched by the cache only. */
#ifndef BH_SHM_PAGETABLE_H
#define BH_SHM_PAGETABLE_H

#include "shm/atomic.h"
#include "shm/handle.h"
#include "shm/object.h"

/*  FREE --grant--> HELD(slot) --proved, full--> CACHED(namespace)
     '<-scrubbed--- DIRTY(gen+1) <--- quiet and unlisted ---'        (flagged: QUARANTINED(gen+1) first) */
enum bh_page_state {
    BH_PAGE_FREE = 0,
    BH_PAGE_HELD = 1,
    BH_PAGE_CACHED = 2,
    BH_PAGE_DIRTY = 3,
    BH_PAGE_QUARANTINED = 4,
    BH_PAGE_RETIRED = 5, /* the generation reached its end, or the null page */
    BH_PAGE_STATE_CNT
};

#define BH_PAGE_FLAGGED 1u /* a fault named it: no cache hits, quarantine at the end of its life */

/* Page word: gen 32 | state 4 | flags 4 | owner 24 (slot when HELD, tenant when CACHED). */
struct bh_page_view {
    uint32_t gen;
    enum bh_page_state state;
    uint32_t flags;
    uint32_t owner;
};

/* What the cache knows of a CACHED page; plain, written before the word that makes it matter. */
struct bh_cache_entry {
    uint64_t name_space;
    uint64_t chain;  /* hash of (namespace, all tokens up to the end of this page) */
    uint64_t parent; /* chain of the page before, or the chain's start for page 0 */
};

struct bh_pagetable {
    struct bh_object_head *head;
    struct bh_word *words;          /* [page_cnt] */
    struct bh_cache_entry *entries; /* [page_cnt] */
    uint32_t *tokens;               /* [page_cnt][page_tokens] */
    uint32_t page_cnt;
    uint32_t page_tokens;
};

size_t bh_pagetable_footprint(const struct bh_limits *limits);
/* All pages FREE with generation 1, page 0 RETIRED. */
BH_MUST_USE enum bh_status bh_pagetable_new(void *mem, const struct bh_limits *limits);
BH_MUST_USE enum bh_status bh_pagetable_join(void *mem,
                                             size_t bytes,
                                             const struct bh_limits *limits,
                                             struct bh_pagetable *out);
void bh_pagetable_leave(struct bh_pagetable *table);
/* Page 0 retired; every word's state known, generation not 0, owner in range. */
BH_MUST_USE enum bh_status bh_pagetable_verify(const struct bh_pagetable *table);

static inline uint64_t
bh_page_pack(struct bh_page_view view)
{
    return ((uint64_t)view.gen << 32) | ((uint64_t)(view.state & 0xfu) << 28) |
           ((uint64_t)(view.flags & 0xfu) << 24) | (view.owner & 0xffffffu);
}

static inline struct bh_page_view
bh_page_unpack(uint64_t word)
{
    return (struct bh_page_view){.gen = (uint32_t)(word >> 32),
                                 .state = (enum bh_page_state)((word >> 28) & 0xfu),
                                 .flags = (uint32_t)(word >> 24) & 0xfu,
                                 .owner = (uint32_t)word & 0xffffffu};
}

/* page_idx must be below page_cnt. */
static inline struct bh_page_view
bh_page_load(const struct bh_pagetable *table, uint32_t page_idx)
{
    /* edge page.word: acquire; pairs with release in bh_page_store. */
    return bh_page_unpack(bh_word_load(&table->words[page_idx]));
}

/* For the ledger only. */
static inline void
bh_page_store(struct bh_pagetable *table, uint32_t page_idx, struct bh_page_view view)
{
    /* edge page.word: release; pairs with acquire in bh_page_load. */
    bh_word_store(&table->words[page_idx], bh_page_pack(view));
}

/* bh_page_current - does `page` name the present life of a page that `slot` may read?
   HELD by that slot, or CACHED; same generation; inside the table. What a reader asks again after
   its step (the seqlock rule): false is a violation. */
bool bh_page_current(const struct bh_pagetable *table, struct bh_page page, uint32_t slot);

/* bh_page_writable - HELD by `slot` at that generation: what a writer asks before its first store. */
bool bh_page_writable(const struct bh_pagetable *table, struct bh_page page, uint32_t slot);

/* The chain of hashes that names a prefix: page 0 continues bh_chain_start(seed, namespace), page j
   continues page j - 1. `seed` is random per boot, so that no tenant can aim for a collision.
   XXH3-64. */
uint64_t bh_chain_start(uint64_t seed, uint64_t name_space);
uint64_t bh_chain_next(uint64_t previous, const uint32_t *tokens, uint32_t token_cnt);

#endif
