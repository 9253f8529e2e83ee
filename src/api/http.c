/* The request parser: heads are gathered, checked byte by byte and then given to llhttp in one
   piece; bodies are streamed through it. llhttp's callbacks fill the request. */
#include "src/api/http.h"

#include <llhttp.h>
#include <stdlib.h>
#include <string.h>

#include "src/api/http_chunk.h"
#include "src/api/http_head.h"

#define BODY_MAX_MAX  ((size_t)1 << 30)
#define BODY_KEEP_MAX 65536u /* a larger body buffer is given back at reset */

struct bh_http {
    llhttp_t parser; /* first, so that callbacks find the rest */
    struct bh_http_request request;
    enum bh_status state; /* BH_AGAIN, or what the last feed ended with */
    struct bh_head_scan scan;
    struct bh_head_facts facts;
    struct bh_head_span target;
    struct bh_head_span name; /* of the header being read */
    struct bh_head_span value;
    bool complete;      /* llhttp has read the whole request */
    bool refused_route; /* fault is set, but the framing is sound: read on to the end */
    struct bh_chunk_scan chunks;
    struct bh_bytes head;
    struct bh_bytes body;
};

static struct bh_http *
owner(llhttp_t *parser)
{
    return (struct bh_http *)parser->data;
}

/* Callbacks report with -1; the fault says what. */
static int
refuse(struct bh_http *http, enum bh_error error, const char *why)
{
    bh_fault_set(&http->request.fault, error, NULL);
    if (why != NULL) {
        bh_fault_say(&http->request.fault, error, NULL, "%s", why);
    }
    return -1;
}

/* The head lies in one buffer, so the pieces of a span are neighbours. */
static void
extend(struct bh_head_span *span, const char *at, size_t len)
{
    if (span->text == NULL) {
        span->text = at;
    }
    span->len = (size_t)(at + len - span->text);
}

static int
on_url(llhttp_t *parser, const char *at, size_t len)
{
    extend(&owner(parser)->target, at, len);
    return 0;
}

static int
on_header_field(llhttp_t *parser, const char *at, size_t len)
{
    extend(&owner(parser)->name, at, len);
    return 0;
}

static int
on_header_value(llhttp_t *parser, const char *at, size_t len)
{
    extend(&owner(parser)->value, at, len);
    return 0;
}

static int
on_header_value_complete(llhttp_t *parser)
{
    struct bh_http *http = owner(parser);
    enum bh_status status =
        bh_head_header(&http->facts, http->name, http->value, &http->request.fault);
    http->name = (struct bh_head_span){0};
    http->value = (struct bh_head_span){0};
    return status == BH_OK ? 0 : -1;
}

/* What is wrong with the head as a whole; 0 or -1. */
static int
check_head(struct bh_http *http)
{
    const llhttp_t *parser = &http->parser;
    const struct bh_head_facts *facts = &http->facts;
    if (parser->http_major != 1 || parser->http_minor > 1) {
        return refuse(http, BH_ERROR_HTTP_VERSION, NULL);
    }
    if (facts->host_cnt == 0 && !http->request.http10) {
        return refuse(http, BH_ERROR_MALFORMED, "A request must have a Host header.");
    }
    if (facts->coding_cnt > 0 && (facts->length_cnt > 0 || http->request.http10)) {
        return refuse(http,
                      BH_ERROR_MALFORMED,
                      "Transfer-Encoding may not stand beside Content-Length or in HTTP/1.0.");
    }
    if (parser->content_length > http->body.max) {
        return refuse(http, BH_ERROR_BODY_TOO_LARGE, NULL);
    }
    return 0;
}

static enum bh_method
method_of(const llhttp_t *parser)
{
    return parser->method == HTTP_GET    ? BH_METHOD_GET
           : parser->method == HTTP_POST ? BH_METHOD_POST
                                         : BH_METHOD_CNT;
}

