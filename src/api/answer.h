/* Answers as bytes: HTTP heads, whole JSON bodies, and the events of a stream. A pure function of
   its arguments, so that a successor of a dead writer makes the same bytes again. Every function
   appends to `out`; whether it all fitted is asked once, with bh_bytes_status. Text must be whole
   code points: the caller holds back the bytes of an unfinished one. */
#ifndef BH_API_ANSWER_H
#define BH_API_ANSWER_H

#include "shm/record.h"
#include "src/api/errors.h"

/* ---- heads ------------------------------------------------------------------------------- */

enum bh_head_flag {
    BH_HEAD_CLOSE = 1u << 0,   /* "Connection: close": nothing follows this answer */
    BH_HEAD_CHUNKED = 1u << 1, /* streams: Transfer-Encoding: chunked; not for HTTP/1.0 */
};

/* bh_head_continue - "HTTP/1.1 100 Continue". */
void bh_head_continue(struct bh_bytes *out);

/* bh_head_stream - 200, text/event-stream, no-cache. Without CHUNKED the stream ends with the
   connection, so CLOSE is implied. */
void bh_head_stream(struct bh_bytes *out, uint32_t flags);

/* bh_answer_json, bh_answer_text - a whole answer: head with Content-Length, then body. JSON, or
   Prometheus text. Retry-After and the like are bh_answer_fault's. */
void
bh_answer_json(struct bh_bytes *out, uint32_t status, const struct bh_bytes *body, uint32_t flags);
void
bh_answer_text(struct bh_bytes *out, uint32_t status, const struct bh_bytes *body, uint32_t flags);

/* bh_answer_fault - a whole error answer with its status, Retry-After, Allow and
   WWW-Authenticate. */
void bh_answer_fault(struct bh_bytes *out, const struct bh_fault *fault, uint32_t flags);

/* bh_chunk_begin, bh_chunk_end - put one HTTP chunk around what is appended between them; begin's
   result is end's argument. Nothing appended: nothing is left, since an empty chunk would end the
   body. bh_chunk_last - the empty chunk that ends the body. */
BH_MUST_USE size_t bh_chunk_begin(struct bh_bytes *out);
void bh_chunk_end(struct bh_bytes *out, size_t begin);
void bh_chunk_last(struct bh_bytes *out);

/* ---- completions ------------------------------------------------------------------------- */

/* Facts that are the same in every part of an answer. */
struct bh_answer {
    bool chat;          /* chat.completion shapes, else text_completion */
    bool include_usage; /* streams: a last event with usage, the others carry usage null */
    uint64_t id[2];
    uint64_t created_s;
    const char *model;
};

/* An alternative of one position. Token text is any bytes: a token may hold part of a code
   point. */
struct bh_answer_top {
    uint32_t token;
    float logprob;
    const char *text;
    size_t text_len;
};

/* One token of the answer with its log-probability. */
struct bh_answer_token {
    uint32_t token;
    float logprob;
    bool has_logprob; /* false: null; the first token of an echoed prompt has none */
    uint32_t top_cnt;
    const struct bh_answer_top *top;
    const char *text;
    size_t text_len;
};

/* One choice, whole or the part of it that one event carries. */
struct bh_answer_choice {
    uint32_t index;
    enum bh_finish finish;
    const char *text;
    size_t text_len;
    bool logprobs; /* false: "logprobs": null */
    const struct bh_answer_token *tokens;
    uint32_t token_cnt;
    uint64_t text_offset; /* completions: code points of the choice's text before tokens[0] */
};

struct bh_answer_usage {
    uint64_t prompt_tokens; /* each prompt once */
    uint64_t completion_tokens;
    uint64_t cached_tokens;
};

/* bh_text_chars - code points that begin in text[0..len): what to add to text_offset after it. */
uint64_t bh_text_chars(const char *text, size_t len);

/* bh_answer_body - the JSON of a whole answer. */
void bh_answer_body(struct bh_bytes *out,
                    const struct bh_answer *answer,
                    const struct bh_answer_choice *choices,
                    uint32_t choice_cnt,
                    const struct bh_answer_usage *usage);

/* Events of a stream, without HTTP chunks around them. For each choice: first (chat only writes
   one: the role), text as often as wanted, last (an empty delta and the reason). Then usage
   (writes nothing unless include_usage) and done. After bh_event_fault nothing follows, not even
   done. */
void bh_event_first(struct bh_bytes *out, const struct bh_answer *answer, uint32_t index);
void bh_event_text(struct bh_bytes *out,
                   const struct bh_answer *answer,
                   const struct bh_answer_choice *choice);
void bh_event_last(struct bh_bytes *out,
                   const struct bh_answer *answer,
                   uint32_t index,
                   enum bh_finish finish);
void bh_event_usage(struct bh_bytes *out,
                    const struct bh_answer *answer,
                    const struct bh_answer_usage *usage);
void bh_event_done(struct bh_bytes *out);
void bh_event_fault(struct bh_bytes *out, const struct bh_fault *fault);

/* bh_event_ping - a comment that keeps proxies from closing a silent stream. */
void bh_event_ping(struct bh_bytes *out);

#endif
