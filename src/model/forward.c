/* One step of the model: a batch of tokens through all layers. This file is the order of things. */
#include <stdlib.h>
#include <string.h>

#include "src/model/step.h"

static void *
floats_new(size_t cnt)
{
    return aligned_alloc(64, bh_round_up(cnt * sizeof(float), 64));
}

/* Quantized rows are as wide as the widest input of a product. */
static bool
act_new(struct bh_act *act, size_t rows, uint32_t cols)
{
    size_t blocks = rows * (cols / BH_BLOCK_COLS);
    act->cols = cols;
    act->q = aligned_alloc(64, bh_round_up(rows * cols, 64));
    act->scale = floats_new(blocks);
    act->sum = floats_new(blocks);
    act->off = floats_new(blocks);
    act->half_off = floats_new(2 * blocks);
    return act->q != NULL && act->scale != NULL && act->sum != NULL && act->off != NULL &&
           act->half_off != NULL;
}

static bool
buffers_new(struct bh_forward *forward)
{
    const struct bh_model_dims *dims = &forward->model->dims;
    size_t rows = forward->rows_max;
    size_t q_dim = (size_t)dims->heads * dims->head_dim;
    size_t kv_dim = (size_t)dims->kv_heads * dims->head_dim;
    forward->h_width = (uint32_t)bh_max_u64(bh_max_u64(dims->d_model, dims->ffn), q_dim);
    size_t attend = (size_t)2 * BH_ATTEND_QUERIES_MAX * dims->head_dim +
                    bh_attend_scratch_floats(dims->head_dim);
    size_t unpacked =
        forward->model->mode == BH_MODEL_PLAIN ? (size_t)2 * forward->h_width * BH_PANEL_ROWS : 0;
    forward->scratch_floats = bh_round_up(bh_max_u64(attend, unpacked), 32);
    forward->rows = calloc(rows, sizeof(*forward->rows));
    forward->place = calloc(rows, sizeof(*forward->place));
    forward->tasks = calloc(rows * dims->kv_heads, sizeof(*forward->tasks));
    forward->x = floats_new(rows * dims->d_model);
    forward->angle = floats_new(rows * dims->head_dim);
    forward->h = floats_new(rows * forward->h_width);
    forward->q = floats_new(rows * q_dim);
    forward->k = floats_new(rows * kv_dim);
    forward->v = floats_new(rows * kv_dim);
    forward->gate = floats_new(rows * dims->ffn);
    forward->up = floats_new(rows * dims->ffn);
    forward->scratch = floats_new(bh_team_cnt(forward->team) * forward->scratch_floats);
    forward->next = floats_new(16);
    return forward->rows != NULL && forward->place != NULL && forward->tasks != NULL &&
           forward->x != NULL && forward->angle != NULL && forward->h != NULL &&
           forward->q != NULL && forward->k != NULL && forward->v != NULL &&
           forward->gate != NULL && forward->up != NULL && forward->scratch != NULL &&
           forward->next != NULL && act_new(&forward->act, rows, forward->h_width);
}

static bool
shape_ok(const struct bh_model_dims *dims, const struct bh_kv_shape *kv)
{
    bool page_ok = kv->page_tokens >= 16 && kv->page_tokens <= BH_SPLIT_TOKENS &&
                   (kv->page_tokens & (kv->page_tokens - 1)) == 0;
    return page_ok && kv->layers == dims->layers && kv->kv_heads == dims->kv_heads &&
           kv->head_dim == dims->head_dim && (kv->elem_bytes == 2 || kv->elem_bytes == 4);
}

struct bh_forward *
bh_forward_new(const struct bh_model *model,
               const struct bh_kv_shape *kv,
               struct bh_team *team,
               uint32_t rows_max,
               uint32_t seqs_max)
{
    if (rows_max == 0 || seqs_max == 0 || !shape_ok(&model->dims, kv)) {
        return NULL;
    }
    struct bh_forward *forward = calloc(1, sizeof(*forward));
    if (forward == NULL) {
        return NULL;
    }
    forward->model = model;
    forward->kv = *kv;
    forward->team = team;
    forward->rows_max = rows_max;
    forward->seqs_max = seqs_max;
    if (!buffers_new(forward)) {
        bh_forward_delete(forward);
        return NULL;
    }
    return forward;
}

void
bh_forward_delete(struct bh_forward *forward)
{
    if (forward == NULL) {
        return;
    }
    free(forward->rows);
    free(forward->place);
    free(forward->tasks);
    free(forward->x);
    free(forward->angle);
    free(forward->h);
    free(forward->q);
    free(forward->k);
    free(forward->v);
    free(forward->gate);
    free(forward->up);
    free(forward->scratch);
    free(forward->next);
    free(forward->act.q);
    free(forward->act.scale);
    free(forward->act.sum);
    free(forward->act.off);
    free(forward->act.half_off);
    free(forward);
}

