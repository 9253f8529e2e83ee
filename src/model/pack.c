/* The packed model: which tensors it has, where they lie, and how they are made from the file. */
#include <stdio.h>
#include <string.h>

#include "src/model/packed.h"

/* Of rotation angles (rope_freqs.weight): far beyond what any model has. */
#define DIVISOR_MIN 1e-3f
#define DIVISOR_MAX 1e9f

static const char *const layer_names[BH_PACKED_LAYER_CNT] = {"attn_norm",
                                                             "attn_q",
                                                             "attn_k",
                                                             "attn_v",
                                                             "attn_output",
                                                             "ffn_norm",
                                                             "ffn_gate",
                                                             "ffn_up",
                                                             "ffn_down"};

static struct bh_packed_want
want_fixed(const struct bh_model_dims *dims, uint32_t idx)
{
    switch (idx) {
    case BH_PACKED_TOKEN_EMBD:
        return (struct bh_packed_want){
            .name = "token_embd.weight", .rows = dims->vocab, .cols = dims->d_model};
    case BH_PACKED_OUTPUT:
        return (struct bh_packed_want){
            .name = "output.weight", .rows = dims->vocab, .cols = dims->d_model};
    case BH_PACKED_OUTPUT_NORM:
        return (struct bh_packed_want){
            .name = "output_norm.weight", .rows = 1, .cols = dims->d_model, .vector = true};
    default:
        return (struct bh_packed_want){
            .name = "rope_freqs.weight", .rows = 1, .cols = dims->head_dim / 2, .vector = true};
    }
}

struct bh_packed_want
bh_packed_want_at(const struct bh_model_dims *dims, uint32_t idx)
{
    if (idx < BH_PACKED_FIXED_CNT) {
        return want_fixed(dims, idx);
    }
    uint32_t layer = (idx - BH_PACKED_FIXED_CNT) / BH_PACKED_LAYER_CNT;
    uint32_t which = (idx - BH_PACKED_FIXED_CNT) % BH_PACKED_LAYER_CNT;
    uint32_t q_dim = dims->heads * dims->head_dim;
    uint32_t kv_dim = dims->kv_heads * dims->head_dim;
    const uint32_t shapes[BH_PACKED_LAYER_CNT][2] = {{1, dims->d_model},
                                                     {q_dim, dims->d_model},
                                                     {kv_dim, dims->d_model},
                                                     {kv_dim, dims->d_model},
                                                     {dims->d_model, q_dim},
                                                     {1, dims->d_model},
                                                     {dims->ffn, dims->d_model},
                                                     {dims->ffn, dims->d_model},
                                                     {dims->d_model, dims->ffn}};
    struct bh_packed_want want = {.rows = shapes[which][0],
                                  .cols = shapes[which][1],
                                  .vector =
                                      which == BH_PACKED_ATTN_NORM || which == BH_PACKED_FFN_NORM};
    (void)snprintf(want.name, sizeof(want.name), "blk.%u.%s.weight", layer, layer_names[which]);
    return want;
}

/* The file's tensor for entry `idx`, checked; or NULL with *absent (allowed) or an error. */
static const struct bh_gguf_tensor *
find_tensor(const struct bh_gguf *gguf,
            const struct bh_packed_want *want,
            uint32_t idx,
            bool *absent,
            char error[BH_MODEL_ERROR_MAX])
{
    const struct bh_gguf_tensor *tensor = bh_gguf_tensor_find(gguf, want->name);
    *absent = tensor == NULL && (idx == BH_PACKED_OUTPUT || idx == BH_PACKED_ROPE_FREQS);
    if (tensor == NULL) {
        (void)snprintf(error, BH_MODEL_ERROR_MAX, "%s: the file lacks this tensor", want->name);
        return NULL;
    }
    if (tensor->dims[0] != want->cols || tensor->dims[1] != want->rows || tensor->dims[2] != 1 ||
        tensor->dims[3] != 1) {
        (void)snprintf(error,
                       BH_MODEL_ERROR_MAX,
                       "%s: shape is %llu x %llu, expected %u x %u",
                       want->name,
                       (unsigned long long)tensor->dims[0],
                       (unsigned long long)tensor->dims[1],
                       want->cols,
                       want->rows);
        return NULL;
    }
    if (want->vector && tensor->type != BH_GGUF_F32) {
        (void)snprintf(error,
                       BH_MODEL_ERROR_MAX,
                       "%s: type is %s, only F32 is supported for it",
                       want->name,
                       bh_gguf_type_name(tensor->type));
        return NULL;
    }
    return tensor;
}

