/* The plan: how long a sequence may be, how many tokens the pool holds, and what memory that takes.
   Decided once, before anything is created or listens, and published as it is: a limit that some
   part of the path cannot hold is a refusal to start, never a shorter promise. Pure. */
#ifndef BH_SUPERVISOR_PLAN_H
#define BH_SUPERVISOR_PLAN_H

#include "shm/object.h"

#define BH_PLAN_ERROR_MAX 512

/* Pages beyond those that the pool's tokens need: the null page, and one that stays free while a
   single sequence of full context runs, so that the oldest request always fits. */
#define BH_PLAN_EXTRA_PAGES 2u

struct bh_plan_input {
    uint32_t ctx_model;     /* tokens of context in the model file */
    uint32_t ctx_asked;     /* --ctx; 0: not given */
    uint32_t pool_asked;    /* --pool-tokens; 0: not given */
    uint32_t threads_asked; /* --threads; 0: not given */
    uint32_t cpu_cnt;       /* processors this process may use */
    uint32_t chunk;         /* --chunk */
    uint32_t tenant_cnt;
    uint32_t vocab;
    struct bh_kv_shape kv;    /* page_tokens and elem_bytes included */
    uint64_t weights_bytes;   /* packed */
    uint64_t memory_bytes;    /* of this machine or container */
    uint64_t available_bytes; /* of it, not taken by others */
};

struct bh_plan {
    struct bh_limits limits;
    uint32_t pool_tokens; /* published; limits.page_cnt has the extra pages on top */
    uint32_t threads;
    uint64_t pool_bytes;  /* KV, stamps and extra pages included */
    uint64_t total_bytes; /* pool, page table, weights and headroom */
};

/* bh_plan_make - decide. BH_OK, or *out untouched and `error` says what does not fit, by how much,
   and which flag with which value would do:
   BH_ELIMIT  a sequence of the context does not fit the pool, the pool does not fit the memory or the
              page index, or --ctx is above the model's context
   BH_EINVAL  the model's shape is not usable (a field is 0) */
BH_MUST_USE enum bh_status
bh_plan_make(const struct bh_plan_input *input, char error[BH_PLAN_ERROR_MAX], struct bh_plan *out);

#endif