static int
on_headers_complete(llhttp_t *parser)
{
    struct bh_http *http = owner(parser);
    struct bh_http_request *request = &http->request;
    const struct bh_head_facts *facts = &http->facts;
    request->http10 = parser->http_minor == 0;
    if (check_head(http) != 0) {
        return -1;
    }
    /* Upgrade and CONNECT would make llhttp hand the connection over; this server never
       switches. */
    parser->upgrade = 0;
    bool has_body = facts->coding_cnt > 0 || parser->content_length > 0;
    /* An answer to HEAD has no body, which errors have: such a client cannot be kept in step. */
    request->keep_alive =
        !request->http10 && llhttp_should_keep_alive(parser) && parser->method != HTTP_HEAD;
    request->expect_continue = facts->expect && has_body && !request->http10;
    request->token = facts->token.text;
    request->token_len = facts->token.len;
    enum bh_status status = bh_head_route(
        method_of(parser), http->target, &request->route, &request->public, &request->fault);
    if (status == BH_OK && method_of(parser) == BH_METHOD_POST && facts->coding_cnt == 0 &&
        facts->length_cnt == 0) {
        bh_fault_set(&request->fault, BH_ERROR_LENGTH_REQUIRED, NULL);
        status = BH_EINVAL;
    }
    request->head_done = true;
    if (status != BH_OK && has_body) {
        return -1;
    }
    http->refused_route = status != BH_OK;
    return 0;
}

static int
on_body(llhttp_t *parser, const char *at, size_t len)
{
    struct bh_http *http = owner(parser);
    if (len > http->body.max - http->body.len) {
        return refuse(http, BH_ERROR_BODY_TOO_LARGE, NULL);
    }
    bh_bytes_put(&http->body, at, len);
    return bh_bytes_status(&http->body) == BH_OK ? 0 : refuse(http, BH_ERROR_INTERNAL, NULL);
}

static int
on_message_complete(llhttp_t *parser)
{
    owner(parser)->complete = true;
    return HPE_PAUSED;
}

static const llhttp_settings_t SETTINGS = {
    .on_url = on_url,
    .on_header_field = on_header_field,
    .on_header_value = on_header_value,
    .on_header_value_complete = on_header_value_complete,
    .on_headers_complete = on_headers_complete,
    .on_body = on_body,
    .on_message_complete = on_message_complete,
};

struct bh_http *
bh_http_new(size_t body_max)
{
    if (body_max == 0 || body_max > BODY_MAX_MAX) {
        return NULL;
    }
    struct bh_http *http = calloc(1, sizeof(*http));
    if (http == NULL) {
        return NULL;
    }
    bh_bytes_init(&http->head, BH_HTTP_REQUEST_LINE_MAX + BH_HTTP_HEADERS_MAX);
    bh_bytes_init(&http->body, body_max);
    bh_http_reset(http);
    return http;
}

void
bh_http_delete(struct bh_http *http)
{
    if (http != NULL) {
        bh_bytes_free(&http->head);
        bh_bytes_free(&http->body);
        free(http);
    }
}

void
bh_http_reset(struct bh_http *http)
{
    struct bh_bytes head = http->head;
    struct bh_bytes body = http->body;
    if (body.cap > BODY_KEEP_MAX) {
        bh_bytes_free(&body);
    }
    bh_bytes_clear(&head);
    bh_bytes_clear(&body);
    *http = (struct bh_http){.state = BH_AGAIN, .head = head, .body = body};
    llhttp_init(&http->parser, HTTP_REQUEST, &SETTINGS);
    http->parser.data = http;
}

const struct bh_http_request *
bh_http_request(const struct bh_http *http)
{
    return &http->request;
}

bool
bh_http_idle(const struct bh_http *http)
{
    return http->state == BH_AGAIN && http->scan.line_cnt == 0 && http->scan.line_bytes == 0;
}

/* End in refusal. The stream behind a refused request cannot be trusted, so nothing may follow. */
static enum bh_status
end_refused(struct bh_http *http)
{
    http->request.keep_alive = false;
    http->state = BH_EINVAL;
    return BH_EINVAL;
}

