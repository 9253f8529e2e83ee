/* The request parser: what a request says, where it ends, and everything that is refused, each in
   one piece and byte by byte. Expected results are written out by hand from RFC 9112. */
#include "src/api/http.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BODY_MAX 64u
#define HOST     "Host: h\r\n"

/* Feed text in pieces of `step` bytes until the parser has decided; *used is what it took. */
static enum bh_status
feed(struct bh_http *http, const char *text, size_t len, size_t step, size_t *used)
{
    enum bh_status status = BH_AGAIN;
    *used = 0;
    while (status == BH_AGAIN && *used < len) {
        size_t piece = len - *used < step ? len - *used : step;
        size_t consumed = 0;
        /* A copy of exact size, so that a sanitizer sees reads beyond the piece. */
        char *copy = malloc(piece);
        memcpy(copy, text + *used, piece);
        status = bh_http_feed(http, copy, piece, &consumed);
        free(copy);
        cr_assert(consumed <= piece);
        cr_assert(status != BH_AGAIN || consumed == piece);
        *used += consumed;
    }
    return status;
}

static struct bh_http *
parser(void)
{
    struct bh_http *http = bh_http_new(BODY_MAX);
    cr_assert(http != NULL);
    return http;
}

/* The text must be refused with this error, however it is cut. */
static void
refused(const char *text, enum bh_error error)
{
    static const size_t STEPS[] = {1, 2, 7, 100000};
    for (size_t i = 0; i < BH_COUNT(STEPS); i++) {
        struct bh_http *http = parser();
        size_t used = 0;
        enum bh_status status = feed(http, text, strlen(text), STEPS[i], &used);
        const struct bh_http_request *request = bh_http_request(http);
        cr_assert(status == BH_EINVAL, "status %d, step %zu: %s", status, STEPS[i], text);
        cr_expect(request->fault.error == error,
                  "error %s, not %s (%s): %s",
                  bh_error_info(request->fault.error)->code,
                  bh_error_info(error)->code,
                  request->fault.detail,
                  text);
        size_t more = 9;
        cr_expect(bh_http_feed(http, "x", 1, &more) == BH_EINVAL && more == 0);
        bh_http_delete(http);
    }
}

/* Refused, and the connection must end. */
static void
broken(const char *text, enum bh_error error)
{
    refused(text, error);
    struct bh_http *http = parser();
    size_t used = 0;
    cr_expect(feed(http, text, strlen(text), 1000000, &used) == BH_EINVAL);
    cr_expect(!bh_http_request(http)->keep_alive, "%s", text);
    bh_http_delete(http);
}

struct want {
    enum bh_route route;
    const char *body;
    const char *rest; /* what must be left over */
    bool close;
};

static void
accepted(const char *text, struct want want)
{
    size_t len = strlen(text);
    for (size_t step = 1; step <= len; step += step < 12 ? 1 : len / 3) {
        struct bh_http *http = parser();
        size_t used = 0;
        enum bh_status status = feed(http, text, len, step, &used);
        const struct bh_http_request *request = bh_http_request(http);
        cr_assert(status == BH_OK,
                  "status %d, step %zu, %s: %s",
                  status,
                  step,
                  request->fault.detail,
                  text);
        cr_expect(request->route == want.route);
        cr_expect(request->head_done);
        cr_expect(request->keep_alive == !want.close, "%s", text);
        cr_expect(request->body_len == strlen(want.body));
        cr_expect(request->body_len == 0 ||
                  memcmp(request->body, want.body, request->body_len) == 0);
        cr_expect(
            len - used == strlen(want.rest), "step %zu leaves %zu: %s", step, len - used, text);
        size_t more = 9;
        cr_expect(bh_http_feed(http, "x", 1, &more) == BH_OK && more == 0);
        bh_http_delete(http);
    }
}

