/* The fair queue: which request is admitted next. Tenants take turns by tokens served, requests of one
   tenant by age. Pure: no shared memory, no clock; numbers only. */
#ifndef BH_LEDGER_QUEUE_H
#define BH_LEDGER_QUEUE_H

#include "shm/base.h"

struct bh_queue_tenant {
    uint64_t served; /* tokens computed for it, as virtual time: see bh_queue_arrive */
    uint32_t alive;  /* live requests, queued ones included */
    uint32_t queued;
    uint32_t head; /* oldest queued slot; meaningless when queued is 0 */
    uint32_t tail;
    uint32_t place; /* index in `busy`; meaningless when queued is 0 */
};

struct bh_queue_item {
    uint32_t slot;
    uint32_t tenant;
    uint64_t ticket; /* smaller is older */
};

struct bh_queue_link {
    uint32_t next;
    uint32_t prev;
    struct bh_queue_item item;
    bool queued;
};

struct bh_queue {
    struct bh_queue_tenant *tenants; /* [tenant_cnt] */
    struct bh_queue_link *links;     /* [slot_cnt] */
    uint32_t *busy;                  /* [busy_cnt] tenants with something queued */
    uint32_t busy_cnt;
    uint32_t cnt;   /* queued requests */
    uint64_t clock; /* served tokens of the tenant that was chosen last */
    uint32_t slot_cnt;
    uint32_t tenant_cnt;
};

/* bh_queue_new - room for every slot and tenant. False: no memory. */
bool bh_queue_new(struct bh_queue *queue, uint32_t slot_cnt, uint32_t tenant_cnt);
void bh_queue_delete(struct bh_queue *queue);

/* bh_queue_arrive, bh_queue_depart - a request of this tenant (below tenant_cnt) became alive, or is
   over. A tenant that was idle starts at the clock: time away is not saved up, so nobody can return
   with a credit that shuts all others out. */
void bh_queue_arrive(struct bh_queue *queue, uint32_t tenant);
void bh_queue_depart(struct bh_queue *queue, uint32_t tenant);

/* bh_queue_charge - `tokens` were computed for this tenant. */
void bh_queue_charge(struct bh_queue *queue, uint32_t tenant, uint64_t tokens);

/* bh_queue_push - queue item.slot, which is not queued, behind all older tickets of its tenant. Walks
   back from the youngest: one step for a new request, at most slot_cnt for one that was preempted. */
void bh_queue_push(struct bh_queue *queue, struct bh_queue_item item);
/* bh_queue_remove - take it out, wherever it is; nothing happens if it is not queued. */
void bh_queue_remove(struct bh_queue *queue, uint32_t slot);

/* bh_queue_next - the oldest request of the tenant with the fewest served tokens; the older ticket
   decides between equals. False: nothing is queued. One look at each busy tenant. */
bool bh_queue_next(const struct bh_queue *queue, uint32_t *slot);
/* bh_queue_chose - `slot` is being admitted: the clock goes to its tenant's served tokens. */
void bh_queue_chose(struct bh_queue *queue, uint32_t slot);

#endif
