/* The check of a chunked body's framing, byte by byte, before llhttp decodes it: parsers are
   known to differ on what ends a line and on what may stand around a size. For http.c only. */
#ifndef BH_API_HTTP_CHUNK_H
#define BH_API_HTTP_CHUNK_H

#include "src/api/http.h"

#define BH_CHUNK_DIGITS_MAX 8u /* of a size; more, zeros included: 400 */

enum bh_chunk_place {
    BH_CHUNK_SIZE = 0,
    BH_CHUNK_EXTENSION,
    BH_CHUNK_SIZE_LF,
    BH_CHUNK_DATA,
    BH_CHUNK_DATA_CR,
    BH_CHUNK_DATA_LF,
    BH_CHUNK_END_CR,
    BH_CHUNK_END_LF,
    BH_CHUNK_DONE,
};

/* Where the check stands. Zero is the start of a body. */
struct bh_chunk_scan {
    enum bh_chunk_place place;
    uint32_t digit_cnt;
    uint32_t extension_bytes; /* of all chunks */
    uint64_t left;            /* bytes of the chunk's data still to come */
    uint64_t body_bytes;      /* data of all chunks, the open one included */
};

/* bh_chunk_scan - check data[0..len) up to the end of the body. Accepts sizes of plain hexadecimal
   digits, extensions (bounded), CRLF and nothing else as the end of a line, and no trailers.
   BH_OK      so far so good
   BH_EINVAL  at data[*good]; *fault: MALFORMED, or BODY_TOO_LARGE when the sizes add up to more than body_max */
BH_MUST_USE enum bh_status bh_chunk_scan(struct bh_chunk_scan *scan,
                                         const char *data,
                                         size_t len,
                                         uint64_t body_max,
                                         size_t *good,
                                         struct bh_fault *fault);

#endif
