/* The page pool: KV bytes in blocks with stamps (layout: shm/kv.h).

   Purpose    Holds the KV of all sequences of one model.
   Layout     head 64, padded to 4096 | pages [page_cnt][layers] blocks
   Writers    A page is written by the worker whose order names it while its word is HELD; by the
              scrubber (decode) while it is DIRTY; by nobody else, and never while CACHED.
   Ownership  PROTOCOL: order words. This object only stores and proves stamps.
   Ordering   edge stamp.word: block bytes, then the stamp, then its word.
   Progress   Wait-free.
   Death      Bytes behind a stamp that does not cover them were not written; the successor writes them
              again. A torn scrub is scrubbed again.
   Cost       64 bytes of stamp a block. */
#ifndef BH_SHM_POOL_H
#define BH_SHM_POOL_H

#include "shm/atomic.h"
#include "shm/handle.h"
#include "shm/object.h"

struct bh_pool {
    struct bh_object_head *head;
    uint8_t *pages; /* base for bh_kv_block */
    struct bh_kv_shape kv;
    uint32_t page_cnt;
};

size_t bh_pool_footprint(const struct bh_limits *limits);
/* Touches only the head: pages of a fresh memory file are zero, and a zero stamp proves nothing. */
BH_MUST_USE enum bh_status bh_pool_new(void *mem, const struct bh_limits *limits);
BH_MUST_USE enum bh_status
bh_pool_join(void *mem, size_t bytes, const struct bh_limits *limits, struct bh_pool *out);
void bh_pool_leave(struct bh_pool *pool);
/* Every stamp is zero, or names its own page and layer with filled <= page_tokens. */
BH_MUST_USE enum bh_status bh_pool_verify(const struct bh_pool *pool);

static inline struct bh_stamp *
bh_pool_stamp_at(const struct bh_pool *pool, uint32_t page_idx, uint32_t layer)
{
    return (struct bh_stamp *)(void *)bh_kv_block(&pool->kv, pool->pages, page_idx, layer);
}

/* bh_pool_stamp - after the K and V of tokens [0, filled) of this page's block at `layer` are written:
   say so. The first stamp of a life (filled was 0 or another generation's) writes the whole line.
   want: gen, page_idx, ordinal, writer and namespace to be stamped. filled in 1..page_tokens and not
   below what the stamp already says in this life. A full block is sealed: chain and digest stored. */
void bh_pool_stamp(struct bh_pool *pool,
                   const struct bh_stamp_want *want,
                   uint32_t layer,
                   uint32_t filled,
                   uint64_t chain);

/* bh_pool_reopen - a successor starts an unfinished page again: filled becomes 0 in every layer. */
void bh_pool_reopen(struct bh_pool *pool, const struct bh_stamp_want *want);

/* bh_pool_prove - the whole page, every layer: stamps as wanted with `filled` tokens.
   Returns the first refusal; *layer says where. */
enum bh_violation bh_pool_prove(const struct bh_pool *pool,
                                const struct bh_stamp_want *want,
                                uint32_t filled,
                                uint32_t *layer);

/* bh_pool_digest_ok - recompute the digest of every layer of a sealed page and compare. The digest is
   XXH3-64 of the bytes behind the stamp, seeded with (writer slot, writer gen, ordinal, layer, kind). */
bool bh_pool_digest_ok(const struct bh_pool *pool, uint32_t page_idx);

/* bh_pool_scrub - overwrite a page's bytes with a NaN pattern and zero its stamps (words first, so
   that no stamp ever covers scrubbed bytes). */
void bh_pool_scrub(struct bh_pool *pool, uint32_t page_idx);

#endif
