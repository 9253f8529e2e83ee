/* The GGUF reader against files built here byte by byte: a good one is read back exactly, and each
   field that lies is refused with its own status and named in the error. Files end at an
   unreadable page, so that one byte read too far is a crash even without a sanitizer. */
#include "src/model/gguf.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { T_U8, T_I8, T_U16, T_I16, T_U32, T_I32, T_F32, T_BOOL, T_STR, T_ARR, T_U64, T_I64, T_F64 };

struct bytes {
    uint8_t *at;
    size_t len;
    size_t room;
};

static void
put(struct bytes *out, const void *from, size_t len)
{
    if (out->room - out->len < len) {
        out->room = 2 * (out->room + len);
        out->at = realloc(out->at, out->room);
        cr_assert(out->at != NULL);
    }
    memcpy(out->at + out->len, from, len);
    out->len += len;
}

static void
put_u32(struct bytes *out, uint32_t value)
{
    put(out, &value, 4);
}

static void
put_u64(struct bytes *out, uint64_t value)
{
    put(out, &value, 8);
}

static void
put_str(struct bytes *out, const char *text)
{
    put_u64(out, strlen(text));
    put(out, text, strlen(text));
}

static void
put_scalar(struct bytes *out, const char *key, uint32_t type, const void *value, size_t len)
{
    put_str(out, key);
    put_u32(out, type);
    put(out, value, len);
}

static void
pad(struct bytes *out, size_t align)
{
    while (out->len % align != 0) {
        put(out, "", 1);
    }
}

/* Every field of a small file that can lie, with its true value from spec_good. */
struct spec {
    const char *magic;
    uint32_t version;
    uint64_t tensor_cnt;
    uint64_t key_cnt;
    uint64_t name_len; /* stated length of the string value of general.name */
    const char *name_key;
    uint64_t name_key_len; /* stated length of that key */
    uint8_t flag;          /* a bool */
    uint8_t flags[2];      /* an array of bools */
    uint32_t align_type;
    uint64_t align;
    uint32_t arr_type;
    uint64_t arr_cnt;
    uint64_t arr_str_len; /* stated length of the first string of the array of strings */
    uint32_t last_type;   /* value type of the last key */
    uint32_t split_cnt;
    const char *second_name; /* of the second tensor */
    uint32_t dim_cnt;
    uint64_t dims[4]; /* of the second tensor */
    uint32_t type;
    uint64_t offset;
    uint64_t first_offset;
};

static struct spec
spec_good(void)
{
    return (struct spec){
        .magic = "GGUF",
        .version = 3,
        .tensor_cnt = 2,
        .key_cnt = 8,
        .name_len = 5,
        .name_key = "general.name",
        .name_key_len = 12,
        .flag = 1,
        .flags = {0, 1},
        .align_type = T_U32,
        .align = 64,
        .arr_type = T_I32,
        .arr_cnt = 3,
        .arr_str_len = 2,
        .last_type = T_U8,
        .split_cnt = 1,
        .second_name = "second",
        .dim_cnt = 2,
        .dims = {64, 3, 1, 1},
        .type = BH_GGUF_Q4_0,
        .offset = 64,
    };
}

static void
put_keys(struct bytes *out, const struct spec *spec)
{
    put_u64(out, spec->name_key_len);
    put(out, spec->name_key, strlen(spec->name_key));
    put_u32(out, T_STR);
    put_u64(out, spec->name_len);
    put(out, "model", 5);
    put_scalar(out, "flag", T_BOOL, &spec->flag, 1);
    put_scalar(out, "split.count", T_U32, &spec->split_cnt, 4);
    put_scalar(out,
               "general.alignment",
               spec->align_type,
               &spec->align,
               spec->align_type == T_U64 ? 8 : 4);
    put_str(out, "numbers");
    put_u32(out, T_ARR);
    put_u32(out, spec->arr_type);
    put_u64(out, spec->arr_cnt);
    const int32_t numbers[3] = {-7, 0, 2000000000};
    put(out, numbers, sizeof(numbers));
    put_str(out, "words");
    put_u32(out, T_ARR);
    put_u32(out, T_STR);
    put_u64(out, 3);
    put_u64(out, spec->arr_str_len);
    put(out, "ab", 2);
    put_str(out, "");
    put_str(out, "cde");
    put_str(out, "flags");
    put_u32(out, T_ARR);
    put_u32(out, T_BOOL);
    put_u64(out, 2);
    put(out, spec->flags, 2);
    put_scalar(out, "last", spec->last_type, "\x2a", 1);
}