/* Fills one entry of the table at *offset and advances it. */
static bool
plan_tensor(const struct bh_gguf *gguf,
            const struct bh_model_dims *dims,
            uint32_t idx,
            const struct bh_packed_tensor *embd,
            uint64_t *offset,
            struct bh_packed_tensor *out,
            char error[BH_MODEL_ERROR_MAX])
{
    struct bh_packed_want want = bh_packed_want_at(dims, idx);
    bool absent = false;
    const struct bh_gguf_tensor *tensor = find_tensor(gguf, &want, idx, &absent, error);
    if (absent && idx == BH_PACKED_OUTPUT) {
        *out = *embd;
        return true;
    }
    *out = (struct bh_packed_tensor){.offset = *offset, .rows = want.rows, .cols = want.cols};
    if (absent) {
        return true;
    }
    if (tensor == NULL) {
        return false;
    }
    out->kind = (uint32_t)bh_pack_kind(tensor->type);
    out->bytes = bh_packed_bytes(&want, (enum bh_weight_kind)out->kind);
    *offset = bh_round_up(*offset + out->bytes, 64);
    return true;
}

/* The whole layout; table may be NULL. 0: refused. Every tensor of the file must have a place: one that
   is not known (a bias, an expert) would be left out of the arithmetic in silence. */
static uint64_t
plan(const struct bh_gguf *gguf,
     const struct bh_model_dims *dims,
     struct bh_packed_tensor *table,
     char error[BH_MODEL_ERROR_MAX])
{
    uint32_t tensor_cnt = bh_packed_tensor_cnt(dims);
    uint64_t offset =
        bh_round_up(sizeof(struct bh_packed_head) + (uint64_t)tensor_cnt * sizeof(*table), 64);
    uint64_t used = 0;
    struct bh_packed_tensor embd = {0};
    for (uint32_t i = 0; i < tensor_cnt; i++) {
        struct bh_packed_tensor entry;
        if (!plan_tensor(gguf, dims, i, &embd, &offset, &entry, error)) {
            return 0;
        }
        embd = i == BH_PACKED_TOKEN_EMBD ? entry : embd;
        struct bh_packed_want want = bh_packed_want_at(dims, i);
        used += bh_gguf_tensor_find(gguf, want.name) != NULL ? 1 : 0;
        if (table != NULL) {
            table[i] = entry;
        }
    }
    if (used == bh_gguf_tensor_cnt(gguf)) {
        return offset;
    }
    (void)snprintf(error,
                   BH_MODEL_ERROR_MAX,
                   "the file has %llu tensors, of which %llu belong to a plain llama model: the "
                   "rest is not supported",
                   (unsigned long long)bh_gguf_tensor_cnt(gguf),
                   (unsigned long long)used);
    return 0;
}

size_t
bh_model_pack_footprint(const struct bh_gguf *gguf, char error[BH_MODEL_ERROR_MAX])
{
    struct bh_model_dims dims;
    if (bh_model_dims_read(gguf, error, &dims) != BH_OK) {
        return 0;
    }
    return (size_t)plan(gguf, &dims, NULL, error);
}

/* One tensor being packed by the team; each member takes a run of panels. */
struct pack_job {
    const struct bh_gguf_tensor *tensor;
    const uint8_t *data;
    uint8_t *out;
    enum bh_weight_kind kind;
    uint32_t panel_cnt;
    bool broken[BH_TEAM_MAX];
};

static void
pack_share(void *arg, uint32_t member_idx, uint32_t member_cnt)
{
    struct pack_job *job = arg;
    uint32_t from = 0;
    uint32_t to = 0;
    bh_team_share(job->panel_cnt, 1, member_idx, member_cnt, &from, &to);
    size_t panel_bytes = bh_panel_bytes(job->kind, (uint32_t)job->tensor->dims[0]);
    for (uint32_t panel = from; panel < to; panel++) {
        uint8_t *out = job->out + panel * panel_bytes;
        if (!bh_pack_panel(job->tensor, job->data, job->kind, panel, out)) {
            job->broken[member_idx] = true;
            return;
        }
    }
}

