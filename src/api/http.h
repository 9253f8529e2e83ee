/* One HTTP/1.1 request out of a stream of bytes that arrive in any pieces. llhttp, in its strict
   mode, is the parser; this file adds the limits, the routes, and the refusal of everything that
   two parsers could read differently (request smuggling). Reads no socket and knows no clock. */
#ifndef BH_API_HTTP_H
#define BH_API_HTTP_H

#include "src/api/errors.h"

#define BH_HTTP_REQUEST_LINE_MAX 8192u  /* bytes with its CRLF; more: 414 */
#define BH_HTTP_HEADERS_MAX      16384u /* bytes of the headers and the empty line; more: 431 */
#define BH_HTTP_HEADER_CNT_MAX   100u   /* more: 431 */
#define BH_HTTP_BODY_MAX         (16u << 20) /* default of body_max; more: 413 */
#define BH_HTTP_EXTENSIONS_MAX   4096u /* bytes of all chunk extensions of a body; more: 400 */

enum bh_method { BH_METHOD_GET, BH_METHOD_POST, BH_METHOD_CNT };

enum bh_route {
    BH_ROUTE_NONE = 0,
#define BH_ROUTE_DEF(method, path, handler, access) BH_ROUTE_##handler,
#include "src/api/routes.def"
#undef BH_ROUTE_DEF
    BH_ROUTE_CNT
};

/* What is known of the request. Pointers live until the next bh_http_reset or bh_http_delete. */
struct bh_http_request {
    enum bh_route route;
    bool public;          /* the route needs no API key */
    bool head_done;       /* line and headers are complete; all fields but the body are final */
    bool keep_alive;      /* another request may follow on this connection */
    bool expect_continue; /* the client waits for "100 Continue" before it sends the body */
    bool http10;          /* HTTP/1.0: the answer may not be chunked; keep_alive is false */
    const char *token;    /* of "Authorization: Bearer"; NULL if absent */
    size_t token_len;
    const char *body; /* complete when feed returned BH_OK */
    size_t body_len;
    struct bh_fault fault; /* when feed returned BH_EINVAL */
};

struct bh_http; /* one connection's parser */

/* bh_http_new - a parser whose bodies may have body_max bytes (1..1 GiB). NULL: no memory or a
   body_max outside its range. */
struct bh_http *bh_http_new(size_t body_max);

/* bh_http_delete - release everything; NULL is allowed. */
void bh_http_delete(struct bh_http *http);

/* bh_http_reset - forget the request and be ready for the next one of the connection. */
void bh_http_reset(struct bh_http *http);

/* bh_http_request - what is known so far. Never NULL; the same pointer for the parser's life. */
const struct bh_http_request *bh_http_request(const struct bh_http *http);

/* bh_http_idle - true while no byte of a request has arrived since new or reset: an end of the
   stream or a timeout now is no error. */
bool bh_http_idle(const struct bh_http *http);

/* bh_http_feed - read data[0..len). *consumed (always set) is how much of it was used: all with
   BH_AGAIN, up to the end of the request with BH_OK; the rest belongs to the next request and
   must be fed again after bh_http_reset.
   BH_AGAIN   the request is not complete
   BH_OK      the request is complete
   BH_EINVAL  refused: `fault` says why. If keep_alive is true the request was complete and the
              connection may go on after the answer and a reset, else it must be closed after the
              answer.
   After BH_OK or BH_EINVAL the next call must be bh_http_reset or bh_http_delete; a feed instead
   uses nothing and returns the same status. */
BH_MUST_USE enum bh_status
bh_http_feed(struct bh_http *http, const char *data, size_t len, size_t *consumed);

#endif
