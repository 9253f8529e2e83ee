/* Limits and memory plan of a server. */
#include "src/supervisor/plan.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "src/core/config.h"

#define PAGES_MAX ((UINT32_C(1) << 24) - 1) /* a page index has 24 bits */
#define MIB       (UINT64_C(1) << 20)

static uint64_t
pages_of(uint64_t tokens, uint32_t page_tokens)
{
    return (tokens + page_tokens - 1) / page_tokens;
}

static uint64_t
mib_up(uint64_t bytes)
{
    return (bytes + MIB - 1) / MIB;
}

/* What one page costs: its KV, and its row of the page table. */
static uint64_t
page_cost(const struct bh_kv_shape *kv)
{
    return bh_kv_page_bytes(kv) + 32 + (uint64_t)4 * kv->page_tokens;
}

/* Tokens of the largest pool that fits into `bytes`, extra pages included. */
static uint64_t
tokens_in(uint64_t bytes, const struct bh_kv_shape *kv)
{
    uint64_t pages = bh_min_u64(bytes / page_cost(kv), PAGES_MAX);
    return pages > BH_PLAN_EXTRA_PAGES ? (pages - BH_PLAN_EXTRA_PAGES) * kv->page_tokens : 0;
}

static uint64_t
pool_bytes(uint64_t tokens, const struct bh_kv_shape *kv)
{
    return (pages_of(tokens, kv->page_tokens) + BH_PLAN_EXTRA_PAGES) * bh_kv_page_bytes(kv);
}

static uint64_t
default_pool(const struct bh_plan_input *input, uint32_t ctx)
{
    uint64_t page_tokens = input->kv.page_tokens;
    uint64_t wanted = pages_of((uint64_t)BH_POOL_SEQS * ctx, input->kv.page_tokens) * page_tokens;
    return bh_min_u64(wanted, tokens_in(input->memory_bytes / BH_POOL_SHARE, &input->kv));
}

/* One sequence of `ctx` tokens does not fit a pool of `pool` tokens. */
static enum bh_status
refuse_ctx(const struct bh_plan_input *input, uint32_t ctx, uint64_t pool, char *error)
{
    uint64_t needed = pool_bytes(ctx, &input->kv);
    char source[96];
    if (input->pool_asked != 0) {
        snprintf(source, sizeof(source), "--pool-tokens");
    } else {
        snprintf(source,
                 sizeof(source),
                 "1/%u of %" PRIu64 " MiB of memory",
                 (unsigned)BH_POOL_SHARE,
                 input->memory_bytes / MIB);
    }
    char shorter[64] = "";
    if (pool >= 2) {
        snprintf(shorter, sizeof(shorter), ", or --ctx %" PRIu64, pool);
    }
    snprintf(error,
             BH_PLAN_ERROR_MAX,
             "pool0 holds %" PRIu64 " tokens (%s), but %s %" PRIu32
             " tokens: give --pool-tokens %" PRIu32 " (%" PRIu64 " bytes, %" PRIu64 " MiB of KV)%s",
             pool,
             source,
             input->ctx_asked != 0 ? "--ctx asks for" : "the model's context is",
             ctx,
             ctx,
             needed,
             mib_up(needed),
             shorter);
    return BH_ELIMIT;
}

static enum bh_status
refuse_memory(const struct bh_plan_input *input, const struct bh_plan *plan, char *error)
{
    uint64_t fixed = input->weights_bytes + BH_HEADROOM_BYTES;
    uint64_t fits =
        input->available_bytes > fixed ? tokens_in(input->available_bytes - fixed, &input->kv) : 0;
    char advice[96];
    if (fits >= plan->limits.ctx) {
        snprintf(advice, sizeof(advice), "give --pool-tokens %" PRIu64, fits);
    } else if (fits >= 2) {
        snprintf(
            advice, sizeof(advice), "give --ctx %" PRIu64 " --pool-tokens %" PRIu64, fits, fits);
    } else {
        snprintf(advice, sizeof(advice), "no pool fits beside the weights: free memory");
    }
    snprintf(error,
             BH_PLAN_ERROR_MAX,
             "pool0 of %" PRIu32 " tokens needs %" PRIu64 " MiB, the weights %" PRIu64
             " MiB and the processes %" PRIu64 " MiB, together %" PRIu64 " MiB, but only %" PRIu64
             " MiB of memory are available: %s",
             plan->pool_tokens,
             mib_up(plan->pool_bytes),
             mib_up(input->weights_bytes),
             mib_up(BH_HEADROOM_BYTES),
             mib_up(plan->total_bytes),
             input->available_bytes / MIB,
             advice);
    return BH_ELIMIT;
}