Test(http, routes)
{
    static const struct {
        const char *line;
        enum bh_route route;
        bool public;
    } CASES[] = {
        {"GET /health", BH_ROUTE_HEALTH, true},
        {"GET /live", BH_ROUTE_LIVE, true},
        {"GET /metrics", BH_ROUTE_METRICS, false},
        {"GET /v1/models", BH_ROUTE_MODELS, false},
        {"GET /v1/models?x=1#y", BH_ROUTE_MODELS, false},
        {"GET http://example.com:80/v1/models?x", BH_ROUTE_MODELS, false},
        {"POST /v1/chat/completions", BH_ROUTE_CHAT, false},
        {"POST /v1/completions", BH_ROUTE_COMPLETIONS, false},
        {"POST /tokenize", BH_ROUTE_TOKENIZE, false},
        {"POST /detokenize", BH_ROUTE_DETOKENIZE, false},
        {"POST /apply-template", BH_ROUTE_APPLY_TEMPLATE, false},
    };
    for (size_t i = 0; i < BH_COUNT(CASES); i++) {
        char text[256];
        snprintf(
            text, sizeof(text), "%s HTTP/1.1\r\n" HOST "Content-Length: 0\r\n\r\n", CASES[i].line);
        struct want want = {.route = CASES[i].route, .body = "", .rest = ""};
        accepted(text, want);
        struct bh_http *http = parser();
        size_t used = 0;
        cr_expect(feed(http, text, strlen(text), 4096, &used) == BH_OK);
        cr_expect(bh_http_request(http)->public == CASES[i].public);
        bh_http_delete(http);
    }
}

Test(http, bodies_and_pipelining)
{
    struct want post = {.route = BH_ROUTE_TOKENIZE, .body = "{\"a\":1}", .rest = ""};
    accepted("POST /tokenize HTTP/1.1\r\n" HOST "Content-Length: 7\r\n\r\n{\"a\":1}", post);
    accepted("POST /tokenize HTTP/1.1\r\n" HOST "CONTENT-length:\t7 \r\n\r\n{\"a\":1}", post);
    accepted("\r\n\r\nPOST /tokenize HTTP/1.1\r\n" HOST "Content-Length: 7\r\n\r\n{\"a\":1}", post);
    accepted("POST /tokenize HTTP/1.1\r\n" HOST "Transfer-Encoding: chunked\r\n\r\n"
             "3\r\n{\"a\r\n4\r\n\":1}\r\n0\r\n\r\n",
             post);
    accepted("POST /tokenize HTTP/1.1\r\n" HOST "transfer-encoding: Chunked\r\n\r\n"
             "003;ext=1\r\n{\"a\r\n4\r\n\":1}\r\n0\r\n\r\n",
             post);
    accepted("POST /tokenize HTTP/1.1\r\n" HOST
             "Content-Encoding: identity\r\nContent-Length: 7\r\n\r\n{\"a\":1}",
             post);
    accepted(
        "POST /tokenize HTTP/1.1\r\n" HOST
        "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nContent-Length: 7\r\n\r\n{\"a\":1}",
        post);
    post.close = true;
    accepted("POST /tokenize HTTP/1.1\r\n" HOST
             "Connection: close\r\nContent-Length: 7\r\n\r\n{\"a\":1}",
             post);
    accepted(
        "POST /tokenize HTTP/1.0\r\nConnection: keep-alive\r\nContent-Length: 7\r\n\r\n{\"a\":1}",
        post);
    struct want next = {.route = BH_ROUTE_TOKENIZE, .body = "{\"a\":1}", .rest = "GET /health"};
    accepted("POST /tokenize HTTP/1.1\r\n" HOST "Content-Length: 7\r\n\r\n{\"a\":1}GET /health",
             next);
    accepted("POST /tokenize HTTP/1.1\r\n" HOST "Transfer-Encoding: chunked\r\n\r\n"
             "7\r\n{\"a\":1}\r\n0\r\n\r\nGET /health",
             next);
    next.close = true;
    accepted("POST /tokenize HTTP/1.1\r\n" HOST
             "Connection: close\r\nContent-Length: 7\r\n\r\n{\"a\":1}GET /health",
             next);
    struct want get = {.route = BH_ROUTE_HEALTH, .body = "", .rest = "GET /live"};
    accepted("GET /health HTTP/1.1\r\n" HOST "\r\nGET /live", get);
    accepted("GET /health HTTP/1.1\r\n" HOST "Connection: Upgrade\r\nUpgrade: h2c\r\n\r\nGET /live",
             get);
}

