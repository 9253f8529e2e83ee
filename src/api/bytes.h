/* A growable run of bytes with an upper limit: what every renderer of this folder writes into. An
   append that does not fit changes nothing and sets `failed`, which stays set, so that a renderer
   appends freely and its caller looks once, at the end. */
#ifndef BH_API_BYTES_H
#define BH_API_BYTES_H

#include "shm/base.h"

struct bh_bytes {
    char *data; /* malloc'd, or NULL while cap is 0; not terminated by a NUL */
    size_t len;
    size_t cap;
    size_t max;  /* len never passes it */
    bool failed; /* an append since the last clear did not fit or found no memory */
};

/* bh_bytes_init - an empty buffer that may grow to max_bytes. Allocates nothing. */
void bh_bytes_init(struct bh_bytes *bytes, size_t max_bytes);

/* bh_bytes_free - release the memory; the buffer is as after init with the same limit. */
void bh_bytes_free(struct bh_bytes *bytes);

/* bh_bytes_clear - forget content and failure, keep the memory. */
void bh_bytes_clear(struct bh_bytes *bytes);

/* bh_bytes_cut - drop the first `len` bytes (at most all), which the caller has sent. Moves the
   rest. */
void bh_bytes_cut(struct bh_bytes *bytes, size_t len);

/* bh_bytes_put - append len bytes; data may be NULL when len is 0 and must not lie inside
   `bytes`. */
void bh_bytes_put(struct bh_bytes *bytes, const void *data, size_t len);

/* bh_bytes_text - append a NUL-terminated string, without the NUL. */
void bh_bytes_text(struct bh_bytes *bytes, const char *text);

/* bh_bytes_format - append what printf would print; at most 512 bytes, more sets `failed`. */
BH_PRINTF(2, 3) void bh_bytes_format(struct bh_bytes *bytes, const char *format, ...);

/* bh_bytes_status - BH_OK: everything appended since the last clear is there. BH_ELIMIT: not. */
BH_MUST_USE enum bh_status bh_bytes_status(const struct bh_bytes *bytes);

#endif