/* Is one sequence within its own limits? */
static bool
seq_ok(const struct bh_forward *forward, const struct bh_seq *seq)
{
    uint64_t end = (uint64_t)seq->first_pos + seq->token_cnt;
    if (seq->token_cnt == 0 || end > (uint64_t)seq->page_cnt * forward->kv.page_tokens ||
        end > UINT32_MAX) {
        return false;
    }
    for (uint32_t i = 0; i < seq->token_cnt; i++) {
        if (seq->tokens[i] >= forward->model->dims.vocab) {
            return false;
        }
    }
    return true;
}

/* Pages that this step stores into must be the sequence's own, in its order, and not the null page:
   nothing is written on the strength of a handle that no proof could ever accept. */
static void
check_written(const struct bh_forward *forward, struct bh_seq *seq)
{
    uint32_t page_tokens = forward->kv.page_tokens;
    uint32_t end = seq->first_pos + seq->token_cnt;
    for (uint32_t ord = seq->first_pos / page_tokens; ord * page_tokens < end; ord++) {
        const struct bh_stamp_want *want = &seq->pages[ord];
        if (want->gen == 0 || want->page_idx == 0 || want->shared != 0 || want->ordinal != ord) {
            seq->violation = BH_VIOLATION_HANDLE;
            seq->violation_page = ord;
            return;
        }
    }
}

static void
embed_row(struct bh_forward *forward, uint32_t row, void *arg)
{
    (void)arg;
    const struct bh_step_row *at = &forward->rows[row];
    const struct bh_seq *seq = &forward->seqs[at->seq];
    bh_panel_unpack_row(&forward->model->token_embd,
                        seq->tokens[at->pos - seq->first_pos],
                        forward->x + (size_t)row * forward->model->dims.d_model);
}

enum bh_status
bh_forward_begin(struct bh_forward *forward,
                 uint8_t *pool,
                 struct bh_seq *seqs,
                 uint32_t seq_cnt,
                 bh_stamp_fn *stamp,
                 void *role)
{
    uint64_t rows = 0;
    if (seq_cnt == 0 || seq_cnt > forward->seqs_max) {
        return BH_EINVAL;
    }
    for (uint32_t i = 0; i < seq_cnt; i++) {
        rows += seqs[i].token_cnt;
        if (rows > forward->rows_max || !seq_ok(forward, &seqs[i])) {
            return BH_EINVAL;
        }
    }
    forward->pool = pool;
    forward->seqs = seqs;
    forward->seq_cnt = seq_cnt;
    forward->stamp = stamp;
    forward->role = role;
    forward->layer = 0;
    forward->row_cnt = 0;
    for (uint32_t i = 0; i < seq_cnt; i++) {
        seqs[i].violation = BH_VIOLATION_NONE;
        seqs[i].violation_page = 0;
        seqs[i].violation_layer = 0;
        check_written(forward, &seqs[i]);
        for (uint32_t t = 0; t < seqs[i].token_cnt; t++) {
            uint32_t row = forward->row_cnt++;
            forward->place[row] = row;
            forward->rows[row] =
                (struct bh_step_row){.seq = i, .pos = seqs[i].first_pos + t, .batch_row = row};
        }
    }
    forward->batch_rows = forward->row_cnt;
    bh_step_each_row(forward, embed_row, NULL);
    bh_step_angles(forward);
    return BH_OK;
}

/* Closes up over rows of refused sequences and, when `outputs` is set, of those whose hidden states
   nobody wants. */
static void
keep_rows(struct bh_forward *forward, bool outputs)
{
    uint32_t width = forward->model->dims.d_model;
    uint32_t head_dim = forward->model->dims.head_dim;
    uint32_t kept = 0;
    for (uint32_t row = 0; row < forward->row_cnt; row++) {
        const struct bh_seq *seq = &forward->seqs[forward->rows[row].seq];
        if (seq->violation != BH_VIOLATION_NONE || (outputs && !seq->outputs)) {
            forward->place[forward->rows[row].batch_row] = UINT32_MAX;
            continue;
        }
        if (kept != row) {
            forward->rows[kept] = forward->rows[row];
            forward->place[forward->rows[kept].batch_row] = kept;
            memcpy(forward->x + (size_t)kept * width,
                   forward->x + (size_t)row * width,
                   width * sizeof(float));
            memcpy(forward->angle + (size_t)kept * head_dim,
                   forward->angle + (size_t)row * head_dim,
                   head_dim * sizeof(float));
        }
        kept++;
    }
    forward->row_cnt = kept;
}