Test(http, one_parser_many_requests)
{
    static const char TEXT[] = "POST /tokenize HTTP/1.1\r\n" HOST "Content-Length: 2\r\n\r\n{}"
                               "GET /health HTTP/1.1\r\n" HOST "\r\n"
                               "GET /nowhere HTTP/1.1\r\n" HOST "\r\n"
                               "GET /live HTTP/1.1\r\n" HOST "\r\n";
    struct bh_http *http = parser();
    static const enum bh_route ROUTES[] = {
        BH_ROUTE_TOKENIZE, BH_ROUTE_HEALTH, BH_ROUTE_NONE, BH_ROUTE_LIVE};
    size_t at = 0;
    for (size_t i = 0; i < BH_COUNT(ROUTES); i++) {
        size_t used = 0;
        cr_expect(bh_http_idle(http));
        enum bh_status status = feed(http, TEXT + at, sizeof(TEXT) - 1 - at, 1000, &used);
        cr_expect(status == (ROUTES[i] == BH_ROUTE_NONE ? BH_EINVAL : BH_OK));
        cr_expect(bh_http_request(http)->route == ROUTES[i]);
        cr_expect(bh_http_request(http)->keep_alive);
        cr_expect(!bh_http_idle(http));
        at += used;
        bh_http_reset(http);
    }
    cr_expect(at == sizeof(TEXT) - 1);
    size_t used = 0;
    cr_expect(bh_http_feed(http, "\r\n", 2, &used) == BH_AGAIN && bh_http_idle(http));
    cr_expect(bh_http_feed(http, "G", 1, &used) == BH_AGAIN && !bh_http_idle(http));
    bh_http_delete(http);
}

Test(http, token_and_expectation)
{
    static const char HEAD[] =
        "POST /tokenize HTTP/1.1\r\n" HOST "authorization: bearer  sk-1.a~ \r\n"
        "Expect: 100-continue\r\nContent-Length: 2\r\n\r\n";
    struct bh_http *http = parser();
    size_t used = 0;
    cr_expect(feed(http, HEAD, sizeof(HEAD) - 1, 5, &used) == BH_AGAIN);
    const struct bh_http_request *request = bh_http_request(http);
    cr_expect(request->head_done && request->expect_continue && !request->http10);
    cr_assert(request->token_len == 7 && memcmp(request->token, "sk-1.a~", 7) == 0);
    cr_expect(feed(http, "{}", 2, 1, &used) == BH_OK);
    bh_http_delete(http);

    http = parser();
    static const char OTHER[] =
        "GET /health HTTP/1.0\r\nAuthorization: Basic YTpi\r\nExpect: 100-continue\r\n\r\n";
    cr_expect(feed(http, OTHER, sizeof(OTHER) - 1, 100, &used) == BH_OK);
    request = bh_http_request(http);
    cr_expect(request->token == NULL && !request->expect_continue && request->http10);
    bh_http_delete(http);
}

