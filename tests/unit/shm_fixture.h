/* What the unit and race tests of shm/ share: small limits, and memory for objects. */
#ifndef BH_UNIT_SHM_FIXTURE_H
#define BH_UNIT_SHM_FIXTURE_H

#include <stdlib.h>
#include <string.h>

#include "shm/object.h"

static const struct bh_limits FIXTURE_LIMITS = {
    .slots = 4,
    .conns = 3,
    .tenants = 2,
    .ctx = 64,
    .page_cnt = 9,
    .list_max = 4,
    .rows_max = 4,
    .chunk_max = 32,
    .reply_bytes = 256,
    .vocab = 100,
    .kv = {.layers = 2, .kv_heads = 2, .head_dim = 8, .page_tokens = 16, .elem_bytes = 2},
};

/* Aligned memory full of `fill`; 0 is what a fresh memory file holds, anything else is harsher. */
static inline void *
fixture_memory(size_t bytes, int fill)
{
    size_t whole = (size_t)bh_round_up(bytes, BH_CACHE_LINE);
    void *mem = aligned_alloc(BH_CACHE_LINE, whole);
    BH_CHECK(mem != NULL);
    memset(mem, fill, whole);
    return mem;
}

#endif
