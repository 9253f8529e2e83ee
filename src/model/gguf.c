/* The GGUF reader: one pass over the header that checks every count and length against the bytes
   that are left before using it, and leaves two hashed indexes, of keys and of tensors. Nothing is
   copied: entries point into the caller's bytes. Loops are bounded by the file's length and by the
   limits in gguf.h, so a hostile file costs at most that much time and memory. */
#include "src/model/gguf.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/model/gguf_index.h"

enum {
    VERSION = 3,
    ALIGN_DEFAULT = 32,
    DIMS_MAX = 4,
    KEY_BYTES_MAX = 65535, /* the specification's limit on a key */
    TENSOR_NAME_MAX = 64,  /* and on a tensor's name */
    STRING_HEAD_BYTES = 8, /* the length before a string's bytes */
    KEY_ENTRY_BYTES = 14,  /* least possible entry: length, one byte of key, type, one byte value */
    TENSOR_ENTRY_BYTES = 33, /* length, one byte of name, dim count, one dim, type, offset */
    QUOTED_MAX = 64,         /* bytes of a name that an error text repeats */
};

/* Position in the bytes, and where to complain. `subject` says what is being read. */
struct reader {
    const uint8_t *bytes;
    size_t len;
    size_t pos;
    uint64_t file_bytes;
    char *error;
    char subject[QUOTED_MAX + 32];
};

BH_PRINTF(3, 4)
static enum bh_status
fail(struct reader *reader, enum bh_status status, const char *format, ...)
{
    char detail[BH_GGUF_ERROR_MAX];
    va_list args;
    va_start(args, format);
    vsnprintf(detail, sizeof(detail), format, args);
    va_end(args);
    int used = snprintf(reader->error, BH_GGUF_ERROR_MAX, "%s: ", reader->subject);
    if (used > 0 && used < BH_GGUF_ERROR_MAX) {
        size_t room = (size_t)(BH_GGUF_ERROR_MAX - used - 1);
        size_t take = strnlen(detail, room);
        memcpy(reader->error + used, detail, take);
        reader->error[(size_t)used + take] = '\0';
    }
    return status;
}

/* Names come from the file: what is not printable ASCII becomes '?', so that an error text can go
   to a terminal or a log as it is. */
static void
quote(char quoted[QUOTED_MAX + 1], struct bh_gguf_str name)
{
    size_t cnt = name.len < QUOTED_MAX ? name.len : QUOTED_MAX;
    for (size_t i = 0; i < cnt; i++) {
        char c = name.bytes[i];
        quoted[i] = c >= 0x20 && c < 0x7f ? c : '?';
    }
    quoted[cnt] = '\0';
}

static void
subject_set(struct reader *reader, const char *kind, struct bh_gguf_str name)
{
    char quoted[QUOTED_MAX + 1];
    quote(quoted, name);
    snprintf(reader->subject, sizeof(reader->subject), "%s '%s'", kind, quoted);
}

static void
subject_set_idx(struct reader *reader, const char *kind, uint64_t idx)
{
    snprintf(reader->subject, sizeof(reader->subject), "%s %llu", kind, (unsigned long long)idx);
}

static size_t
bytes_left(const struct reader *reader)
{
    return reader->len - reader->pos;
}

static enum bh_status
read_bytes(struct reader *reader, const char *field, void *out, size_t cnt)
{
    if (bytes_left(reader) < cnt) {
        return fail(reader,
                    BH_ECORRUPT,
                    "%s needs %zu bytes at offset %zu, %zu are left; the file is cut off",
                    field,
                    cnt,
                    reader->pos,
                    bytes_left(reader));
    }
    memcpy(out, reader->bytes + reader->pos, cnt);
    reader->pos += cnt;
    return BH_OK;
}