Test(http, errors)
{
    refused("GET /nowhere HTTP/1.1\r\n" HOST "\r\n", BH_ERROR_NOT_FOUND);
    refused("GET /health/ HTTP/1.1\r\n" HOST "\r\n", BH_ERROR_NOT_FOUND);
    refused("GET /%68ealth HTTP/1.1\r\n" HOST "\r\n", BH_ERROR_NOT_FOUND);
    refused("OPTIONS * HTTP/1.1\r\n" HOST "\r\n", BH_ERROR_NOT_FOUND);
    refused("CONNECT h:80 HTTP/1.1\r\n" HOST "\r\n", BH_ERROR_NOT_FOUND);
    refused("GET /tokenize HTTP/1.1\r\n" HOST "\r\n", BH_ERROR_METHOD_NOT_ALLOWED);
    refused("DELETE /health HTTP/1.1\r\n" HOST "\r\n", BH_ERROR_METHOD_NOT_ALLOWED);
    broken("HEAD /health HTTP/1.1\r\n" HOST "\r\n", BH_ERROR_METHOD_NOT_ALLOWED);
    broken("POST /health HTTP/1.1\r\n" HOST "Content-Length: 5\r\n\r\nhello",
           BH_ERROR_METHOD_NOT_ALLOWED);
    refused("POST /tokenize HTTP/1.1\r\n" HOST "\r\n", BH_ERROR_LENGTH_REQUIRED);
    broken("POST /tokenize HTTP/1.1\r\n" HOST "Expect: 200-ok\r\nContent-Length: 1\r\n\r\nx",
           BH_ERROR_EXPECTATION_FAILED);
    broken("POST /tokenize HTTP/1.1\r\n" HOST
           "Content-Encoding: gzip\r\nContent-Length: 1\r\n\r\nx",
           BH_ERROR_MEDIA_TYPE);
    broken("GET /health HTTP/2.0\r\n" HOST "\r\n", BH_ERROR_HTTP_VERSION);
    broken("GET /health HTTP/1.2\r\n" HOST "\r\n", BH_ERROR_HTTP_VERSION);
    broken("GET /health HTTP/0.9\r\n\r\n", BH_ERROR_HTTP_VERSION);
    broken("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", BH_ERROR_HTTP_VERSION);
    struct bh_http *http = parser();
    size_t used = 0;
    static const char PUT[] = "PUT /tokenize HTTP/1.1\r\n" HOST "\r\n";
    cr_expect(feed(http, PUT, sizeof(PUT) - 1, 100, &used) == BH_EINVAL);
    cr_expect(bh_http_request(http)->fault.allow == 1u << BH_METHOD_POST);
    cr_expect(bh_http_request(http)->keep_alive);
    bh_http_delete(http);
    cr_expect(bh_http_new(0) == NULL);
    cr_expect(bh_http_new(SIZE_MAX) == NULL);
}

Test(http, malformed)
{
    static const char *const CASES[] = {
        "GARBAGE\r\n\r\n",
        "\x16\x03\x01\x02",
        "GET  /health HTTP/1.1\r\n" HOST "\r\n",
        "GET /health\r\n\r\n",
        "GET /health HTTP/1.1\r\n\r\n",
        "GET /health HTTP/1.1\r\n" HOST HOST "\r\n",
        "GET /health HTTP/1.1\n" HOST "\r\n",
        "GET /health HTTP/1.1\r\nHost: h\n\r\n",
        "GET /health HTTP/1.1\r\nHost: h\rX: y\r\n\r\n",
        "GET /health HTTP/1.1\r\n" HOST "\rX\r\n",
        "GET /health HTTP/1.1\r\n Host: h\r\n\r\n",
        "GET /health HTTP/1.1\r\n" HOST "X: a\r\n b\r\n\r\n",
        "GET /health HTTP/1.1\r\n" HOST "X : a\r\n\r\n",
        "GET /health HTTP/1.1\r\n" HOST ": a\r\n\r\n",
        "GET /health HTTP/1.1\r\n" HOST "no colon\r\n\r\n",
        "GET /health HTTP/1.1\r\n" HOST "X: \x01\r\n\r\n",
        "GET /health HTTP/1.1\r\n" HOST "X: \x7f\r\n\r\n",
        "GET /hea\tlth HTTP/1.1\r\n" HOST "\r\n",
        "GET /h\xc3\xa9 HTTP/1.1\r\n" HOST "\r\n",
        "GET /health HTTP/1.1\r\n" HOST
        "Authorization: Bearer a\r\nAuthorization: Bearer b\r\n\r\n",
        "\r\n\r\n\r\n\r\n\r\nGET /health HTTP/1.1\r\n" HOST "\r\n",
    };
    for (size_t i = 0; i < BH_COUNT(CASES); i++) {
        broken(CASES[i], BH_ERROR_MALFORMED);
    }
}

