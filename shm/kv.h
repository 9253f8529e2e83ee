/* Shape of the KV state of one model and where its bytes lie in a page. A base type: pool, kernels
   and roles agree on it, and nothing else about pages is known to kernels/.

   A page holds `page_tokens` tokens for all layers:
       page  = layers blocks, block_bytes each, page p at pool + p * page_bytes
       block = stamp 64 B | K [kv_heads][head_dim][page_tokens] | V [kv_heads][page_tokens][head_dim]
   K is stored with tokens innermost and V with head_dim innermost: in both products of attention
   (scores: sum over head_dim; output: sum over tokens) the *outputs* then lie across SIMD lanes, so
   each output keeps its own accumulator and its order of additions on every machine. */
#ifndef BH_SHM_KV_H
#define BH_SHM_KV_H

#include "shm/base.h"
#include "shm/stamp.h"

struct bh_kv_shape {
    uint32_t layers;
    uint32_t kv_heads;
    uint32_t head_dim;
    uint32_t page_tokens; /* power of two, 16..256 */
    uint32_t elem_bytes;  /* 2: f16, as served; 4: f32, for the reference run in tests */
};

/* Bytes of one (page, layer) block, stamp included; a multiple of 64. */
static inline size_t
bh_kv_block_bytes(const struct bh_kv_shape *shape)
{
    return (size_t)bh_round_up(sizeof(struct bh_stamp) + (size_t)2 * shape->kv_heads *
                                                             shape->head_dim * shape->page_tokens *
                                                             shape->elem_bytes,
                               64);
}

static inline size_t
bh_kv_page_bytes(const struct bh_kv_shape *shape)
{
    return bh_kv_block_bytes(shape) * shape->layers;
}

/* The block of (page_idx, layer) in the pool that is mapped at `pool`; both must be in range. */
static inline uint8_t *
bh_kv_block(const struct bh_kv_shape *shape, uint8_t *pool, uint32_t page_idx, uint32_t layer)
{
    return pool + (size_t)page_idx * bh_kv_page_bytes(shape) +
           (size_t)layer * bh_kv_block_bytes(shape);
}

/* K and V of one kv head inside a block. */
static inline uint8_t *
bh_kv_k(const struct bh_kv_shape *shape, uint8_t *block, uint32_t kv_head)
{
    return block + sizeof(struct bh_stamp) +
           (size_t)kv_head * shape->head_dim * shape->page_tokens * shape->elem_bytes;
}

static inline uint8_t *
bh_kv_v(const struct bh_kv_shape *shape, uint8_t *block, uint32_t kv_head)
{
    return block + sizeof(struct bh_stamp) +
           (size_t)(shape->kv_heads + kv_head) * shape->head_dim * shape->page_tokens *
               shape->elem_bytes;
}

#endif
