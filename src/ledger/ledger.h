/* The ledger as its own files see it: the state that is private, what they call of each other, and the
   facts of one slot. Everything here can be rebuilt from the words at any moment. */
#ifndef BH_LEDGER_LEDGER_H
#define BH_LEDGER_LEDGER_H

#include "src/core/role.h"
#include "src/ledger/queue.h"
#include "src/ledger/stock.h"

/* What the ledger remembers of a slot beyond its words; lost without harm. */
struct bh_slot_note {
    uint64_t queued_ns; /* 0: unknown, before this incarnation */
    uint64_t chain;     /* chain hash at the end of page published - 1 */
    uint32_t published; /* pages of the list already offered to the cache */
    uint32_t charged;   /* generated tokens already charged to the tenant */
    bool admitted;      /* the prompt was counted and charged */
};

struct bh_ledger {
    struct bh_world *world;
    struct bh_queue queue;
    struct bh_stock stock;
    struct bh_slot_note *notes; /* [slots] */
    uint32_t *hits;             /* [list_max] cached pages of the request that is being admitted */
    uint64_t now_ns;            /* of this step; 0 during start: no deadline passes there */
    uint64_t ticket_next;
    uint64_t tried_version; /* stock.version at which `tried_slot` did not fit */
    uint32_t tried_slot;    /* UINT32_MAX: none */
    uint32_t running;       /* requests in PREFILL and DECODE */
    uint64_t fences_seen;
    uint64_t drain_seen;
    uint32_t epochs_seen[BH_ROLE_CNT];
    bool scan_due; /* a ring lost something: look at all words */
};

/* One look at everything that is known of a slot. */
struct bh_facts {
    struct bh_request_view request;
    struct bh_order order;
    struct bh_list list;
    bool reaped; /* the order's worker is gone for ever */
    struct bh_report
        report;    /* of the order's worker for the order's seq; phase NONE if there is none */
    bool released; /* a report after which the worker touches nothing */
    bool quiet;    /* nobody may touch the request's pages */
    struct bh_log_view log; /* of this life; zero if there is none yet */
    uint32_t edge;          /* flags of this life */
};

static inline const struct bh_record *
bh_ledger_record(const struct bh_ledger *ledger, uint32_t slot)
{
    return &ledger->world->requests.records[slot];
}

static inline void
bh_ledger_count(struct bh_ledger *ledger, enum bh_metric metric, uint64_t add)
{
    bh_metric_add(&ledger->world->status[BH_ROLE_LEDGER], metric, add);
}

/* bh_ledger_pages - pages that `tokens` tokens fill, the last one perhaps in part. */
static inline uint32_t
bh_ledger_pages(const struct bh_ledger *ledger, uint64_t tokens)
{
    uint32_t page_tokens = ledger->world->limits.kv.page_tokens;
    return (uint32_t)((tokens + page_tokens - 1) / page_tokens);
}

/* reconcile.c */

/* bh_ledger_facts - load the words of a slot, in the order in which they can be believed together. */
struct bh_facts bh_ledger_facts(const struct bh_ledger *ledger, uint32_t slot);

/* bh_ledger_reconcile - look at the words of a slot and make the next stores, until there is none to
   make. Slot must be in range. Returns the number of stores' worth of rows that matched. */
uint32_t bh_ledger_reconcile(struct bh_ledger *ledger, uint32_t slot);

/* bh_ledger_move - the one place that stores a request's state; terminal absorbs. Keeps queue, counts,
   metrics and egress informed. */
void bh_ledger_move(struct bh_ledger *ledger,
                    uint32_t slot,
                    enum bh_request_state state,
                    enum bh_cause cause);

/* bh_ledger_waits - does this running request ask for more pages than it has? */
bool bh_ledger_waits(const struct bh_facts *facts);
/* bh_ledger_waiting - the oldest request that waits for pages. False: none does. */
bool bh_ledger_waiting(const struct bh_ledger *ledger, uint32_t *slot);

/* bh_ledger_settle - give what there is to give: pages to waiting requests, then places to queued
   ones, then keep the reserve. Returns how much was done. */
uint32_t bh_ledger_settle(struct bh_ledger *ledger);

/* admit.c: rows 1 and 15 of the table. True: a store was made. */

bool bh_ledger_submit(struct bh_ledger *ledger, uint32_t slot, const struct bh_facts *facts);
bool bh_ledger_admit(struct bh_ledger *ledger, uint32_t slot, const struct bh_facts *facts);
/* bh_ledger_need_max - pages of this request if its answer becomes as long as it may. */
uint32_t bh_ledger_need_max(const struct bh_ledger *ledger, uint32_t slot);

/* prefix.c */

/* bh_ledger_prefix_find - cached pages that hold the first tokens of this request's prompt + log, at
   most `page_max`, into ledger->hits; *chain is the chain hash at the end of the last. */
uint32_t
bh_ledger_prefix_find(struct bh_ledger *ledger, uint32_t slot, uint32_t page_max, uint64_t *chain);

/* bh_ledger_publish - offer pages of this request to the cache that are full and proved: prompt pages
   once decode has joined, all full pages once the request is DONE. */
void bh_ledger_publish(struct bh_ledger *ledger, uint32_t slot, const struct bh_facts *facts);

#endif