/* Requests that two parsers could cut at different places: all refused, none left open. */
Test(http, smuggling)
{
#define LENGTHS(text)                                                                              \
    "POST /tokenize HTTP/1.1\r\n" HOST text "\r\n0\r\n\r\nGET /health HTTP/1.1\r\n" HOST "\r\n"
    static const char *const MALFORMED[] = {
        LENGTHS("Content-Length: 5\r\nTransfer-Encoding: chunked\r\n"),
        LENGTHS("Transfer-Encoding: chunked\r\nContent-Length: 5\r\n"),
        LENGTHS("Content-Length: 5\r\nContent-Length: 5\r\n"),
        LENGTHS("Content-Length: 5\r\nContent-Length: 6\r\n"),
        LENGTHS("Content-Length: 5, 5\r\n"),
        LENGTHS("Content-Length: +5\r\n"),
        LENGTHS("Content-Length: -5\r\n"),
        LENGTHS("Content-Length: 0x5\r\n"),
        LENGTHS("Content-Length: 5 5\r\n"),
        LENGTHS("Content-Length: 5e0\r\n"),
        LENGTHS("Content-Length:\r\n"),
        LENGTHS("Content-Length: 99999999999999999999\r\n"),
        LENGTHS("Content-Length : 5\r\n"),
        LENGTHS("Content-Length\t: 5\r\n"),
        LENGTHS("Content-Length: 5\r\n Transfer-Encoding: chunked\r\n"),
        LENGTHS("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n"),
        LENGTHS("Transfer-Encoding : chunked\r\n"),
        LENGTHS("Transfer-Encoding\r\n : chunked\r\n"),
        LENGTHS("Transfer-Encoding: chunked\nContent-Length: 5\r\n"),
        LENGTHS("Transfer-Encoding: \x0b"
                "chunked\r\n"),
        LENGTHS("X: y\rTransfer-Encoding: chunked\r\n"),
        "POST /tokenize HTTP/1.0\r\n" HOST "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    };
    for (size_t i = 0; i < BH_COUNT(MALFORMED); i++) {
        broken(MALFORMED[i], BH_ERROR_MALFORMED);
    }
    static const char *const CODINGS[] = {"gzip, chunked",
                                          "chunked, identity",
                                          "chunked, gzip",
                                          "xchunked",
                                          "chunked;q=1",
                                          "identity",
                                          "\"chunked\"",
                                          "chunked,",
                                          ""};
    for (size_t i = 0; i < BH_COUNT(CODINGS); i++) {
        char text[256];
        snprintf(text, sizeof(text), LENGTHS("Transfer-Encoding: %s\r\n"), CODINGS[i]);
        struct bh_http *http = parser();
        size_t used = 0;
        cr_expect(feed(http, text, strlen(text), 1, &used) == BH_EINVAL, "%s", CODINGS[i]);
        uint32_t error = bh_http_request(http)->fault.error;
        cr_expect(
            error == BH_ERROR_TRANSFER_CODING || error == BH_ERROR_MALFORMED, "%s", CODINGS[i]);
        cr_expect(!bh_http_request(http)->keep_alive);
        bh_http_delete(http);
    }
}

Test(http, chunk_framing)
{
#define CHUNKED "POST /tokenize HTTP/1.1\r\n" HOST "Transfer-Encoding: chunked\r\n\r\n"
    static const char *const CASES[] = {
        CHUNKED "x\r\n",
        CHUNKED "-1\r\n",
        CHUNKED "0x3\r\nabc\r\n0\r\n\r\n",
        CHUNKED "3 \r\nabc\r\n0\r\n\r\n",
        CHUNKED " 3\r\nabc\r\n0\r\n\r\n",
        CHUNKED "3\nabc\r\n0\r\n\r\n",
        CHUNKED "3\rabc\r\n0\r\n\r\n",
        CHUNKED "3\r\r\nabc\r\n0\r\n\r\n",
        CHUNKED "3;a=1\nabc\r\n0\r\n\r\n",
        CHUNKED "3;a\r0\r\n\r\n",
        CHUNKED "3\r\nabc0\r\n\r\n",
        CHUNKED "3\r\nabcd\r\n0\r\n\r\n",
        CHUNKED "3\r\nabc\n0\r\n\r\n",
        CHUNKED "\r\n\r\n",
        CHUNKED "0\r\nX: trailer\r\n\r\n",
        CHUNKED "0\r\nContent-Length: 5\r\n\r\n",
        CHUNKED "0\n\r\n",
        CHUNKED "0\r\n\n",
        CHUNKED "0\r\rX",
        CHUNKED "fffffffffffffffff\r\n",
    };
    for (size_t i = 0; i < BH_COUNT(CASES); i++) {
        broken(CASES[i], BH_ERROR_MALFORMED);
    }
}

/* head, then `fill` repeated until len bytes, then tail; freed by the caller. */
static char *
build(const char *head, char fill, size_t fill_cnt, const char *tail)
{
    size_t head_len = strlen(head);
    char *text = malloc(head_len + fill_cnt + strlen(tail) + 1);
    memcpy(text, head, head_len);
    memset(text + head_len, fill, fill_cnt);
    memcpy(text + head_len + fill_cnt, tail, strlen(tail) + 1);
    return text;
}

static void
at_limit(const char *head, char fill, size_t fits, const char *tail, enum bh_error error)
{
    for (size_t over = 0; over < 2; over++) {
        char *text = build(head, fill, fits + over, tail);
        struct bh_http *http = parser();
        size_t used = 0;
        enum bh_status status = feed(http, text, strlen(text), 4096, &used);
        uint32_t got = bh_http_request(http)->fault.error;
        cr_expect(status == (over == 0 ? BH_OK : BH_EINVAL), "%s over %zu: %d", head, over, status);
        cr_expect(got == (over == 0 ? BH_ERROR_NONE : error), "%s over %zu: %u", head, over, got);
        bh_http_delete(http);
        free(text);
    }
}

Test(http, limits)
{
    static const char LINE[] = "GET /health? HTTP/1.1\r\n";
    at_limit("GET /health?",
             'q',
             BH_HTTP_REQUEST_LINE_MAX - (sizeof(LINE) - 1),
             " HTTP/1.1\r\n" HOST "\r\n",
             BH_ERROR_URI_TOO_LONG);
    at_limit("GET /health HTTP/1.1\r\n" HOST "X: ",
             'v',
             BH_HTTP_HEADERS_MAX - 9 - 3 - 4,
             "\r\n\r\n",
             BH_ERROR_HEADERS_TOO_LARGE);
    refused("POST /tokenize HTTP/1.1\r\n" HOST "Content-Length: 65\r\n\r\n",
            BH_ERROR_BODY_TOO_LARGE);
    at_limit("POST /tokenize HTTP/1.1\r\n" HOST "Transfer-Encoding: chunked\r\n\r\n40\r\n",
             'b',
             64,
             "\r\n0\r\n\r\n",
             BH_ERROR_MALFORMED);
    refused(CHUNKED "41\r\n", BH_ERROR_BODY_TOO_LARGE);
    refused(CHUNKED "3\r\nabc\r\n3e\r\n", BH_ERROR_BODY_TOO_LARGE);
    refused(CHUNKED "ffffffff\r\n", BH_ERROR_BODY_TOO_LARGE);
    refused(CHUNKED "000000001\r\nx\r\n0\r\n\r\n", BH_ERROR_MALFORMED);
    at_limit(CHUNKED "1;", 'e', BH_HTTP_EXTENSIONS_MAX, "\r\nx\r\n0\r\n\r\n", BH_ERROR_MALFORMED);
    struct bh_bytes head;
    for (uint32_t over = 0; over < 2; over++) {
        bh_bytes_init(&head, 65536);
        bh_bytes_text(&head, "GET /health HTTP/1.1\r\n" HOST);
        for (uint32_t i = 1; i < BH_HTTP_HEADER_CNT_MAX + over; i++) {
            bh_bytes_format(&head, "X-%u: y\r\n", i);
        }
        bh_bytes_text(&head, "\r\n");
        bh_bytes_put(&head, "", 1);
        if (over == 1) {
            refused(head.data, BH_ERROR_HEADERS_TOO_LARGE);
        } else {
            struct want want = {.route = BH_ROUTE_HEALTH, .body = "", .rest = ""};
            accepted(head.data, want);
        }
        bh_bytes_free(&head);
    }
}
