/* The table of topology.def as an array, and what follows from it: descriptor numbers, sizes,
   formatting. The check of the table is here too, because it is what makes the array trustworthy. */
#include "src/core/topology.h"

#include <string.h>

#include "shm/bell.h"
#include "shm/control.h"
#include "shm/edge.h"
#include "shm/pagetable.h"
#include "shm/pool.h"
#include "shm/report.h"
#include "shm/request.h"
#include "shm/ring.h"
#include "shm/status.h"
#include "shm/submit.h"
#include "shm/tokenlog.h"
#include "shm/turn.h"

#define RIGHT(letter)                                                                              \
    ((letter) == 'w' || (letter) == 'x' ? BH_RIGHT_WRITE                                           \
                                        : ((letter) == 'r' ? BH_RIGHT_READ : BH_RIGHT_NONE))
#define RIGHTS(text)                                                                               \
    {                                                                                              \
        RIGHT((text)[0]), RIGHT((text)[1]), RIGHT((text)[2]), RIGHT((text)[3]), RIGHT((text)[4]),  \
            RIGHT((text)[5])                                                                       \
    }

/* Both ends of a ring write it; the supervisor may look at it (verify), nobody else has it. */
#define END_RIGHT(producer, consumer, role)                                                        \
    ((role) == BH_ROLE_##producer || (role) == BH_ROLE_##consumer                                  \
         ? BH_RIGHT_WRITE                                                                          \
         : ((role) == BH_ROLE_SUPERVISOR ? BH_RIGHT_READ : BH_RIGHT_NONE))

/* Every row of rights has a letter for each role. */
#define ROLE(id, name, what)
#define REGION(name, kind, rights, what) static_assert(sizeof(rights) == BH_ROLE_CNT + 1, #name);
#define STATUS(role, rights)             static_assert(sizeof(rights) == BH_ROLE_CNT + 1, #role);
#define LINK(producer, consumer, hints)
#define DESCRIPTOR(name, rights, what) static_assert(sizeof(rights) == BH_ROLE_CNT + 1, #name);
#include "src/core/topology.def"
#undef ROLE
#undef REGION
#undef STATUS
#undef LINK
#undef DESCRIPTOR

