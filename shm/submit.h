/* Submissions: what the tokenizer puts before the engine: records, prompts, connections, replies.

   Purpose    Carries each question from the socket to whoever answers it.
   Layout     head 64 | subs [slots] | records [slots] | conns [conns] |
              prompts [slots][ctx] token ids | replies [conns][reply_bytes]; a sparse file
   Writers    The tokenizer, alone.
   Ownership  The tokenizer may write slot s while the request table says FREE(g) and sub[s] != g; from
              `sub = g` on, record and prompt are immutable until the slot's next generation.
   Ordering   edge conn.ask: record or reply bytes, then the question, then conn.ask. edge sub.word:
              after conn.ask, so that egress knows a request before it can exist.
   Progress   Wait-free.
   Death      A question asked but never submitted: the ledger's sweep of the tokenizer moves its FREE
              slots with sub != gen to gen + 1; egress sees the handle die and answers 503.
   Cost       A record is copied once, by the ledger. */
#ifndef BH_SHM_SUBMIT_H
#define BH_SHM_SUBMIT_H

#include "shm/atomic.h"
#include "shm/handle.h"
#include "shm/object.h"
#include "shm/record.h"

enum bh_question_kind {
    BH_QUESTION_NONE = 0,
    BH_QUESTION_REQUEST = 1, /* records from slot (slot, gen) on, linked by next_slot */
    BH_QUESTION_REPLY = 2,   /* a complete HTTP response of reply_bytes bytes in the reply area */
    BH_QUESTION_INTERIM = 3, /* "100 Continue"; another question of this connection follows */
    BH_QUESTION_MODELS = 4,
    BH_QUESTION_HEALTH = 5,
    BH_QUESTION_METRICS = 6,
    BH_QUESTION_HANGUP = 7, /* nothing more to say: end the connection */
    BH_QUESTION_KIND_CNT
};

struct bh_question {
    uint32_t kind; /* enum bh_question_kind */
    uint32_t slot; /* REQUEST: first choice */
    uint32_t gen;
    uint32_t reply_bytes; /* REPLY */
    uint32_t close;       /* 1: the connection ends after this answer */
    uint32_t zero;
};

/* One connection, one line and a bit. The open question is read only while answered < asked. */
struct bh_conn_row {
    struct bh_word ask;   /* gen 32 | count 32: questions put on this life of the connection */
    struct bh_word epoch; /* of the tokenizer that reads it; stored before the ask of a new life */
    struct bh_question question;
    uint64_t zero[3];
};
static_assert(sizeof(struct bh_conn_row) == BH_CACHE_LINE, "a connection is one line");

struct bh_submit {
    struct bh_object_head *head;
    struct bh_word *subs;      /* [slots] generation whose record and prompt are complete */
    struct bh_record *records; /* [slots] */
    struct bh_conn_row *conns; /* [conns] */
    uint32_t *prompts;         /* [slots][ctx] */
    uint8_t *replies;          /* [conns][reply_bytes] */
    uint32_t slots;
    uint32_t conn_cnt;
    uint32_t ctx;
    uint32_t reply_bytes;
};

size_t bh_submit_footprint(const struct bh_limits *limits);
BH_MUST_USE enum bh_status bh_submit_new(void *mem, const struct bh_limits *limits);
BH_MUST_USE enum bh_status
bh_submit_join(void *mem, size_t bytes, const struct bh_limits *limits, struct bh_submit *out);
void bh_submit_leave(struct bh_submit *submit);
BH_MUST_USE enum bh_status bh_submit_verify(const struct bh_submit *submit);

/* bh_record_check - are all fields of a (copied) record inside the limits, and is it for `req`? The
   ledger asks it about the tokenizer's bytes, egress about what it is going to print. False: refuse. */
bool
bh_record_check(const struct bh_record *record, struct bh_req req, const struct bh_limits *limits);

static inline uint32_t *
bh_submit_prompt(const struct bh_submit *submit, uint32_t slot)
{
    return submit->prompts + (size_t)slot * submit->ctx;
}

static inline uint8_t *
bh_submit_reply(const struct bh_submit *submit, uint32_t conn_idx)
{
    return submit->replies + (size_t)conn_idx * submit->reply_bytes;
}

static inline uint32_t
bh_sub_load(const struct bh_submit *submit, uint32_t slot)
{
    /* edge sub.word: acquire; pairs with release in bh_sub_store. */
    return (uint32_t)bh_word_load(&submit->subs[slot]);
}

static inline void
bh_sub_store(struct bh_submit *submit, uint32_t slot, uint32_t gen)
{
    /* edge sub.word: release; pairs with acquire in bh_sub_load. */
    bh_word_store(&submit->subs[slot], gen);
}

struct bh_ask {
    uint32_t gen;
    uint32_t cnt;
};

static inline struct bh_ask
bh_ask_load(const struct bh_submit *submit, uint32_t conn_idx)
{
    /* edge conn.ask: acquire; pairs with release in bh_ask_store. */
    uint64_t word = bh_word_load(&submit->conns[conn_idx].ask);
    return (struct bh_ask){.gen = (uint32_t)(word >> 32), .cnt = (uint32_t)word};
}

static inline void
bh_ask_store(struct bh_submit *submit, uint32_t conn_idx, struct bh_ask ask)
{
    /* edge conn.ask: release; pairs with acquire in bh_ask_load. */
    bh_word_store(&submit->conns[conn_idx].ask, ((uint64_t)ask.gen << 32) | ask.cnt);
}

#endif
