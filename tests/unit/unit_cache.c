/* The prefix index: everything must be equal for a hit, and nothing that is not cached is one. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "src/ledger/cache.h"

#define PAGES       12u
#define PAGE_TOKENS 16u

static struct bh_pagetable table;
static void *memory;
static struct bh_cache cache;

static void
make(void)
{
    struct bh_limits limits = {
        .slots = 2,
        .conns = 1,
        .tenants = 4,
        .ctx = 64,
        .page_cnt = PAGES,
        .list_max = 4,
        .rows_max = 2,
        .chunk_max = 16,
        .reply_bytes = 64,
        .vocab = 100,
        .kv = {.layers = 1,
               .kv_heads = 1,
               .head_dim = 8,
               .page_tokens = PAGE_TOKENS,
               .elem_bytes = 2},
    };
    size_t bytes = bh_pagetable_footprint(&limits);
    memory = aligned_alloc(64, bh_round_up(bytes, 64));
    cr_assert_not_null(memory);
    cr_assert_eq(bh_pagetable_new(memory, &limits), BH_OK);
    cr_assert_eq(bh_pagetable_join(memory, bytes, &limits, &table), BH_OK);
    cr_assert(bh_cache_new(&cache, &table));
}

static void
drop(void)
{
    bh_cache_delete(&cache);
    free(memory);
}

TestSuite(cache, .init = make, .fini = drop);

static uint32_t tokens[PAGE_TOKENS];

static struct bh_cache_key
key_of(uint32_t tenant, uint64_t name_space, uint64_t chain, uint64_t parent)
{
    return (struct bh_cache_key){
        .tenant = tenant,
        .entry = {.name_space = name_space, .chain = chain, .parent = parent},
        .tokens = tokens};
}

static void
put(uint32_t page, struct bh_cache_key key)
{
    table.entries[page] = key.entry;
    memcpy(table.tokens + page * PAGE_TOKENS, key.tokens, sizeof(tokens));
    bh_page_store(&table,
                  page,
                  (struct bh_page_view){.gen = 3, .state = BH_PAGE_CACHED, .owner = key.tenant});
    bh_cache_insert(&cache, page);
}

Test(cache, finds_what_is_equal)
{
    struct bh_cache_key key = key_of(1, 50, 1000, 7);
    uint32_t page = 99;
    cr_assert_not(bh_cache_find(&cache, &key, &page));
    put(4, key);
    cr_assert(bh_cache_find(&cache, &key, &page));
    cr_assert_eq(page, 4);
}

Test(cache, every_part_of_the_key_counts)
{
    put(4, key_of(1, 50, 1000, 7));
    uint32_t page = 99;
    struct bh_cache_key key = key_of(2, 50, 1000, 7);
    cr_assert_not(bh_cache_find(&cache, &key, &page), "another tenant");
    key = key_of(1, 51, 1000, 7);
    cr_assert_not(bh_cache_find(&cache, &key, &page), "another namespace");
    key = key_of(1, 50, 1001, 7);
    cr_assert_not(bh_cache_find(&cache, &key, &page), "another chain");
    key = key_of(1, 50, 1000, 8);
    cr_assert_not(bh_cache_find(&cache, &key, &page), "other tokens before it");
    key = key_of(1, 50, 1000, 7);
    for (uint32_t i = 0; i < PAGE_TOKENS; i++) {
        tokens[i] ^= 1;
        cr_assert_not(bh_cache_find(&cache, &key, &page), "same hash, other token %u", i);
        tokens[i] ^= 1;
    }
    cr_assert_eq(page, 99);
    cr_assert(bh_cache_find(&cache, &key, &page));
}

Test(cache, collisions_live_side_by_side)
{
    put(4, key_of(1, 50, 1000, 7));
    tokens[0] = 9;
    put(5, key_of(1, 50, 1000, 7));
    struct bh_cache_key key = key_of(1, 50, 1000, 7);
    uint32_t page = 0;
    cr_assert(bh_cache_find(&cache, &key, &page));
    cr_assert_eq(page, 5);
    tokens[0] = 0;
    cr_assert(bh_cache_find(&cache, &key, &page));
    cr_assert_eq(page, 4);
    bh_cache_remove(&cache, 5);
    cr_assert(bh_cache_find(&cache, &key, &page));
    bh_cache_remove(&cache, 4);
    bh_cache_remove(&cache, 4);
    cr_assert_not(bh_cache_find(&cache, &key, &page));
}

Test(cache, the_page_word_decides)
{
    struct bh_cache_key key = key_of(1, 50, 1000, 7);
    put(4, key);
    uint32_t page;
    struct bh_page_view view = bh_page_load(&table, 4);
    view.flags = BH_PAGE_FLAGGED;
    bh_page_store(&table, 4, view);
    cr_assert_not(bh_cache_find(&cache, &key, &page), "a fault named it");
    view.flags = 0;
    for (uint32_t state = 0; state < BH_PAGE_STATE_CNT; state++) {
        view.state = (enum bh_page_state)state;
        bh_page_store(&table, 4, view);
        cr_assert_eq(bh_cache_find(&cache, &key, &page), state == BH_PAGE_CACHED);
    }
}

Test(cache, all_pages_in_any_order)
{
    for (uint32_t page = 1; page < PAGES; page++) {
        put(page, key_of(1, 50, page % 3, page));
    }
    for (uint32_t gone = 1; gone < PAGES; gone += 2) {
        bh_cache_remove(&cache, gone);
    }
    for (uint32_t page = 1; page < PAGES; page++) {
        struct bh_cache_key key = key_of(1, 50, page % 3, page);
        uint32_t found = 0;
        cr_assert_eq(bh_cache_find(&cache, &key, &found), page % 2 == 0);
        cr_assert(page % 2 == 1 || found == page);
    }
}