/* A vector is copied as it is, once its floats are known to be finite. */
static bool
pack_vector(const uint8_t *data, uint32_t cnt, uint8_t *out)
{
    for (size_t i = 0; i < cnt; i++) {
        uint32_t bits;
        memcpy(&bits, data + i * 4, sizeof(bits));
        if ((bits & 0x7f800000u) == 0x7f800000u) {
            return false;
        }
    }
    memcpy(out, data, (size_t)cnt * 4);
    return true;
}

/* Rotation angles are divided by these: what is not a sane divisor would make angles that no argument
   reduction is made for. */
static bool
divisors_ok(const uint8_t *data, uint32_t cnt)
{
    for (size_t i = 0; i < cnt; i++) {
        float divisor;
        memcpy(&divisor, data + i * 4, sizeof(divisor));
        if (!(divisor >= DIVISOR_MIN && divisor <= DIVISOR_MAX)) {
            return false;
        }
    }
    return true;
}

static bool
pack_tensor(const struct bh_gguf_tensor *tensor,
            const uint8_t *file,
            struct bh_team *team,
            const struct bh_packed_tensor *entry,
            bool vector,
            uint8_t *out)
{
    if (vector) {
        memset(out, 0, entry->bytes);
        return pack_vector(file + tensor->offset, entry->cols, out);
    }
    struct pack_job job = {.tensor = tensor,
                           .data = file + tensor->offset,
                           .out = out,
                           .kind = (enum bh_weight_kind)entry->kind,
                           .panel_cnt = bh_panel_cnt(entry->rows)};
    bh_team_run(team, pack_share, &job);
    bool broken = false;
    for (uint32_t i = 0; i < BH_TEAM_MAX; i++) {
        broken = broken || job.broken[i];
    }
    return !broken;
}

enum bh_status
bh_model_pack_new(const struct bh_gguf *gguf,
                  const uint8_t *file,
                  struct bh_team *team,
                  uint8_t *out,
                  size_t out_bytes,
                  char error[BH_MODEL_ERROR_MAX])
{
    struct bh_model_dims dims;
    enum bh_status status = bh_model_dims_read(gguf, error, &dims);
    if (status != BH_OK) {
        return status;
    }
    uint64_t bytes = plan(gguf, &dims, NULL, error);
    if (bytes == 0) {
        return BH_ELIMIT;
    }
    if (bytes != out_bytes || (uintptr_t)out % 64 != 0) {
        (void)snprintf(error,
                       BH_MODEL_ERROR_MAX,
                       "room for packed weights is not what bh_model_pack_footprint said");
        return BH_EINVAL;
    }
    struct bh_packed_head *head = (struct bh_packed_head *)(void *)out;
    struct bh_packed_tensor *table = (struct bh_packed_tensor *)(void *)(out + sizeof(*head));
    *head = (struct bh_packed_head){.fingerprint = BH_PACKED_FINGERPRINT,
                                    .bytes = bytes,
                                    .dims = dims,
                                    .tensor_cnt = bh_packed_tensor_cnt(&dims)};
    (void)plan(gguf, &dims, table, error);
    for (uint32_t i = 0; i < head->tensor_cnt; i++) {
        struct bh_packed_want want = bh_packed_want_at(&dims, i);
        const struct bh_gguf_tensor *tensor = bh_gguf_tensor_find(gguf, want.name);
        if (tensor == NULL) {
            continue; /* tied, or optional and absent: plan() has refused all other absences */
        }
        if (i == BH_PACKED_ROPE_FREQS && !divisors_ok(file + tensor->offset, table[i].cols)) {
            (void)snprintf(error,
                           BH_MODEL_ERROR_MAX,
                           "%s: a divisor is not between %g and %g",
                           want.name,
                           (double)DIVISOR_MIN,
                           (double)DIVISOR_MAX);
            return BH_ECORRUPT;
        }
        if (!pack_tensor(tensor, file, team, &table[i], want.vector, out + table[i].offset)) {
            (void)snprintf(error,
                           BH_MODEL_ERROR_MAX,
                           "%s: a weight or scale is not a finite number",
                           want.name);
            return BH_ECORRUPT;
        }
    }
    head->magic = BH_PACKED_MAGIC;
    return BH_OK;
}