static enum bh_status
read_str(struct reader *reader, const char *field, struct bh_gguf_str *out)
{
    uint64_t len = 0;
    enum bh_status status = read_bytes(reader, field, &len, sizeof(len));
    if (status != BH_OK) {
        return status;
    }
    if (len > bytes_left(reader)) {
        return fail(reader,
                    BH_ECORRUPT,
                    "%s has a length of %llu bytes, %zu are left",
                    field,
                    (unsigned long long)len,
                    bytes_left(reader));
    }
    *out = (struct bh_gguf_str){
        .bytes = (const char *)reader->bytes + reader->pos,
        .len = (size_t)len,
    };
    reader->pos += (size_t)len;
    return BH_OK;
}

/* A name is something that a caller looks up by a C string. */
static enum bh_status
read_name(struct reader *reader, const char *field, size_t max, struct bh_gguf_str *out)
{
    struct bh_gguf_str name = {0};
    enum bh_status status = read_str(reader, field, &name);
    if (status != BH_OK) {
        return status;
    }
    if (name.len == 0 || name.len > max) {
        return fail(reader,
                    BH_ECORRUPT,
                    "%s has a length of %zu bytes, expected 1 to %zu",
                    field,
                    name.len,
                    max);
    }
    if (memchr(name.bytes, '\0', name.len) != NULL) {
        return fail(reader, BH_ECORRUPT, "%s contains a NUL byte", field);
    }
    *out = name;
    return BH_OK;
}

static enum bh_status
check_bools(struct reader *reader, const uint8_t *bytes, size_t cnt)
{
    for (size_t i = 0; i < cnt; i++) {
        if (bytes[i] > 1) {
            return fail(reader, BH_ECORRUPT, "bool is %u, expected 0 or 1", bytes[i]);
        }
    }
    return BH_OK;
}

static enum bh_status
read_value_type(struct reader *reader, const char *field, enum bh_gguf_value *out)
{
    uint32_t type = 0;
    enum bh_status status = read_bytes(reader, field, &type, sizeof(type));
    if (status != BH_OK) {
        return status;
    }
    if (type >= BH_GGUF_VALUE_CNT) {
        return fail(
            reader, BH_ECORRUPT, "%s is %u, expected 0 to %d", field, type, BH_GGUF_VALUE_CNT - 1);
    }
    *out = (enum bh_gguf_value)type;
    return BH_OK;
}

/* Reads element type, count and elements. Elements of a fixed size are stepped over, strings are
   walked so that a later cursor finds them whole. */
static enum bh_status
read_array(struct reader *reader, struct bh_gguf_entry *entry)
{
    enum bh_status status = read_value_type(reader, "array element type", &entry->elem_type);
    if (status != BH_OK) {
        return status;
    }
    if (entry->elem_type == BH_GGUF_VALUE_ARRAY) {
        return fail(reader, BH_ELIMIT, "array of arrays (element type 9) is not supported");
    }
    status = read_bytes(reader, "array count", &entry->elem_cnt, sizeof(entry->elem_cnt));
    if (status != BH_OK) {
        return status;
    }
    bool strings = entry->elem_type == BH_GGUF_VALUE_STRING;
    size_t elem_bytes = strings ? STRING_HEAD_BYTES : bh_gguf_value_bytes(entry->elem_type);
    if (entry->elem_cnt > bytes_left(reader) / elem_bytes) {
        return fail(reader,
                    BH_ECORRUPT,
                    "array count is %llu, but the %zu bytes left hold at most %zu elements",
                    (unsigned long long)entry->elem_cnt,
                    bytes_left(reader),
                    bytes_left(reader) / elem_bytes);
    }
    if (entry->elem_cnt > BH_GGUF_ARRAY_MAX) {
        return fail(reader,
                    BH_ELIMIT,
                    "array count is %llu, supported are up to %u",
                    (unsigned long long)entry->elem_cnt,
                    BH_GGUF_ARRAY_MAX);
    }
    entry->value = reader->bytes + reader->pos;
    if (strings) {
        for (uint64_t i = 0; i < entry->elem_cnt; i++) {
            struct bh_gguf_str unused = {0};
            status = read_str(reader, "array element", &unused);
            if (status != BH_OK) {
                return status;
            }
        }
    } else {
        reader->pos += (size_t)entry->elem_cnt * elem_bytes;
    }
    entry->value_bytes = (size_t)(reader->bytes + reader->pos - entry->value);
    return entry->elem_type == BH_GGUF_VALUE_BOOL
               ? check_bools(reader, entry->value, entry->value_bytes)
               : BH_OK;
}

