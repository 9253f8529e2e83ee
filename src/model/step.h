/* The inside of struct bh_forward, shared by the three files that compute a step: forward.c (order of
   things), forward_rows.c (rows, products) and forward_attend.c (pages, attention). */
#ifndef BH_MODEL_STEP_H
#define BH_MODEL_STEP_H

#include "kernels/attend.h"
#include "shm/atomic.h"
#include "src/model/view.h"

/* A token of the batch that is still being computed. */
struct bh_step_row {
    uint32_t seq; /* index of its sequence */
    uint32_t pos;
    uint32_t batch_row; /* its number in the batch */
};

/* One call of attention: consecutive rows of one sequence and one kv head. */
struct bh_step_task {
    uint32_t row;
    uint32_t row_cnt;
    uint32_t kv_head;
    enum bh_violation violation;
    uint32_t violation_page;
};

struct bh_forward {
    const struct bh_model *model;
    struct bh_kv_shape kv;
    struct bh_team *team;
    uint32_t rows_max;
    uint32_t seqs_max;

    /* the step */
    uint8_t *pool;
    struct bh_seq *seqs;
    uint32_t seq_cnt;
    bh_stamp_fn *stamp;
    void *role;
    uint32_t layer;

    /* rows; arrays are indexed by place, and places close up when sequences drop out */
    struct bh_step_row *rows; /* [rows_max] */
    uint32_t row_cnt;
    uint32_t batch_rows; /* rows of the batch as it came */
    uint32_t *place;     /* [rows_max] place of a batch row; UINT32_MAX: none any more */
    float *x;            /* [rows_max][d_model] the residual stream */
    float *angle;        /* [rows_max][head_dim]: cosines, then sines */
    float *h;            /* [rows_max][h_width] input of the next product */
    float *q;            /* [rows_max][heads * head_dim] */
    float *k;            /* [rows_max][kv_heads * head_dim] */
    float *v;            /* the same */
    float *gate;         /* [rows_max][ffn] */
    float *up;           /* the same */
    struct bh_act act;   /* quantized h */
    uint32_t h_width;    /* the widest input of a product */

    struct bh_step_task *tasks; /* [rows_max * kv_heads] */
    uint32_t task_cnt;

    float *scratch; /* [members][scratch_floats]: attention, or unpacked panels in plain mode */
    size_t scratch_floats;
    struct bh_swap *next; /* the next piece of work; on a line of its own */
};

/* forward_rows.c */

/* A matrix product of all rows: h (or act) times `matrix`, into out [rows][out_stride]. */
struct bh_step_product {
    const struct bh_panels *matrix;
    float *out;
    bool add;
};
#define BH_STEP_PRODUCTS_MAX 3

/* bh_step_products - up to three products that share their input `h` of `cols` columns; quantizes it
   first where a matrix wants that. */
void bh_step_products(struct bh_forward *forward,
                      const struct bh_step_product *products,
                      uint32_t cnt,
                      uint32_t cols);

/* bh_step_norm - h = normed x. */
void bh_step_norm(struct bh_forward *forward, const float *weight);

/* bh_step_gate - h = swiglu(gate, up). */
void bh_step_gate(struct bh_forward *forward);

/* bh_step_angles - cosines and sines of all rows. */
void bh_step_angles(struct bh_forward *forward);

/* bh_step_turn - rotates rows of [rows][heads * head_dim]. */
void bh_step_turn(struct bh_forward *forward, float *rows, uint32_t heads);

/* bh_step_each_row - run fn on all rows, split among the team when there are enough of them. */
typedef void bh_step_row_fn(struct bh_forward *forward, uint32_t row, void *arg);
void bh_step_each_row(struct bh_forward *forward, bh_step_row_fn *fn, void *arg);

/* bh_step_deal - before a call of the team: pieces of work are dealt from 0 on. */
static inline void
bh_step_deal(struct bh_forward *forward)
{
    /* edge step.next: release; pairs with acquire in bh_step_next. Nothing rests on this pair: the call
       of the team orders all memory, and the counter only makes pieces different. */
    bh_swap_store(forward->next, 0);
}

/* bh_step_next - a piece of work that nobody has taken yet; the count may pass the end. */
static inline uint32_t
bh_step_next(struct bh_forward *forward)
{
    /* edge step.next: acquire; pairs with release in bh_step_deal. */
    return bh_swap_add(forward->next, 1);
}

/* forward_attend.c */

/* bh_step_store - before the first store into a page that already holds tokens, proves it; then writes K
   and V of all rows into their pages and calls the stamp function, page by page. */
void bh_step_store(struct bh_forward *forward);

/* bh_step_attend - attention of all rows into h; sequences with a refused page get their violation. */
void bh_step_attend(struct bh_forward *forward);

#endif
