/* The fair queue over tenants. See queue.h for what fair means here.

   Start-time fair queueing with tokens as time, not a weighted scheme: a tenant with ten thousand
   queued requests and one with a single request each get the engine's next place in turn, measured by
   what was computed for them and not by how much they ask for. */
#include "src/ledger/queue.h"

#include <stdlib.h>

bool
bh_queue_new(struct bh_queue *queue, uint32_t slot_cnt, uint32_t tenant_cnt)
{
    *queue = (struct bh_queue){.tenants = calloc(tenant_cnt, sizeof(*queue->tenants)),
                               .links = calloc(slot_cnt, sizeof(*queue->links)),
                               .busy = calloc(tenant_cnt, sizeof(*queue->busy)),
                               .slot_cnt = slot_cnt,
                               .tenant_cnt = tenant_cnt};
    if (queue->tenants == NULL || queue->links == NULL || queue->busy == NULL) {
        bh_queue_delete(queue);
        return false;
    }
    return true;
}

void
bh_queue_delete(struct bh_queue *queue)
{
    free(queue->tenants);
    free(queue->links);
    free(queue->busy);
    *queue = (struct bh_queue){0};
}

void
bh_queue_arrive(struct bh_queue *queue, uint32_t tenant)
{
    BH_CHECK(tenant < queue->tenant_cnt);
    struct bh_queue_tenant *row = &queue->tenants[tenant];
    if (row->alive == 0) {
        row->served = bh_max_u64(row->served, queue->clock);
    }
    row->alive++;
}

void
bh_queue_depart(struct bh_queue *queue, uint32_t tenant)
{
    BH_CHECK(tenant < queue->tenant_cnt);
    BH_CHECK(queue->tenants[tenant].alive > 0);
    queue->tenants[tenant].alive--;
}

void
bh_queue_charge(struct bh_queue *queue, uint32_t tenant, uint64_t tokens)
{
    BH_CHECK(tenant < queue->tenant_cnt);
    queue->tenants[tenant].served += tokens;
}

void
bh_queue_push(struct bh_queue *queue, struct bh_queue_item item)
{
    BH_CHECK(item.slot < queue->slot_cnt && item.tenant < queue->tenant_cnt);
    struct bh_queue_tenant *row = &queue->tenants[item.tenant];
    struct bh_queue_link *link = &queue->links[item.slot];
    BH_CHECK(!link->queued);
    /* `before` is the number of requests that stay ahead; `at` the one directly ahead, if any. */
    uint32_t before = row->queued;
    uint32_t at = row->tail;
    while (before > 0 && queue->links[at].item.ticket > item.ticket) {
        at = queue->links[at].prev;
        before--;
    }
    *link = (struct bh_queue_link){.item = item, .queued = true, .prev = at};
    if (before == 0) {
        link->next = row->head;
        row->head = item.slot;
    } else {
        link->next = queue->links[at].next;
        queue->links[at].next = item.slot;
    }
    if (before == row->queued) {
        row->tail = item.slot;
    } else {
        queue->links[link->next].prev = item.slot;
    }
    if (row->queued == 0) {
        row->place = queue->busy_cnt;
        queue->busy[queue->busy_cnt++] = item.tenant;
    }
    row->queued++;
    queue->cnt++;
}

void
bh_queue_remove(struct bh_queue *queue, uint32_t slot)
{
    BH_CHECK(slot < queue->slot_cnt);
    struct bh_queue_link *link = &queue->links[slot];
    if (!link->queued) {
        return;
    }
    struct bh_queue_tenant *row = &queue->tenants[link->item.tenant];
    if (row->head == slot) {
        row->head = link->next;
    } else {
        queue->links[link->prev].next = link->next;
    }
    if (row->tail == slot) {
        row->tail = link->prev;
    } else {
        queue->links[link->next].prev = link->prev;
    }
    link->queued = false;
    row->queued--;
    queue->cnt--;
    if (row->queued == 0) {
        uint32_t last = queue->busy[--queue->busy_cnt];
        queue->busy[row->place] = last;
        queue->tenants[last].place = row->place;
    }
}

bool
bh_queue_next(const struct bh_queue *queue, uint32_t *slot)
{
    const struct bh_queue_tenant *best = NULL;
    for (uint32_t i = 0; i < queue->busy_cnt; i++) {
        const struct bh_queue_tenant *row = &queue->tenants[queue->busy[i]];
        if (best == NULL || row->served < best->served ||
            (row->served == best->served &&
             queue->links[row->head].item.ticket < queue->links[best->head].item.ticket)) {
            best = row;
        }
    }
    if (best == NULL) {
        return false;
    }
    *slot = best->head;
    return true;
}

void
bh_queue_chose(struct bh_queue *queue, uint32_t slot)
{
    BH_CHECK(slot < queue->slot_cnt && queue->links[slot].queued);
    uint64_t served = queue->tenants[queue->links[slot].item.tenant].served;
    queue->clock = bh_max_u64(queue->clock, served);
}