static enum bh_status
read_value(struct reader *reader, struct bh_gguf_entry *entry)
{
    enum bh_status status = read_value_type(reader, "value type", &entry->type);
    if (status != BH_OK) {
        return status;
    }
    if (entry->type == BH_GGUF_VALUE_ARRAY) {
        return read_array(reader, entry);
    }
    if (entry->type == BH_GGUF_VALUE_STRING) {
        struct bh_gguf_str text = {0};
        status = read_str(reader, "string value", &text);
        if (status == BH_OK) {
            entry->value = (const uint8_t *)text.bytes;
            entry->value_bytes = text.len;
        }
        return status;
    }
    uint8_t scalar[8];
    entry->value_bytes = bh_gguf_value_bytes(entry->type);
    entry->value = reader->bytes + reader->pos;
    status = read_bytes(reader, "value", scalar, entry->value_bytes);
    if (status == BH_OK && entry->type == BH_GGUF_VALUE_BOOL) {
        status = check_bools(reader, scalar, 1);
    }
    return status;
}

static enum bh_status
read_keys(struct reader *reader, struct bh_gguf *gguf, uint64_t cnt)
{
    for (uint64_t i = 0; i < cnt; i++) {
        struct bh_gguf_entry *entry = bh_gguf_index_item(&gguf->keys, gguf->keys.cnt);
        subject_set_idx(reader, "metadata key", i);
        enum bh_status status = read_name(reader, "key", KEY_BYTES_MAX, &entry->key);
        if (status != BH_OK) {
            return status;
        }
        subject_set(reader, "key", entry->key);
        status = read_value(reader, entry);
        if (status != BH_OK) {
            return status;
        }
        if (!bh_gguf_index_put(&gguf->keys)) {
            return fail(reader, BH_ECORRUPT, "appears twice, expected once");
        }
    }
    return BH_OK;
}

/* The bytes of a tensor's data, from its type and dimensions. More than the file has is refused at
   the dimension that went too far; no product can overflow, because its bound divides. */
static enum bh_status
size_tensor(struct reader *reader, struct bh_gguf_tensor *tensor)
{
    uint32_t block = bh_gguf_type_elems(tensor->type);
    if (tensor->dims[0] % block != 0) {
        return fail(reader,
                    BH_ECORRUPT,
                    "dimension 0 is %llu, expected a multiple of %u, the block of %s",
                    (unsigned long long)tensor->dims[0],
                    block,
                    bh_gguf_type_name(tensor->type));
    }
    tensor->bytes = bh_gguf_type_bytes(tensor->type);
    for (uint32_t i = 0; i < DIMS_MAX; i++) {
        uint64_t factor = i == 0 ? tensor->dims[0] / block : tensor->dims[i];
        if (factor == 0) {
            return fail(reader, BH_ECORRUPT, "dimension %u is 0, expected at least 1", i);
        }
        if (factor > reader->file_bytes / tensor->bytes) {
            return fail(reader,
                        BH_ECORRUPT,
                        "dimension %u is %llu: the data would be larger than the file's %llu bytes",
                        i,
                        (unsigned long long)tensor->dims[i],
                        (unsigned long long)reader->file_bytes);
        }
        tensor->bytes *= factor;
    }
    return BH_OK;
}

