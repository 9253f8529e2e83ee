/* Pages: K and V into them, proofs of what is in them, attention over them. */
#include <math.h>
#include <string.h>

#include "src/model/step.h"

/* A row of the batch works on this many query tokens times query heads at once, if its sequence has
   that many tokens here. */
#define QUERIES_AIM 12u

static void
refuse(struct bh_seq *seq, enum bh_violation violation, uint32_t page_ord, uint32_t layer)
{
    seq->violation = violation;
    seq->violation_page = page_ord;
    seq->violation_layer = layer;
}

/* A page that this step continues must hold the tokens before, or the step would seal somebody else's
   bytes under its own stamp. */
static void
prove_continued(struct bh_forward *forward, struct bh_seq *seq)
{
    uint32_t ord = seq->first_pos / forward->kv.page_tokens;
    uint32_t filled = seq->first_pos % forward->kv.page_tokens;
    if (filled == 0) {
        return;
    }
    const struct bh_stamp_want *want = &seq->pages[ord];
    uint8_t *block = bh_kv_block(&forward->kv, forward->pool, want->page_idx, forward->layer);
    enum bh_violation violation =
        bh_stamp_prove((const struct bh_stamp *)(const void *)block, want, forward->layer, filled);
    if (violation != BH_VIOLATION_NONE) {
        refuse(seq, violation, ord, forward->layer);
    }
}

/* One element of K or V in the width of the cache. */
static inline void
put_elem(uint8_t *to, size_t idx, float value, uint16_t half, uint32_t elem_bytes)
{
    if (elem_bytes == 4) {
        memcpy(to + idx * 4, &value, 4);
    } else {
        memcpy(to + idx * 2, &half, 2);
    }
}

static void
store_row(struct bh_forward *forward, uint32_t row, void *arg)
{
    (void)arg;
    const struct bh_kv_shape *kv = &forward->kv;
    const struct bh_seq *seq = &forward->seqs[forward->rows[row].seq];
    if (seq->violation != BH_VIOLATION_NONE) {
        return;
    }
    uint32_t pos = forward->rows[row].pos;
    uint32_t token = pos % kv->page_tokens;
    uint8_t *block =
        bh_kv_block(kv, forward->pool, seq->pages[pos / kv->page_tokens].page_idx, forward->layer);
    for (uint32_t head = 0; head < kv->kv_heads; head++) {
        size_t from = ((size_t)row * kv->kv_heads + head) * kv->head_dim;
        const float *k = forward->k + from;
        const float *v = forward->v + from;
        uint16_t k_half[512];
        uint16_t v_half[512];
        forward->model->kernels->halve(k, kv->head_dim, k_half);
        forward->model->kernels->halve(v, kv->head_dim, v_half);
        uint8_t *k_to = bh_kv_k(kv, block, head);
        uint8_t *v_to = bh_kv_v(kv, block, head);
        for (uint32_t d = 0; d < kv->head_dim; d++) {
            put_elem(k_to, (size_t)d * kv->page_tokens + token, k[d], k_half[d], kv->elem_bytes);
            put_elem(v_to, (size_t)token * kv->head_dim + d, v[d], v_half[d], kv->elem_bytes);
        }
    }
}

static void
stamp_pages(struct bh_forward *forward, uint32_t seq_idx)
{
    const struct bh_seq *seq = &forward->seqs[seq_idx];
    uint32_t page_tokens = forward->kv.page_tokens;
    uint32_t end = seq->first_pos + seq->token_cnt;
    for (uint32_t ord = seq->first_pos / page_tokens; ord * page_tokens < end; ord++) {
        uint32_t end_pos = (uint32_t)bh_min_u64((uint64_t)(ord + 1) * page_tokens, end);
        forward->stamp(forward->role, seq_idx, ord, forward->layer, end_pos);
    }
}

void
bh_step_store(struct bh_forward *forward)
{
    for (uint32_t i = 0; i < forward->seq_cnt; i++) {
        if (forward->seqs[i].violation == BH_VIOLATION_NONE) {
            prove_continued(forward, &forward->seqs[i]);
        }
    }
    bh_step_each_row(forward, store_row, NULL);
    for (uint32_t i = 0; i < forward->seq_cnt; i++) {
        if (forward->seqs[i].violation == BH_VIOLATION_NONE) {
            stamp_pages(forward, i);
        }
    }
}

