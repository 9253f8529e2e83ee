/* The edge: layout and checks. */
#include "shm/edge.h"

#include <string.h>

#define EDGE_VERSION 1u

struct sections {
    size_t edges;
    size_t answers;
    size_t closed;
    size_t bytes;
};

static struct sections
lay_out(const struct bh_limits *limits)
{
    struct sections at = {.bytes = sizeof(struct bh_object_head)};
    at.edges = bh_object_place(&at.bytes, limits->slots * sizeof(struct bh_word));
    at.answers = bh_object_place(&at.bytes, limits->conns * sizeof(struct bh_word));
    at.closed = bh_object_place(&at.bytes, limits->conns * sizeof(struct bh_word));
    return at;
}

size_t
bh_edge_footprint(const struct bh_limits *limits)
{
    return bh_limits_ok(limits) ? lay_out(limits).bytes : 0;
}

enum bh_status
bh_edge_new(void *mem, const struct bh_limits *limits)
{
    size_t bytes = bh_edge_footprint(limits);
    enum bh_status status = bh_object_prepare(mem, bytes);
    if (status != BH_OK) {
        return status;
    }
    memset(
        (uint8_t *)mem + sizeof(struct bh_object_head), 0, bytes - sizeof(struct bh_object_head));
    bh_object_publish(mem, bh_object_layout("edge", EDGE_VERSION, limits), bytes);
    return BH_OK;
}

enum bh_status
bh_edge_join(void *mem, size_t bytes, const struct bh_limits *limits, struct bh_edge *out)
{
    size_t footprint = bh_edge_footprint(limits);
    if (footprint == 0) {
        return BH_EINVAL;
    }
    uint64_t layout = bh_object_layout("edge", EDGE_VERSION, limits);
    enum bh_status status = bh_object_check(mem, bytes, layout, footprint);
    if (status == BH_OK) {
        struct sections at = lay_out(limits);
        uint8_t *base = mem;
        *out = (struct bh_edge){.head = mem,
                                .edges = (void *)(base + at.edges),
                                .answers = (void *)(base + at.answers),
                                .closed = (void *)(base + at.closed),
                                .slots = limits->slots,
                                .conn_cnt = limits->conns};
    }
    return status;
}

void
bh_edge_leave(struct bh_edge *edge)
{
    *edge = (struct bh_edge){0};
}

enum bh_status
bh_edge_verify(const struct bh_edge *edge)
{
    const uint32_t known = BH_EDGE_GONE | BH_EDGE_STOP | BH_EDGE_CLOSED;
    enum bh_status status = bh_object_verify(edge->head);
    for (uint32_t slot = 0; status == BH_OK && slot < edge->slots; slot++) {
        struct bh_edge_view view = bh_edge_load(edge, slot);
        if ((view.flags & ~known) != 0 || (view.gen == 0 && view.flags != 0)) {
            status = BH_ECORRUPT;
        }
    }
    for (uint32_t conn_idx = 0; status == BH_OK && conn_idx < edge->conn_cnt; conn_idx++) {
        struct bh_answer_view answer = bh_answer_load(edge, conn_idx);
        /* edge conn.closed: acquire; pairs with release in bh_conn_closed_store. */
        if (answer.sent > answer.offered || (bh_word_load(&edge->closed[conn_idx]) >> 32) != 0) {
            status = BH_ECORRUPT;
        }
    }
    return status;
}