static enum bh_status
read_shape(struct reader *reader, struct bh_gguf_tensor *tensor)
{
    enum bh_status status =
        read_bytes(reader, "dimension count", &tensor->dim_cnt, sizeof(tensor->dim_cnt));
    if (status != BH_OK) {
        return status;
    }
    if (tensor->dim_cnt == 0 || tensor->dim_cnt > DIMS_MAX) {
        return fail(reader,
                    tensor->dim_cnt == 0 ? BH_ECORRUPT : BH_ELIMIT,
                    "dimension count is %u, expected 1 to %d",
                    tensor->dim_cnt,
                    DIMS_MAX);
    }
    for (uint32_t i = 0; i < DIMS_MAX; i++) {
        tensor->dims[i] = 1;
    }
    uint32_t type = 0;
    status = read_bytes(reader, "dimensions", tensor->dims, tensor->dim_cnt * sizeof(uint64_t));
    if (status == BH_OK) {
        status = read_bytes(reader, "tensor type", &type, sizeof(type));
    }
    if (status != BH_OK) {
        return status;
    }
    tensor->type = (enum bh_gguf_type)type;
    if (bh_gguf_type_elems(tensor->type) == 0) {
        return fail(reader,
                    BH_ELIMIT,
                    "tensor type %u is not supported; requantize to one of f32 f16 bf16 q4_0 q4_1 "
                    "q5_0 q5_1 q8_0 q4_k q5_k q6_k",
                    type);
    }
    return size_tensor(reader, tensor);
}

/* Offsets stay relative to the start of the data until that is known. */
static enum bh_status
read_tensors(struct reader *reader, struct bh_gguf *gguf, uint64_t cnt)
{
    for (uint64_t i = 0; i < cnt; i++) {
        struct bh_gguf_tensor *tensor = bh_gguf_index_item(&gguf->tensors, gguf->tensors.cnt);
        subject_set_idx(reader, "tensor", i);
        enum bh_status status = read_name(reader, "name", TENSOR_NAME_MAX, &tensor->name);
        if (status != BH_OK) {
            return status;
        }
        subject_set(reader, "tensor", tensor->name);
        status = read_shape(reader, tensor);
        if (status == BH_OK) {
            status = read_bytes(reader, "offset", &tensor->offset, sizeof(tensor->offset));
        }
        if (status != BH_OK) {
            return status;
        }
        if (!bh_gguf_index_put(&gguf->tensors)) {
            return fail(reader, BH_ECORRUPT, "appears twice, expected once");
        }
    }
    return BH_OK;
}

static enum bh_status
read_align(struct reader *reader, const struct bh_gguf *gguf, uint64_t *out)
{
    const char *key = "general.alignment";
    snprintf(reader->subject, sizeof(reader->subject), "key '%s'", key);
    const struct bh_gguf_entry *entry = bh_gguf_index_find(&gguf->keys, key);
    if (entry == NULL) {
        *out = ALIGN_DEFAULT;
        return BH_OK;
    }
    uint64_t align;
    if (!bh_gguf_u64(gguf, key, &align)) {
        return fail(reader,
                    BH_ECORRUPT,
                    "value of type %d is no unsigned integer, expected u32 (type 4)",
                    (int)entry->type);
    }
    if (align < 8 || (align & (align - 1)) != 0) {
        return fail(reader,
                    BH_ECORRUPT,
                    "value is %llu, expected a power of two from 8 on",
                    (unsigned long long)align);
    }
    if (align > BH_GGUF_ALIGN_MAX) {
        return fail(reader,
                    BH_ELIMIT,
                    "value is %llu, supported are up to %u",
                    (unsigned long long)align,
                    BH_GGUF_ALIGN_MAX);
    }
    *out = align;
    return BH_OK;
}

