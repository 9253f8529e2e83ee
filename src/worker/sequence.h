/* A sequence as a worker sees it: one request under one order, its tokens, and what each of its pages
   must be. Shared by prefill and decode, so that both prove the same things in the same words. */
#ifndef BH_WORKER_SEQUENCE_H
#define BH_WORKER_SEQUENCE_H

#include "src/core/world.h"

struct bh_sequence {
    bool open;
    struct bh_live live;         /* request and order this was opened for */
    struct bh_record record;     /* the ledger's checked copy, copied once */
    uint32_t page_cnt;           /* pages listed so far */
    uint32_t shared;             /* the first of them, read-only */
    uint32_t chained;            /* chains[0..chained) are computed */
    struct bh_page *pages;       /* [list_max] */
    struct bh_stamp_want *wants; /* [list_max] what page j must say */
    uint64_t *chains;            /* [list_max] chain at the end of page j, where it is full */
    uint32_t *tokens;            /* [list_max * page_tokens] the sequence's own copy, taken once */
    uint32_t token_cnt;          /* tokens copied so far */
};

/* bh_sequence_new - room for the longest sequence. False: no memory. */
bool bh_sequence_new(struct bh_sequence *sequence, const struct bh_limits *limits);
void bh_sequence_delete(struct bh_sequence *sequence);

/* bh_sequence_open - take up the live request: record, list, wants.
   Returns BH_VIOLATION_NONE, or BH_VIOLATION_HANDLE with *ord when an entry is no page of this pool. */
enum bh_violation bh_sequence_open(struct bh_sequence *sequence,
                                   const struct bh_world *world,
                                   const struct bh_live *live,
                                   uint32_t *ord);

/* bh_sequence_grow - the list may have become longer: take up the new entries. Same returns. */
enum bh_violation
bh_sequence_grow(struct bh_sequence *sequence, const struct bh_world *world, uint32_t *ord);

/* bh_sequence_token - token `pos` of prompt + log; pos lies in the listed pages. Each token is copied
   once: the one that names a page in its chain hash is the one that is computed, whatever the process
   that wrote it does to its memory meanwhile. The caller checks that it is below vocab. */
uint32_t
bh_sequence_token(struct bh_sequence *sequence, const struct bh_world *world, uint32_t pos);

/* bh_sequence_chain - compute chains of all pages that `tokens` tokens fill, and the wants of shared
   pages from them. */
void bh_sequence_chain(struct bh_sequence *sequence, const struct bh_world *world, uint32_t tokens);

/* bh_sequence_filled - how many of `tokens` tokens lie in page `ord`. */
static inline uint32_t
bh_sequence_filled(uint32_t ord, uint32_t tokens, uint32_t page_tokens)
{
    uint32_t from = ord * page_tokens;
    return tokens <= from ? 0 : (uint32_t)bh_min_u64(tokens - from, page_tokens);
}

/* bh_sequence_current - the seqlock rule: after the reads, is every page that holds one of `tokens`
   tokens still in the life the sequence names? False: *ord is the first that is not. */
bool bh_sequence_current(const struct bh_sequence *sequence,
                         const struct bh_world *world,
                         uint32_t tokens,
                         uint32_t *ord);

/* bh_sequence_ordered - may the worker go on? The order is still this one, RUN, and the request live. */
bool bh_sequence_ordered(const struct bh_sequence *sequence, const struct bh_world *world);

#endif