/* Tasks of all rows, a tile of query tokens by a kv head each. */
static void
plan_tasks(struct bh_forward *forward)
{
    uint32_t group = forward->model->dims.heads / forward->model->dims.kv_heads;
    uint32_t tile = group >= QUERIES_AIM ? 1 : QUERIES_AIM / group;
    forward->task_cnt = 0;
    for (uint32_t row = 0; row < forward->row_cnt;) {
        uint32_t cnt = 1;
        while (cnt < tile && row + cnt < forward->row_cnt &&
               forward->rows[row + cnt].seq == forward->rows[row].seq) {
            cnt++;
        }
        for (uint32_t head = 0; head < forward->kv.kv_heads; head++) {
            forward->tasks[forward->task_cnt++] =
                (struct bh_step_task){.row = row, .row_cnt = cnt, .kv_head = head};
        }
        row += cnt;
    }
}

static void
task_run(struct bh_forward *forward, struct bh_step_task *task, float *scratch)
{
    const struct bh_model_dims *dims = &forward->model->dims;
    const struct bh_step_row *first = &forward->rows[task->row];
    const struct bh_seq *seq = &forward->seqs[first->seq];
    uint32_t group = dims->heads / dims->kv_heads;
    size_t chunk = (size_t)group * dims->head_dim; /* floats of one query token in this task */
    float *q = scratch;
    float *out = q + (size_t)BH_ATTEND_QUERIES_MAX * dims->head_dim;
    float *work = out + (size_t)BH_ATTEND_QUERIES_MAX * dims->head_dim;
    if (seq->violation == BH_VIOLATION_NONE) {
        float scale = 1.0f / sqrtf((float)dims->head_dim);
        for (uint32_t r = 0; r < task->row_cnt; r++) {
            const float *from = forward->q +
                                (size_t)(task->row + r) * dims->heads * dims->head_dim +
                                task->kv_head * chunk;
            for (size_t i = 0; i < chunk; i++) {
                q[r * chunk + i] = from[i] * scale;
            }
        }
        struct bh_attend call = {.kernels = forward->model->kernels,
                                 .kv = &forward->kv,
                                 .pool = forward->pool,
                                 .pages = seq->pages,
                                 .layer = forward->layer,
                                 .kv_head = task->kv_head,
                                 .kv_tokens = seq->first_pos + seq->token_cnt,
                                 .first_pos = first->pos,
                                 .row_cnt = task->row_cnt,
                                 .group = group,
                                 .q = q};
        task->violation = bh_attend_run(&call, work, out, &task->violation_page);
    } else {
        memset(out, 0, task->row_cnt * chunk * sizeof(float));
    }
    for (uint32_t r = 0; r < task->row_cnt; r++) {
        float *to = forward->h + (size_t)(task->row + r) * forward->h_width + task->kv_head * chunk;
        memcpy(to, out + r * chunk, chunk * sizeof(float));
    }
}

/* The last tasks of a prompt cost most: they go first, and the small ones fill the gaps. */
static void
tasks_share(void *arg, uint32_t member_idx, uint32_t member_cnt)
{
    struct bh_forward *forward = arg;
    (void)member_cnt;
    float *scratch = forward->scratch + member_idx * forward->scratch_floats;
    for (uint32_t i = bh_step_next(forward); i < forward->task_cnt; i = bh_step_next(forward)) {
        task_run(forward, &forward->tasks[forward->task_cnt - 1 - i], scratch);
    }
}

void
bh_step_attend(struct bh_forward *forward)
{
    plan_tasks(forward);
    bh_step_deal(forward);
    bh_team_run(forward->team, tasks_share, forward);
    for (uint32_t i = 0; i < forward->task_cnt; i++) {
        const struct bh_step_task *task = &forward->tasks[i];
        struct bh_seq *seq = &forward->seqs[forward->rows[task->row].seq];
        bool earlier =
            seq->violation == BH_VIOLATION_NONE ||
            (seq->violation_layer == forward->layer && task->violation_page < seq->violation_page);
        if (task->violation != BH_VIOLATION_NONE && earlier) {
            refuse(seq, task->violation, task->violation_page, forward->layer);
        }
    }
}