static enum bh_status
check_split(struct reader *reader, const struct bh_gguf *gguf)
{
    uint64_t parts;
    if (bh_gguf_u64(gguf, "split.count", &parts) && parts > 1) {
        snprintf(reader->subject, sizeof(reader->subject), "key 'split.count'");
        return fail(reader,
                    BH_ELIMIT,
                    "the model is split into %llu files, expected one; merge them first "
                    "(llama-gguf-split --merge)",
                    (unsigned long long)parts);
    }
    return BH_OK;
}

/* Makes offsets absolute, after checking that the data lies inside the file. */
static enum bh_status
place_tensors(struct reader *reader, struct bh_gguf *gguf, uint64_t align)
{
    uint64_t data_start = bh_round_up(reader->pos, align);
    if (gguf->tensors.cnt == 0) {
        gguf->header_bytes = reader->pos;
        return BH_OK;
    }
    for (uint32_t i = 0; i < gguf->tensors.cnt; i++) {
        struct bh_gguf_tensor *tensor = bh_gguf_index_item(&gguf->tensors, i);
        subject_set(reader, "tensor", tensor->name);
        if (tensor->offset % align != 0) {
            return fail(reader,
                        BH_ECORRUPT,
                        "offset is %llu, expected a multiple of the alignment %llu",
                        (unsigned long long)tensor->offset,
                        (unsigned long long)align);
        }
        uint64_t room = reader->file_bytes < data_start ? 0 : reader->file_bytes - data_start;
        if (tensor->offset > room || tensor->bytes > room - tensor->offset) {
            return fail(reader,
                        BH_ECORRUPT,
                        "%llu bytes at offset %llu end past the %llu bytes of data in the file; "
                        "it is cut off",
                        (unsigned long long)tensor->bytes,
                        (unsigned long long)tensor->offset,
                        (unsigned long long)room);
        }
        tensor->offset += data_start;
    }
    gguf->header_bytes = (size_t)data_start;
    return BH_OK;
}

static int
compare_offsets(const void *a, const void *b)
{
    const struct bh_gguf_tensor *const *left = a;
    const struct bh_gguf_tensor *const *right = b;
    return ((*left)->offset > (*right)->offset) - ((*left)->offset < (*right)->offset);
}

static enum bh_status
check_overlap(struct reader *reader, const struct bh_gguf *gguf)
{
    uint32_t cnt = gguf->tensors.cnt;
    const struct bh_gguf_tensor **order = calloc((size_t)cnt + 1, sizeof(*order));
    if (order == NULL) {
        return fail(reader, BH_ESYS, "no memory to check %u tensors", cnt);
    }
    for (uint32_t i = 0; i < cnt; i++) {
        order[i] = bh_gguf_index_item(&gguf->tensors, i);
    }
    qsort(order, cnt, sizeof(*order), compare_offsets);
    enum bh_status status = BH_OK;
    for (uint32_t i = 1; i < cnt && status == BH_OK; i++) {
        const struct bh_gguf_tensor *before = order[i - 1];
        if (order[i]->offset < before->offset + before->bytes) {
            char other[QUOTED_MAX + 1];
            quote(other, before->name);
            subject_set(reader, "tensor", order[i]->name);
            status = fail(reader,
                          BH_ECORRUPT,
                          "data starts at byte %llu of the file, inside the data of '%s'",
                          (unsigned long long)order[i]->offset,
                          other);
        }
    }
    free(order);
    return status;
}

static enum bh_status
read_count(
    struct reader *reader, const char *field, size_t entry_bytes, uint32_t max, uint32_t *out)
{
    uint64_t cnt = 0;
    enum bh_status status = read_bytes(reader, field, &cnt, sizeof(cnt));
    if (status != BH_OK) {
        return status;
    }
    if (cnt > bytes_left(reader) / entry_bytes) {
        return fail(reader,
                    BH_ECORRUPT,
                    "%s is %llu, but the %zu bytes left hold at most %zu",
                    field,
                    (unsigned long long)cnt,
                    bytes_left(reader),
                    bytes_left(reader) / entry_bytes);
    }
    if (cnt > max) {
        return fail(reader,
                    BH_ELIMIT,
                    "%s is %llu, supported are up to %u",
                    field,
                    (unsigned long long)cnt,
                    max);
    }
    *out = (uint32_t)cnt;
    return BH_OK;
}

