/* The page pool: stamps are stored, proved and wiped here, and nowhere else. */
#include "shm/pool.h"

#include <string.h>
#include <xxhash.h>

#include "shm/hook.h"

#define POOL_VERSION 1u

/* Pages begin on a page of the system, so that a block never shares one with the head. */
#define PAGES_OFFSET 4096u

/* All bits set is a NaN both as f16 and as f32: whoever reads a wiped page unproved gets non-finite
   logits, never another tenant's text. */
#define SCRUB_BYTE 0xff

size_t
bh_pool_footprint(const struct bh_limits *limits)
{
    if (!bh_limits_ok(limits)) {
        return 0;
    }
    return PAGES_OFFSET + (size_t)limits->page_cnt * bh_kv_page_bytes(&limits->kv);
}

enum bh_status
bh_pool_new(void *mem, const struct bh_limits *limits)
{
    size_t bytes = bh_pool_footprint(limits);
    enum bh_status status = bh_object_prepare(mem, bytes);
    if (status != BH_OK) {
        return status;
    }
    bh_object_publish(mem, bh_object_layout("pool", POOL_VERSION, limits), bytes);
    return BH_OK;
}

enum bh_status
bh_pool_join(void *mem, size_t bytes, const struct bh_limits *limits, struct bh_pool *out)
{
    size_t footprint = bh_pool_footprint(limits);
    if (footprint == 0) {
        return BH_EINVAL;
    }
    uint64_t layout = bh_object_layout("pool", POOL_VERSION, limits);
    enum bh_status status = bh_object_check(mem, bytes, layout, footprint);
    if (status == BH_OK) {
        *out = (struct bh_pool){.head = mem,
                                .pages = (uint8_t *)mem + PAGES_OFFSET,
                                .kv = limits->kv,
                                .page_cnt = limits->page_cnt};
    }
    return status;
}

void
bh_pool_leave(struct bh_pool *pool)
{
    *pool = (struct bh_pool){0};
}

static bool
in_pool(const struct bh_pool *pool, uint32_t page_idx)
{
    return page_idx != 0 && page_idx < pool->page_cnt;
}

static bool
stamp_ok(const struct bh_pool *pool, uint32_t page_idx, uint32_t layer)
{
    const struct bh_stamp *stamp = bh_pool_stamp_at(pool, page_idx, layer);
    /* edge stamp.word: acquire; pairs with release in bh_pool_stamp. */
    uint64_t word = bh_word_load(&stamp->word);
    if (word == 0) {
        return true;
    }
    uint32_t filled = bh_stamp_filled(word);
    bool sealed = bh_stamp_flags(word) == BH_STAMP_SEALED;
    if (!in_pool(pool, page_idx) || bh_stamp_gen(word) == 0 || filled > pool->kv.page_tokens ||
        (!sealed && bh_stamp_flags(word) != 0) || sealed != (filled == pool->kv.page_tokens)) {
        return false;
    }
    /* A page that was opened again before its first stamp says nothing yet but its generation. */
    return filled == 0 || (stamp->page_idx == page_idx && stamp->layer == layer &&
                           stamp->kind == 0 && stamp->zero == 0 && stamp->zero2 == 0);
}

enum bh_status
bh_pool_verify(const struct bh_pool *pool)
{
    enum bh_status status = bh_object_verify(pool->head);
    for (uint32_t page_idx = 0; status == BH_OK && page_idx < pool->page_cnt; page_idx++) {
        for (uint32_t layer = 0; status == BH_OK && layer < pool->kv.layers; layer++) {
            if (!stamp_ok(pool, page_idx, layer)) {
                status = BH_ECORRUPT;
            }
        }
    }
    return status;
}

/* Digest of the bytes behind a stamp. Seeded with their place, so that the same bytes copied to
   another page, layer or request do not verify. */
static uint64_t
digest(const struct bh_pool *pool, const struct bh_stamp *stamp)
{
    const uint32_t place[5] = {
        stamp->writer_slot, stamp->writer_gen, stamp->ordinal, stamp->layer, stamp->kind};
    uint64_t seed = XXH3_64bits(place, sizeof(place));
    const uint8_t *bytes = (const uint8_t *)stamp + sizeof(*stamp);
    return XXH3_64bits_withSeed(bytes, bh_kv_block_bytes(&pool->kv) - sizeof(*stamp), seed);
}

