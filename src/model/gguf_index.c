/* The index of a GGUF file and the typed reads from it. The parser has checked every entry, so
   reads here need no more than the type and the range of the number asked for. */
#include "src/model/gguf_index.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum { STRING_HEAD_BYTES = 8 }; /* the length before a string's bytes */

/* Zero marks the two types without a fixed size. */
static const uint8_t value_bytes[BH_GGUF_VALUE_CNT] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};

struct type_info {
    enum bh_gguf_type type;
    uint32_t elems;
    uint32_t bytes;
    const char *name;
};

static const struct type_info type_infos[] = {
    {BH_GGUF_F32, 1, 4, "f32"},
    {BH_GGUF_F16, 1, 2, "f16"},
    {BH_GGUF_BF16, 1, 2, "bf16"},
    {BH_GGUF_Q4_0, 32, 18, "q4_0"},
    {BH_GGUF_Q4_1, 32, 20, "q4_1"},
    {BH_GGUF_Q5_0, 32, 22, "q5_0"},
    {BH_GGUF_Q5_1, 32, 24, "q5_1"},
    {BH_GGUF_Q8_0, 32, 34, "q8_0"},
    {BH_GGUF_Q4_K, 256, 144, "q4_k"},
    {BH_GGUF_Q5_K, 256, 176, "q5_k"},
    {BH_GGUF_Q6_K, 256, 210, "q6_k"},
};

static const struct type_info *
type_info_find(uint32_t type)
{
    for (size_t i = 0; i < BH_COUNT(type_infos); i++) {
        if ((uint32_t)type_infos[i].type == type) {
            return &type_infos[i];
        }
    }
    return NULL;
}

size_t
bh_gguf_value_bytes(enum bh_gguf_value type)
{
    return value_bytes[type];
}

bool
bh_gguf_index_new(struct bh_gguf_index *index, uint32_t item_cnt, size_t item_bytes)
{
    uint32_t slot_cnt = 2;
    while (slot_cnt < 2 * item_cnt) {
        slot_cnt *= 2;
    }
    size_t items_bytes = (size_t)bh_round_up(item_cnt * item_bytes, sizeof(struct bh_gguf_slot));
    uint8_t *block = calloc(1, items_bytes + slot_cnt * sizeof(struct bh_gguf_slot));
    if (block == NULL) {
        return false;
    }
    *index = (struct bh_gguf_index){
        .items = block,
        .slots = (struct bh_gguf_slot *)(void *)(block + items_bytes),
        .item_bytes = item_bytes,
        .slot_mask = slot_cnt - 1,
    };
    return true;
}

void *
bh_gguf_index_item(const struct bh_gguf_index *index, uint32_t idx)
{
    return index->items + (size_t)idx * index->item_bytes;
}

/* The slot that holds `name`, or the free one where it belongs. */
static struct bh_gguf_slot *
index_slot(const struct bh_gguf_index *index, struct bh_gguf_str name, uint64_t hash)
{
    uint32_t at = (uint32_t)hash & index->slot_mask;
    while (index->slots[at].item != 0) {
        struct bh_gguf_slot *slot = &index->slots[at];
        if (slot->hash == hash) {
            const struct bh_gguf_str *other = bh_gguf_index_item(index, slot->item - 1);
            if (other->len == name.len && memcmp(other->bytes, name.bytes, name.len) == 0) {
                break;
            }
        }
        at = (at + 1) & index->slot_mask;
    }
    return &index->slots[at];
}

bool
bh_gguf_index_put(struct bh_gguf_index *index)
{
    const struct bh_gguf_str *name = bh_gguf_index_item(index, index->cnt);
    uint64_t hash = XXH3_64bits(name->bytes, name->len);
    struct bh_gguf_slot *slot = index_slot(index, *name, hash);
    if (slot->item != 0) {
        return false;
    }
    index->cnt++;
    *slot = (struct bh_gguf_slot){.hash = hash, .item = index->cnt};
    return true;
}

