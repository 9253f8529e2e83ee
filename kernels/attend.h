/* Attention of consecutive query tokens of one sequence over its pages, for one kv head and the query
   heads that share it. The loop that loads a page proves its stamp first; there is one such loop, for
   all variants and for prefill and decode alike. */
#ifndef BH_KERNELS_ATTEND_H
#define BH_KERNELS_ATTEND_H

#include "kernels/kernels.h"
#include "shm/kv.h"
#include "shm/stamp.h"

/* Contexts are cut at multiples of this many tokens, whoever asks: scores, maximum, exponentials and
   their sum are taken within a split, and splits are combined in order. A multiple of every page
   size. */
#define BH_SPLIT_TOKENS 256u

/* Query tokens times query heads of one call. */
#define BH_ATTEND_QUERIES_MAX 16u

struct bh_attend {
    const struct bh_kernels *kernels;
    const struct bh_kv_shape *kv;
    uint8_t *pool;
    const struct bh_stamp_want *pages; /* of the sequence */
    uint32_t layer;
    uint32_t kv_head;
    uint32_t kv_tokens; /* tokens of the sequence whose K and V must be in its pages */
    uint32_t first_pos; /* position of query token 0; token i sees positions up to first_pos + i */
    uint32_t row_cnt;   /* query tokens: row_cnt * group <= BH_ATTEND_QUERIES_MAX */
    uint32_t group;     /* query heads per kv head */
    const float *q;     /* [row_cnt][group][head_dim], scaled */
};

/* Scratch of one caller, head_dim floats a query. */
size_t bh_attend_scratch_floats(uint32_t head_dim);

/* bh_attend_run - out [row_cnt][group][head_dim]. Returns BH_VIOLATION_NONE; or the first refusal with
   its page in *violation_page: nothing was read from that page or later ones and `out` is zero. */
enum bh_violation
bh_attend_run(const struct bh_attend *call, float *scratch, float *out, uint32_t *violation_page);

#endif
