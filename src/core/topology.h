/* The topology table as data: what exists, who has which right, and which descriptor number a role
   finds it at. See topology.def for the table itself. */
#ifndef BH_CORE_TOPOLOGY_H
#define BH_CORE_TOPOLOGY_H

#include <stdio.h>

#include "shm/base.h"
#include "shm/object.h"

#define BH_FD_FIRST 3 /* descriptors of a role start here: 0 is /dev/null, 1 and 2 are the log */

/* A plain descriptor that a role has counts as WRITE: it is handed over as it is. */
enum bh_right { BH_RIGHT_NONE = 0, BH_RIGHT_READ = 1, BH_RIGHT_WRITE = 2 };

/* Rows of all four tables in one list, in the order of descriptors. */
enum bh_item_kind { BH_ITEM_REGION, BH_ITEM_STATUS, BH_ITEM_RING, BH_ITEM_DESCRIPTOR };

enum bh_item_id {
#define ROLE(id, name, what)
#define REGION(name, kind, rights, what) BH_ITEM_##name,
#define STATUS(role, rights)             BH_ITEM_status_##role,
#define LINK(producer, consumer, hints)  BH_ITEM_ring_##producer##_##consumer,
#define DESCRIPTOR(name, rights, what)   BH_ITEM_fd_##name,
#include "src/core/topology.def"
#undef ROLE
#undef REGION
#undef STATUS
#undef LINK
#undef DESCRIPTOR
    BH_ITEM_CNT
};

struct bh_item {
    enum bh_item_kind kind;
    const char *name;   /* "pool", "status_ledger", "ring_tokenizer_ledger", "listener" */
    const char *object; /* object kind, "bytes", or NULL for a descriptor */
    const char *what;
    enum bh_right rights[BH_ROLE_CNT];
    uint32_t producer; /* rings only */
    uint32_t consumer;
};

const struct bh_item *bh_topology_item(enum bh_item_id id);
const char *bh_role_name(uint32_t role); /* "tokenizer", ...; "?" when out of range */
const char *bh_role_mission(uint32_t role);
bool bh_role_by_name(const char *name, uint32_t *role);

/* bh_topology_fd - number of the descriptor at which `role` finds `id`, or -1 if it has none. The
   supervisor makes its own descriptors and finds none: -1. */
int bh_topology_fd(uint32_t role, enum bh_item_id id);

/* bh_topology_fd_end - the first number above all descriptors of `role`. */
int bh_topology_fd_end(uint32_t role);

/* bh_topology_footprint - bytes of the region of `id`; vocab and weights are as large as their file
   says, so their sizes come from outside (0 here). 0 for descriptors. */
size_t bh_topology_footprint(enum bh_item_id id, const struct bh_limits *limits);

/* bh_topology_new - format the memory of `id` through its object's `new`. */
BH_MUST_USE enum bh_status
bh_topology_new(enum bh_item_id id, void *mem, const struct bh_limits *limits);

/* bh_topology_check - is the table sane? One writer per region (bells, turn, pool and rings excepted,
   by name), rings connect two different roles once, every role reachable. Returns NULL or what is wrong. */
const char *bh_topology_check(void);
/* bh_topology_check_table - the same for any table, in the order of enum bh_item_id. */
const char *bh_topology_check_table(const struct bh_item table[BH_ITEM_CNT]);

/* The picture: as an aligned table, or as Graphviz. Needs no running server. */
void bh_topology_print(FILE *out);
void bh_topology_print_dot(FILE *out);

#endif