void
bh_pool_stamp(struct bh_pool *pool,
              const struct bh_stamp_want *want,
              uint32_t layer,
              uint32_t filled,
              uint64_t chain)
{
    BH_CHECK(in_pool(pool, want->page_idx));
    BH_CHECK(layer < pool->kv.layers);
    BH_CHECK(want->gen != 0);
    BH_CHECK(filled > 0 && filled <= pool->kv.page_tokens);
    struct bh_stamp *stamp = bh_pool_stamp_at(pool, want->page_idx, layer);
    /* Relaxed: the writer of this block is its only writer; what a predecessor stored came with the
       order word. */
    uint64_t word = bh_word_load_relaxed(&stamp->word);
    bool opened = bh_stamp_gen(word) == want->gen && bh_stamp_filled(word) > 0;
    BH_CHECK(!opened || filled >= bh_stamp_filled(word));
    BH_CHECK(!opened || stamp->writer_gen == want->writer_gen);
    if (opened && (bh_stamp_flags(word) & BH_STAMP_SEALED) != 0) {
        return; /* a sealed block is never written again in its life */
    }
    if (!opened) {
        stamp->page_idx = want->page_idx;
        stamp->layer = (uint16_t)layer;
        stamp->kind = 0;
        stamp->ordinal = want->ordinal;
        stamp->writer_slot = want->writer_slot;
        stamp->writer_gen = want->writer_gen;
        stamp->zero = 0;
        stamp->name_space = want->name_space;
        stamp->chain = 0;
        stamp->digest = 0;
        stamp->zero2 = 0;
    }
    uint32_t flags = 0;
    if (filled == pool->kv.page_tokens) {
        stamp->chain = chain;
        stamp->digest = digest(pool, stamp);
        flags = BH_STAMP_SEALED;
    }
    BH_HOOK("pool.stamp:before_word");
    /* edge stamp.word: release; pairs with acquire in bh_stamp_prove.
       Makes the block's bytes and the rest of the stamp visible before the claim that they
       exist. */
    bh_word_store(&stamp->word, bh_stamp_word(want->gen, filled, flags));
    BH_HOOK("pool.stamp:after_word");
}

void
bh_pool_reopen(struct bh_pool *pool, const struct bh_stamp_want *want)
{
    BH_CHECK(in_pool(pool, want->page_idx));
    BH_CHECK(want->gen != 0);
    for (uint32_t layer = 0; layer < pool->kv.layers; layer++) {
        /* edge stamp.word: release; pairs with acquire in bh_stamp_prove. */
        bh_word_store(&bh_pool_stamp_at(pool, want->page_idx, layer)->word,
                      bh_stamp_word(want->gen, 0, 0));
        BH_HOOK("pool.reopen:after_word");
    }
    /* No byte is written again while a stamp still covers it. */
    bh_fence_seq_cst();
}

enum bh_violation
bh_pool_prove(const struct bh_pool *pool,
              const struct bh_stamp_want *want,
              uint32_t filled,
              uint32_t *layer)
{
    if (!in_pool(pool, want->page_idx)) {
        *layer = 0;
        return BH_VIOLATION_HANDLE;
    }
    for (uint32_t i = 0; i < pool->kv.layers; i++) {
        enum bh_violation violation =
            bh_stamp_prove(bh_pool_stamp_at(pool, want->page_idx, i), want, i, filled);
        if (violation != BH_VIOLATION_NONE) {
            *layer = i;
            return violation;
        }
    }
    return BH_VIOLATION_NONE;
}

bool
bh_pool_digest_ok(const struct bh_pool *pool, uint32_t page_idx)
{
    if (!in_pool(pool, page_idx)) {
        return false;
    }
    for (uint32_t layer = 0; layer < pool->kv.layers; layer++) {
        const struct bh_stamp *stamp = bh_pool_stamp_at(pool, page_idx, layer);
        /* edge stamp.word: acquire; pairs with release in bh_pool_stamp. */
        uint64_t word = bh_word_load(&stamp->word);
        if ((bh_stamp_flags(word) & BH_STAMP_SEALED) == 0 || stamp->layer != layer ||
            stamp->digest != digest(pool, stamp)) {
            return false;
        }
    }
    return true;
}

void
bh_pool_scrub(struct bh_pool *pool, uint32_t page_idx)
{
    BH_CHECK(in_pool(pool, page_idx));
    for (uint32_t layer = 0; layer < pool->kv.layers; layer++) {
        /* edge stamp.word: release; pairs with acquire in bh_stamp_prove. */
        bh_word_store(&bh_pool_stamp_at(pool, page_idx, layer)->word, 0);
        BH_HOOK("pool.scrub:after_word");
    }
    /* Words first, for every other process too: a release store alone would let the wipe below pass
       it. */
    bh_fence_seq_cst();
    size_t bytes = bh_kv_block_bytes(&pool->kv) - sizeof(struct bh_stamp);
    for (uint32_t layer = 0; layer < pool->kv.layers; layer++) {
        uint8_t *block = bh_kv_block(&pool->kv, pool->pages, page_idx, layer);
        memset(block + sizeof(struct bh_stamp), SCRUB_BYTE, bytes);
        BH_HOOK("pool.scrub:before_stamp");
        memset(block + sizeof(struct bh_word), 0, sizeof(struct bh_stamp) - sizeof(struct bh_word));
    }
}
