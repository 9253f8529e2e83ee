/* GGUF v3, read from bytes that nobody vouches for. Every length is checked before it is used; a
   broken file ends in an error text that names the field, never in a wild read. Pure: it takes
   bytes, allocates only its indexes, and makes no system call.
   Source: the GGUF specification of ggml (docs/gguf.md). */
#ifndef BH_MODEL_GGUF_H
#define BH_MODEL_GGUF_H

#include "shm/base.h"

/* Values of ggml's type enumeration that this engine reads; the numbers are the file format's. */
enum bh_gguf_type {
    BH_GGUF_F32 = 0,
    BH_GGUF_F16 = 1,
    BH_GGUF_Q4_0 = 2,
    BH_GGUF_Q4_1 = 3,
    BH_GGUF_Q5_0 = 6,
    BH_GGUF_Q5_1 = 7,
    BH_GGUF_Q8_0 = 8,
    BH_GGUF_Q4_K = 12,
    BH_GGUF_Q5_K = 13,
    BH_GGUF_Q6_K = 14,
    BH_GGUF_BF16 = 30,
};

struct bh_gguf; /* opaque index over the bytes */

/* A byte string inside the file: not NUL-terminated, valid as long as the file's bytes. */
struct bh_gguf_str {
    const char *bytes;
    size_t len;
};

struct bh_gguf_tensor {
    struct bh_gguf_str name;
    enum bh_gguf_type type;
    uint32_t dim_cnt;
    uint64_t dims[4]; /* dims[0] is the contiguous one (ggml's ne[0]); unused ones are 1 */
    uint64_t offset;  /* of its data, from the start of the file */
    uint64_t bytes;   /* of its data; offset + bytes lies inside file_bytes */
};

#define BH_GGUF_ERROR_MAX 256

/* Limits. Real files stay far below them; above, a file is refused with BH_ELIMIT. The first two
   also bound the time of a search when someone has chosen names that collide. */
#define BH_GGUF_KEYS_MAX    4096u
#define BH_GGUF_TENSORS_MAX 16384u
#define BH_GGUF_ARRAY_MAX   (1u << 24) /* elements of a metadata array */
#define BH_GGUF_ALIGN_MAX   65536u     /* general.alignment */

/* bh_gguf_open - index the GGUF file whose first `len` bytes are at `bytes`.
   file_bytes is the size of the whole file: a process that was given only the header (no weights)
   passes the header's bytes as `len` and the true size here. `bytes` must stay mapped until close.
   BH_OK        *out is an index; free it with bh_gguf_close
   BH_ECORRUPT  the bytes break the format; `error` says which field, its value and what was expected
   BH_ELIMIT    well formed but not supported (version, tensor type, too many entries); same
   BH_ESYS      no memory */
BH_MUST_USE enum bh_status bh_gguf_open(const uint8_t *bytes,
                                        size_t len,
                                        uint64_t file_bytes,
                                        char error[BH_GGUF_ERROR_MAX],
                                        struct bh_gguf **out);
void bh_gguf_close(struct bh_gguf *gguf);

/* Bytes of the header: everything before the first tensor's data. This prefix is all that a role
   without weights needs. */
size_t bh_gguf_header_bytes(const struct bh_gguf *gguf);

/* Typed metadata. Each returns false when the key is absent or has another type (integers of any
   width and sign are accepted where the value fits; f64 is accepted for f32). */
bool bh_gguf_u64(const struct bh_gguf *gguf, const char *key, uint64_t *out);
bool bh_gguf_f32(const struct bh_gguf *gguf, const char *key, float *out);
bool bh_gguf_bool(const struct bh_gguf *gguf, const char *key, bool *out);
bool bh_gguf_str(const struct bh_gguf *gguf, const char *key, struct bh_gguf_str *out);

/* Arrays. `cnt` is the number of elements. Strings come one by one, in order, through a cursor that
   starts at zero: *cursor is advanced past the string that was returned. */
bool bh_gguf_array_cnt(const struct bh_gguf *gguf, const char *key, uint64_t *cnt);
bool bh_gguf_array_str(const struct bh_gguf *gguf,
                       const char *key,
                       size_t *cursor,
                       struct bh_gguf_str *out);
bool bh_gguf_array_i32(const struct bh_gguf *gguf, const char *key, uint64_t idx, int32_t *out);
bool bh_gguf_array_f32(const struct bh_gguf *gguf, const char *key, uint64_t idx, float *out);

uint64_t bh_gguf_tensor_cnt(const struct bh_gguf *gguf);
const struct bh_gguf_tensor *bh_gguf_tensor_at(const struct bh_gguf *gguf, uint64_t idx);
/* NULL when there is none of that name. */
const struct bh_gguf_tensor *bh_gguf_tensor_find(const struct bh_gguf *gguf, const char *name);

/* Elements and bytes of one block of a type: F32 is 1/4, Q4_0 is 32/18, Q4_K is 256/144, ... Zero
   elements for a type that is not in the enumeration. */
uint32_t bh_gguf_type_elems(enum bh_gguf_type type);
uint32_t bh_gguf_type_bytes(enum bh_gguf_type type);
const char *bh_gguf_type_name(enum bh_gguf_type type);

#endif
