/* Answers about the server: models, health, metrics. See question.h. */
#include <string.h>

#include "src/api/answer_info.h"
#include "src/egress/question.h"

#define METRICS_MAX (1u << 20)
#define SPARE_PAGES 2u /* the null page, and the one that the oldest request can always grow by */

void
bh_info_models(const struct bh_world *world, uint32_t flags, struct bh_bytes *out)
{
    const struct bh_control_block *block = world->control.block;
    const char *name = block->model_name;
    struct bh_model_info info = {.names = &name,
                                 .name_cnt = 1,
                                 .created_s = block->started_s,
                                 .ctx = world->limits.ctx,
                                 .ctx_train = block->ctx_train,
                                 .kv_tokens = (uint64_t)(world->limits.page_cnt - SPARE_PAGES) *
                                              world->limits.kv.page_tokens,
                                 .params = block->params,
                                 .vocab = world->limits.vocab,
                                 .width = block->d_model,
                                 .file_bytes = block->model_file_bytes};
    struct bh_bytes body;
    bh_bytes_init(&body, 65536);
    bh_body_models(&body, &info);
    bh_answer_json(out, 200, &body, flags);
    bh_bytes_free(&body);
}

void
bh_info_health(const struct bh_world *world, uint32_t flags, struct bh_bytes *out)
{
    const struct bh_control_block *block = world->control.block;
    /* Relaxed, and so is drain: they are all that is said here. */
    bool ready = bh_word_load_relaxed(&block->ready) != 0;
    for (uint32_t role = BH_ROLE_TOKENIZER; role < BH_ROLE_CNT; role++) {
        ready = ready && bh_role_up(&world->control, role);
    }
    if (ready && bh_word_load_relaxed(&block->drain) != BH_DRAIN_NO) {
        struct bh_fault fault;
        bh_fault_set(&fault, BH_ERROR_DRAINING, NULL);
        bh_answer_fault(out, &fault, flags);
        return;
    }
    struct bh_bytes body;
    bh_bytes_init(&body, 4096);
    if (ready) {
        bh_body_health(&body);
    } else {
        bh_body_loading(&body);
    }
    bh_answer_json(out, ready ? 200 : 503, &body, flags);
    bh_bytes_free(&body);
}

static uint64_t
metric_sum(const struct bh_world *world, enum bh_metric metric)
{
    uint64_t sum = 0;
    for (uint32_t role = 0; role < BH_ROLE_CNT; role++) {
        sum += bh_metric_get(&world->status[role], metric);
    }
    return sum;
}

static void
put_counters(const struct bh_world *world, const struct bh_label *label, struct bh_bytes *body)
{
    const char *family = "";
    for (uint32_t m = 0; m < BH_METRIC_CNT; m++) {
        struct bh_metric_info info = bh_metric_info((enum bh_metric)m);
        size_t len = strcspn(info.prometheus, "{");
        /* Samples of one family follow each other in metrics.def: the family lines come once. */
        if (strncmp(family, info.prometheus, len) != 0 || strcspn(family, "{") != len) {
            bh_prom_family(body, info.prometheus, info.kind, info.help);
        }
        family = info.prometheus;
        bh_prom_count(body, info.prometheus, label, 1, metric_sum(world, (enum bh_metric)m));
    }
}

static void
put_histograms(const struct bh_world *world, const struct bh_label *label, struct bh_bytes *body)
{
    for (uint32_t h = 0; h < BH_HISTOGRAM_CNT; h++) {
        struct bh_metric_info info = bh_histogram_info((enum bh_histogram)h);
        uint64_t counts[BH_BUCKETS_MAX] = {0};
        uint64_t sum_micro = 0;
        struct bh_prom_histogram histogram = {.counts = counts};
        histogram.bounds = bh_histogram_bounds((enum bh_histogram)h, &histogram.bound_cnt);
        for (uint32_t role = 0; role < BH_ROLE_CNT; role++) {
            const struct bh_histogram_row *row = &world->status[role].block->histograms[h];
            for (uint32_t b = 0; b <= histogram.bound_cnt; b++) {
                counts[b] += bh_word_load_relaxed(&row->buckets[b]);
            }
            sum_micro += bh_word_load_relaxed(&row->sum_micro);
        }
        histogram.sum = (double)sum_micro / 1e6;
        bh_prom_family(body, info.prometheus, info.kind, info.help);
        bh_prom_histogram(body, info.prometheus, label, 1, &histogram);
    }
}

void
bh_info_metrics(const struct bh_world *world, uint32_t flags, struct bh_bytes *out)
{
    struct bh_label label = {.name = "model_name", .value = world->control.block->model_name};
    struct bh_bytes body;
    bh_bytes_init(&body, METRICS_MAX);
    put_counters(world, &label, &body);
    put_histograms(world, &label, &body);
    static const char usage[] = "vllm:kv_cache_usage_perc";
    uint64_t used =
        metric_sum(world, BH_METRIC_pages_held) + metric_sum(world, BH_METRIC_pages_cached) +
        metric_sum(world, BH_METRIC_pages_dirty) + metric_sum(world, BH_METRIC_pages_quarantined);
    bh_prom_family(&body, usage, "gauge", "Share of the pool's pages that are not free, 0 to 1.");
    bh_prom_value(&body, usage, &label, 1, (double)used / (double)(world->limits.page_cnt - 1));
    bh_answer_text(out, 200, &body, flags);
    bh_bytes_free(&body);
}
