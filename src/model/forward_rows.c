/* Work that is divided by rows or by panels: norms, rotations, matrix products. */
#include <string.h>

#include "src/model/exact.h"
#include "src/model/step.h"

/* Below this many rows the leader alone is faster than waking the team. */
#define ROWS_FOR_TEAM 8

/* Pieces of work a member, so that one which was delayed does not hold up the rest. */
#define PIECES_PER_MEMBER 6

struct each_row {
    struct bh_forward *forward;
    bh_step_row_fn *fn;
    void *arg;
};

static void
each_row_share(void *arg, uint32_t member_idx, uint32_t member_cnt)
{
    struct each_row *job = arg;
    uint32_t from = 0;
    uint32_t to = 0;
    bh_team_share(job->forward->row_cnt, 1, member_idx, member_cnt, &from, &to);
    for (uint32_t row = from; row < to; row++) {
        job->fn(job->forward, row, job->arg);
    }
}

void
bh_step_each_row(struct bh_forward *forward, bh_step_row_fn *fn, void *arg)
{
    struct each_row job = {.forward = forward, .fn = fn, .arg = arg};
    if (forward->row_cnt < ROWS_FOR_TEAM) {
        each_row_share(&job, 0, 1);
    } else {
        bh_team_run(forward->team, each_row_share, &job);
    }
}

static void
norm_row(struct bh_forward *forward, uint32_t row, void *arg)
{
    const float *weight = arg;
    uint32_t width = forward->model->dims.d_model;
    forward->model->kernels->norm(forward->x + (size_t)row * width,
                                  weight,
                                  forward->model->dims.norm_eps,
                                  width,
                                  forward->h + (size_t)row * forward->h_width);
}

void
bh_step_norm(struct bh_forward *forward, const float *weight)
{
    union {
        const float *from;
        void *to;
    } arg = {.from = weight}; /* the row function only reads it */
    bh_step_each_row(forward, norm_row, arg.to);
}

static void
gate_row(struct bh_forward *forward, uint32_t row, void *arg)
{
    (void)arg;
    uint32_t width = forward->model->dims.ffn;
    forward->model->kernels->swiglu(forward->gate + (size_t)row * width,
                                    forward->up + (size_t)row * width,
                                    width,
                                    forward->h + (size_t)row * forward->h_width);
}

void
bh_step_gate(struct bh_forward *forward)
{
    bh_step_each_row(forward, gate_row, NULL);
}

static void
angle_row(struct bh_forward *forward, uint32_t row, void *arg)
{
    (void)arg;
    uint32_t half = forward->model->dims.head_dim / 2;
    float *cosines = forward->angle + (size_t)row * 2 * half;
    for (uint32_t i = 0; i < half; i++) {
        double sine = 0.0;
        double cosine = 0.0;
        bh_exact_sincos(
            (double)forward->rows[row].pos * forward->model->frequency[i], &sine, &cosine);
        cosines[i] = (float)cosine;
        cosines[half + i] = (float)sine;
    }
}

void
bh_step_angles(struct bh_forward *forward)
{
    bh_step_each_row(forward, angle_row, NULL);
}

struct turn {
    float *rows;
    uint32_t heads;
};

/* The pair that turns together is (2i, 2i + 1). */
static void
turn_row(struct bh_forward *forward, uint32_t row, void *arg)
{
    const struct turn *turn = arg;
    uint32_t head_dim = forward->model->dims.head_dim;
    const float *cosines = forward->angle + (size_t)row * head_dim;
    const float *sines = cosines + head_dim / 2;
    for (uint32_t head = 0; head < turn->heads; head++) {
        float *pair = turn->rows + ((size_t)row * turn->heads + head) * head_dim;
        for (uint32_t i = 0; i < head_dim / 2; i++) {
            float a = pair[2 * i];
            float b = pair[2 * i + 1];
            pair[2 * i] = a * cosines[i] - b * sines[i];
            pair[2 * i + 1] = a * sines[i] + b * cosines[i];
        }
    }
}

void
bh_step_turn(struct bh_forward *forward, float *rows, uint32_t heads)
{
    struct turn turn = {.rows = rows, .heads = heads};
    bh_step_each_row(forward, turn_row, &turn);
}

static void
quantize_row(struct bh_forward *forward, uint32_t row, void *arg)
{
    (void)arg;
    forward->model->kernels->quantize(forward->h, forward->h_width, row, row + 1, &forward->act);
}