static struct bytes
build(const struct spec *spec)
{
    struct bytes out = {0};
    put(&out, spec->magic, 4);
    put_u32(&out, spec->version);
    put_u64(&out, spec->tensor_cnt);
    put_u64(&out, spec->key_cnt);
    put_keys(&out, spec);
    put_str(&out, "first");
    put_u32(&out, 1);
    put_u64(&out, 4);
    put_u32(&out, BH_GGUF_F32);
    put_u64(&out, spec->first_offset);
    put_str(&out, spec->second_name);
    put_u32(&out, spec->dim_cnt);
    put(&out, spec->dims, 8 * (spec->dim_cnt > 4 ? 4 : spec->dim_cnt));
    put_u32(&out, spec->type);
    put_u64(&out, spec->offset);
    pad(&out, 64);
    for (size_t i = 0; i < 64 + 6 * 18; i++) {
        put(&out, "\x5a", 1);
    }
    return out;
}

/* A copy whose end is the end of readable memory. */
struct guarded {
    uint8_t *map;
    size_t map_len;
    uint8_t *at;
};

static struct guarded
guard(const uint8_t *bytes, size_t len)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t body = (len + page - 1) / page * page;
    struct guarded copy = {.map_len = body + page};
    copy.map = mmap(NULL, copy.map_len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    cr_assert(copy.map != MAP_FAILED);
    cr_assert(mprotect(copy.map + body, page, PROT_NONE) == 0);
    copy.at = copy.map + body - len;
    if (len > 0) {
        memcpy(copy.at, bytes, len);
    }
    return copy;
}

/* Opens, closes, and returns the status; `error` is what the reader wrote. */
static enum bh_status
try_open(const uint8_t *bytes, size_t len, uint64_t file_bytes, char error[BH_GGUF_ERROR_MAX])
{
    struct guarded copy = guard(bytes, len);
    struct bh_gguf *gguf = NULL;
    error[0] = '\0';
    enum bh_status status = bh_gguf_open(copy.at, len, file_bytes, error, &gguf);
    cr_assert((status == BH_OK) == (gguf != NULL), "out is set exactly when the status is BH_OK");
    cr_assert(status == BH_OK || error[0] != '\0', "a refusal has a text");
    cr_assert(strnlen(error, BH_GGUF_ERROR_MAX) < BH_GGUF_ERROR_MAX);
    bh_gguf_close(gguf);
    munmap(copy.map, copy.map_len);
    return status;
}

static bool
str_is(struct bh_gguf_str str, const char *text)
{
    return str.len == strlen(text) && memcmp(str.bytes, text, str.len) == 0;
}

Test(gguf, good_file_is_read_back)
{
    struct spec spec = spec_good();
    struct bytes file = build(&spec);
    char error[BH_GGUF_ERROR_MAX] = "";
    struct bh_gguf *gguf = NULL;
    cr_assert(bh_gguf_open(file.at, file.len, file.len, error, &gguf) == BH_OK, "%s", error);
    struct bh_gguf_str str;
    cr_assert(bh_gguf_str(gguf, "general.name", &str) && str_is(str, "model"));
    bool flag = false;
    cr_assert(bh_gguf_bool(gguf, "flag", &flag) && flag);
    uint64_t number = 0;
    cr_assert(bh_gguf_u64(gguf, "last", &number) && number == 42);
    cr_assert(bh_gguf_tensor_cnt(gguf) == 2);
    const struct bh_gguf_tensor *first = bh_gguf_tensor_find(gguf, "first");
    const struct bh_gguf_tensor *second = bh_gguf_tensor_find(gguf, "second");
    cr_assert(first == bh_gguf_tensor_at(gguf, 0) && second == bh_gguf_tensor_at(gguf, 1));
    cr_assert(bh_gguf_tensor_at(gguf, 2) == NULL && bh_gguf_tensor_find(gguf, "third") == NULL);
    cr_assert(first->bytes == 16 && first->dim_cnt == 1 && first->dims[0] == 4);
    cr_assert(first->dims[1] == 1 && first->dims[3] == 1);
    cr_assert(first->offset == bh_gguf_header_bytes(gguf));
    cr_assert(second->type == BH_GGUF_Q4_0 && second->dims[0] == 64 && second->dims[1] == 3);
    cr_assert(second->bytes == 6 * 18 && second->offset == first->offset + 64);
    cr_assert(second->offset + second->bytes == file.len);
    cr_assert(file.at[first->offset] == 0x5a && file.at[first->offset - 1] == 0);
    bh_gguf_close(gguf);
    free(file.at);
}

