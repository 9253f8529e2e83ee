/* What the GGUF parser (gguf.c) leaves behind and the typed reads (gguf_index.c) look into: entries
   that point into the file's bytes, findable by name. Private to those two files. */
#ifndef BH_MODEL_GGUF_INDEX_H
#define BH_MODEL_GGUF_INDEX_H

#include "shm/base.h"
#include "src/model/gguf.h"

/* Metadata value types, numbered by the file format. */
enum bh_gguf_value {
    BH_GGUF_VALUE_U8 = 0,
    BH_GGUF_VALUE_I8,
    BH_GGUF_VALUE_U16,
    BH_GGUF_VALUE_I16,
    BH_GGUF_VALUE_U32,
    BH_GGUF_VALUE_I32,
    BH_GGUF_VALUE_F32,
    BH_GGUF_VALUE_BOOL,
    BH_GGUF_VALUE_STRING,
    BH_GGUF_VALUE_ARRAY,
    BH_GGUF_VALUE_U64,
    BH_GGUF_VALUE_I64,
    BH_GGUF_VALUE_F64,
    BH_GGUF_VALUE_CNT,
};

/* A metadata entry. `value` is the first byte of the scalar, of the string's text, or of the
   array's first element; value_bytes is how many there are. */
struct bh_gguf_entry {
    struct bh_gguf_str key; /* first, so that an index can compare it */
    const uint8_t *value;
    size_t value_bytes;
    uint64_t elem_cnt; /* of an array */
    enum bh_gguf_value type;
    enum bh_gguf_value elem_type; /* of an array */
};

struct bh_gguf_slot {
    uint64_t hash;
    uint32_t item; /* index + 1 into the items; 0 marks a free slot */
};

/* Items of one size that start with their name, and an open-addressed table over the names. Both
   live in one allocation. At most half of the slots are used, so that a search always ends. */
struct bh_gguf_index {
    uint8_t *items;
    struct bh_gguf_slot *slots;
    size_t item_bytes;
    uint32_t slot_mask;
    uint32_t cnt;
};

struct bh_gguf {
    struct bh_gguf_index keys;    /* of struct bh_gguf_entry */
    struct bh_gguf_index tensors; /* of struct bh_gguf_tensor */
    size_t header_bytes;
};

/* bh_gguf_value_bytes - size of a value of that type; 0 for strings and arrays, whose size is in
   the file. */
size_t bh_gguf_value_bytes(enum bh_gguf_value type);

/* bh_gguf_index_new - room for item_cnt items of item_bytes, each starting with its name
   (struct bh_gguf_str). False: no memory. Freed by bh_gguf_close. */
bool bh_gguf_index_new(struct bh_gguf_index *index, uint32_t item_cnt, size_t item_bytes);

/* bh_gguf_index_item - item idx, at most cnt: item cnt is the one that put adds next. */
void *bh_gguf_index_item(const struct bh_gguf_index *index, uint32_t idx);

/* bh_gguf_index_put - make item cnt, which the caller has filled, findable. False: its name is
   taken already, nothing changed. */
bool bh_gguf_index_put(struct bh_gguf_index *index);

/* bh_gguf_index_find - the item of that name or NULL. */
const void *bh_gguf_index_find(const struct bh_gguf_index *index, const char *name);

#endif
