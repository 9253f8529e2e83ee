/* Lives of pages: every store to a page word is made here. See stock.h for what each does and
   shm/pagetable.h for the states. */
#include "src/ledger/stock.h"

#include <stdlib.h>
#include <string.h>

#include "shm/hook.h"

bool
bh_stock_new(struct bh_stock *stock, struct bh_world *world)
{
    size_t page_cnt = world->limits.page_cnt;
    *stock = (struct bh_stock){
        .world = world,
        .next = calloc(page_cnt + BH_SHELF_CNT, sizeof(*stock->next)),
        .prev = calloc(page_cnt + BH_SHELF_CNT, sizeof(*stock->prev)),
        .shelf = calloc(page_cnt, sizeof(*stock->shelf)),
        .pins = calloc(page_cnt, sizeof(*stock->pins)),
        .kept_epochs = calloc(page_cnt * 2, sizeof(*stock->kept_epochs)),
    };
    if (!bh_cache_new(&stock->cache, &world->pagetable) || stock->next == NULL ||
        stock->prev == NULL || stock->shelf == NULL || stock->pins == NULL ||
        stock->kept_epochs == NULL) {
        bh_stock_delete(stock);
        return false;
    }
    for (uint32_t i = 0; i < BH_SHELF_CNT; i++) {
        uint32_t end = world->limits.page_cnt + i;
        stock->next[end] = end;
        stock->prev[end] = end;
    }
    memset(stock->shelf, BH_SHELF_NONE, page_cnt);
    return true;
}

void
bh_stock_delete(struct bh_stock *stock)
{
    bh_cache_delete(&stock->cache);
    free(stock->next);
    free(stock->prev);
    free(stock->shelf);
    free(stock->pins);
    free(stock->kept_epochs);
    *stock = (struct bh_stock){0};
}

static uint32_t
shelf_end(const struct bh_stock *stock, enum bh_shelf shelf)
{
    return stock->world->limits.page_cnt + (uint32_t)shelf;
}

/* Move a page to the end of a shelf, or off all shelves. */
static void
shelve(struct bh_stock *stock, uint32_t page_idx, enum bh_shelf shelf)
{
    if (stock->shelf[page_idx] != BH_SHELF_NONE) {
        stock->next[stock->prev[page_idx]] = stock->next[page_idx];
        stock->prev[stock->next[page_idx]] = stock->prev[page_idx];
    }
    stock->lru_cnt -= stock->shelf[page_idx] == BH_SHELF_LRU ? 1 : 0;
    stock->lru_cnt += shelf == BH_SHELF_LRU ? 1 : 0;
    stock->shelf[page_idx] = (uint8_t)shelf;
    if (shelf != BH_SHELF_NONE) {
        uint32_t end = shelf_end(stock, shelf);
        stock->next[page_idx] = end;
        stock->prev[page_idx] = stock->prev[end];
        stock->next[stock->prev[end]] = page_idx;
        stock->prev[end] = page_idx;
    }
}

/* The one place that stores a page word. */
static void
page_move(struct bh_stock *stock, uint32_t page_idx, struct bh_page_view view)
{
    struct bh_pagetable *table = &stock->world->pagetable;
    enum bh_page_state from = bh_page_load(table, page_idx).state;
    bh_page_store(table, page_idx, view);
    stock->cnt[from]--;
    stock->cnt[view.state]++;
    stock->version++;
}

static void
quarantine_note(struct bh_stock *stock, uint32_t page_idx)
{
    const struct bh_control *control = &stock->world->control;
    stock->kept_epochs[2 * page_idx] = bh_role_epoch(control, BH_ROLE_PREFILL);
    stock->kept_epochs[2 * page_idx + 1] = bh_role_epoch(control, BH_ROLE_DECODE);
    shelve(stock, page_idx, BH_SHELF_QUARANTINE);
}

static void
dirty_note(struct bh_stock *stock, uint32_t page_idx, uint32_t gen)
{
    shelve(stock, page_idx, BH_SHELF_DIRTY);
    bh_world_tell(stock->world, BH_ROLE_DECODE, bh_hint_make(BH_HINT_DIRTY, page_idx, gen));
}

