/* What the request parser knows about heads apart from llhttp: the check of the raw bytes that runs
   before llhttp sees them, the meaning of single headers, and the route table. For http.c only. */
#ifndef BH_API_HTTP_HEAD_H
#define BH_API_HTTP_HEAD_H

#include "src/api/http.h"

#define BH_HTTP_BLANK_LINES_MAX                                                                    \
    4u /* empty lines skipped before a request, as RFC 9112 2.2 advises */

/* A run of bytes of the head. */
struct bh_head_span {
    const char *text;
    size_t len;
};

/* Where the raw check stands. Zero is the start of a request. */
struct bh_head_scan {
    uint32_t blank_cnt;  /* empty lines before the request line */
    uint32_t line_cnt;   /* complete lines, the request line first */
    uint32_t line_bytes; /* of the open line */
    uint32_t blanks;     /* in the request line, which has two */
    uint32_t bytes;      /* of the header lines */
    char last;           /* the byte before */
    bool done;           /* the empty line after the headers was read */
};

/* bh_head_scan - check data[0..len) until the head is complete. *used is how many bytes belong to
   the head or to skipped empty lines; *skip is how many of them, from the front, are empty lines
   before the request and must not be kept. Refuses bare CR, bare LF, control bytes, folded lines,
   and what is above the limits: different parsers read those differently.
   BH_OK      `done` says whether the head is complete
   BH_EINVAL  *fault says why */
BH_MUST_USE enum bh_status bh_head_scan(struct bh_head_scan *scan,
                                        const char *data,
                                        size_t len,
                                        size_t *used,
                                        size_t *skip,
                                        struct bh_fault *fault);

/* What the headers say, gathered one by one. Zero is the start. */
struct bh_head_facts {
    uint32_t host_cnt;
    uint32_t length_cnt;
    uint32_t coding_cnt;
    uint32_t token_cnt;
    bool expect;
    struct bh_head_span token;
};

/* bh_head_header - note one header; value is trimmed here. BH_OK, or BH_EINVAL with *fault. */
BH_MUST_USE enum bh_status bh_head_header(struct bh_head_facts *facts,
                                          struct bh_head_span name,
                                          struct bh_head_span value,
                                          struct bh_fault *fault);

/* bh_head_route - find the route of a request target (origin or absolute form; a query is ignored).
   method is a bit number of enum bh_method, or BH_METHOD_CNT for any other method.
   BH_OK, or BH_EINVAL with *fault NOT_FOUND or METHOD_NOT_ALLOWED. */
BH_MUST_USE enum bh_status bh_head_route(enum bh_method method,
                                         struct bh_head_span target,
                                         enum bh_route *route,
                                         bool *public,
                                         struct bh_fault *fault);

#endif
