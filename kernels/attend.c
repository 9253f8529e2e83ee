/* The page loop of attention: proof of stamps, causal limits, splits and their combination. The
   arithmetic inside a page is the variant's; what is here is scalar and canonical. */
#include "kernels/attend.h"

#include <string.h>

#include "kernels/canon.h"

static_assert(BH_SPLIT_TOKENS % BH_LANES == 0, "a split is whole vectors of scores");

/* Views of the scratch: scores of a split, its output, and maximum and sum so far of each query. */
struct work {
    float *scores; /* [queries][BH_SPLIT_TOKENS] */
    float *part;   /* [queries][head_dim] */
    float *max;    /* [queries] */
    float *sum;    /* [queries] */
};

size_t
bh_attend_scratch_floats(uint32_t head_dim)
{
    return (size_t)BH_ATTEND_QUERIES_MAX * (BH_SPLIT_TOKENS + head_dim + 2);
}

static struct work
work_views(float *scratch, uint32_t head_dim)
{
    struct work work;
    work.scores = scratch;
    work.part = work.scores + (size_t)BH_ATTEND_QUERIES_MAX * BH_SPLIT_TOKENS;
    work.max = work.part + (size_t)BH_ATTEND_QUERIES_MAX * head_dim;
    work.sum = work.max + BH_ATTEND_QUERIES_MAX;
    return work;
}

/* Positions that query token `row` sees within the split that starts at `start`, at most its size. */
static uint32_t
seen_in_split(const struct bh_attend *call, uint32_t row, uint32_t start)
{
    uint32_t end = call->first_pos + row + 1;
    return end <= start ? 0 : (uint32_t)bh_min_u64(end - start, BH_SPLIT_TOKENS);
}

/* The block of page `ord`, if its stamp says that it holds what this reader is about to load. */
static enum bh_violation
prove_page(const struct bh_attend *call, uint32_t ord, uint8_t **block)
{
    const struct bh_stamp_want *want = &call->pages[ord];
    uint32_t filled =
        (uint32_t)bh_min_u64(call->kv->page_tokens, call->kv_tokens - ord * call->kv->page_tokens);
    *block = bh_kv_block(call->kv, call->pool, want->page_idx, call->layer);
    if (BH_UNLIKELY(want->ordinal != ord)) {
        return BH_VIOLATION_PLACE;
    }
    return bh_stamp_prove((const struct bh_stamp *)(const void *)*block, want, call->layer, filled);
}

/* Scores of all queries against the pages of one split, `tokens` of them from `start` on. */
static enum bh_violation
split_scores(const struct bh_attend *call,
             uint32_t start,
             uint32_t tokens,
             float *scores,
             uint32_t *violation_page)
{
    uint32_t page_tokens = call->kv->page_tokens;
    struct bh_queries queries = {
        .q = call->q, .q_cnt = call->row_cnt * call->group, .head_dim = call->kv->head_dim};
    for (uint32_t at = 0; at < tokens; at += page_tokens) {
        uint8_t *block = NULL;
        uint32_t ord = (start + at) / page_tokens;
        enum bh_violation violation = prove_page(call, ord, &block);
        if (BH_UNLIKELY(violation != BH_VIOLATION_NONE)) {
            *violation_page = ord;
            return violation;
        }
        struct bh_page_part k = {.bytes = bh_kv_k(call->kv, block, call->kv_head),
                                 .page_tokens = page_tokens,
                                 .elem_bytes = call->kv->elem_bytes,
                                 .tok_to = (uint32_t)bh_min_u64(page_tokens, tokens - at)};
        call->kernels->scores(&queries, &k, scores + at, BH_SPLIT_TOKENS);
    }
    return BH_VIOLATION_NONE;
}

/* Adds probabilities times V of one page to the split's outputs. Tokens that every query sees go
   through one call; the last few, which only later query tokens see, one query token at a time, so
   that a row never touches a value it may not see, not even times zero. */
static void
page_values(const struct bh_attend *call,
            uint32_t start,
            uint32_t at,
            uint8_t *block,
            const struct work *work)
{
    uint32_t head_dim = call->kv->head_dim;
    uint32_t page_tokens = call->kv->page_tokens;
    struct bh_page_part v = {.bytes = bh_kv_v(call->kv, block, call->kv_head),
                             .page_tokens = page_tokens,
                             .elem_bytes = call->kv->elem_bytes};
    uint32_t common = seen_in_split(call, 0, start);
    common = common <= at ? 0 : (uint32_t)bh_min_u64(common - at, page_tokens);
    v.tok_to = common;
    if (common > 0) {
        call->kernels->values(work->scores + at,
                              BH_SPLIT_TOKENS,
                              call->row_cnt * call->group,
                              head_dim,
                              &v,
                              work->part);
    }
    for (uint32_t row = 1; row < call->row_cnt; row++) {
        uint32_t seen = seen_in_split(call, row, start);
        seen = seen <= at ? 0 : (uint32_t)bh_min_u64(seen - at, page_tokens);
        if (seen <= common) {
            continue;
        }
        uint32_t query = row * call->group;
        v.tok_from = common;
        v.tok_to = seen;
        call->kernels->values(work->scores + (size_t)query * BH_SPLIT_TOKENS + at + common,
                              BH_SPLIT_TOKENS,
                              call->group,
                              head_dim,
                              &v,
                              work->part + (size_t)query * head_dim);
    }
}