Test(gguf, header_alone_is_enough)
{
    struct spec spec = spec_good();
    struct bytes file = build(&spec);
    size_t header = file.len - 64 - 6 * 18;
    char error[BH_GGUF_ERROR_MAX] = "";
    struct guarded copy = guard(file.at, header);
    struct bh_gguf *gguf = NULL;
    cr_assert(bh_gguf_open(copy.at, header, file.len, error, &gguf) == BH_OK, "%s", error);
    cr_assert(bh_gguf_header_bytes(gguf) == header);
    bh_gguf_close(gguf);
    cr_assert(try_open(file.at, header, file.len - 1, error) == BH_ECORRUPT);
    cr_assert(try_open(file.at, file.len, file.len - 1, error) == BH_ECORRUPT);
    free(file.at);
}

Test(gguf, arrays)
{
    struct spec spec = spec_good();
    struct bytes file = build(&spec);
    char error[BH_GGUF_ERROR_MAX];
    struct bh_gguf *gguf = NULL;
    cr_assert(bh_gguf_open(file.at, file.len, file.len, error, &gguf) == BH_OK);
    uint64_t cnt = 0;
    int32_t number = 0;
    float real;
    cr_assert(bh_gguf_array_cnt(gguf, "numbers", &cnt) && cnt == 3);
    cr_assert(bh_gguf_array_i32(gguf, "numbers", 0, &number) && number == -7);
    cr_assert(bh_gguf_array_i32(gguf, "numbers", 2, &number) && number == 2000000000);
    cr_assert_not(bh_gguf_array_i32(gguf, "numbers", 3, &number));
    cr_assert_not(bh_gguf_array_f32(gguf, "numbers", 0, &real));
    cr_assert_not(bh_gguf_array_i32(gguf, "words", 0, &number));
    cr_assert_not(bh_gguf_array_i32(gguf, "flags", 0, &number));
    cr_assert_not(bh_gguf_array_cnt(gguf, "flag", &cnt));
    struct bh_gguf_str str;
    size_t cursor = 0;
    static const char *const words[3] = {"ab", "", "cde"};
    for (size_t i = 0; i < 3; i++) {
        cr_assert(bh_gguf_array_str(gguf, "words", &cursor, &str) && str_is(str, words[i]));
    }
    cr_assert_not(bh_gguf_array_str(gguf, "words", &cursor, &str));
    for (cursor = 0; cursor < 40; cursor++) { /* a wrong cursor never leaves the array */
        size_t moved = cursor;
        if (bh_gguf_array_str(gguf, "words", &moved, &str)) {
            cr_assert(moved <= 3 * 8 + 5);
        }
    }
    cursor = SIZE_MAX;
    cr_assert_not(bh_gguf_array_str(gguf, "words", &cursor, &str));
    cursor = 0;
    cr_assert_not(bh_gguf_array_str(gguf, "numbers", &cursor, &str));
    bh_gguf_close(gguf);
    free(file.at);
}