/* Magic, version and the two counts. */
static enum bh_status
read_head(struct reader *reader, uint32_t *tensor_cnt, uint32_t *key_cnt)
{
    uint8_t magic[4] = {0};
    uint32_t version = 0;
    enum bh_status status = read_bytes(reader, "magic", magic, sizeof(magic));
    if (status != BH_OK) {
        return status;
    }
    if (memcmp(magic, "GGUF", sizeof(magic)) != 0) {
        return fail(reader,
                    BH_ECORRUPT,
                    "magic is %02x %02x %02x %02x, expected 47 47 55 46 (\"GGUF\"); is this a "
                    "GGUF file?",
                    magic[0],
                    magic[1],
                    magic[2],
                    magic[3]);
    }
    status = read_bytes(reader, "version", &version, sizeof(version));
    if (status != BH_OK) {
        return status;
    }
    if (version != VERSION) {
        return fail(reader,
                    BH_ELIMIT,
                    "version is %u, expected %d, little-endian; convert the file again with a "
                    "current converter",
                    version,
                    VERSION);
    }
    status =
        read_count(reader, "tensor count", TENSOR_ENTRY_BYTES, BH_GGUF_TENSORS_MAX, tensor_cnt);
    if (status != BH_OK) {
        return status;
    }
    return read_count(reader, "key count", KEY_ENTRY_BYTES, BH_GGUF_KEYS_MAX, key_cnt);
}

static enum bh_status
read_file(struct reader *reader, struct bh_gguf *gguf)
{
    uint32_t tensor_cnt = 0;
    uint32_t key_cnt = 0;
    if (reader->file_bytes < reader->len) {
        return fail(reader,
                    BH_ECORRUPT,
                    "the file has %llu bytes, fewer than the %zu given",
                    (unsigned long long)reader->file_bytes,
                    reader->len);
    }
    enum bh_status status = read_head(reader, &tensor_cnt, &key_cnt);
    if (status != BH_OK) {
        return status;
    }
    if (!bh_gguf_index_new(&gguf->keys, key_cnt, sizeof(struct bh_gguf_entry)) ||
        !bh_gguf_index_new(&gguf->tensors, tensor_cnt, sizeof(struct bh_gguf_tensor))) {
        return fail(reader, BH_ESYS, "no memory for %u keys and %u tensors", key_cnt, tensor_cnt);
    }
    status = read_keys(reader, gguf, key_cnt);
    if (status == BH_OK) {
        status = check_split(reader, gguf);
    }
    if (status == BH_OK) {
        status = read_tensors(reader, gguf, tensor_cnt);
    }
    uint64_t align = ALIGN_DEFAULT;
    if (status == BH_OK) {
        status = read_align(reader, gguf, &align);
    }
    if (status == BH_OK) {
        status = place_tensors(reader, gguf, align);
    }
    return status == BH_OK ? check_overlap(reader, gguf) : status;
}

enum bh_status
bh_gguf_open(const uint8_t *bytes,
             size_t len,
             uint64_t file_bytes,
             char error[BH_GGUF_ERROR_MAX],
             struct bh_gguf **out)
{
    struct reader reader = {
        .bytes = bytes,
        .len = len,
        .file_bytes = file_bytes,
        .error = error,
        .subject = "header",
    };
    struct bh_gguf *gguf = calloc(1, sizeof(*gguf));
    if (gguf == NULL) {
        return fail(&reader, BH_ESYS, "no memory for an index");
    }
    enum bh_status status = read_file(&reader, gguf);
    if (status != BH_OK) {
        bh_gguf_close(gguf);
        return status;
    }
    *out = gguf;
    return BH_OK;
}
