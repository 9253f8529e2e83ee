/* The raw check of a request's head, the meaning of its headers, and the route table. */
#include "src/api/http_head.h"

#include <string.h>
#include <strings.h>

enum access { ACCESS_KEY, ACCESS_PUBLIC };

struct route {
    const char *path;
    enum bh_method method;
    enum bh_route route;
    enum access access;
};

static const struct route ROUTES[] = {
#define BH_ROUTE_DEF(method_, path_, handler_, access_)                                            \
    {.path = (path_),                                                                              \
     .method = BH_METHOD_##method_,                                                                \
     .route = BH_ROUTE_##handler_,                                                                 \
     .access = ACCESS_##access_},
#include "src/api/routes.def"
#undef BH_ROUTE_DEF
};

static enum bh_status
refuse(struct bh_fault *fault, enum bh_error error, const char *why)
{
    bh_fault_say(fault, error, NULL, "%s", why);
    return BH_EINVAL;
}

/* The rules for one byte, given the one before it. */
static enum bh_status
check_byte(const struct bh_head_scan *scan, char c, struct bh_fault *fault)
{
    unsigned char byte = (unsigned char)c;
    if (scan->last == '\r' && c != '\n') {
        return refuse(fault, BH_ERROR_MALFORMED, "A CR in the request head is not followed by LF.");
    }
    if (c == '\n' && scan->last != '\r') {
        return refuse(fault, BH_ERROR_MALFORMED, "A line of the request head ends without CR.");
    }
    if ((byte < 0x20 && c != '\r' && c != '\n' && c != '\t') || byte == 0x7f) {
        return refuse(fault,
                      BH_ERROR_MALFORMED,
                      "The request head holds a control byte. Is the client speaking TLS?");
    }
    if (scan->line_cnt > 0 && scan->line_bytes == 0 && (c == ' ' || c == '\t')) {
        return refuse(fault, BH_ERROR_MALFORMED, "A header line begins with a blank.");
    }
    return BH_OK;
}

static enum bh_status
check_limits(const struct bh_head_scan *scan, struct bh_fault *fault)
{
    /* line_cnt counts the request line, so the number of headers is one less. */
    bool long_line = scan->line_cnt == 0 && scan->line_bytes > BH_HTTP_REQUEST_LINE_MAX;
    bool many = scan->bytes > BH_HTTP_HEADERS_MAX || scan->line_cnt > BH_HTTP_HEADER_CNT_MAX + 1;
    if (long_line || many) {
        bh_fault_set(fault, long_line ? BH_ERROR_URI_TOO_LONG : BH_ERROR_HEADERS_TOO_LARGE, NULL);
        return BH_EINVAL;
    }
    return BH_OK;
}

/* A line has ended; line_bytes holds its length with CRLF. *skip: it was empty, before the
   request. */
static enum bh_status
end_line(struct bh_head_scan *scan, bool *skip, struct bh_fault *fault)
{
    bool first = scan->line_cnt == 0;
    bool empty = scan->line_bytes == 2;
    scan->line_bytes = 0;
    *skip = first && empty;
    if (*skip) {
        scan->blank_cnt++;
        return scan->blank_cnt <= BH_HTTP_BLANK_LINES_MAX
                   ? BH_OK
                   : refuse(fault, BH_ERROR_MALFORMED, "Too many empty lines before a request.");
    }
    if (first && scan->blanks != 2) {
        return refuse(
            fault, BH_ERROR_MALFORMED, "The first line must be METHOD, path and version.");
    }
    scan->done = empty;
    scan->line_cnt += empty ? 0 : 1;
    return check_limits(scan, fault);
}

/* Take one byte. *skip: all bytes so far are empty lines before the request. */
static enum bh_status
take_byte(struct bh_head_scan *scan, char c, bool *skip, struct bh_fault *fault)
{
    enum bh_status status = check_byte(scan, c, fault);
    if (status != BH_OK) {
        return status;
    }
    scan->line_bytes++;
    scan->bytes += scan->line_cnt > 0 ? 1 : 0;
    scan->blanks += scan->line_cnt == 0 && (c == ' ' || c == '\t') ? 1 : 0;
    scan->last = c;
    status = check_limits(scan, fault);
    return status == BH_OK && c == '\n' ? end_line(scan, skip, fault) : status;
}

enum bh_status
bh_head_scan(struct bh_head_scan *scan,
             const char *data,
             size_t len,
             size_t *used,
             size_t *skip,
             struct bh_fault *fault)
{
    *skip = 0;
    *used = 0;
    while (*used < len && !scan->done) {
        bool skipped = false;
        enum bh_status status = take_byte(scan, data[*used], &skipped, fault);
        if (status != BH_OK) {
            return status;
        }
        (*used)++;
        *skip = skipped ? *used : *skip;
    }
    return BH_OK;
}

static bool
span_is(struct bh_head_span span, const char *text)
{
    size_t len = strlen(text);
    return span.len == len && strncasecmp(span.text, text, len) == 0;
}

static struct bh_head_span
trim(struct bh_head_span span)
{
    while (span.len > 0 && (span.text[0] == ' ' || span.text[0] == '\t')) {
        span.text++;
        span.len--;
    }
    while (span.len > 0 && (span.text[span.len - 1] == ' ' || span.text[span.len - 1] == '\t')) {
        span.len--;
    }
    return span;
}

/* Content-Length: digits and nothing else, so that no sign, list or blank is read in two ways. */
static enum bh_status
note_length(struct bh_head_facts *facts, struct bh_head_span value, struct bh_fault *fault)
{
    bool valid = value.len >= 1 && value.len <= 18;
    for (size_t i = 0; i < value.len; i++) {
        valid = valid && value.text[i] >= '0' && value.text[i] <= '9';
    }
    facts->length_cnt++;
    if (!valid || facts->length_cnt > 1) {
        return refuse(fault, BH_ERROR_MALFORMED, "Content-Length must be one number.");
    }
    return BH_OK;
}

static enum bh_status
note_coding(struct bh_head_facts *facts, struct bh_head_span value, struct bh_fault *fault)
{
    facts->coding_cnt++;
    if (facts->coding_cnt > 1) {
        return refuse(fault, BH_ERROR_MALFORMED, "Transfer-Encoding was sent more than once.");
    }
    if (!span_is(value, "chunked")) {
        bh_fault_set(fault, BH_ERROR_TRANSFER_CODING, NULL);
        return BH_EINVAL;
    }
    return BH_OK;
}

static enum bh_status
note_token(struct bh_head_facts *facts, struct bh_head_span value, struct bh_fault *fault)
{
    static const char SCHEME[] = "Bearer ";
    size_t scheme_len = sizeof(SCHEME) - 1;
    facts->token_cnt++;
    if (facts->token_cnt > 1) {
        return refuse(fault, BH_ERROR_MALFORMED, "Authorization was sent more than once.");
    }
    if (value.len > scheme_len && strncasecmp(value.text, SCHEME, scheme_len) == 0) {
        struct bh_head_span rest = {.text = value.text + scheme_len, .len = value.len - scheme_len};
        facts->token = trim(rest);
    }
    return BH_OK;
}

enum bh_status
bh_head_header(struct bh_head_facts *facts,
               struct bh_head_span name,
               struct bh_head_span value,
               struct bh_fault *fault)
{
    value = trim(value);
    if (name.len == 0) {
        return refuse(fault, BH_ERROR_MALFORMED, "A header has no name.");
    }
    if (span_is(name, "host")) {
        facts->host_cnt++;
        return facts->host_cnt == 1
                   ? BH_OK
                   : refuse(fault, BH_ERROR_MALFORMED, "Host was sent more than once.");
    }
    if (span_is(name, "content-length")) {
        return note_length(facts, value, fault);
    }
    if (span_is(name, "transfer-encoding")) {
        return note_coding(facts, value, fault);
    }
    if (span_is(name, "authorization")) {
        return note_token(facts, value, fault);
    }
    if (span_is(name, "content-encoding") && !span_is(value, "identity")) {
        bh_fault_set(fault, BH_ERROR_MEDIA_TYPE, NULL);
        return BH_EINVAL;
    }
    if (span_is(name, "expect")) {
        if (!span_is(value, "100-continue")) {
            bh_fault_set(fault, BH_ERROR_EXPECTATION_FAILED, NULL);
            return BH_EINVAL;
        }
        facts->expect = true;
    }
    return BH_OK;
}

/* The path of a target: without query or fragment, and without scheme and authority if they are
   there, which RFC 9112 3.2.2 asks every server to take. */
static struct bh_head_span
target_path(struct bh_head_span target)
{
    static const char SCHEME[] = "http://";
    size_t scheme_len = sizeof(SCHEME) - 1;
    struct bh_head_span path = target;
    if (path.len >= scheme_len && strncasecmp(path.text, SCHEME, scheme_len) == 0) {
        path.text += scheme_len;
        path.len -= scheme_len;
        while (path.len > 0 && path.text[0] != '/') {
            path.text++;
            path.len--;
        }
    }
    for (size_t i = 0; i < path.len; i++) {
        if (path.text[i] == '?' || path.text[i] == '#') {
            path.len = i;
        }
    }
    return path;
}

enum bh_status
bh_head_route(enum bh_method method,
              struct bh_head_span target,
              enum bh_route *route,
              bool *public,
              struct bh_fault *fault)
{
    struct bh_head_span path = target_path(target);
    uint32_t allow = 0;
    for (size_t i = 0; i < BH_COUNT(ROUTES); i++) {
        const struct route *entry = &ROUTES[i];
        size_t len = strlen(entry->path);
        if (len != path.len || memcmp(entry->path, path.text, len) != 0) {
            continue;
        }
        allow |= 1u << entry->method;
        if (entry->method == method) {
            *route = entry->route;
            *public = entry->access == ACCESS_PUBLIC;
            return BH_OK;
        }
    }
    bh_fault_set(fault, allow != 0 ? BH_ERROR_METHOD_NOT_ALLOWED : BH_ERROR_NOT_FOUND, NULL);
    fault->allow = allow;
    return BH_EINVAL;
}
