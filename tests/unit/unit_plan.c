/* The plan against numbers worked out by hand: one layer, one KV head of 16 values, pages of 16
   tokens in f16 make a block of 64 + 2 * 16 * 16 * 2 = 1088 bytes, which is a page. A page also costs
   32 + 4 * 16 = 96 bytes of page table. */
#include "src/supervisor/plan.h"

#include <criterion/criterion.h>
#include <string.h>

#include "src/core/config.h"

#define PAGE_BYTES UINT64_C(1088)
#define PAGE_COST  (PAGE_BYTES + 96)
#define GIB        (UINT64_C(1) << 30)

static struct bh_plan_input
input(void)
{
    return (struct bh_plan_input){
        .ctx_model = 1000,
        .cpu_cnt = 3,
        .chunk = 256,
        .tenant_cnt = 1,
        .vocab = 500,
        .kv = {.layers = 1, .kv_heads = 1, .head_dim = 16, .page_tokens = 16, .elem_bytes = 2},
        .weights_bytes = 1000,
        .memory_bytes = 8 * GIB,
        .available_bytes = 7 * GIB,
    };
}

static struct bh_plan
accepted(const struct bh_plan_input *in)
{
    char error[BH_PLAN_ERROR_MAX] = "";
    struct bh_plan plan = {0};
    cr_assert_eq(bh_plan_make(in, error, &plan), BH_OK, "%s", error);
    cr_expect(bh_limits_ok(&plan.limits));
    cr_expect_leq(plan.limits.ctx, plan.pool_tokens);
    return plan;
}

static void
refused(const struct bh_plan_input *in, const char *const *named, size_t named_cnt)
{
    char error[BH_PLAN_ERROR_MAX] = "";
    struct bh_plan plan = {.threads = 77};
    cr_expect_eq(bh_plan_make(in, error, &plan), BH_ELIMIT);
    cr_expect_eq(plan.threads, 77, "out is untouched");
    for (size_t i = 0; i < named_cnt; i++) {
        cr_expect(strstr(error, named[i]) != NULL, "'%s' does not name %s", error, named[i]);
    }
}
#define REFUSED(in, ...)                                                                           \
    do {                                                                                           \
        static const char *const named[] = {__VA_ARGS__};                                          \
        refused((in), named, BH_COUNT(named));                                                     \
    } while (0)

Test(plan, defaults_are_four_sequences)
{
    struct bh_plan_input in = input();
    struct bh_plan plan = accepted(&in);
    cr_expect_eq(plan.limits.ctx, 1000);
    cr_expect_eq(plan.pool_tokens, 4000);
    cr_expect_eq(plan.limits.page_cnt, 250 + 2, "null page and spare page on top");
    cr_expect_eq(plan.limits.list_max, 63);
    cr_expect_eq(plan.pool_bytes, 252 * PAGE_BYTES);
    cr_expect_eq(plan.total_bytes, 252 * PAGE_COST + 1000 + BH_HEADROOM_BYTES);
    cr_expect_eq(plan.threads, 3);
    cr_expect_eq(plan.limits.slots, BH_SLOTS);
    cr_expect_eq(plan.limits.chunk_max, 256);
    cr_expect_eq(plan.limits.vocab, 500);
}

Test(plan, a_full_sequence_fits_beside_null_and_spare_page)
{
    struct bh_plan_input in = input();
    for (uint32_t ctx = 2; ctx <= 100; ctx++) {
        in.ctx_asked = ctx;
        in.pool_asked = ctx;
        struct bh_plan plan = accepted(&in);
        cr_expect_eq(plan.limits.ctx, ctx);
        cr_expect_eq(plan.limits.page_cnt, plan.limits.list_max + 2);
    }
}

Test(plan, asked_threads_and_their_limit)
{
    struct bh_plan_input in = input();
    in.threads_asked = 7;
    cr_expect_eq(accepted(&in).threads, 7);
    in.threads_asked = 0;
    in.cpu_cnt = 500;
    cr_expect_eq(accepted(&in).threads, 64);
}

Test(plan, ctx_above_the_pool_is_refused)
{
    struct bh_plan_input in = input();
    in.ctx_asked = 500;
    in.pool_asked = 500;
    cr_expect_eq(accepted(&in).pool_tokens, 500);
    in.pool_asked = 499;
    /* 500 tokens are 32 pages, and two on top: 34 * 1088 bytes. */
    REFUSED(&in,
            "pool0",
            "499 tokens",
            "--ctx asks for 500",
            "--pool-tokens 500",
            "36992 bytes",
            "1 MiB",
            "--ctx 499");
}

