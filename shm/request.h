/* The request table: outcome, activity and pages of every request.

   Purpose    What every process must know about a request: where it stands (request word), who may
              touch its pages (order word), and which pages those are (list word and entries).
   Layout     head 64 | swept [roles] | per slot one line {request, order, list, ticket, deaths} |
              records [slots] | entries [slots][list_max]
   Writers    The ledger, alone. Everybody else maps it read-only.
   Ownership  Pages named by a live list with a RUN order belong to the worker and epoch in that order.
   Ordering   edges request.word, order.word, list.word: entries before the list word, list before
              state, state before order.
   Progress   Wait-free loads and stores.
   Death      The ledger killed between any two stores leaves what PROTOCOL section 6 lists: a page
              HELD but unlisted, or a list without an order. The next ledger ends or orders it.
   Cost       One line a slot; entries are read once per order.

   Outcome and activity are two words on purpose: a request can be over for its client while a worker
   still touches its pages. Pages go back when it is *quiet*, never because time passed. */
#ifndef BH_SHM_REQUEST_H
#define BH_SHM_REQUEST_H

#include "shm/atomic.h"
#include "shm/handle.h"
#include "shm/object.h"
#include "shm/record.h"

enum bh_request_state {
    BH_REQUEST_FREE = 0,
    BH_REQUEST_QUEUED = 1,
    BH_REQUEST_PREFILL = 2,
    BH_REQUEST_DECODE = 3,
    BH_REQUEST_DONE = 4, /* terminal from here on: nothing leads out but FREE(gen + 1) */
    BH_REQUEST_REJECTED = 5,
    BH_REQUEST_CANCELLED = 6,
    BH_REQUEST_FAILED = 7,
    BH_REQUEST_STATE_CNT
};

enum bh_cause {
#define CAUSE(name, code, meaning) BH_CAUSE_##name,
#include "shm/cause.def"
#undef CAUSE
    BH_CAUSE_CNT
};

/* Request word: gen 32 | state 8 | cause 8 | zero 16. */
struct bh_request_view {
    uint32_t gen;
    enum bh_request_state state;
    enum bh_cause cause;
};

enum bh_order_verb { BH_ORDER_NONE = 0, BH_ORDER_RUN = 1, BH_ORDER_STOP = 2 };

/* Order word: seq 32 | verb 2 | role 6 | epoch 24. */
struct bh_order {
    uint32_t seq;
    enum bh_order_verb verb;
    uint32_t role;
    uint32_t epoch;
};

/* List word: zero 16 | count 24 | shared 24. Entries [0, count) are the request's pages in order; the
   first `shared` are read-only. */
struct bh_list {
    uint32_t cnt;
    uint32_t shared;
};

/* One line of facts per slot. */
struct bh_request_row {
    struct bh_word request;
    struct bh_word order;
    struct bh_word list;
    uint64_t ticket;     /* arrival number, kept over preemption; smaller is older */
    uint64_t tokens;     /* prompt tokens plus log tokens that prefill was ordered to cover */
    uint32_t deaths;     /* workers that died under this request */
    uint32_t deaths_seq; /* order.seq counted last: a death counts once */
    uint64_t cached; /* prompt tokens found in the cache at the first admission; before PREFILL */
    uint64_t zero;
};
static_assert(sizeof(struct bh_request_row) == BH_CACHE_LINE, "a slot is one line");

struct bh_requests {
    struct bh_object_head *head;
    struct bh_word *swept;       /* [BH_ROLE_CNT] epochs whose orders are all answered for */
    struct bh_request_row *rows; /* [slots] */
    struct bh_record *records;   /* [slots] the ledger's own checked copies */
    struct bh_word *entries;     /* [slots][list_max] page handles */
    uint32_t slots;
    uint32_t list_max;
};

size_t bh_requests_footprint(const struct bh_limits *limits);
BH_MUST_USE enum bh_status bh_requests_new(void *mem, const struct bh_limits *limits);
BH_MUST_USE enum bh_status
bh_requests_join(void *mem, size_t bytes, const struct bh_limits *limits, struct bh_requests *out);
void bh_requests_leave(struct bh_requests *requests);
/* Every word well formed, no list longer than list_max, no order for a FREE slot. */
BH_MUST_USE enum bh_status bh_requests_verify(const struct bh_requests *requests);

static inline bool
bh_request_terminal(enum bh_request_state state)
{
    return state >= BH_REQUEST_DONE;
}

static inline bool
bh_request_live(enum bh_request_state state)
{
    return state > BH_REQUEST_FREE && state < BH_REQUEST_DONE;
}