/* One key of each scalar type, chosen so that sign extension and range show. */
static struct bytes
build_scalars(void)
{
    struct bytes out = {0};
    put(&out, "GGUF", 4);
    put_u32(&out, 3);
    put_u64(&out, 0);
    put_u64(&out, 14);
    const float f32 = 0.5f;
    const double f64 = -0.25;
    const double huge = 1e300;
    const double infinite = (double)INFINITY;
    const int64_t minus = -3;
    const uint64_t large = UINT64_MAX;
    put_scalar(&out, "u8", T_U8, "\xff", 1);
    put_scalar(&out, "i8", T_I8, "\x7f", 1);
    put_scalar(&out, "i8-", T_I8, &minus, 1);
    put_scalar(&out, "u16", T_U16, "\xff\xff", 2);
    put_scalar(&out, "i16-", T_I16, &minus, 2);
    put_scalar(&out, "u32", T_U32, &large, 4);
    put_scalar(&out, "i32-", T_I32, &minus, 4);
    put_scalar(&out, "u64", T_U64, &large, 8);
    put_scalar(&out, "i64-", T_I64, &minus, 8);
    put_scalar(&out, "f32", T_F32, &f32, 4);
    put_scalar(&out, "f64", T_F64, &f64, 8);
    put_scalar(&out, "huge", T_F64, &huge, 8);
    put_scalar(&out, "inf", T_F64, &infinite, 8);
    put_scalar(&out, "bool", T_BOOL, "", 1);
    return out;
}

Test(gguf, scalars)
{
    struct bytes file = build_scalars();
    char error[BH_GGUF_ERROR_MAX];
    struct bh_gguf *gguf = NULL;
    cr_assert(bh_gguf_open(file.at, file.len, file.len, error, &gguf) == BH_OK);
    cr_assert(bh_gguf_header_bytes(gguf) == file.len);
    static const struct {
        const char *key;
        uint64_t value;
    } good[] = {{"u8", 255}, {"i8", 127}, {"u16", 65535}, {"u32", UINT32_MAX}, {"u64", UINT64_MAX}};
    uint64_t number = 0;
    for (size_t i = 0; i < BH_COUNT(good); i++) {
        cr_assert(bh_gguf_u64(gguf, good[i].key, &number) && number == good[i].value);
    }
    static const char *const bad[] = {"i8-", "i16-", "i32-", "i64-", "f32", "f64", "bool", "none"};
    number = 99;
    for (size_t i = 0; i < BH_COUNT(bad); i++) {
        cr_assert_not(bh_gguf_u64(gguf, bad[i], &number), "%s", bad[i]);
    }
    cr_assert(number == 99, "untouched");
    float real = 9.0f;
    bool flag = true;
    struct bh_gguf_str str;
    cr_assert_not(bh_gguf_f32(gguf, "huge", &real));
    cr_assert_not(bh_gguf_f32(gguf, "u32", &real));
    cr_assert(bh_gguf_f32(gguf, "f32", &real) && real == 0.5f);
    cr_assert(bh_gguf_f32(gguf, "f64", &real) && real == -0.25f);
    cr_assert(bh_gguf_f32(gguf, "inf", &real) && isinf(real));
    cr_assert(bh_gguf_bool(gguf, "bool", &flag) && !flag);
    cr_assert_not(bh_gguf_bool(gguf, "u8", &flag));
    cr_assert_not(bh_gguf_str(gguf, "u8", &str));
    bh_gguf_close(gguf);
    free(file.at);
}

Test(gguf, every_truncation_is_refused)
{
    struct spec spec = spec_good();
    struct bytes file = build(&spec);
    char error[BH_GGUF_ERROR_MAX];
    for (size_t len = 0; len < file.len; len++) {
        cr_assert(try_open(file.at, len, len, error) == BH_ECORRUPT, "cut at %zu: %s", len, error);
    }
    cr_assert(try_open(file.at, file.len, file.len, error) == BH_OK);
    free(file.at);
}

Test(gguf, no_spoiled_byte_crashes)
{
    struct spec spec = spec_good();
    struct bytes file = build(&spec);
    char error[BH_GGUF_ERROR_MAX];
    static const uint8_t masks[] = {0x01, 0x80, 0xff, 0x10};
    size_t header = file.len - 64 - 6 * 18;
    for (size_t i = 0; i < header; i++) {
        for (size_t m = 0; m < BH_COUNT(masks); m++) {
            file.at[i] ^= masks[m];
            enum bh_status status = try_open(file.at, file.len, file.len, error);
            cr_assert(status == BH_OK || status == BH_ECORRUPT || status == BH_ELIMIT);
            file.at[i] ^= masks[m];
        }
    }
    free(file.at);
}