static bool
any_without_outputs(const struct bh_forward *forward)
{
    for (uint32_t i = 0; i < forward->seq_cnt; i++) {
        if (!forward->seqs[i].outputs) {
            return true;
        }
    }
    return false;
}

/* K and V of all rows into their pages; q too, unless rows are about to drop out. Returns false when no
   row is left for attention. */
static bool
layer_inputs(struct bh_forward *forward, const struct bh_layer_view *layer)
{
    const struct bh_model_dims *dims = &forward->model->dims;
    bool last = forward->layer + 1 == dims->layers && any_without_outputs(forward);
    const struct bh_step_product products[3] = {{.matrix = &layer->k, .out = forward->k},
                                                {.matrix = &layer->v, .out = forward->v},
                                                {.matrix = &layer->q, .out = forward->q}};
    bh_step_norm(forward, layer->attn_norm);
    bh_step_products(forward, products, last ? 2 : 3, dims->d_model);
    bh_step_turn(forward, forward->k, dims->kv_heads);
    bh_step_store(forward);
    if (last) {
        keep_rows(forward, true);
        if (forward->row_cnt == 0) {
            return false;
        }
        bh_step_norm(forward, layer->attn_norm);
        bh_step_products(forward, &products[2], 1, dims->d_model);
    }
    bh_step_turn(forward, forward->q, dims->heads);
    return true;
}

static void
layer_run(struct bh_forward *forward, const struct bh_layer_view *layer)
{
    const struct bh_model_dims *dims = &forward->model->dims;
    if (!layer_inputs(forward, layer)) {
        return;
    }
    bh_step_attend(forward);
    const struct bh_step_product output = {
        .matrix = &layer->attn_output, .out = forward->x, .add = true};
    bh_step_products(forward, &output, 1, dims->heads * dims->head_dim);
    bh_step_norm(forward, layer->ffn_norm);
    const struct bh_step_product up[2] = {{.matrix = &layer->gate, .out = forward->gate},
                                          {.matrix = &layer->up, .out = forward->up}};
    bh_step_products(forward, up, 2, dims->d_model);
    bh_step_gate(forward);
    const struct bh_step_product down = {.matrix = &layer->down, .out = forward->x, .add = true};
    bh_step_products(forward, &down, 1, dims->ffn);
}

enum bh_status
bh_forward_layer(struct bh_forward *forward)
{
    BH_CHECK(forward->layer < forward->model->dims.layers);
    keep_rows(forward, false);
    if (forward->row_cnt > 0) {
        layer_run(forward, &forward->model->layers[forward->layer]);
    }
    forward->layer++;
    if (forward->layer < forward->model->dims.layers) {
        return BH_AGAIN;
    }
    keep_rows(forward, true);
    return BH_OK;
}

/* Logits of `cnt` rows at consecutive places. The products below work on places 0.., so the normed rows
   go there, and the step's rows are put back by nobody: x itself is not touched. */
static void
logits_run(struct bh_forward *forward, uint32_t place, uint32_t cnt, float *out)
{
    const struct bh_model *model = forward->model;
    uint32_t width = model->dims.d_model;
    uint32_t row_cnt = forward->row_cnt;
    for (uint32_t i = 0; i < cnt; i++) {
        model->kernels->norm(forward->x + (size_t)(place + i) * width,
                             model->output_norm,
                             model->dims.norm_eps,
                             width,
                             forward->h + (size_t)i * forward->h_width);
    }
    const struct bh_step_product product = {.matrix = &model->output, .out = out};
    forward->row_cnt = cnt;
    bh_step_products(forward, &product, 1, width);
    forward->row_cnt = row_cnt;
}

void
bh_forward_logits(struct bh_forward *forward, uint32_t row, uint32_t row_cnt, float *out)
{
    BH_CHECK(row <= forward->batch_rows && row_cnt <= forward->batch_rows - row);
    size_t vocab = forward->model->dims.vocab;
    for (uint32_t i = 0; i < row_cnt;) {
        uint32_t place = forward->place[row + i];
        uint32_t cnt = 1;
        if (place == UINT32_MAX) {
            memset(out + i * vocab, 0, vocab * sizeof(float));
        } else {
            while (i + cnt < row_cnt && forward->place[row + i + cnt] == place + cnt) {
                cnt++;
            }
            logits_run(forward, place, cnt, out + i * vocab);
        }
        i += cnt;
    }
}