/* clang-format off */
static const struct bh_item items[BH_ITEM_CNT] = {
#define ROLE(id, name, what)
#define REGION(name_, kind_, rights_, what_) \
    [BH_ITEM_##name_] = {.kind = BH_ITEM_REGION, .name = #name_, .object = #kind_, .what = what_, \
                         .rights = RIGHTS(rights_)},
#define STATUS(role_, rights_) \
    [BH_ITEM_status_##role_] = {.kind = BH_ITEM_STATUS, .name = "status_" #role_, \
                                .object = "statusboard", .what = "heartbeat, metrics, flight record", \
                                .rights = RIGHTS(rights_)},
#define LINK(from, to, hints) \
    [BH_ITEM_ring_##from##_##to] = {.kind = BH_ITEM_RING, .name = "ring_" #from "_" #to, \
                                    .object = "ring", .what = hints, \
                                    .rights = {END_RIGHT(from, to, 0), END_RIGHT(from, to, 1), \
                                               END_RIGHT(from, to, 2), END_RIGHT(from, to, 3), \
                                               END_RIGHT(from, to, 4), END_RIGHT(from, to, 5)}, \
                                    .producer = BH_ROLE_##from, .consumer = BH_ROLE_##to},
#define DESCRIPTOR(name_, rights_, what_) \
    [BH_ITEM_fd_##name_] = {.kind = BH_ITEM_DESCRIPTOR, .name = #name_, .what = what_, \
                            .rights = RIGHTS(rights_)},
#include "src/core/topology.def"
#undef ROLE
#undef REGION
#undef STATUS
#undef LINK
#undef DESCRIPTOR
};

struct role_row {
    const char *name;
    const char *mission;
};

static const struct role_row roles[BH_ROLE_CNT] = {
#define ROLE(id, name_, what) [BH_ROLE_##id] = {.name = name_, .mission = what},
#define REGION(name, kind, rights, what)
#define STATUS(role, rights)
#define LINK(producer, consumer, hints)
#define DESCRIPTOR(name, rights, what)
#include "src/core/topology.def"
#undef ROLE
#undef REGION
#undef STATUS
#undef LINK
#undef DESCRIPTOR
};

struct object_row {
    const char *name;
    size_t (*footprint)(const struct bh_limits *limits);
    enum bh_status (*format)(void *mem, const struct bh_limits *limits);
};

/* Kinds of objects.def, and the two whose join is not like the others'. */
static const struct object_row objects[] = {
    {"control", bh_control_footprint, bh_control_new},
    {"ring", bh_ring_footprint, bh_ring_new},
#define OBJECT(kind, type) {#kind, bh_##kind##_footprint, bh_##kind##_new},
#include "shm/objects.def"
#undef OBJECT
};
/* clang-format on */

static const struct object_row *
object_of(enum bh_item_id id)
{
    for (size_t i = 0; i < BH_COUNT(objects); ++i) {
        if (items[id].object != NULL && strcmp(objects[i].name, items[id].object) == 0) {
            return &objects[i];
        }
    }
    return NULL;
}

const struct bh_item *
bh_topology_item(enum bh_item_id id)
{
    BH_CHECK((unsigned)id < BH_ITEM_CNT);
    return &items[id];
}

const char *
bh_role_name(uint32_t role)
{
    return role < BH_ROLE_CNT ? roles[role].name : "?";
}

const char *
bh_role_mission(uint32_t role)
{
    return role < BH_ROLE_CNT ? roles[role].mission : "?";
}

bool
bh_role_by_name(const char *name, uint32_t *role)
{
    for (uint32_t i = 0; i < BH_ROLE_CNT; ++i) {
        if (strcmp(roles[i].name, name) == 0) {
            *role = i;
            return true;
        }
    }
    return false;
}

int
bh_topology_fd(uint32_t role, enum bh_item_id id)
{
    BH_CHECK(role < BH_ROLE_CNT);
    BH_CHECK((unsigned)id < BH_ITEM_CNT);
    if (role == BH_ROLE_SUPERVISOR || items[id].rights[role] == BH_RIGHT_NONE) {
        return -1;
    }
    int fd = BH_FD_FIRST;
    for (uint32_t before = 0; before < (uint32_t)id; ++before) {
        fd += items[before].rights[role] != BH_RIGHT_NONE;
    }
    return fd;
}

int
bh_topology_fd_end(uint32_t role)
{
    BH_CHECK(role < BH_ROLE_CNT);
    int end = BH_FD_FIRST;
    for (uint32_t id = 0; id < BH_ITEM_CNT; ++id) {
        end += role != BH_ROLE_SUPERVISOR && items[id].rights[role] != BH_RIGHT_NONE;
    }
    return end;
}

size_t
bh_topology_footprint(enum bh_item_id id, const struct bh_limits *limits)
{
    BH_CHECK((unsigned)id < BH_ITEM_CNT);
    const struct object_row *object = object_of(id);
    return object == NULL ? 0 : object->footprint(limits);
}

enum bh_status
bh_topology_new(enum bh_item_id id, void *mem, const struct bh_limits *limits)
{
    BH_CHECK((unsigned)id < BH_ITEM_CNT);
    const struct object_row *object = object_of(id);
    if (object == NULL) {
        /* Raw bytes have no format; descriptors have no memory. */
        return items[id].kind == BH_ITEM_REGION ? BH_OK : BH_EINVAL;
    }
    return object->format(mem, limits);
}

/* Bells and the turn are swapped by many and carry no facts; the pool's bytes are owned page by page.
   Everything else has one writer. */
static bool
many_writers(const struct bh_item *item)
{
    return strcmp(item->name, "bells") == 0 || strcmp(item->name, "turn") == 0 ||
           strcmp(item->name, "pool") == 0;
}

static const char *
check_region(const struct bh_item *item, uint32_t id)
{
    uint32_t writers = 0;
    uint32_t readers = 0;
    for (uint32_t role = 0; role < BH_ROLE_CNT; ++role) {
        writers += item->rights[role] == BH_RIGHT_WRITE;
        readers += item->rights[role] == BH_RIGHT_READ;
    }
    if (writers > 1 && !many_writers(item)) {
        return "a region has more than one writer";
    }
    /* Raw bytes are written once, before any role exists, and are read-only for ever. */
    bool raw = strcmp(item->object, "bytes") == 0;
    if (raw ? writers != 0 : writers == 0) {
        return raw ? "a region of raw bytes has a writer" : "a region has no writer";
    }
    if (writers + readers < 2) {
        return "a region has nobody to share it with";
    }
    if (item->kind == BH_ITEM_STATUS &&
        item->rights[id - BH_ITEM_status_SUPERVISOR] != BH_RIGHT_WRITE) {
        return "a status block is not written by its own role";
    }
    return NULL;
}

static const char *
check_ring(const struct bh_item table[BH_ITEM_CNT], uint32_t id)
{
    const struct bh_item *ring = &table[id];
    if (ring->producer >= BH_ROLE_CNT || ring->consumer >= BH_ROLE_CNT ||
        ring->producer == ring->consumer) {
        return "a ring does not connect two different roles";
    }
    for (uint32_t other = 0; other < id; ++other) {
        if (table[other].kind == BH_ITEM_RING && table[other].producer == ring->producer &&
            table[other].consumer == ring->consumer) {
            return "two rings connect the same roles in the same direction";
        }
    }
    for (uint32_t role = 0; role < BH_ROLE_CNT; ++role) {
        bool end = role == ring->producer || role == ring->consumer;
        if (end != (ring->rights[role] == BH_RIGHT_WRITE)) {
            return "a ring is not writable for exactly its two ends";
        }
    }
    /* Bells stand in the order of roles, the supervisor has none. */
    uint32_t bell = BH_ITEM_fd_bell_tokenizer + ring->consumer - BH_ROLE_TOKENIZER;
    if (ring->consumer == BH_ROLE_SUPERVISOR ||
        table[bell].rights[ring->producer] == BH_RIGHT_NONE) {
        return "a producer cannot ring its consumer's bell";
    }
    return NULL;
}

static_assert(BH_ITEM_fd_bell_egress - BH_ITEM_fd_bell_tokenizer ==
                  BH_ROLE_EGRESS - BH_ROLE_TOKENIZER,
              "bells stand in the order of roles");
static_assert(BH_ITEM_control == 0, "control is at descriptor 3: its limits size everything else");

static const char *
check_roles(const struct bh_item table[BH_ITEM_CNT])
{
    for (uint32_t role = BH_ROLE_TOKENIZER; role < BH_ROLE_CNT; ++role) {
        bool reached = false;
        for (uint32_t id = 0; id < BH_ITEM_CNT; ++id) {
            reached |= table[id].kind == BH_ITEM_RING && table[id].consumer == role;
        }
        if (!reached) {
            return "no ring leads to a role";
        }
        if (table[BH_ITEM_control].rights[role] != BH_RIGHT_READ) {
            return "a role does not read control";
        }
        if (table[BH_ITEM_bells].rights[role] != BH_RIGHT_WRITE) {
            return "a role cannot announce its sleep";
        }
        uint32_t bell = BH_ITEM_fd_bell_tokenizer + role - BH_ROLE_TOKENIZER;
        if (table[bell].rights[role] == BH_RIGHT_NONE ||
            table[bell].rights[BH_ROLE_SUPERVISOR] == BH_RIGHT_NONE) {
            return "a role or the supervisor lacks the role's bell";
        }
    }
    return NULL;
}

const char *
bh_topology_check_table(const struct bh_item table[BH_ITEM_CNT])
{
    for (uint32_t id = 0; id < BH_ITEM_CNT; ++id) {
        const char *wrong = NULL;
        if (table[id].kind == BH_ITEM_REGION || table[id].kind == BH_ITEM_STATUS) {
            wrong = check_region(&table[id], id);
        } else if (table[id].kind == BH_ITEM_RING) {
            wrong = check_ring(table, id);
        }
        if (wrong != NULL) {
            return wrong;
        }
    }
    return check_roles(table);
}

const char *
bh_topology_check(void)
{
    return bh_topology_check_table(items);
}