/* Spoils one field and expects that status and that word in the error text. */
#define LIE(field, value, status, word)                                                            \
    do {                                                                                           \
        struct spec spec = spec_good();                                                            \
        spec.field = (value);                                                                      \
        struct bytes file = build(&spec);                                                          \
        char error[BH_GGUF_ERROR_MAX];                                                             \
        enum bh_status got = try_open(file.at, file.len, file.len, error);                         \
        cr_expect(got == (status), #field " = " #value ": status %d, %s", (int)got, error);        \
        cr_expect(strstr(error, word) != NULL, #field " = " #value ": '%s' in '%s'", word, error); \
        free(file.at);                                                                             \
    } while (0)

Test(gguf, lying_header)
{
    LIE(magic, "GGML", BH_ECORRUPT, "magic");
    LIE(version, 2, BH_ELIMIT, "version");
    LIE(version, 0x03000000, BH_ELIMIT, "version");
    LIE(tensor_cnt, UINT64_MAX, BH_ECORRUPT, "tensor count");
    LIE(tensor_cnt, 3, BH_ECORRUPT, "");
    LIE(key_cnt, UINT64_MAX / 2, BH_ECORRUPT, "key count");
    LIE(key_cnt, 9, BH_ECORRUPT, "");
    LIE(key_cnt, 7, BH_ECORRUPT, "");
}

Test(gguf, lying_metadata)
{
    LIE(name_key_len, UINT64_MAX, BH_ECORRUPT, "metadata key 0");
    LIE(name_key_len, 0, BH_ECORRUPT, "length of 0");

    LIE(name_len, UINT64_MAX, BH_ECORRUPT, "general.name");
    LIE(name_len, 1 << 20, BH_ECORRUPT, "general.name");

    LIE(flag, 2, BH_ECORRUPT, "'flag': bool is 2");
    LIE(flags[1], 255, BH_ECORRUPT, "'flags': bool is 255");
    LIE(last_type, 13, BH_ECORRUPT, "value type is 13");
    LIE(last_type, UINT32_MAX, BH_ECORRUPT, "value type");
    LIE(arr_type, T_ARR, BH_ELIMIT, "array of arrays");
    LIE(arr_type, 13, BH_ECORRUPT, "element type");
    LIE(arr_type, T_STR, BH_ECORRUPT, "numbers");
    LIE(arr_cnt, UINT64_MAX, BH_ECORRUPT, "array count");
    LIE(arr_cnt, UINT64_MAX / 4 + 1, BH_ECORRUPT, "array count"); /* times 4 would wrap to 0 */
    LIE(arr_str_len, UINT64_MAX - 7, BH_ECORRUPT, "'words': array element");
    LIE(split_cnt, 2, BH_ELIMIT, "split.count");
}

Test(gguf, lying_alignment)
{
    LIE(align, 0, BH_ECORRUPT, "general.alignment");
    LIE(align, 4, BH_ECORRUPT, "general.alignment");
    LIE(align, 48, BH_ECORRUPT, "power of two");
    LIE(align, 2 * BH_GGUF_ALIGN_MAX, BH_ELIMIT, "general.alignment");
    LIE(align, BH_GGUF_ALIGN_MAX, BH_ECORRUPT, "past"); /* the value passes, the data does not */
    LIE(align_type, T_F32, BH_ECORRUPT, "general.alignment");
}

Test(gguf, lying_tensors)
{
    LIE(second_name, "first", BH_ECORRUPT, "'first': appears twice");
    LIE(second_name, "", BH_ECORRUPT, "length of 0");
    LIE(second_name,
        "sixty-five-bytes-sixty-five-bytes-sixty-five-bytes-sixty-five-byt",
        BH_ECORRUPT,
        "length of 65");
    LIE(dim_cnt, 0, BH_ECORRUPT, "dimension count is 0");
    LIE(dim_cnt, 5, BH_ELIMIT, "dimension count is 5");
    LIE(dim_cnt, UINT32_MAX, BH_ELIMIT, "dimension count");
    LIE(dims[0], 0, BH_ECORRUPT, "dimension 0 is 0");
    LIE(dims[1], 0, BH_ECORRUPT, "dimension 1 is 0");
    LIE(dims[0], 63, BH_ECORRUPT, "multiple of 32");
    LIE(dims[1], 4, BH_ECORRUPT, "'second'");
    LIE(dims[1], UINT64_MAX, BH_ECORRUPT, "dimension 1");
    LIE(dims[1], 1ull << 63, BH_ECORRUPT, "dimension 1"); /* times 36 would wrap */
    LIE(dims[0], UINT64_MAX - 31, BH_ECORRUPT, "dimension 0");
    LIE(type, 4, BH_ELIMIT, "tensor type 4");
    LIE(type, 10, BH_ELIMIT, "tensor type 10");
    LIE(type, UINT32_MAX, BH_ELIMIT, "tensor type");
    LIE(type, BH_GGUF_Q4_K, BH_ECORRUPT, "multiple of 256");
    LIE(type, BH_GGUF_F32, BH_ECORRUPT, "'second'");
    LIE(offset, 65, BH_ECORRUPT, "multiple of the alignment 64");
    LIE(offset, 128, BH_ECORRUPT, "past");
    LIE(offset, UINT64_MAX - 63, BH_ECORRUPT, "past");
    LIE(offset, 0, BH_ECORRUPT, "inside the data of");
    LIE(first_offset, 64, BH_ECORRUPT, "inside the data of");
    LIE(first_offset, 128, BH_ECORRUPT, "inside the data of");
}

/* What must not fire: the same fields with unusual but true values. */
Test(gguf, unusual_but_true)
{
    LIE(align, 8, BH_OK, "");
    LIE(align_type, T_U64, BH_OK, "");
    LIE(flag, 0, BH_OK, "");
    LIE(second_name, "sixty-four-bytes-sixty-four-bytes-sixty-four-bytes-sixty-four-by", BH_OK, "");
    LIE(dim_cnt, 4, BH_OK, "");
    LIE(dims[1], 1, BH_OK, "");
    LIE(type, BH_GGUF_Q8_0, BH_ECORRUPT, "");
    LIE(split_cnt, 0, BH_OK, "");
}

Test(gguf, names_hold_no_nul)
{
    char error[BH_GGUF_ERROR_MAX];
    static const char *const names[] = {"general.name", "second"};
    for (size_t i = 0; i < BH_COUNT(names); i++) {
        struct spec spec = spec_good();
        struct bytes file = build(&spec);
        uint8_t *name = memmem(file.at, file.len, names[i], strlen(names[i]));
        cr_assert(name != NULL);
        name[2] = '\0';
        cr_assert(try_open(file.at, file.len, file.len, error) == BH_ECORRUPT);
        cr_assert(strstr(error, "NUL") != NULL, "%s", error);
        free(file.at);
    }
}

Test(gguf, error_text_is_printable)
{
    struct spec spec = spec_good();
    spec.name_key = "\x1b[31m\xff\n:bad";
    spec.name_key_len = strlen(spec.name_key);
    spec.name_len = UINT64_MAX;
    struct bytes file = build(&spec);
    char error[BH_GGUF_ERROR_MAX];
    cr_assert(try_open(file.at, file.len, file.len, error) == BH_ECORRUPT);
    for (const char *c = error; *c != '\0'; c++) {
        cr_assert(*c >= 0x20 && *c < 0x7f);
    }
    free(file.at);
}

/* A file of that many one-byte keys and one-element tensors. */
static struct bytes
build_many(uint32_t key_cnt, uint32_t tensor_cnt, bool last_key_again)
{
    struct bytes out = {0};
    char name[32];
    put(&out, "GGUF", 4);
    put_u32(&out, 3);
    put_u64(&out, tensor_cnt);
    put_u64(&out, key_cnt);
    for (uint32_t i = 0; i < key_cnt; i++) {
        bool again = last_key_again && i + 1 == key_cnt;
        snprintf(name, sizeof(name), "key.%u", again ? 0 : i);
        put_scalar(&out, name, T_U8, &i, 1);
    }
    for (uint32_t i = 0; i < tensor_cnt; i++) {
        snprintf(name, sizeof(name), "tensor.%u", i);
        put_str(&out, name);
        put_u32(&out, 1);
        put_u64(&out, 1);
        put_u32(&out, BH_GGUF_F32);
        put_u64(&out,
                32 * (uint64_t)(tensor_cnt - 1 - i)); /* descending, so that sorting matters */
    }
    return out;
}

Test(gguf, counts_at_their_limits)
{
    char error[BH_GGUF_ERROR_MAX];
    const uint64_t file_bytes = 1 << 24;
    struct bytes most = build_many(BH_GGUF_KEYS_MAX, BH_GGUF_TENSORS_MAX, false);
    struct bh_gguf *gguf = NULL;
    cr_assert(bh_gguf_open(most.at, most.len, file_bytes, error, &gguf) == BH_OK, "%s", error);
    uint64_t value = 0;
    cr_assert(bh_gguf_u64(gguf, "key.4095", &value) && value == 255);
    cr_assert(bh_gguf_u64(gguf, "key.17", &value) && value == 17);
    cr_assert(bh_gguf_tensor_find(gguf, "tensor.16383") == bh_gguf_tensor_at(gguf, 16383));
    cr_assert(bh_gguf_tensor_find(gguf, "tensor.16384") == NULL);
    bh_gguf_close(gguf);
    struct bytes keys = build_many(BH_GGUF_KEYS_MAX + 1, 0, false);
    cr_assert(try_open(keys.at, keys.len, file_bytes, error) == BH_ELIMIT);
    struct bytes tensors = build_many(0, BH_GGUF_TENSORS_MAX + 1, false);
    cr_assert(try_open(tensors.at, tensors.len, file_bytes, error) == BH_ELIMIT);
    struct bytes twice = build_many(300, 0, true);
    cr_assert(try_open(twice.at, twice.len, file_bytes, error) == BH_ECORRUPT);
    cr_assert(strstr(error, "'key.0': appears twice") != NULL, "%s", error);
    free(most.at);
    free(keys.at);
    free(tensors.at);
    free(twice.at);
}

Test(gguf, array_at_its_limit)
{
    char error[BH_GGUF_ERROR_MAX];
    for (uint64_t over = 0; over < 2; over++) {
        struct bytes file = {0};
        put(&file, "GGUF", 4);
        put_u32(&file, 3);
        put_u64(&file, 0);
        put_u64(&file, 1);
        put_str(&file, "array");
        put_u32(&file, T_ARR);
        put_u32(&file, T_U8);
        put_u64(&file, BH_GGUF_ARRAY_MAX + over);
        uint8_t *elems = calloc(1, BH_GGUF_ARRAY_MAX + over);
        cr_assert(elems != NULL);
        put(&file, elems, BH_GGUF_ARRAY_MAX + over);
        enum bh_status wanted = over == 0 ? BH_OK : BH_ELIMIT;
        cr_assert(try_open(file.at, file.len, file.len, error) == wanted, "%s", error);
        free(elems);
        free(file.at);
    }
}

Test(gguf, types)
{
    static const struct {
        enum bh_gguf_type type;
        uint32_t elems;
        uint32_t bytes;
    } wanted[] = {
        {BH_GGUF_F32, 1, 4},
        {BH_GGUF_F16, 1, 2},
        {BH_GGUF_BF16, 1, 2},
        {BH_GGUF_Q4_0, 32, 18},
        {BH_GGUF_Q4_1, 32, 20},
        {BH_GGUF_Q5_0, 32, 22},
        {BH_GGUF_Q5_1, 32, 24},
        {BH_GGUF_Q8_0, 32, 34},
        {BH_GGUF_Q4_K, 256, 144},
        {BH_GGUF_Q5_K, 256, 176},
        {BH_GGUF_Q6_K, 256, 210},
    };
    for (size_t i = 0; i < BH_COUNT(wanted); i++) {
        cr_assert(bh_gguf_type_elems(wanted[i].type) == wanted[i].elems);
        cr_assert(bh_gguf_type_bytes(wanted[i].type) == wanted[i].bytes);
        cr_assert_str_neq(bh_gguf_type_name(wanted[i].type), "unknown");
    }
    cr_assert(bh_gguf_type_elems((enum bh_gguf_type)9) == 0);
    cr_assert_str_eq(bh_gguf_type_name((enum bh_gguf_type)9), "unknown");
}
