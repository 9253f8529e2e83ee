/* What every object in shared memory has in common: a head with a magic and a fingerprint of its
   layout, the limits all footprints follow from, and the same verbs.

       size_t         bh_X_footprint(const struct bh_limits *)        0: those limits are wrong
       enum bh_status bh_X_new(void *mem, const struct bh_limits *)   format; magic stored last
       enum bh_status bh_X_join(void *mem, size_t bytes, const struct bh_limits *, struct bh_X *)
       void           bh_X_leave(struct bh_X *)
       enum bh_status bh_X_verify(const struct bh_X *)                everything that can be checked alone

   new and join refuse NULL, memory not aligned to 64 bytes, a wrong size (join: fewer bytes than
   the footprint) with BH_EINVAL, and a wrong magic or fingerprint with BH_ECORRUPT. Objects hold no
   pointers: each process maps them where it likes, and a read-only mapping joins as well; its stores
   then fault, which is the point. */
#ifndef BH_SHM_OBJECT_H
#define BH_SHM_OBJECT_H

#include "shm/atomic.h"
#include "shm/kv.h"

/* Roles by number, as they stand in orders, epochs and rings. 0 is the supervisor. */
enum bh_role_id {
    BH_ROLE_SUPERVISOR = 0,
    BH_ROLE_TOKENIZER = 1,
    BH_ROLE_LEDGER = 2,
    BH_ROLE_PREFILL = 3,
    BH_ROLE_DECODE = 4,
    BH_ROLE_EGRESS = 5,
    BH_ROLE_CNT = 6,
};

/* Every count in shared memory. Fixed before any memory is made; the same in every process. */
struct bh_limits {
    uint32_t slots;       /* requests alive at once, queued ones included; 1..65536 */
    uint32_t conns;       /* client connections; 1..65536 */
    uint32_t tenants;     /* 1..1024 */
    uint32_t ctx;         /* tokens of the longest sequence, the published limit; 2..2^24-1 */
    uint32_t page_cnt;    /* pages of the pool, the null page included; 2..2^24-1 */
    uint32_t list_max;    /* pages of the longest sequence: ctx / page_tokens, rounded up */
    uint32_t rows_max;    /* sequences in one decode batch */
    uint32_t chunk_max;   /* tokens in one prefill chunk */
    uint32_t reply_bytes; /* room for one reply that is not a completion (errors, /tokenize, ...) */
    uint32_t vocab;       /* token ids are below it */
    struct bh_kv_shape kv;
};

/* First 64 bytes of every object. */
struct bh_object_head {
    struct bh_word magic; /* stored last by new: an object without it does not exist */
    uint64_t layout;      /* bh_object_layout of its name, version and limits */
    uint64_t bytes;       /* its footprint */
    uint64_t zero[5];
};
static_assert(sizeof(struct bh_object_head) == BH_CACHE_LINE, "a head is one cache line");

#define BH_OBJECT_MAGIC UINT64_C(0x42554c4b48454144)

/* bh_object_layout - fingerprint of (name, version, limits): two builds that disagree about any of
   them cannot join each other's memory. */
uint64_t bh_object_layout(const char *name, uint32_t version, const struct bh_limits *limits);

/* bh_limits_ok - are all limits in their stated ranges and consistent with each other? list_max follows
   from ctx, and the longest sequence fits the pool beside the null page. */
bool bh_limits_ok(const struct bh_limits *limits);

/* The two halves every `new` and `join` share; see the top of this file for what they refuse. `bytes`
   is the object's footprint. The memory between must be formatted before _publish. */
BH_MUST_USE enum bh_status bh_object_prepare(void *mem, size_t bytes);
void bh_object_publish(void *mem, uint64_t layout, size_t bytes);
BH_MUST_USE enum bh_status
bh_object_check(const void *mem, size_t mem_bytes, uint64_t layout, size_t bytes);

/* bh_object_verify - the part of every `verify` that concerns the head: magic there, padding zero.
   BH_ECORRUPT otherwise. */
BH_MUST_USE enum bh_status bh_object_verify(const struct bh_object_head *head);

/* bh_object_place - offset of a section of `bytes` bytes that begins where `*end` is and whole cache
   lines are left free for the next one. How every layout of more than one section is computed. */
static inline size_t
bh_object_place(size_t *end, size_t bytes)
{
    size_t offset = *end;
    *end = (size_t)bh_round_up(offset + bytes, BH_CACHE_LINE);
    return offset;
}

#endif
