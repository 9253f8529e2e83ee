/* Fuzz target: a hostile GGUF file. Whatever the bytes, the reader either refuses with a text or
   leaves an index whose every tensor and string lies inside the file. The input is read twice: as a
   whole file, and as the header of a file that is far larger. */
#include "src/model/gguf.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

/* Stops the run if `condition` does not hold; the fuzzer keeps the input. */
static void
require(bool condition)
{
    if (!condition) {
        abort();
    }
}

static void
require_inside(struct bh_gguf_str str, const uint8_t *data, size_t len)
{
    const uint8_t *bytes = (const uint8_t *)str.bytes;
    require(bytes >= data && bytes <= data + len && str.len <= (size_t)(data + len - bytes));
}

static void
read_key(const struct bh_gguf *gguf, const char *key, const uint8_t *data, size_t len)
{
    uint64_t number;
    float real;
    bool flag;
    int32_t signed_number;
    struct bh_gguf_str str;
    uint64_t cnt = 0;
    unsigned kinds = 0;
    kinds += bh_gguf_u64(gguf, key, &number);
    kinds += bh_gguf_f32(gguf, key, &real);
    kinds += bh_gguf_bool(gguf, key, &flag);
    if (bh_gguf_str(gguf, key, &str)) {
        require_inside(str, data, len);
        kinds++;
    }
    if (bh_gguf_array_cnt(gguf, key, &cnt)) {
        kinds++;
        size_t cursor = 0;
        uint64_t walked = 0;
        while (bh_gguf_array_str(gguf, key, &cursor, &str)) {
            require_inside(str, data, len);
            walked++;
        }
        require(walked == 0 || walked == cnt);
    }
    require(kinds <= 1);
    (void)bh_gguf_array_i32(gguf, key, cnt / 2, &signed_number);
    (void)bh_gguf_array_f32(gguf, key, cnt / 2, &real);
    require(!bh_gguf_array_i32(gguf, key, cnt, &signed_number));
    require(!bh_gguf_array_f32(gguf, key, cnt, &real));
}

static void
read_tensors(const struct bh_gguf *gguf, const uint8_t *data, size_t len, uint64_t file_bytes)
{
    for (uint64_t i = 0; i < bh_gguf_tensor_cnt(gguf); i++) {
        const struct bh_gguf_tensor *tensor = bh_gguf_tensor_at(gguf, i);
        require_inside(tensor->name, data, len);
        require(tensor->offset >= bh_gguf_header_bytes(gguf));
        require(tensor->offset <= file_bytes && tensor->bytes <= file_bytes - tensor->offset);
        uint32_t elems = bh_gguf_type_elems(tensor->type);
        require(elems != 0 && tensor->dims[0] % elems == 0);
        uint64_t bytes = tensor->dims[0] / elems * bh_gguf_type_bytes(tensor->type);
        require(tensor->bytes == bytes * tensor->dims[1] * tensor->dims[2] * tensor->dims[3]);
        char name[65] = {0};
        require(tensor->name.len < sizeof(name));
        memcpy(name, tensor->name.bytes, tensor->name.len);
        require(bh_gguf_tensor_find(gguf, name) == tensor);
    }
}

static void
read_file(const uint8_t *data, size_t len, uint64_t file_bytes)
{
    static const char *const keys[] = {
        "general.alignment",
        "general.name",
        "flag",
        "flags",
        "numbers",
        "reals",
        "words",
        "u8",
        "i64",
        "f64",
        "a",
        "split.count",
        "",
        "none",
    };
    char error[BH_GGUF_ERROR_MAX] = "";
    struct bh_gguf *gguf = NULL;
    enum bh_status status = bh_gguf_open(data, len, file_bytes, error, &gguf);
    if (status != BH_OK) {
        require(status == BH_ECORRUPT || status == BH_ELIMIT);
        require(gguf == NULL && error[0] != '\0' && memchr(error, '\0', sizeof(error)) != NULL);
        return;
    }
    for (size_t i = 0; i < BH_COUNT(keys); i++) {
        read_key(gguf, keys[i], data, len);
    }
    read_tensors(gguf, data, len, file_bytes);
    bh_gguf_close(gguf);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
    read_file(data, len, len);
    read_file(data, len, (uint64_t)1 << 50);
    return 0;
}