static void
page_load(struct bh_stock *stock, uint32_t page_idx)
{
    struct bh_page_view view = bh_page_load(&stock->world->pagetable, page_idx);
    switch (view.state) {
    case BH_PAGE_FREE:
        shelve(stock, page_idx, BH_SHELF_FREE);
        break;
    case BH_PAGE_HELD:
        if (stock->pins[page_idx] == 0) {
            bh_stock_end(stock, page_idx);
        }
        break;
    case BH_PAGE_CACHED:
        if ((view.flags & BH_PAGE_FLAGGED) == 0) {
            bh_cache_insert(&stock->cache, page_idx);
        }
        if (stock->pins[page_idx] == 0) {
            bh_stock_pin(stock, page_idx);
            bh_stock_unpin(stock, page_idx);
        }
        break;
    case BH_PAGE_DIRTY:
        dirty_note(stock, page_idx, view.gen);
        break;
    case BH_PAGE_QUARANTINED:
        /* The epochs of its entry died with the predecessor; the present ones are not older. */
        quarantine_note(stock, page_idx);
        break;
    case BH_PAGE_RETIRED:
    case BH_PAGE_STATE_CNT:
    default:
        break;
    }
}

void
bh_stock_load(struct bh_stock *stock)
{
    uint32_t page_cnt = stock->world->limits.page_cnt;
    for (uint32_t page = 0; page < page_cnt; page++) {
        struct bh_page_view view = bh_page_load(&stock->world->pagetable, page);
        /* No ledger stores such a word. A spoiled one is in nobody's way as RETIRED. */
        if (view.state >= BH_PAGE_STATE_CNT || view.gen == 0) {
            view = (struct bh_page_view){.gen = UINT32_MAX, .state = BH_PAGE_RETIRED};
            bh_page_store(&stock->world->pagetable, page, view);
        }
        stock->cnt[view.state]++;
    }
    for (uint32_t page = 1; page < page_cnt; page++) {
        page_load(stock, page);
    }
}

enum bh_status
bh_stock_take(struct bh_stock *stock, uint32_t slot, struct bh_page *out)
{
    uint32_t end = shelf_end(stock, BH_SHELF_FREE);
    uint32_t page = stock->next[end];
    if (page == end) {
        return BH_EMPTY;
    }
    struct bh_page_view view = bh_page_load(&stock->world->pagetable, page);
    BH_CHECK(view.state == BH_PAGE_FREE && stock->pins[page] == 0);
    shelve(stock, page, BH_SHELF_NONE);
    page_move(
        stock, page, (struct bh_page_view){.gen = view.gen, .state = BH_PAGE_HELD, .owner = slot});
    BH_HOOK("ledger.grant:held");
    *out = bh_page_make(0, page, view.gen);
    return BH_OK;
}

void
bh_stock_pin(struct bh_stock *stock, uint32_t page_idx)
{
    if (stock->shelf[page_idx] == BH_SHELF_LRU) {
        shelve(stock, page_idx, BH_SHELF_NONE);
    }
    stock->pins[page_idx]++;
}

void
bh_stock_unpin(struct bh_stock *stock, uint32_t page_idx)
{
    BH_CHECK(stock->pins[page_idx] > 0);
    stock->pins[page_idx]--;
    struct bh_page_view view = bh_page_load(&stock->world->pagetable, page_idx);
    if (stock->pins[page_idx] > 0 || view.state != BH_PAGE_CACHED) {
        return;
    }
    if ((view.flags & BH_PAGE_FLAGGED) != 0) {
        bh_stock_end(stock, page_idx);
    } else {
        shelve(stock, page_idx, BH_SHELF_LRU);
        stock->version++;
    }
}

void
bh_stock_touch(struct bh_stock *stock, uint32_t page_idx)
{
    if (stock->shelf[page_idx] == BH_SHELF_LRU) {
        shelve(stock, page_idx, BH_SHELF_LRU);
    }
}

void
bh_stock_cache(struct bh_stock *stock, uint32_t page_idx, const struct bh_cache_key *key)
{
    struct bh_pagetable *table = &stock->world->pagetable;
    struct bh_page_view view = bh_page_load(table, page_idx);
    BH_CHECK(view.state == BH_PAGE_HELD && (view.flags & BH_PAGE_FLAGGED) == 0);
    table->entries[page_idx] = key->entry;
    memcpy(table->tokens + (size_t)page_idx * table->page_tokens,
           key->tokens,
           table->page_tokens * sizeof(*table->tokens));
    BH_HOOK("ledger.cache:key");
    view.state = BH_PAGE_CACHED;
    view.owner = key->tenant;
    page_move(stock, page_idx, view);
    BH_HOOK("ledger.cache:cached");
    bh_cache_insert(&stock->cache, page_idx);
}

