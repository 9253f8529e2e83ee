/* The edge: what egress knows of clients, told to ledger and tokenizer.

   Purpose    Disconnects, stop strings and the progress of answers, as words.
   Layout     head 64 | edges [slots] | answers [conns] | closed [conns]
   Writers    egress, alone.
   Ordering   edge edge.word; edge conn.answer: CLOSED on every slot of an answer comes before its
              `answered`, so that slots are let go before the next question; edge conn.closed.
   Progress   Wait-free.
   Death      offered != sent: unknown whether the frame left, so the new egress ends that connection;
              equal: it goes on with frame `sent`, which is a function of record, log and number.
   Cost       One word a frame. */
#ifndef BH_SHM_EDGE_H
#define BH_SHM_EDGE_H

#include "shm/atomic.h"
#include "shm/object.h"

#define BH_EDGE_GONE   1u /* nobody wants this answer any more */
#define BH_EDGE_STOP   2u /* a stop string was found; stop_at tokens are the answer */
#define BH_EDGE_CLOSED 4u /* egress reads nothing of this life of the slot again */

/* Edge word: gen 32 | flags 8 | stop_at 24. */
struct bh_edge_view {
    uint32_t gen;
    uint32_t flags;
    uint32_t stop_at;
};

/* Answer word: answered 16 | offered 24 | sent 24. answered counts modulo 2^16. */
struct bh_answer_view {
    uint32_t answered;
    uint32_t offered;
    uint32_t sent;
};

struct bh_edge {
    struct bh_object_head *head;
    struct bh_word *edges;   /* [slots] */
    struct bh_word *answers; /* [conns] of the present life; `answered` of all lives */
    struct bh_word *closed;  /* [conns] generation of the connection that was ended last */
    uint32_t slots;
    uint32_t conn_cnt;
};

size_t bh_edge_footprint(const struct bh_limits *limits);
BH_MUST_USE enum bh_status bh_edge_new(void *mem, const struct bh_limits *limits);
BH_MUST_USE enum bh_status
bh_edge_join(void *mem, size_t bytes, const struct bh_limits *limits, struct bh_edge *out);
void bh_edge_leave(struct bh_edge *edge);
BH_MUST_USE enum bh_status bh_edge_verify(const struct bh_edge *edge);

static inline struct bh_edge_view
bh_edge_load(const struct bh_edge *edge, uint32_t slot)
{
    /* edge edge.word: acquire; pairs with release in bh_edge_store. */
    uint64_t word = bh_word_load(&edge->edges[slot]);
    return (struct bh_edge_view){.gen = (uint32_t)(word >> 32),
                                 .flags = (uint32_t)(word >> 24) & 0xffu,
                                 .stop_at = (uint32_t)word & 0xffffffu};
}

static inline void
bh_edge_store(struct bh_edge *edge, uint32_t slot, struct bh_edge_view view)
{
    /* edge edge.word: release; pairs with acquire in bh_edge_load. */
    bh_word_store(&edge->edges[slot],
                  ((uint64_t)view.gen << 32) | ((uint64_t)(view.flags & 0xffu) << 24) |
                      (view.stop_at & 0xffffffu));
}

static inline struct bh_answer_view
bh_answer_load(const struct bh_edge *edge, uint32_t conn_idx)
{
    /* edge conn.answer: acquire; pairs with release in bh_answer_store. */
    uint64_t word = bh_word_load(&edge->answers[conn_idx]);
    return (struct bh_answer_view){.answered = (uint32_t)(word >> 48),
                                   .offered = (uint32_t)(word >> 24) & 0xffffffu,
                                   .sent = (uint32_t)word & 0xffffffu};
}

static inline void
bh_answer_store(struct bh_edge *edge, uint32_t conn_idx, struct bh_answer_view view)
{
    /* edge conn.answer: release; pairs with acquire in bh_answer_load. */
    bh_word_store(&edge->answers[conn_idx],
                  ((uint64_t)(view.answered & 0xffffu) << 48) |
                      ((uint64_t)(view.offered & 0xffffffu) << 24) | (view.sent & 0xffffffu));
}

static inline uint32_t
bh_conn_closed_load(const struct bh_edge *edge, uint32_t conn_idx)
{
    /* edge conn.closed: acquire; pairs with release in bh_conn_closed_store. */
    return (uint32_t)bh_word_load(&edge->closed[conn_idx]);
}

static inline void
bh_conn_closed_store(struct bh_edge *edge, uint32_t conn_idx, uint32_t gen)
{
    /* edge conn.closed: release; pairs with acquire in bh_conn_closed_load. */
    bh_word_store(&edge->closed[conn_idx], gen);
}

#endif
