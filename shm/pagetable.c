/* The page table: layout, checks, and the chain of hashes that names a prefix. */
#include "shm/pagetable.h"

#include <string.h>
#include <xxhash.h>

#define PAGETABLE_VERSION 1u

/* Largest slot and tenant numbers that any limits allow; the side handle does not know its own. */
#define SLOT_CNT_MAX   65536u
#define TENANT_CNT_MAX 1024u

struct sections {
    size_t words;
    size_t entries;
    size_t tokens;
    size_t bytes;
};

static struct sections
lay_out(const struct bh_limits *limits)
{
    size_t page_cnt = limits->page_cnt;
    struct sections at = {.bytes = sizeof(struct bh_object_head)};
    at.words = bh_object_place(&at.bytes, page_cnt * sizeof(struct bh_word));
    at.entries = bh_object_place(&at.bytes, page_cnt * sizeof(struct bh_cache_entry));
    at.tokens = bh_object_place(&at.bytes, page_cnt * limits->kv.page_tokens * sizeof(uint32_t));
    return at;
}

size_t
bh_pagetable_footprint(const struct bh_limits *limits)
{
    return bh_limits_ok(limits) ? lay_out(limits).bytes : 0;
}

static struct bh_pagetable
side(void *mem, const struct bh_limits *limits)
{
    struct sections at = lay_out(limits);
    uint8_t *base = mem;
    return (struct bh_pagetable){.head = mem,
                                 .words = (void *)(base + at.words),
                                 .entries = (void *)(base + at.entries),
                                 .tokens = (void *)(base + at.tokens),
                                 .page_cnt = limits->page_cnt,
                                 .page_tokens = limits->kv.page_tokens};
}

enum bh_status
bh_pagetable_new(void *mem, const struct bh_limits *limits)
{
    size_t bytes = bh_pagetable_footprint(limits);
    enum bh_status status = bh_object_prepare(mem, bytes);
    if (status != BH_OK) {
        return status;
    }
    struct bh_pagetable table = side(mem, limits);
    /* Entries and tokens matter behind a CACHED word only; the sparse part stays untouched. */
    bh_page_store(&table, 0, (struct bh_page_view){.gen = 1, .state = BH_PAGE_RETIRED});
    for (uint32_t page_idx = 1; page_idx < limits->page_cnt; page_idx++) {
        bh_page_store(&table, page_idx, (struct bh_page_view){.gen = 1, .state = BH_PAGE_FREE});
    }
    bh_object_publish(mem, bh_object_layout("pagetable", PAGETABLE_VERSION, limits), bytes);
    return BH_OK;
}

enum bh_status
bh_pagetable_join(void *mem, size_t bytes, const struct bh_limits *limits, struct bh_pagetable *out)
{
    size_t footprint = bh_pagetable_footprint(limits);
    if (footprint == 0) {
        return BH_EINVAL;
    }
    uint64_t layout = bh_object_layout("pagetable", PAGETABLE_VERSION, limits);
    enum bh_status status = bh_object_check(mem, bytes, layout, footprint);
    if (status == BH_OK) {
        *out = side(mem, limits);
    }
    return status;
}

void
bh_pagetable_leave(struct bh_pagetable *table)
{
    *table = (struct bh_pagetable){0};
}

static bool
page_word_ok(struct bh_page_view view)
{
    if (view.gen == 0 || view.state >= BH_PAGE_STATE_CNT || (view.flags & ~BH_PAGE_FLAGGED) != 0) {
        return false;
    }
    switch (view.state) {
    case BH_PAGE_HELD:
        return view.owner < SLOT_CNT_MAX;
    case BH_PAGE_CACHED:
        return view.owner < TENANT_CNT_MAX;
    default:
        return true;
    }
}

enum bh_status
bh_pagetable_verify(const struct bh_pagetable *table)
{
    enum bh_status status = bh_object_verify(table->head);
    if (status == BH_OK && bh_page_load(table, 0).state != BH_PAGE_RETIRED) {
        status = BH_ECORRUPT;
    }
    for (uint32_t page_idx = 0; status == BH_OK && page_idx < table->page_cnt; page_idx++) {
        if (!page_word_ok(bh_page_load(table, page_idx))) {
            status = BH_ECORRUPT;
        }
    }
    return status;
}

/* The present word of the page that `page` names; false when the handle names no page of this
   table or another life of it. */
static bool
same_life(const struct bh_pagetable *table, struct bh_page page, struct bh_page_view *view)
{
    uint32_t page_idx = bh_page_idx(page);
    if (bh_page_pool(page) != 0 || page_idx == 0 || page_idx >= table->page_cnt ||
        bh_page_gen(page) == 0) {
        return false;
    }
    *view = bh_page_load(table, page_idx);
    return view->gen == bh_page_gen(page);
}

bool
bh_page_current(const struct bh_pagetable *table, struct bh_page page, uint32_t slot)
{
    struct bh_page_view view;
    if (!same_life(table, page, &view)) {
        return false;
    }
    return view.state == BH_PAGE_CACHED || (view.state == BH_PAGE_HELD && view.owner == slot);
}

bool
bh_page_writable(const struct bh_pagetable *table, struct bh_page page, uint32_t slot)
{
    struct bh_page_view view;
    return same_life(table, page, &view) && view.state == BH_PAGE_HELD && view.owner == slot;
}

uint64_t
bh_chain_start(uint64_t seed, uint64_t name_space)
{
    return XXH3_64bits_withSeed(&name_space, sizeof(name_space), seed);
}

uint64_t
bh_chain_next(uint64_t previous, const uint32_t *tokens, uint32_t token_cnt)
{
    return XXH3_64bits_withSeed(tokens, token_cnt * sizeof(*tokens), previous);
}
