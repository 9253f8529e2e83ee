/* Handles: values that name one life of a page or of a request. Each is a struct of one member, so
   that a page is not a request is not an index; none is a pointer. Generation 0 is never valid. */
#ifndef BH_SHM_HANDLE_H
#define BH_SHM_HANDLE_H

#include "shm/base.h"

/* pool 8 | index 24 | generation 32. Index 0 of every pool is the null page: never granted, never
   stamped, so that a zeroed table entry proves nothing. */
struct bh_page {
    uint64_t bits;
};

static inline struct bh_page
bh_page_make(uint32_t pool, uint32_t idx, uint32_t gen)
{
    return (struct bh_page){((uint64_t)(pool & 0xffu) << 56) | ((uint64_t)(idx & 0xffffffu) << 32) |
                            gen};
}

static inline uint32_t
bh_page_pool(struct bh_page page)
{
    return (uint32_t)(page.bits >> 56);
}

static inline uint32_t
bh_page_idx(struct bh_page page)
{
    return (uint32_t)(page.bits >> 32) & 0xffffffu;
}

static inline uint32_t
bh_page_gen(struct bh_page page)
{
    return (uint32_t)page.bits;
}

/* slot 24 | generation 32: one life of a request slot. */
struct bh_req {
    uint32_t slot;
    uint32_t gen;
};

/* A hint: kind 8 | index 24 | generation 32. It says "look there" and never carries a fact. */
enum bh_hint_kind {
    BH_HINT_NONE = 0,
    BH_HINT_SUBMIT,   /* tokenizer -> ledger: slot */
    BH_HINT_EDGE,     /* egress -> ledger: slot */
    BH_HINT_REPORT,   /* worker -> ledger: slot */
    BH_HINT_SCRUBBED, /* decode -> ledger: page */
    BH_HINT_FREE,     /* ledger -> tokenizer: slot */
    BH_HINT_STATE,    /* ledger -> egress: slot */
    BH_HINT_ORDER,    /* ledger -> worker: slot */
    BH_HINT_LIST,     /* ledger -> decode: slot has more pages */
    BH_HINT_DIRTY,    /* ledger -> decode: page waits for the scrubber */
    BH_HINT_ASK,      /* tokenizer -> egress: connection */
    BH_HINT_ANSWERED, /* egress -> tokenizer: connection */
    BH_HINT_LOG,      /* decode -> egress: slot */
    BH_HINT_KIND_CNT
};

struct bh_hint {
    uint64_t bits;
};

static inline struct bh_hint
bh_hint_make(enum bh_hint_kind kind, uint32_t idx, uint32_t gen)
{
    return (struct bh_hint){((uint64_t)kind << 56) | ((uint64_t)(idx & 0xffffffu) << 32) | gen};
}

static inline uint32_t
bh_hint_kind(struct bh_hint hint)
{
    return (uint32_t)(hint.bits >> 56);
}

static inline uint32_t
bh_hint_idx(struct bh_hint hint)
{
    return (uint32_t)(hint.bits >> 32) & 0xffffffu;
}

static inline uint32_t
bh_hint_gen(struct bh_hint hint)
{
    return (uint32_t)hint.bits;
}

#endif