struct products {
    struct bh_forward *forward;
    const struct bh_step_product *products;
    uint32_t cnt;
    uint32_t unit;                         /* panels of a piece */
    uint32_t pieces[BH_STEP_PRODUCTS_MAX]; /* up to and including this product */
};

/* A product of a quantized matrix in plain mode: two panels at a time become floats first. */
static void
product_plain(struct bh_forward *forward, struct bh_matmul *call, float *scratch)
{
    const struct bh_panels *matrix = call->matrix;
    float *out = call->out;
    uint32_t panel_to = call->panel_to;
    for (uint32_t panel = call->panel_from; panel < panel_to; panel += 2) {
        uint32_t cnt = panel + 1 < panel_to ? 2 : 1;
        for (uint32_t p = 0; p < cnt; p++) {
            bh_panel_unpack(matrix, panel + p, scratch + (size_t)p * matrix->cols * BH_PANEL_ROWS);
        }
        struct bh_panels floats = {
            .bytes = (const uint8_t *)scratch,
            .kind = BH_WEIGHT_F32,
            .rows = (uint32_t)bh_min_u64(cnt * BH_PANEL_ROWS, matrix->rows - panel * BH_PANEL_ROWS),
            .cols = matrix->cols};
        call->matrix = &floats;
        call->panel_from = 0;
        call->panel_to = cnt;
        call->out = out + (size_t)panel * BH_PANEL_ROWS;
        forward->model->kernels->matmul_float(call, forward->h, forward->h_width);
    }
}

static void
product_piece(const struct products *job, uint32_t piece, uint32_t member_idx)
{
    struct bh_forward *forward = job->forward;
    uint32_t which = 0;
    while (piece >= job->pieces[which]) {
        which++;
    }
    const struct bh_step_product *product = &job->products[which];
    uint32_t first = (piece - (which > 0 ? job->pieces[which - 1] : 0)) * job->unit;
    struct bh_matmul call = {
        .matrix = product->matrix,
        .panel_from = first,
        .panel_to = (uint32_t)bh_min_u64(first + job->unit, bh_panel_cnt(product->matrix->rows)),
        .row_to = forward->row_cnt,
        .out = product->out,
        .out_stride = product->matrix->rows,
        .add = product->add};
    if (!bh_weight_quantized(product->matrix->kind)) {
        forward->model->kernels->matmul_float(&call, forward->h, forward->h_width);
    } else if (forward->model->mode == BH_MODEL_PLAIN) {
        product_plain(forward, &call, forward->scratch + member_idx * forward->scratch_floats);
    } else {
        forward->model->kernels->matmul(&call, &forward->act);
    }
}

static void
products_share(void *arg, uint32_t member_idx, uint32_t member_cnt)
{
    const struct products *job = arg;
    (void)member_cnt;
    uint32_t end = job->pieces[job->cnt - 1];
    for (uint32_t piece = bh_step_next(job->forward); piece < end;
         piece = bh_step_next(job->forward)) {
        product_piece(job, piece, member_idx);
    }
}

void
bh_step_products(struct bh_forward *forward,
                 const struct bh_step_product *products,
                 uint32_t cnt,
                 uint32_t cols)
{
    struct products job = {.forward = forward, .products = products, .cnt = cnt};
    uint32_t panels = 0;
    bool quantize = false;
    for (uint32_t i = 0; i < cnt; i++) {
        panels += bh_panel_cnt(products[i].matrix->rows);
        quantize = quantize || bh_weight_quantized(products[i].matrix->kind);
    }
    uint32_t want = panels / (bh_team_cnt(forward->team) * PIECES_PER_MEMBER);
    job.unit = (uint32_t)bh_max_u64(2, want & ~1u);
    for (uint32_t i = 0; i < cnt; i++) {
        uint32_t pieces = (bh_panel_cnt(products[i].matrix->rows) + job.unit - 1) / job.unit;
        job.pieces[i] = pieces + (i > 0 ? job.pieces[i - 1] : 0);
    }
    if (quantize && forward->model->mode == BH_MODEL_SERVED) {
        forward->act.cols = cols;
        bh_step_each_row(forward, quantize_row, NULL);
    }
    bh_step_deal(forward);
    bh_team_run(forward->team, products_share, &job);
}