const void *
bh_gguf_index_find(const struct bh_gguf_index *index, const char *name)
{
    struct bh_gguf_str wanted = {.bytes = name, .len = strlen(name)};
    const struct bh_gguf_slot *slot = index_slot(index, wanted, XXH3_64bits(name, wanted.len));
    return slot->item == 0 ? NULL : bh_gguf_index_item(index, slot->item - 1);
}

void
bh_gguf_close(struct bh_gguf *gguf)
{
    if (gguf != NULL) {
        free(gguf->keys.items);
        free(gguf->tensors.items);
        free(gguf);
    }
}

size_t
bh_gguf_header_bytes(const struct bh_gguf *gguf)
{
    return gguf->header_bytes;
}

/* An integer of the file in sign and two's complement, wide enough for u64 and i64 alike. */
struct integer {
    uint64_t bits;
    bool negative;
};

static bool
load_integer(enum bh_gguf_value type, const uint8_t *bytes, struct integer *out)
{
    uint64_t bits = 0;
    bool is_signed = false;
    switch (type) {
    case BH_GGUF_VALUE_I8:
    case BH_GGUF_VALUE_I16:
    case BH_GGUF_VALUE_I32:
    case BH_GGUF_VALUE_I64:
        is_signed = true;
        break;
    case BH_GGUF_VALUE_U8:
    case BH_GGUF_VALUE_U16:
    case BH_GGUF_VALUE_U32:
    case BH_GGUF_VALUE_U64:
        break;
    case BH_GGUF_VALUE_F32:
    case BH_GGUF_VALUE_BOOL:
    case BH_GGUF_VALUE_STRING:
    case BH_GGUF_VALUE_ARRAY:
    case BH_GGUF_VALUE_F64:
    case BH_GGUF_VALUE_CNT:
        return false;
    }
    size_t width = bh_gguf_value_bytes(type);
    memcpy(&bits, bytes, width); /* little-endian, as every machine this is built for */
    out->negative = is_signed && (bits >> (width * 8 - 1)) != 0;
    if (out->negative && width < sizeof(bits)) {
        bits |= UINT64_MAX << (width * 8);
    }
    out->bits = bits;
    return true;
}

static bool
load_f32(enum bh_gguf_value type, const uint8_t *bytes, float *out)
{
    if (type == BH_GGUF_VALUE_F32) {
        memcpy(out, bytes, sizeof(*out));
        return true;
    }
    if (type == BH_GGUF_VALUE_F64) {
        double wide;
        memcpy(&wide, bytes, sizeof(wide));
        if (isfinite(wide) && fabs(wide) > (double)FLT_MAX) {
            return false;
        }
        *out = (float)wide;
        return true;
    }
    return false;
}

bool
bh_gguf_u64(const struct bh_gguf *gguf, const char *key, uint64_t *out)
{
    const struct bh_gguf_entry *entry = bh_gguf_index_find(&gguf->keys, key);
    struct integer integer;
    if (entry == NULL || !load_integer(entry->type, entry->value, &integer) || integer.negative) {
        return false;
    }
    *out = integer.bits;
    return true;
}

bool
bh_gguf_f32(const struct bh_gguf *gguf, const char *key, float *out)
{
    const struct bh_gguf_entry *entry = bh_gguf_index_find(&gguf->keys, key);
    return entry != NULL && load_f32(entry->type, entry->value, out);
}

bool
bh_gguf_bool(const struct bh_gguf *gguf, const char *key, bool *out)
{
    const struct bh_gguf_entry *entry = bh_gguf_index_find(&gguf->keys, key);
    if (entry == NULL || entry->type != BH_GGUF_VALUE_BOOL) {
        return false;
    }
    *out = entry->value[0] == 1;
    return true;
}

bool
bh_gguf_str(const struct bh_gguf *gguf, const char *key, struct bh_gguf_str *out)
{
    const struct bh_gguf_entry *entry = bh_gguf_index_find(&gguf->keys, key);
    if (entry == NULL || entry->type != BH_GGUF_VALUE_STRING) {
        return false;
    }
    *out = (struct bh_gguf_str){
        .bytes = (const char *)entry->value,
        .len = entry->value_bytes,
    };
    return true;
}

