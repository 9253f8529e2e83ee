/* The request table: layout, formatting, checks, and the one constructor of live requests. */
#include "shm/request.h"

#include <string.h>

#include "shm/hook.h"

#define REQUESTS_VERSION 1u

struct sections {
    size_t swept;
    size_t rows;
    size_t records;
    size_t entries;
    size_t bytes;
};

static struct sections
lay_out(const struct bh_limits *limits)
{
    struct sections at = {.bytes = sizeof(struct bh_object_head)};
    at.swept = bh_object_place(&at.bytes, BH_ROLE_CNT * sizeof(struct bh_word));
    at.rows = bh_object_place(&at.bytes, limits->slots * sizeof(struct bh_request_row));
    at.records = bh_object_place(&at.bytes, limits->slots * sizeof(struct bh_record));
    at.entries = bh_object_place(&at.bytes,
                                 (size_t)limits->slots * limits->list_max * sizeof(struct bh_word));
    return at;
}

size_t
bh_requests_footprint(const struct bh_limits *limits)
{
    return bh_limits_ok(limits) ? lay_out(limits).bytes : 0;
}

static struct bh_requests
side(void *mem, const struct bh_limits *limits)
{
    struct sections at = lay_out(limits);
    uint8_t *base = mem;
    return (struct bh_requests){.head = mem,
                                .swept = (void *)(base + at.swept),
                                .rows = (void *)(base + at.rows),
                                .records = (void *)(base + at.records),
                                .entries = (void *)(base + at.entries),
                                .slots = limits->slots,
                                .list_max = limits->list_max};
}

enum bh_status
bh_requests_new(void *mem, const struct bh_limits *limits)
{
    size_t bytes = bh_requests_footprint(limits);
    enum bh_status status = bh_object_prepare(mem, bytes);
    if (status != BH_OK) {
        return status;
    }
    struct bh_requests requests = side(mem, limits);
    /* Entries behind an empty list are never read, so that the sparse part stays untouched. */
    memset(requests.swept, 0, BH_ROLE_CNT * sizeof(*requests.swept));
    memset(requests.rows, 0, limits->slots * sizeof(*requests.rows));
    memset(requests.records, 0, limits->slots * sizeof(*requests.records));
    for (uint32_t slot = 0; slot < limits->slots; slot++) {
        bh_request_store(
            &requests, slot, (struct bh_request_view){.gen = 1, .state = BH_REQUEST_FREE});
    }
    bh_object_publish(mem, bh_object_layout("requests", REQUESTS_VERSION, limits), bytes);
    return BH_OK;
}

enum bh_status
bh_requests_join(void *mem, size_t bytes, const struct bh_limits *limits, struct bh_requests *out)
{
    size_t footprint = bh_requests_footprint(limits);
    if (footprint == 0) {
        return BH_EINVAL;
    }
    uint64_t layout = bh_object_layout("requests", REQUESTS_VERSION, limits);
    enum bh_status status = bh_object_check(mem, bytes, layout, footprint);
    if (status == BH_OK) {
        *out = side(mem, limits);
    }
    return status;
}

void
bh_requests_leave(struct bh_requests *requests)
{
    *requests = (struct bh_requests){0};
}

static bool
request_word_ok(uint64_t word)
{
    struct bh_request_view view = bh_request_unpack(word);
    return view.gen != 0 && view.state < BH_REQUEST_STATE_CNT && view.cause < BH_CAUSE_CNT &&
           (word & 0xffffu) == 0;
}

static bool
order_ok(struct bh_order order)
{
    switch (order.verb) {
    case BH_ORDER_NONE:
        return order.role < BH_ROLE_CNT;
    case BH_ORDER_RUN:
    case BH_ORDER_STOP:
        return (order.role == BH_ROLE_PREFILL || order.role == BH_ROLE_DECODE) &&
               order.epoch != 0 && order.seq != 0;
    }
    return false;
}

/* The entries a list word covers; a list that moves meanwhile is not judged. */
static bool
entries_ok(const struct bh_requests *requests, uint32_t slot, uint64_t list_word)
{
    struct bh_list list = bh_list_unpack(list_word);
    for (uint32_t ord = 0; ord < list.cnt; ord++) {
        struct bh_page page = bh_list_page(requests, slot, ord);
        if (bh_page_pool(page) != 0 || bh_page_idx(page) == 0 || bh_page_gen(page) == 0) {
            /* edge list.word: acquire; pairs with release in bh_list_store. */
            return bh_word_load(&requests->rows[slot].list) != list_word;
        }
    }
    return true;
}

static bool
slot_ok(const struct bh_requests *requests, uint32_t slot)
{
    const struct bh_request_row *row = &requests->rows[slot];
    /* edge request.word, list.word: acquire; pair with release in bh_request_store, bh_list_store. */
    uint64_t request_word = bh_word_load(&row->request);
    uint64_t list_word = bh_word_load(&row->list);
    struct bh_list list = bh_list_unpack(list_word);
    struct bh_order order = bh_order_load(requests, slot);
    if (!request_word_ok(request_word) || !order_ok(order) || (list_word >> 48) != 0 ||
        list.cnt > requests->list_max || list.shared > list.cnt ||
        !entries_ok(requests, slot, list_word)) {
        return false;
    }
    /* Verified beside a running ledger, so words of two moments may meet. The request word
       counts as it was only if it still is: FREE on both sides of the loads means FREE
       throughout. */
    if (bh_request_unpack(request_word).state == BH_REQUEST_FREE &&
        bh_word_load(&row->request) == request_word) {
        return order.verb == BH_ORDER_NONE && list.cnt == 0;
    }
    return true;
}

enum bh_status
bh_requests_verify(const struct bh_requests *requests)
{
    enum bh_status status = bh_object_verify(requests->head);
    for (uint32_t slot = 0; status == BH_OK && slot < requests->slots; slot++) {
        if (!slot_ok(requests, slot)) {
            status = BH_ECORRUPT;
        }
    }
    return status;
}

enum bh_status
bh_request_claim(const struct bh_requests *requests,
                 uint32_t slot,
                 uint32_t role,
                 uint32_t epoch,
                 struct bh_live *out)
{
    if (slot >= requests->slots) {
        return BH_EINVAL;
    }
    uint64_t order_word = bh_order_pack(bh_order_load(requests, slot));
    struct bh_order order = bh_order_unpack(order_word);
    if (order.verb != BH_ORDER_RUN || order.role != role || order.epoch != epoch) {
        return BH_EMPTY;
    }
    struct bh_request_view view = bh_request_load(requests, slot);
    enum bh_request_state acts = role == BH_ROLE_PREFILL ? BH_REQUEST_PREFILL : BH_REQUEST_DECODE;
    if (view.gen == 0 || view.state != acts) {
        return BH_ESTALE;
    }
    BH_HOOK("request.claim:between_words");
    /* Both words are of one moment only if the order did not move: a slot that was let go and used
       again in between has a younger one, and its hint is still to come. */
    if (bh_order_pack(bh_order_load(requests, slot)) != order_word) {
        return BH_EMPTY;
    }
    *out = (struct bh_live){
        .req = {.slot = slot, .gen = view.gen}, .state = view.state, .order = order};
    return BH_OK;
}
