/* The prefix cache's index: chained buckets by the chain hash. Nothing is answered from the hash
   alone: a collision, chosen or not, costs a comparison and never serves another prompt's page. */
#include "src/ledger/cache.h"

#include <stdlib.h>
#include <string.h>

bool
bh_cache_new(struct bh_cache *cache, const struct bh_pagetable *table)
{
    uint32_t bucket_cnt = 16;
    while (bucket_cnt < table->page_cnt) {
        bucket_cnt *= 2;
    }
    *cache = (struct bh_cache){.table = table,
                               .buckets = calloc(bucket_cnt, sizeof(*cache->buckets)),
                               .next = calloc(table->page_cnt, sizeof(*cache->next)),
                               .mask = bucket_cnt - 1};
    if (cache->buckets == NULL || cache->next == NULL) {
        bh_cache_delete(cache);
        return false;
    }
    return true;
}

void
bh_cache_delete(struct bh_cache *cache)
{
    free(cache->buckets);
    free(cache->next);
    *cache = (struct bh_cache){0};
}

static uint32_t *
bucket_of(const struct bh_cache *cache, uint64_t chain)
{
    return &cache->buckets[(uint32_t)(chain ^ (chain >> 32)) & cache->mask];
}

void
bh_cache_insert(struct bh_cache *cache, uint32_t page_idx)
{
    BH_CHECK(page_idx > 0 && page_idx < cache->table->page_cnt);
    uint32_t *bucket = bucket_of(cache, cache->table->entries[page_idx].chain);
    cache->next[page_idx] = *bucket;
    *bucket = page_idx;
}

void
bh_cache_remove(struct bh_cache *cache, uint32_t page_idx)
{
    BH_CHECK(page_idx > 0 && page_idx < cache->table->page_cnt);
    uint32_t *at = bucket_of(cache, cache->table->entries[page_idx].chain);
    while (*at != 0 && *at != page_idx) {
        at = &cache->next[*at];
    }
    if (*at == page_idx) {
        *at = cache->next[page_idx];
        cache->next[page_idx] = 0;
    }
}

bool
bh_cache_find(const struct bh_cache *cache, const struct bh_cache_key *key, uint32_t *page_idx)
{
    const struct bh_pagetable *table = cache->table;
    size_t token_bytes = table->page_tokens * sizeof(*table->tokens);
    for (uint32_t at = *bucket_of(cache, key->entry.chain); at != 0; at = cache->next[at]) {
        const struct bh_cache_entry *entry = &table->entries[at];
        struct bh_page_view view = bh_page_load(table, at);
        if (view.state == BH_PAGE_CACHED && (view.flags & BH_PAGE_FLAGGED) == 0 &&
            view.owner == key->tenant && entry->name_space == key->entry.name_space &&
            entry->chain == key->entry.chain && entry->parent == key->entry.parent &&
            memcmp(table->tokens + (size_t)at * table->page_tokens, key->tokens, token_bytes) ==
                0) {
            *page_idx = at;
            return true;
        }
    }
    return false;
}
