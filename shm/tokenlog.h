/* The token log: what was generated for each request, in order, with its log-probabilities.

   Purpose    The only way from decode to egress. It has room for a whole answer, so decode never waits
              for a client, and a slow client holds log words, never pages. A second instance carries the
              prompt's log-probabilities from prefill to egress.
   Layout     head 64 | words [slots] | tokens [slots][ctx] | logprobs [slots][ctx]; a sparse file:
              what no answer touched has no memory
   Writers    decode (the prompt's: prefill).
   Ordering   edge log.word: entries [0, count) before the word that counts them; the finish is in the
              store of the last count, so that a last token and its reason are one fact.
   Progress   Wait-free.
   Death      A token stored but not counted was seen by nobody; the successor draws the same one.
   Cost       4 bytes a token; 168 more where log-probabilities were asked for. */
#ifndef BH_SHM_TOKENLOG_H
#define BH_SHM_TOKENLOG_H

#include "shm/atomic.h"
#include "shm/object.h"
#include "shm/record.h"

#define BH_LOG_TOP_MAX 20

struct bh_log_logprob {
    float logprob;
    uint32_t top_cnt;
    struct {
        uint32_t token;
        float logprob;
    } top[BH_LOG_TOP_MAX];
};
static_assert(sizeof(struct bh_log_logprob) == 168, "the card states the cost");

/* Log word: gen 32 | finish 8 | count 24. */
struct bh_log_view {
    uint32_t gen;
    enum bh_finish finish;
    uint32_t cnt;
};

struct bh_tokenlog {
    struct bh_object_head *head;
    struct bh_word *words;           /* [slots] */
    uint32_t *tokens;                /* [slots][ctx] */
    struct bh_log_logprob *logprobs; /* [slots][ctx] */
    uint32_t slots;
    uint32_t ctx;
};

size_t bh_tokenlog_footprint(const struct bh_limits *limits);
BH_MUST_USE enum bh_status bh_tokenlog_new(void *mem, const struct bh_limits *limits);
BH_MUST_USE enum bh_status
bh_tokenlog_join(void *mem, size_t bytes, const struct bh_limits *limits, struct bh_tokenlog *out);
void bh_tokenlog_leave(struct bh_tokenlog *log);
BH_MUST_USE enum bh_status bh_tokenlog_verify(const struct bh_tokenlog *log);

static inline struct bh_log_view
bh_log_load(const struct bh_tokenlog *log, uint32_t slot)
{
    /* edge log.word: acquire; pairs with release in bh_log_store. */
    uint64_t word = bh_word_load(&log->words[slot]);
    return (struct bh_log_view){.gen = (uint32_t)(word >> 32),
                                .finish = (enum bh_finish)((word >> 24) & 0xffu),
                                .cnt = (uint32_t)word & 0xffffffu};
}

static inline void
bh_log_store(struct bh_tokenlog *log, uint32_t slot, struct bh_log_view view)
{
    /* edge log.word: release; pairs with acquire in bh_log_load. */
    bh_word_store(&log->words[slot],
                  ((uint64_t)view.gen << 32) | ((uint64_t)(view.finish & 0xffu) << 24) |
                      (view.cnt & 0xffffffu));
}

static inline uint32_t *
bh_log_token(const struct bh_tokenlog *log, uint32_t slot, uint32_t idx)
{
    return &log->tokens[(size_t)slot * log->ctx + idx];
}

static inline struct bh_log_logprob *
bh_log_logprob_at(const struct bh_tokenlog *log, uint32_t slot, uint32_t idx)
{
    return &log->logprobs[(size_t)slot * log->ctx + idx];
}

#endif