/* Let llhttp read data[0..len) and turn its verdict into ours. */
static enum bh_status
execute(struct bh_http *http, const char *data, size_t len, size_t *used)
{
    enum llhttp_errno verdict = llhttp_execute(&http->parser, data, len);
    *used = len;
    if (http->complete) {
        *used = (size_t)(llhttp_get_error_pos(&http->parser) - data);
        http->request.body = http->body.data;
        http->request.body_len = http->body.len;
        http->state = http->refused_route ? BH_EINVAL : BH_OK;
        return http->state;
    }
    if (verdict == HPE_OK) {
        return BH_AGAIN;
    }
    if (http->request.fault.error != BH_ERROR_NONE) {
        return end_refused(http);
    }
    if (verdict == HPE_INVALID_VERSION || verdict == HPE_PAUSED_H2_UPGRADE) {
        bh_fault_set(&http->request.fault, BH_ERROR_HTTP_VERSION, NULL);
    } else {
        const char *reason = llhttp_get_error_reason(&http->parser);
        bh_fault_say(&http->request.fault,
                     BH_ERROR_MALFORMED,
                     NULL,
                     "The request is not well-formed HTTP: %s.",
                     reason != NULL ? reason : llhttp_errno_name(verdict));
    }
    return end_refused(http);
}

/* Gather the head; when it is complete, have it parsed. */
static enum bh_status
feed_head(struct bh_http *http, const char *data, size_t len, size_t *used)
{
    size_t skip = 0;
    enum bh_status status = bh_head_scan(&http->scan, data, len, used, &skip, &http->request.fault);
    if (status != BH_OK) {
        return end_refused(http);
    }
    if (skip > 0) {
        bh_bytes_clear(&http->head);
    }
    bh_bytes_put(&http->head, data + skip, *used - skip);
    if (bh_bytes_status(&http->head) != BH_OK) {
        bh_fault_set(&http->request.fault, BH_ERROR_INTERNAL, NULL);
        return end_refused(http);
    }
    if (!http->scan.done) {
        return BH_AGAIN;
    }
    size_t parsed = 0;
    status = execute(http, http->head.data, http->head.len, &parsed);
    if (status == BH_AGAIN && !http->request.head_done) {
        /* llhttp waits for more where the head is over: the HTTP/2 preface. */
        bh_fault_set(&http->request.fault, BH_ERROR_HTTP_VERSION, NULL);
        return end_refused(http);
    }
    return status;
}

/* Give a chunked body to llhttp after the check. What stands before the first byte that the check
   refuses is parsed all the same, so that the verdict does not depend on how the stream was cut. */
static enum bh_status
feed_chunks(struct bh_http *http, const char *data, size_t len, size_t *used)
{
    struct bh_fault fault;
    size_t good = 0;
    enum bh_status checked = bh_chunk_scan(&http->chunks, data, len, http->body.max, &good, &fault);
    enum bh_status status = execute(http, data, checked == BH_OK ? len : good, used);
    if (status != BH_AGAIN) {
        return status;
    }
    if (checked != BH_OK) {
        http->request.fault = fault;
        return end_refused(http);
    }
    if (http->chunks.place == BH_CHUNK_DONE) {
        bh_fault_say(&http->request.fault,
                     BH_ERROR_MALFORMED,
                     NULL,
                     "The end of the chunked body is ambiguous.");
        return end_refused(http);
    }
    return BH_AGAIN;
}

enum bh_status
bh_http_feed(struct bh_http *http, const char *data, size_t len, size_t *consumed)
{
    *consumed = 0;
    if (http->state != BH_AGAIN) {
        return http->state;
    }
    if (!http->scan.done) {
        enum bh_status status = feed_head(http, data, len, consumed);
        if (status != BH_AGAIN) {
            return status;
        }
    }
    size_t left = len - *consumed;
    if (left == 0) {
        return BH_AGAIN;
    }
    size_t used = 0;
    const char *body = data + *consumed;
    enum bh_status status = http->facts.coding_cnt > 0 ? feed_chunks(http, body, left, &used)
                                                       : execute(http, body, left, &used);
    *consumed += used;
    return status;
}
