/* HTTP heads, whole answers, and the chunks that a stream is cut into. */
#include "src/api/answer.h"

#include <string.h>

#include "src/api/http.h"

#define CHUNK_SIZE_ROOM 18u /* 16 hexadecimal digits, CR, LF */
#define ERROR_BODY_MAX  4096u

struct reason {
    uint32_t status;
    const char *text;
};

static const struct reason REASONS[] = {
    {200, "OK"},
    {400, "Bad Request"},
    {401, "Unauthorized"},
    {404, "Not Found"},
    {405, "Method Not Allowed"},
    {408, "Request Timeout"},
    {411, "Length Required"},
    {413, "Content Too Large"},
    {414, "URI Too Long"},
    {415, "Unsupported Media Type"},
    {417, "Expectation Failed"},
    {429, "Too Many Requests"},
    {431, "Request Header Fields Too Large"},
    {500, "Internal Server Error"},
    {501, "Not Implemented"},
    {503, "Service Unavailable"},
    {504, "Gateway Timeout"},
    {505, "HTTP Version Not Supported"},
};

static const char *
reason_of(uint32_t status)
{
    for (size_t i = 0; i < BH_COUNT(REASONS); i++) {
        if (REASONS[i].status == status) {
            return REASONS[i].text;
        }
    }
    return "Unknown";
}

static void
put_status(struct bh_bytes *out, uint32_t status)
{
    bh_bytes_format(out, "HTTP/1.1 %u %s\r\n", status, reason_of(status));
}

static void
put_connection(struct bh_bytes *out, uint32_t flags)
{
    bh_bytes_text(out, (flags & BH_HEAD_CLOSE) != 0 ? "Connection: close\r\n" : "");
}

void
bh_head_continue(struct bh_bytes *out)
{
    bh_bytes_text(out, "HTTP/1.1 100 Continue\r\n\r\n");
}

void
bh_head_stream(struct bh_bytes *out, uint32_t flags)
{
    put_status(out, 200);
    bh_bytes_text(out, "Content-Type: text/event-stream\r\nCache-Control: no-cache\r\n");
    if ((flags & BH_HEAD_CHUNKED) != 0) {
        bh_bytes_text(out, "Transfer-Encoding: chunked\r\n");
    } else {
        flags |= BH_HEAD_CLOSE;
    }
    put_connection(out, flags);
    bh_bytes_text(out, "\r\n");
}

/* A whole answer without headers of its own kind. */
static void
put_answer(struct bh_bytes *out,
           uint32_t status,
           const char *type,
           const struct bh_bytes *body,
           uint32_t flags)
{
    /* A body that did not fit must not be sent as if it were whole. */
    out->failed = out->failed || body->failed;
    put_status(out, status);
    bh_bytes_format(out, "Content-Type: %s\r\nContent-Length: %zu\r\n", type, body->len);
    put_connection(out, flags);
    bh_bytes_text(out, "\r\n");
    bh_bytes_put(out, body->data, body->len);
}

void
bh_answer_json(struct bh_bytes *out, uint32_t status, const struct bh_bytes *body, uint32_t flags)
{
    put_answer(out, status, "application/json", body, flags);
}

void
bh_answer_text(struct bh_bytes *out, uint32_t status, const struct bh_bytes *body, uint32_t flags)
{
    put_answer(out, status, "text/plain; version=0.0.4; charset=utf-8", body, flags);
}

static void
put_allow(struct bh_bytes *out, uint32_t allow)
{
    bool get = (allow & (1u << BH_METHOD_GET)) != 0;
    bool post = (allow & (1u << BH_METHOD_POST)) != 0;
    bh_bytes_format(
        out, "Allow: %s%s%s\r\n", get ? "GET" : "", get && post ? ", " : "", post ? "POST" : "");
}

void
bh_answer_fault(struct bh_bytes *out, const struct bh_fault *fault, uint32_t flags)
{
    const struct bh_error_info *info = bh_error_info(fault->error);
    struct bh_bytes body;
    bh_bytes_init(&body, ERROR_BODY_MAX);
    bh_fault_json(&body, fault);
    out->failed = out->failed || body.failed;
    put_status(out, info->status);
    bh_bytes_format(out, "Content-Type: application/json\r\nContent-Length: %zu\r\n", body.len);
    if (fault->retry_after_s != 0) {
        bh_bytes_format(out, "Retry-After: %u\r\n", fault->retry_after_s);
    }
    if (info->status == 401) {
        bh_bytes_text(out, "WWW-Authenticate: Bearer\r\n");
    }
    if (info->status == 405) {
        put_allow(out, fault->allow);
    }
    put_connection(out, flags);
    bh_bytes_text(out, "\r\n");
    bh_bytes_put(out, body.data, body.len);
    bh_bytes_free(&body);
}

size_t
bh_chunk_begin(struct bh_bytes *out)
{
    static const char ROOM[CHUNK_SIZE_ROOM] = {0};
    size_t begin = out->len;
    bh_bytes_put(out, ROOM, CHUNK_SIZE_ROOM);
    return begin;
}

void
bh_chunk_end(struct bh_bytes *out, size_t begin)
{
    if (out->failed) {
        return;
    }
    size_t len = out->len - begin - CHUNK_SIZE_ROOM;
    char *room = out->data + begin;
    if (len == 0) {
        out->len = begin;
        return;
    }
    size_t digits = 1;
    while (digits < 16 && len >> (4 * digits) != 0) {
        digits++;
    }
    for (size_t i = 0; i < digits; i++) {
        room[i] = "0123456789abcdef"[(len >> (4 * (digits - 1 - i))) & 15u];
    }
    memcpy(room + digits, "\r\n", 2);
    memmove(room + digits + 2, room + CHUNK_SIZE_ROOM, len);
    out->len = begin + digits + 2 + len;
    bh_bytes_text(out, "\r\n");
}

void
bh_chunk_last(struct bh_bytes *out)
{
    bh_bytes_text(out, "0\r\n\r\n");
}
