/* The stock: which pages are free, cached and unlisted, dirty or quarantined, how many lists name each
   page, and how many pages are in each state. All of it is private and rebuilt from the words; each
   function that moves a page makes exactly one store to its word. */
#ifndef BH_LEDGER_STOCK_H
#define BH_LEDGER_STOCK_H

#include "src/core/world.h"
#include "src/ledger/cache.h"

enum bh_shelf {
    BH_SHELF_FREE = 0,
    BH_SHELF_LRU,        /* CACHED and named by no list; least recently used first */
    BH_SHELF_DIRTY,      /* waits for the scrubber */
    BH_SHELF_QUARANTINE, /* waits until the workers that may have it are gone */
    BH_SHELF_CNT,
    BH_SHELF_NONE = BH_SHELF_CNT, /* HELD, RETIRED, or CACHED and listed */
};

struct bh_stock {
    struct bh_world *world;
    struct bh_cache cache;
    uint32_t
        *next; /* [page_cnt + BH_SHELF_CNT] rings; the last BH_SHELF_CNT are the shelves' ends */
    uint32_t *prev;
    uint8_t *shelf;        /* [page_cnt] enum bh_shelf */
    uint32_t *pins;        /* [page_cnt] lists that name the page */
    uint32_t *kept_epochs; /* [page_cnt][2] prefill's and decode's epoch when it was quarantined */
    uint32_t cnt[BH_PAGE_STATE_CNT];
    uint32_t lru_cnt;
    uint64_t version; /* moves whenever a page does, or becomes evictable */
};

/* bh_stock_new - everything empty. False: no memory. */
bool bh_stock_new(struct bh_stock *stock, struct bh_world *world);
void bh_stock_delete(struct bh_stock *stock);

/* bh_stock_load - take up the page table as a predecessor left it, once `pins` holds how many lists
   name each page: shelves, counts, index; HELD pages that no list names end here, because no worker
   was ever told of them, or all have let go. */
void bh_stock_load(struct bh_stock *stock);

/* bh_stock_take - FREE to HELD(slot). BH_EMPTY: no page is free; nothing stored. */
BH_MUST_USE enum bh_status
bh_stock_take(struct bh_stock *stock, uint32_t slot, struct bh_page *out);

/* bh_stock_pin, bh_stock_unpin - a list names the page, or no longer does. An unlisted CACHED page is
   evictable from then on; one that was flagged ends at once. */
void bh_stock_pin(struct bh_stock *stock, uint32_t page_idx);
void bh_stock_unpin(struct bh_stock *stock, uint32_t page_idx);
/* bh_stock_touch - an unlisted CACHED page was looked up: it is evicted last. */
void bh_stock_touch(struct bh_stock *stock, uint32_t page_idx);

/* bh_stock_cache - HELD to CACHED for key->tenant: key and tokens first, then the word. */
void bh_stock_cache(struct bh_stock *stock, uint32_t page_idx, const struct bh_cache_key *key);

/* bh_stock_flag - a fault named this HELD or CACHED page: no hits from now on, quarantine at its end.
   Other states are left alone: the life that the fault means is over. */
void bh_stock_flag(struct bh_stock *stock, uint32_t page_idx);

/* bh_stock_end - the end of a life, HELD or CACHED, named by no list: one store moves generation and
   state to DIRTY, QUARANTINED or RETIRED. Tells the scrubber. */
void bh_stock_end(struct bh_stock *stock, uint32_t page_idx);

/* bh_stock_scrubbed - DIRTY to FREE if the scrubber has wiped this generation. True: it moved. */
bool bh_stock_scrubbed(struct bh_stock *stock, uint32_t page_idx);

/* bh_stock_tend - scan what hints may have missed: all DIRTY pages, and all quarantined ones. True: a
   page moved. */
bool bh_stock_tend(struct bh_stock *stock);

/* bh_stock_evict - end least recently used unlisted pages, except the `spare` most recently used,
   until `goal` pages are free or will be when they are wiped. Returns how many ended. */
uint32_t bh_stock_evict(struct bh_stock *stock, uint32_t goal, uint32_t spare);

/* bh_stock_usable - pages that requests can have at all: neither retired nor quarantined. */
static inline uint32_t
bh_stock_usable(const struct bh_stock *stock)
{
    return stock->world->limits.page_cnt - stock->cnt[BH_PAGE_RETIRED] -
           stock->cnt[BH_PAGE_QUARANTINED];
}

#endif