static const struct bh_gguf_entry *
find_array(const struct bh_gguf *gguf, const char *key)
{
    const struct bh_gguf_entry *entry = bh_gguf_index_find(&gguf->keys, key);
    return entry != NULL && entry->type == BH_GGUF_VALUE_ARRAY ? entry : NULL;
}

bool
bh_gguf_array_cnt(const struct bh_gguf *gguf, const char *key, uint64_t *cnt)
{
    const struct bh_gguf_entry *entry = find_array(gguf, key);
    if (entry == NULL) {
        return false;
    }
    *cnt = entry->elem_cnt;
    return true;
}

bool
bh_gguf_array_str(const struct bh_gguf *gguf,
                  const char *key,
                  size_t *cursor,
                  struct bh_gguf_str *out)
{
    const struct bh_gguf_entry *entry = find_array(gguf, key);
    if (entry == NULL || entry->elem_type != BH_GGUF_VALUE_STRING ||
        *cursor >= entry->value_bytes || entry->value_bytes - *cursor < STRING_HEAD_BYTES) {
        return false;
    }
    /* The bytes were walked at open, but the cursor is the caller's: a wrong one may name wrong
       text, never text outside the array. */
    uint64_t len;
    memcpy(&len, entry->value + *cursor, sizeof(len));
    size_t text_at = *cursor + STRING_HEAD_BYTES;
    if (len > entry->value_bytes - text_at) {
        return false;
    }
    *out = (struct bh_gguf_str){
        .bytes = (const char *)entry->value + text_at,
        .len = (size_t)len,
    };
    *cursor = text_at + (size_t)len;
    return true;
}

/* First byte of element idx, or NULL. For elements of a fixed size. */
static const uint8_t *
array_elem(const struct bh_gguf_entry *entry, uint64_t idx)
{
    if (entry == NULL || idx >= entry->elem_cnt || entry->elem_type == BH_GGUF_VALUE_STRING) {
        return NULL;
    }
    return entry->value + idx * bh_gguf_value_bytes(entry->elem_type);
}

bool
bh_gguf_array_i32(const struct bh_gguf *gguf, const char *key, uint64_t idx, int32_t *out)
{
    const struct bh_gguf_entry *entry = find_array(gguf, key);
    const uint8_t *elem = array_elem(entry, idx);
    struct integer integer;
    if (elem == NULL || !load_integer(entry->elem_type, elem, &integer)) {
        return false;
    }
    bool fits =
        integer.negative ? integer.bits >= (uint64_t)(int64_t)INT32_MIN : integer.bits <= INT32_MAX;
    if (!fits) {
        return false;
    }
    *out = (int32_t)(int64_t)integer.bits;
    return true;
}

bool
bh_gguf_array_f32(const struct bh_gguf *gguf, const char *key, uint64_t idx, float *out)
{
    const struct bh_gguf_entry *entry = find_array(gguf, key);
    const uint8_t *elem = array_elem(entry, idx);
    return elem != NULL && load_f32(entry->elem_type, elem, out);
}

uint64_t
bh_gguf_tensor_cnt(const struct bh_gguf *gguf)
{
    return gguf->tensors.cnt;
}

const struct bh_gguf_tensor *
bh_gguf_tensor_at(const struct bh_gguf *gguf, uint64_t idx)
{
    return idx < gguf->tensors.cnt ? bh_gguf_index_item(&gguf->tensors, (uint32_t)idx) : NULL;
}

const struct bh_gguf_tensor *
bh_gguf_tensor_find(const struct bh_gguf *gguf, const char *name)
{
    return bh_gguf_index_find(&gguf->tensors, name);
}

uint32_t
bh_gguf_type_elems(enum bh_gguf_type type)
{
    const struct type_info *info = type_info_find((uint32_t)type);
    return info == NULL ? 0 : info->elems;
}

uint32_t
bh_gguf_type_bytes(enum bh_gguf_type type)
{
    const struct type_info *info = type_info_find((uint32_t)type);
    return info == NULL ? 0 : info->bytes;
}

const char *
bh_gguf_type_name(enum bh_gguf_type type)
{
    const struct type_info *info = type_info_find((uint32_t)type);
    return info == NULL ? "unknown" : info->name;
}