Test(plan, model_context_above_the_pool_is_refused_not_shortened)
{
    struct bh_plan_input in = input();
    in.pool_asked = 1000;
    cr_expect_eq(accepted(&in).limits.ctx, 1000);
    in.pool_asked = 999;
    REFUSED(&in,
            "pool0",
            "999 tokens",
            "the model's context is 1000",
            "--pool-tokens 1000",
            "--ctx 999");
    in.ctx_asked = 999;
    cr_expect_eq(accepted(&in).limits.ctx, 999);
}

Test(plan, ctx_above_the_model_is_refused)
{
    struct bh_plan_input in = input();
    in.ctx_asked = 1000;
    cr_expect_eq(accepted(&in).limits.ctx, 1000);
    in.ctx_asked = 1001;
    REFUSED(&in, "--ctx asks for 1001", "context is 1000");
}

Test(plan, default_pool_takes_a_quarter_of_memory_at_most)
{
    struct bh_plan_input in = input();
    /* A quarter holds exactly 102 pages: 100 for tokens. */
    in.memory_bytes = 4 * 102 * PAGE_COST;
    cr_expect_eq(accepted(&in).pool_tokens, 1600);
    /* 63 pages for one sequence of 1000, and two: the least that does. */
    in.memory_bytes = 4 * 65 * PAGE_COST;
    cr_expect_eq(accepted(&in).pool_tokens, 1008);
    in.memory_bytes -= 4;
    REFUSED(&in,
            "pool0 holds 992 tokens",
            "1/4 of",
            "the model's context is 1000",
            "--ctx 992",
            "--pool-tokens 1000");
    in.ctx_asked = 992;
    cr_expect_eq(accepted(&in).limits.ctx, 992);
    in.ctx_asked = 993;
    REFUSED(&in, "--ctx asks for 993", "--ctx 992");
    /* Asking for the pool is how one says that more than a quarter is meant. */
    in.pool_asked = 993;
    cr_expect_eq(accepted(&in).pool_tokens, 993);
}

Test(plan, no_advice_where_nothing_fits)
{
    struct bh_plan_input in = input();
    in.memory_bytes = 1000;
    REFUSED(&in, "pool0 holds 0 tokens", "--pool-tokens 1000");
    char error[BH_PLAN_ERROR_MAX] = "";
    struct bh_plan plan;
    cr_expect_eq(bh_plan_make(&in, error, &plan), BH_ELIMIT);
    cr_expect(strstr(error, "or --ctx") == NULL, "%s", error);
}

Test(plan, memory_that_is_not_there_is_refused)
{
    struct bh_plan_input in = input();
    uint64_t fixed = in.weights_bytes + BH_HEADROOM_BYTES;
    in.available_bytes = fixed + 252 * PAGE_COST;
    cr_expect_eq(accepted(&in).pool_tokens, 4000);
    in.available_bytes -= 1;
    REFUSED(&in, "pool0 of 4000 tokens", "weights", "give --pool-tokens 3984");
    in.pool_asked = 3984;
    accepted(&in);
    in.pool_asked = 0;
    in.available_bytes = fixed + 20 * PAGE_COST;
    REFUSED(&in, "give --ctx 288 --pool-tokens 288");
    in.ctx_asked = 288;
    in.pool_asked = 288;
    accepted(&in);
    in.available_bytes = 10;
    REFUSED(&in, "no pool fits beside the weights");
}

Test(plan, page_index_has_24_bits)
{
    struct bh_plan_input in = input();
    in.memory_bytes = in.available_bytes = UINT64_C(1) << 50;
    in.pool_asked = ((1u << 24) - 1 - 2) * 16;
    cr_expect_eq(accepted(&in).limits.page_cnt, (1u << 24) - 1);
    in.pool_asked += 1;
    REFUSED(&in, "pages", "--pool-tokens 268435408");
}

Test(plan, a_shape_with_a_zero_is_refused)
{
    struct bh_plan_input in = input();
    in.kv.head_dim = 0;
    char error[BH_PLAN_ERROR_MAX] = "";
    struct bh_plan plan;
    cr_expect_eq(bh_plan_make(&in, error, &plan), BH_EINVAL);
    cr_expect(strstr(error, "0") != NULL);
}
