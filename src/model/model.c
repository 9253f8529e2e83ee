/* Joining packed weights: everything is checked once here, so that the computation may trust it. */
#include "src/model/model.h"

#include <stdlib.h>

#include "src/model/exact.h"
#include "src/model/packed.h"
#include "src/model/view.h"

/* Does the table entry have the place, shape and size that its name demands? */
static bool
entry_ok(const struct bh_packed_head *head, uint32_t idx, const struct bh_packed_tensor *entry)
{
    struct bh_packed_want want = bh_packed_want_at(&head->dims, idx);
    uint64_t first = bh_round_up(sizeof(*head) + (uint64_t)head->tensor_cnt * sizeof(*entry), 64);
    if (entry->rows != want.rows || entry->cols != want.cols || entry->kind >= BH_WEIGHT_KIND_CNT) {
        return false;
    }
    if (idx == BH_PACKED_ROPE_FREQS && entry->bytes == 0) {
        return true;
    }
    if (want.vector && entry->kind != BH_WEIGHT_F32) {
        return false;
    }
    return entry->offset % 64 == 0 && entry->offset >= first && entry->offset <= head->bytes &&
           entry->bytes == bh_packed_bytes(&want, (enum bh_weight_kind)entry->kind) &&
           entry->bytes <= head->bytes - entry->offset;
}

static bool
packed_ok(const uint8_t *packed, size_t packed_bytes)
{
    const struct bh_packed_head *head = (const struct bh_packed_head *)(const void *)packed;
    if ((uintptr_t)packed % 64 != 0 || packed_bytes < sizeof(*head) ||
        head->magic != BH_PACKED_MAGIC || head->fingerprint != BH_PACKED_FINGERPRINT ||
        head->bytes > packed_bytes || bh_model_dims_check(&head->dims) != NULL ||
        head->tensor_cnt != bh_packed_tensor_cnt(&head->dims)) {
        return false;
    }
    uint64_t table_bytes = (uint64_t)head->tensor_cnt * sizeof(struct bh_packed_tensor);
    if (head->bytes < sizeof(*head) + table_bytes) {
        return false;
    }
    const struct bh_packed_tensor *table =
        (const struct bh_packed_tensor *)(const void *)(packed + sizeof(*head));
    for (uint32_t i = 0; i < head->tensor_cnt; i++) {
        if (!entry_ok(head, i, &table[i])) {
            return false;
        }
    }
    return true;
}

static struct bh_panels
panels_at(const uint8_t *packed, uint32_t idx)
{
    const struct bh_packed_tensor *entry =
        (const struct bh_packed_tensor *)(const void *)(packed + sizeof(struct bh_packed_head)) +
        idx;
    return (struct bh_panels){.bytes = packed + entry->offset,
                              .kind = (enum bh_weight_kind)entry->kind,
                              .rows = entry->rows,
                              .cols = entry->cols};
}

static const float *
vector_at(const uint8_t *packed, uint32_t idx)
{
    return (const float *)(const void *)panels_at(packed, idx).bytes;
}

static void
view_layer(const uint8_t *packed, uint32_t layer, struct bh_layer_view *out)
{
    uint32_t first = BH_PACKED_FIXED_CNT + layer * BH_PACKED_LAYER_CNT;
    *out = (struct bh_layer_view){.attn_norm = vector_at(packed, first + BH_PACKED_ATTN_NORM),
                                  .q = panels_at(packed, first + BH_PACKED_Q),
                                  .k = panels_at(packed, first + BH_PACKED_K),
                                  .v = panels_at(packed, first + BH_PACKED_V),
                                  .attn_output = panels_at(packed, first + BH_PACKED_ATTN_OUTPUT),
                                  .ffn_norm = vector_at(packed, first + BH_PACKED_FFN_NORM),
                                  .gate = panels_at(packed, first + BH_PACKED_GATE),
                                  .up = panels_at(packed, first + BH_PACKED_UP),
                                  .down = panels_at(packed, first + BH_PACKED_DOWN)};
}

/* Pair i turns by base^(-2i / head_dim) a position, divided by the file's factor if there is one. */
static void
fill_frequency(const uint8_t *packed, struct bh_model *model)
{
    const struct bh_packed_tensor *entry =
        (const struct bh_packed_tensor *)(const void *)(packed + sizeof(struct bh_packed_head)) +
        BH_PACKED_ROPE_FREQS;
    const float *divisor = entry->bytes > 0 ? vector_at(packed, BH_PACKED_ROPE_FREQS) : NULL;
    double log_base = bh_exact_log((double)model->dims.rope_base);
    for (uint32_t i = 0; i < model->dims.head_dim / 2; i++) {
        double exponent = 2.0 * (double)i / (double)model->dims.head_dim;
        double frequency = bh_exact_exp(-exponent * log_base);
        model->frequency[i] = divisor == NULL ? frequency : frequency / (double)divisor[i];
    }
}

enum bh_status
bh_model_join(const uint8_t *packed,
              size_t packed_bytes,
              enum bh_model_mode mode,
              const char *variant,
              struct bh_model **out)
{
    if (packed == NULL || !packed_ok(packed, packed_bytes)) {
        return BH_ECORRUPT;
    }
    const struct bh_kernels *kernels = bh_kernels_find(variant);
    if (kernels == NULL || (mode != BH_MODEL_SERVED && mode != BH_MODEL_PLAIN)) {
        return BH_EINVAL;
    }
    const struct bh_packed_head *head = (const struct bh_packed_head *)(const void *)packed;
    struct bh_model *model = calloc(1, sizeof(*model));
    if (model == NULL) {
        return BH_ESYS;
    }
    model->dims = head->dims;
    model->kernels = kernels;
    model->mode = mode;
    model->layers = calloc(head->dims.layers, sizeof(*model->layers));
    model->frequency = calloc(head->dims.head_dim / 2, sizeof(*model->frequency));
    if (model->layers == NULL || model->frequency == NULL) {
        bh_model_leave(model);
        return BH_ESYS;
    }
    model->token_embd = panels_at(packed, BH_PACKED_TOKEN_EMBD);
    model->output = panels_at(packed, BH_PACKED_OUTPUT);
    model->output_norm = vector_at(packed, BH_PACKED_OUTPUT_NORM);
    for (uint32_t layer = 0; layer < head->dims.layers; layer++) {
        view_layer(packed, layer, &model->layers[layer]);
    }
    fill_frequency(packed, model);
    *out = model;
    return BH_OK;
}

void
bh_model_leave(struct bh_model *model)
{
    if (model == NULL) {
        return;
    }
    free(model->layers);
    free(model->frequency);
    free(model);
}

const struct bh_model_dims *
bh_model_dims(const struct bh_model *model)
{
    return &model->dims;
}

const char *
bh_model_variant(const struct bh_model *model)
{
    return model->kernels->name;
}
