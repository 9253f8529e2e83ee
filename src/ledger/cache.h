/* The index of the prefix cache: from what a page contains to where it is. Private to the ledger and
   rebuilt by it from the keys in the page table; the page words decide what is cached. */
#ifndef BH_LEDGER_CACHE_H
#define BH_LEDGER_CACHE_H

#include "shm/pagetable.h"

struct bh_cache {
    const struct bh_pagetable *table;
    uint32_t *buckets; /* [mask + 1] first page, or 0: the null page is never cached */
    uint32_t *next;    /* [page_cnt] next page of the same bucket, or 0 */
    uint32_t mask;
};

/* Everything that must be equal for a hit. `tokens` are the page's own page_tokens tokens; those of
   the pages before are covered by `parent`, which was itself compared with their tokens. */
struct bh_cache_key {
    uint32_t tenant;
    struct bh_cache_entry entry;
    const uint32_t *tokens;
};

/* bh_cache_new - an empty index over `table`. False: no memory. */
bool bh_cache_new(struct bh_cache *cache, const struct bh_pagetable *table);
void bh_cache_delete(struct bh_cache *cache);

/* bh_cache_insert - index a page by the key that stands in the table; it must not be indexed. */
void bh_cache_insert(struct bh_cache *cache, uint32_t page_idx);
/* bh_cache_remove - forget it; nothing happens if it is not indexed. */
void bh_cache_remove(struct bh_cache *cache, uint32_t page_idx);

/* bh_cache_find - a page whose word says CACHED for this tenant, without a flag, and whose namespace,
   chain, parent and tokens all equal the key's. The hash only chooses where to look. */
bool
bh_cache_find(const struct bh_cache *cache, const struct bh_cache_key *key, uint32_t *page_idx);

#endif