void
bh_stock_flag(struct bh_stock *stock, uint32_t page_idx)
{
    struct bh_page_view view = bh_page_load(&stock->world->pagetable, page_idx);
    if (view.state != BH_PAGE_HELD && view.state != BH_PAGE_CACHED) {
        return;
    }
    view.flags |= BH_PAGE_FLAGGED;
    page_move(stock, page_idx, view);
    BH_HOOK("ledger.fault:flagged");
    bh_cache_remove(&stock->cache, page_idx);
    if (stock->shelf[page_idx] == BH_SHELF_LRU) {
        bh_stock_end(stock, page_idx);
    }
}

void
bh_stock_end(struct bh_stock *stock, uint32_t page_idx)
{
    struct bh_page_view view = bh_page_load(&stock->world->pagetable, page_idx);
    BH_CHECK(view.state == BH_PAGE_HELD || view.state == BH_PAGE_CACHED);
    BH_CHECK(stock->pins[page_idx] == 0);
    bh_cache_remove(&stock->cache, page_idx);
    struct bh_page_view next = {.gen = view.gen + 1, .state = BH_PAGE_DIRTY};
    if (next.gen == UINT32_MAX) {
        next.state = BH_PAGE_RETIRED; /* so that no generation ever comes twice */
    } else if ((view.flags & BH_PAGE_FLAGGED) != 0) {
        next.state = BH_PAGE_QUARANTINED;
    }
    page_move(stock, page_idx, next);
    BH_HOOK("ledger.page:ended");
    if (next.state == BH_PAGE_DIRTY) {
        dirty_note(stock, page_idx, next.gen);
    } else if (next.state == BH_PAGE_QUARANTINED) {
        quarantine_note(stock, page_idx);
    } else {
        shelve(stock, page_idx, BH_SHELF_NONE);
    }
}

bool
bh_stock_scrubbed(struct bh_stock *stock, uint32_t page_idx)
{
    struct bh_page_view view = bh_page_load(&stock->world->pagetable, page_idx);
    /* The page is given away only after its last byte was overwritten: edge scrubbed.word. */
    uint32_t scrubbed = bh_scrubbed_load(&stock->world->decode_reports, page_idx);
    if (view.state != BH_PAGE_DIRTY || scrubbed != view.gen) {
        return false;
    }
    page_move(stock, page_idx, (struct bh_page_view){.gen = view.gen, .state = BH_PAGE_FREE});
    BH_HOOK("ledger.page:freed");
    shelve(stock, page_idx, BH_SHELF_FREE);
    return true;
}

/* Whoever had the page mapped when it was quarantined is gone for ever: prefill and decode, both. */
static bool
quarantine_over(struct bh_stock *stock, uint32_t page_idx)
{
    const struct bh_control *control = &stock->world->control;
    if (bh_role_reaped(control, BH_ROLE_PREFILL) < stock->kept_epochs[2 * page_idx] ||
        bh_role_reaped(control, BH_ROLE_DECODE) < stock->kept_epochs[2 * page_idx + 1]) {
        return false;
    }
    struct bh_page_view view = bh_page_load(&stock->world->pagetable, page_idx);
    page_move(stock, page_idx, (struct bh_page_view){.gen = view.gen, .state = BH_PAGE_DIRTY});
    BH_HOOK("ledger.page:cleared");
    dirty_note(stock, page_idx, view.gen);
    return true;
}

bool
bh_stock_tend(struct bh_stock *stock)
{
    bool moved = false;
    uint32_t end = shelf_end(stock, BH_SHELF_DIRTY);
    for (uint32_t page = stock->next[end]; page != end;) {
        uint32_t next = stock->next[page];
        moved = bh_stock_scrubbed(stock, page) || moved;
        page = next;
    }
    end = shelf_end(stock, BH_SHELF_QUARANTINE);
    for (uint32_t page = stock->next[end]; page != end;) {
        uint32_t next = stock->next[page];
        moved = quarantine_over(stock, page) || moved;
        page = next;
    }
    return moved;
}

uint32_t
bh_stock_evict(struct bh_stock *stock, uint32_t goal, uint32_t spare)
{
    uint32_t ended = 0;
    uint32_t end = shelf_end(stock, BH_SHELF_LRU);
    while (stock->lru_cnt > spare && stock->cnt[BH_PAGE_FREE] + stock->cnt[BH_PAGE_DIRTY] < goal) {
        uint32_t page = stock->next[end];
        BH_CHECK(page != end);
        bh_stock_end(stock, page);
        ended++;
    }
    return ended;
}