static bool
shape_ok(const struct bh_plan_input *input)
{
    const struct bh_kv_shape *kv = &input->kv;
    return kv->layers != 0 && kv->kv_heads != 0 && kv->head_dim != 0 && kv->page_tokens != 0 &&
           kv->elem_bytes != 0 && input->vocab != 0 && input->ctx_model >= 2;
}

static struct bh_limits
limits_of(const struct bh_plan_input *input, uint32_t ctx, uint32_t page_cnt)
{
    return (struct bh_limits){
        .slots = BH_SLOTS,
        .conns = BH_CONNS,
        .tenants = input->tenant_cnt,
        .ctx = ctx,
        .page_cnt = page_cnt,
        .list_max = (uint32_t)pages_of(ctx, input->kv.page_tokens),
        .rows_max = BH_ROWS_MAX,
        .chunk_max = input->chunk,
        .reply_bytes = BH_REPLY_BYTES,
        .vocab = input->vocab,
        .kv = input->kv,
    };
}

static uint32_t
threads_of(const struct bh_plan_input *input)
{
    uint32_t threads = input->threads_asked != 0 ? input->threads_asked : input->cpu_cnt;
    return (uint32_t)bh_max_u64(1, bh_min_u64(threads, 64));
}

enum bh_status
bh_plan_make(const struct bh_plan_input *input, char error[BH_PLAN_ERROR_MAX], struct bh_plan *out)
{
    if (!shape_ok(input)) {
        snprintf(error, BH_PLAN_ERROR_MAX, "the model's shape has a field that is 0");
        return BH_EINVAL;
    }
    if (input->ctx_asked > input->ctx_model) {
        snprintf(error,
                 BH_PLAN_ERROR_MAX,
                 "--ctx asks for %" PRIu32 " tokens, but the model's context is %" PRIu32
                 " tokens: give --ctx %" PRIu32 " or less",
                 input->ctx_asked,
                 input->ctx_model,
                 input->ctx_model);
        return BH_ELIMIT;
    }
    uint32_t ctx = input->ctx_asked != 0 ? input->ctx_asked : input->ctx_model;
    uint64_t pool = input->pool_asked != 0 ? input->pool_asked : default_pool(input, ctx);
    if (ctx > pool) {
        return refuse_ctx(input, ctx, pool, error);
    }
    uint64_t pages = pages_of(pool, input->kv.page_tokens) + BH_PLAN_EXTRA_PAGES;
    if (pages > PAGES_MAX || pool > UINT32_MAX) {
        snprintf(error,
                 BH_PLAN_ERROR_MAX,
                 "pool0 of %" PRIu64 " tokens has more than %" PRIu32
                 " pages: give --pool-tokens %" PRIu64 " or less",
                 pool,
                 PAGES_MAX,
                 (uint64_t)(PAGES_MAX - BH_PLAN_EXTRA_PAGES) * input->kv.page_tokens);
        return BH_ELIMIT;
    }
    struct bh_plan plan = {
        .limits = limits_of(input, ctx, (uint32_t)pages),
        .pool_tokens = (uint32_t)pool,
        .threads = threads_of(input),
        .pool_bytes = pages * bh_kv_page_bytes(&input->kv),
    };
    plan.total_bytes = pages * page_cost(&input->kv) + input->weights_bytes + BH_HEADROOM_BYTES;
    if (plan.total_bytes > input->available_bytes) {
        return refuse_memory(input, &plan, error);
    }
    *out = plan;
    return BH_OK;
}