static inline uint64_t
bh_request_pack(struct bh_request_view view)
{
    return ((uint64_t)view.gen << 32) | ((uint64_t)view.state << 24) | ((uint64_t)view.cause << 16);
}

static inline struct bh_request_view
bh_request_unpack(uint64_t word)
{
    return (struct bh_request_view){.gen = (uint32_t)(word >> 32),
                                    .state = (enum bh_request_state)((word >> 24) & 0xffu),
                                    .cause = (enum bh_cause)((word >> 16) & 0xffu)};
}

static inline uint64_t
bh_order_pack(struct bh_order order)
{
    return ((uint64_t)order.seq << 32) | ((uint64_t)order.verb << 30) |
           ((uint64_t)(order.role & 0x3fu) << 24) | (order.epoch & 0xffffffu);
}

static inline struct bh_order
bh_order_unpack(uint64_t word)
{
    return (struct bh_order){.seq = (uint32_t)(word >> 32),
                             .verb = (enum bh_order_verb)((word >> 30) & 3u),
                             .role = (uint32_t)(word >> 24) & 0x3fu,
                             .epoch = (uint32_t)word & 0xffffffu};
}

static inline uint64_t
bh_list_pack(struct bh_list list)
{
    return ((uint64_t)(list.cnt & 0xffffffu) << 24) | (list.shared & 0xffffffu);
}

static inline struct bh_list
bh_list_unpack(uint64_t word)
{
    return (struct bh_list){.cnt = (uint32_t)(word >> 24) & 0xffffffu,
                            .shared = (uint32_t)word & 0xffffffu};
}

/* Loads of one slot's facts; slot must be below requests->slots. */
static inline struct bh_request_view
bh_request_load(const struct bh_requests *requests, uint32_t slot)
{
    /* edge request.word: acquire; pairs with release in bh_request_store. */
    return bh_request_unpack(bh_word_load(&requests->rows[slot].request));
}

static inline struct bh_order
bh_order_load(const struct bh_requests *requests, uint32_t slot)
{
    /* edge order.word: acquire; pairs with release in bh_order_store. */
    return bh_order_unpack(bh_word_load(&requests->rows[slot].order));
}

static inline struct bh_list
bh_list_load(const struct bh_requests *requests, uint32_t slot)
{
    /* edge list.word: acquire; pairs with release in bh_list_store. */
    return bh_list_unpack(bh_word_load(&requests->rows[slot].list));
}

static inline struct bh_page
bh_list_page(const struct bh_requests *requests, uint32_t slot, uint32_t ord)
{
    /* Relaxed: the list word was loaded with acquire before, and covers its entries. */
    return (struct bh_page){
        bh_word_load_relaxed(&requests->entries[(size_t)slot * requests->list_max + ord])};
}

/* Stores, for the ledger only. */
static inline void
bh_request_store(struct bh_requests *requests, uint32_t slot, struct bh_request_view view)
{
    /* edge request.word: release; pairs with acquire in bh_request_load. */
    bh_word_store(&requests->rows[slot].request, bh_request_pack(view));
}

static inline void
bh_order_store(struct bh_requests *requests, uint32_t slot, struct bh_order order)
{
    /* edge order.word: release; pairs with acquire in bh_order_load. */
    bh_word_store(&requests->rows[slot].order, bh_order_pack(order));
}

static inline void
bh_list_store(struct bh_requests *requests, uint32_t slot, struct bh_list list)
{
    /* edge list.word: release; pairs with acquire in bh_list_load. */
    bh_word_store(&requests->rows[slot].list, bh_list_pack(list));
}

static inline void
bh_list_page_store(struct bh_requests *requests, uint32_t slot, uint32_t ord, struct bh_page page)
{
    bh_word_store_relaxed(&requests->entries[(size_t)slot * requests->list_max + ord], page.bits);
}

/* A live request, as handed to whoever acts for it. The only way to get one is bh_request_claim,
   which loads the request word; nothing that is terminal can be carried on, because there is no other
   constructor. */
struct bh_live {
    struct bh_req req;
    enum bh_request_state state;
    struct bh_order order;
};

/* bh_request_claim - is there work on this slot for (role, epoch)?
   BH_OK      *out is the live request with a RUN order for exactly this incarnation
   BH_EMPTY   not ordered to this incarnation, or its order is not RUN
   BH_ESTALE  the request is terminal, free, or not in the state in which this role may act
              (prefill: PREFILL; decode: DECODE)
   BH_EINVAL  slot is out of range: a broken hint */
BH_MUST_USE enum bh_status bh_request_claim(const struct bh_requests *requests,
                                            uint32_t slot,
                                            uint32_t role,
                                            uint32_t epoch,
                                            struct bh_live *out);

#endif