static enum bh_violation
split_values(const struct bh_attend *call,
             uint32_t start,
             uint32_t tokens,
             const struct work *work,
             uint32_t *violation_page)
{
    uint32_t page_tokens = call->kv->page_tokens;
    memset(work->part, 0, (size_t)call->row_cnt * call->group * call->kv->head_dim * sizeof(float));
    for (uint32_t at = 0; at < tokens; at += page_tokens) {
        uint8_t *block = NULL;
        uint32_t ord = (start + at) / page_tokens;
        enum bh_violation violation = prove_page(call, ord, &block);
        if (BH_UNLIKELY(violation != BH_VIOLATION_NONE)) {
            *violation_page = ord;
            return violation;
        }
        page_values(call, start, at, block, work);
    }
    return BH_VIOLATION_NONE;
}

/* Takes the split of one query into its running result: with M the larger maximum, both sides are
   scaled by exp(own maximum - M). */
static void
combine(const struct bh_attend *call,
        uint32_t query,
        bool first,
        float split_max,
        float split_sum,
        const struct work *work,
        float *out)
{
    uint32_t head_dim = call->kv->head_dim;
    const float *part = work->part + (size_t)query * head_dim;
    float *acc = out + (size_t)query * head_dim;
    if (first) {
        memcpy(acc, part, head_dim * sizeof(float));
        work->max[query] = split_max;
        work->sum[query] = split_sum;
        return;
    }
    float old_max = work->max[query];
    float max = split_max > old_max ? split_max : old_max;
    float old_scale = bh_canon_exp(old_max - max);
    float new_scale = bh_canon_exp(split_max - max);
    for (uint32_t d = 0; d < head_dim; d++) {
        acc[d] = fmaf(acc[d], old_scale, part[d] * new_scale);
    }
    work->max[query] = max;
    work->sum[query] = fmaf(work->sum[query], old_scale, split_sum * new_scale);
}

static enum bh_violation
attend_split(const struct bh_attend *call,
             uint32_t start,
             const struct work *work,
             float *out,
             uint32_t *violation_page)
{
    uint32_t tokens = seen_in_split(call, call->row_cnt - 1, start);
    enum bh_violation violation = split_scores(call, start, tokens, work->scores, violation_page);
    if (violation != BH_VIOLATION_NONE) {
        return violation;
    }
    float max[BH_ATTEND_QUERIES_MAX];
    float sum[BH_ATTEND_QUERIES_MAX];
    for (uint32_t query = 0; query < call->row_cnt * call->group; query++) {
        uint32_t seen = seen_in_split(call, query / call->group, start);
        if (seen > 0) {
            call->kernels->softmax(
                work->scores + (size_t)query * BH_SPLIT_TOKENS, seen, &max[query], &sum[query]);
        }
    }
    violation = split_values(call, start, tokens, work, violation_page);
    if (violation != BH_VIOLATION_NONE) {
        return violation;
    }
    for (uint32_t query = 0; query < call->row_cnt * call->group; query++) {
        if (seen_in_split(call, query / call->group, start) > 0) {
            combine(call, query, start == 0, max[query], sum[query], work, out);
        }
    }
    return BH_VIOLATION_NONE;
}

enum bh_violation
bh_attend_run(const struct bh_attend *call, float *scratch, float *out, uint32_t *violation_page)
{
    uint32_t head_dim = call->kv->head_dim;
    struct work work = work_views(scratch, head_dim);
    uint32_t end = call->first_pos + call->row_cnt;
    for (uint32_t start = 0; start < end; start += BH_SPLIT_TOKENS) {
        enum bh_violation violation = attend_split(call, start, &work, out, violation_page);
        if (BH_UNLIKELY(violation != BH_VIOLATION_NONE)) {
            memset(out, 0, (size_t)call->row_cnt * call->group * head_dim * sizeof(float));
            return violation;
        }
    }
    for (uint32_t query = 0; query < call->row_cnt * call->group; query++) {
        float inverse = 1.0f / work.sum[query];
        for (uint32_t d = 0; d < head_dim; d++) {
            out[(size_t)query * head_dim + d] *= inverse;
        }
    }
    return BH_VIOLATION_NONE;
}
