/* What clients are told: heads and framing byte for byte, bodies and events against JSON written
   by hand and compared as trees, every error of the table. */
#include "src/api/answer.h"

#include <criterion/criterion.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "src/api/answer_info.h"
#include "src/api/http.h"
#include "src/api/json_text.h"

#define ID "0123456789abcdef00000000000000ff"

static const struct bh_answer CHAT = {.chat = true,
                                      .include_usage = false,
                                      .id = {0x0123456789abcdefu, 0xffu},
                                      .created_s = 1700000000,
                                      .model = "tiny \"q\""};

static struct bh_bytes
buffer(void)
{
    struct bh_bytes bytes;
    bh_bytes_init(&bytes, 1u << 20);
    return bytes;
}

static void
equals(struct bh_bytes *got, const char *want)
{
    cr_assert(bh_bytes_status(got) == BH_OK);
    bh_bytes_put(got, "", 1);
    cr_expect(strcmp(got->data, want) == 0, "%s\nis not\n%s", got->data, want);
    bh_bytes_free(got);
}

static json_t *
tree(const char *text, size_t len)
{
    json_error_t error;
    json_t *value = json_loadb(text, len, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &error);
    cr_assert(value != NULL, "%s: %.*s", error.text, (int)len, text);
    return value;
}

static void
equals_json(struct bh_bytes *got, const char *want)
{
    cr_assert(bh_bytes_status(got) == BH_OK);
    json_t *a = tree(got->data, got->len);
    json_t *b = tree(want, strlen(want));
    cr_expect(json_equal(a, b), "%.*s\nis not\n%s", (int)got->len, got->data, want);
    json_decref(a);
    json_decref(b);
    bh_bytes_free(got);
}

/* One event: "data: " JSON and an empty line. */
static void
equals_event(struct bh_bytes *got, const char *want)
{
    cr_assert(got->len > 8 && memcmp(got->data, "data: ", 6) == 0);
    cr_expect(memcmp(got->data + got->len - 2, "\n\n", 2) == 0);
    cr_expect(memchr(got->data, '\n', got->len - 2) == NULL);
    bh_bytes_cut(got, 6);
    got->len -= 2;
    equals_json(got, want);
}

Test(bytes, limits)
{
    struct bh_bytes bytes;
    bh_bytes_init(&bytes, 5);
    bh_bytes_put(&bytes, "abc", 3);
    bh_bytes_put(&bytes, NULL, 0);
    bh_bytes_put(&bytes, "de", 2);
    cr_expect(bh_bytes_status(&bytes) == BH_OK && bytes.len == 5);
    bh_bytes_put(&bytes, "f", 1);
    cr_expect(bh_bytes_status(&bytes) == BH_ELIMIT && bytes.len == 5);
    bh_bytes_cut(&bytes, 2);
    bh_bytes_put(&bytes, "f", 1);
    cr_expect(bh_bytes_status(&bytes) == BH_ELIMIT && memcmp(bytes.data, "cde", 3) == 0);
    bh_bytes_cut(&bytes, 9);
    cr_expect(bytes.len == 0);
    bh_bytes_clear(&bytes);
    bh_bytes_format(&bytes, "%d", 12345);
    cr_expect(bh_bytes_status(&bytes) == BH_OK && memcmp(bytes.data, "12345", 5) == 0);
    bh_bytes_free(&bytes);
    bh_bytes_init(&bytes, 4096);
    bh_bytes_format(&bytes, "%512s", "");
    cr_expect(bh_bytes_status(&bytes) == BH_OK);
    bh_bytes_format(&bytes, "%513s", "");
    cr_expect(bh_bytes_status(&bytes) == BH_ELIMIT && bytes.len == 512);
    bh_bytes_free(&bytes);
}

Test(json, strings)
{
    static const char TEXT[] =
        "a\"\\/\b\f\n\r\t\x01\x1f\x7f \xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\0z";
    struct bh_bytes out = buffer();
    bh_json_string(&out, TEXT, sizeof(TEXT) - 1);
    equals(&out,
           "\"a\\\"\\\\/\\b\\f\\n\\r\\t\\u0001\\u001f\x7f "
           "\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\\u0000z\"");
    /* Every byte alone, and every pair with a lead byte, gives valid JSON. */
    for (unsigned a = 0; a < 256; a++) {
        for (unsigned b = 0; b < 256; b += a < 0xc0 ? 256 : 1) {
            char pair[2] = {(char)a, (char)b};
            out = buffer();
            bh_json_string(&out, pair, a < 0xc0 ? 1 : 2);
            json_t *value = json_loadb(out.data, out.len, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
            cr_expect(value != NULL, "%02x %02x", a, b);
            json_decref(value);
            bh_bytes_free(&out);
        }
    }
    out = buffer();
    bh_json_string(&out, "x\xe2\x82|\xff\xed\xa0\x80", 8);
    equals(&out, "\"x\xef\xbf\xbd|\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\"");
    out = buffer();
    bh_json_string(&out, "", 0);
    equals(&out, "\"\"");
}

Test(json, logprobs)
{
    static const struct {
        float value;
        const char *text;
    } CASES[] = {
        {0.0f, "0"},
        {-0.5f, "-0.5"},
        {-0.1f, "-0.100000001"},
        {-1e-7f, "-1.00000001e-07"},
        {-9999.0f, "-9999"},
        {-10000.0f, "-9999"},
        {-INFINITY, "-9999"},
        {INFINITY, "-9999"},
        {NAN, "-9999"},
    };
    for (size_t i = 0; i < BH_COUNT(CASES); i++) {
        struct bh_bytes out = buffer();
        bh_json_logprob(&out, CASES[i].value);
        equals(&out, CASES[i].text);
    }
}

Test(head, bytes)
{
    struct bh_bytes out = buffer();
    bh_head_continue(&out);
    equals(&out, "HTTP/1.1 100 Continue\r\n\r\n");
    out = buffer();
    bh_head_stream(&out, BH_HEAD_CHUNKED);
    equals(&out,
           "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nCache-Control: no-cache\r\n"
           "Transfer-Encoding: chunked\r\n\r\n");
    out = buffer();
    bh_head_stream(&out, BH_HEAD_CHUNKED | BH_HEAD_CLOSE);
    equals(&out,
           "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nCache-Control: no-cache\r\n"
           "Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n");
    out = buffer();
    bh_head_stream(&out, 0);
    equals(&out,
           "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nCache-Control: no-cache\r\n"
           "Connection: close\r\n\r\n");
    struct bh_bytes body = buffer();
    bh_body_health(&body);
    out = buffer();
    bh_answer_json(&out, 200, &body, 0);
    equals(&out,
           "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 15\r\n\r\n"
           "{\"status\":\"ok\"}");
    bh_bytes_clear(&body);
    bh_body_loading(&body);
    out = buffer();
    bh_answer_json(&out, 503, &body, BH_HEAD_CLOSE);
    equals(
        &out,
        "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nContent-Length: "
        "75\r\nConnection: close\r\n\r\n"
        "{\"error\":{\"code\":503,\"message\":\"Loading model\",\"type\":\"unavailable_error\"}}");
    body.failed = true;
    out = buffer();
    bh_answer_text(&out, 200, &body, 0);
    cr_expect(bh_bytes_status(&out) == BH_ELIMIT);
    bh_bytes_free(&out);
    bh_bytes_free(&body);
}

Test(head, chunks)
{
    struct bh_bytes out = buffer();
    bh_bytes_text(&out, "head|");
    size_t begin = bh_chunk_begin(&out);
    bh_bytes_text(&out, "0123456789abcdefg");
    bh_chunk_end(&out, begin);
    begin = bh_chunk_begin(&out);
    bh_chunk_end(&out, begin);
    begin = bh_chunk_begin(&out);
    bh_bytes_text(&out, "x");
    bh_chunk_end(&out, begin);
    bh_chunk_last(&out);
    equals(&out, "head|11\r\n0123456789abcdefg\r\n1\r\nx\r\n0\r\n\r\n");
    /* Nothing of a chunk that does not fit may look whole. */
    bh_bytes_init(&out, 20);
    begin = bh_chunk_begin(&out);
    bh_bytes_text(&out, "too long");
    bh_chunk_end(&out, begin);
    cr_expect(bh_bytes_status(&out) == BH_ELIMIT);
    bh_bytes_free(&out);
    bh_bytes_init(&out, 4);
    begin = bh_chunk_begin(&out);
    bh_chunk_end(&out, begin);
    cr_expect(bh_bytes_status(&out) == BH_ELIMIT && out.len == 0);
    bh_bytes_free(&out);
}

/* The table again, by hand: a change of a code or status breaks clients. */
Test(errors, table)
{
    static const struct {
        const char *code;
        enum bh_error error;
        uint32_t status;
        uint32_t retry;
    } WANT[] = {
        {"malformed_request", BH_ERROR_MALFORMED, 400, 0},
        {"invalid_json", BH_ERROR_INVALID_JSON, 400, 0},
        {"invalid_value", BH_ERROR_INVALID_VALUE, 400, 0},
        {"unsupported_parameter", BH_ERROR_UNSUPPORTED, 400, 0},
        {"context_length_exceeded", BH_ERROR_CONTEXT_LENGTH, 400, 0},
        {"invalid_api_key", BH_ERROR_INVALID_API_KEY, 401, 0},
        {"not_found", BH_ERROR_NOT_FOUND, 404, 0},
        {"model_not_found", BH_ERROR_MODEL_NOT_FOUND, 404, 0},
        {"method_not_allowed", BH_ERROR_METHOD_NOT_ALLOWED, 405, 0},
        {"request_incomplete", BH_ERROR_REQUEST_TIMEOUT, 408, 0},
        {"length_required", BH_ERROR_LENGTH_REQUIRED, 411, 0},
        {"request_too_large", BH_ERROR_BODY_TOO_LARGE, 413, 0},
        {"uri_too_long", BH_ERROR_URI_TOO_LONG, 414, 0},
        {"unsupported_media_type", BH_ERROR_MEDIA_TYPE, 415, 0},
        {"expectation_failed", BH_ERROR_EXPECTATION_FAILED, 417, 0},
        {"rate_limit_exceeded", BH_ERROR_RATE_LIMIT, 429, 1},
        {"headers_too_large", BH_ERROR_HEADERS_TOO_LARGE, 431, 0},
        {"internal_error", BH_ERROR_INTERNAL, 500, 0},
        {"kv_integrity_failure", BH_ERROR_KV_INTEGRITY, 500, 0},
        {"unsupported_transfer_coding", BH_ERROR_TRANSFER_CODING, 501, 0},
        {"worker_lost", BH_ERROR_WORKER_LOST, 503, 1},
        {"queue_full", BH_ERROR_QUEUE_FULL, 503, 1},
        {"capacity", BH_ERROR_CAPACITY, 503, 1},
        {"loading", BH_ERROR_LOADING, 503, 1},
        {"draining", BH_ERROR_DRAINING, 503, 1},
        {"shutting_down", BH_ERROR_SHUTDOWN, 503, 1},
        {"request_timeout", BH_ERROR_DEADLINE, 504, 0},
        {"http_version_not_supported", BH_ERROR_HTTP_VERSION, 505, 0},
    };
    cr_expect(BH_COUNT(WANT) == BH_ERROR_CNT - 1);
    for (size_t i = 0; i < BH_COUNT(WANT); i++) {
        const struct bh_error_info *info = bh_error_info(WANT[i].error);
        cr_expect(strcmp(info->code, WANT[i].code) == 0);
        cr_expect(info->status == WANT[i].status && info->retry_after_s == WANT[i].retry,
                  "%s",
                  info->code);
        cr_expect(bh_error_by_code(WANT[i].code) == WANT[i].error);
        struct bh_fault fault;
        bh_fault_set(&fault, WANT[i].error, NULL);
        struct bh_bytes out = buffer();
        bh_fault_json(&out, &fault);
        json_t *root = tree(out.data, out.len);
        json_t *error = json_object_get(root, "error");
        cr_expect(json_object_size(root) == 1 && json_object_size(error) == 4);
        cr_expect(strcmp(json_string_value(json_object_get(error, "code")), WANT[i].code) == 0);
        cr_expect(json_is_null(json_object_get(error, "param")));
        cr_expect(json_string_length(json_object_get(error, "message")) > 20);
        json_decref(root);
        bh_bytes_free(&out);
        out = buffer();
        bh_answer_fault(&out, &fault, 0);
        bh_bytes_put(&out, "", 1);
        cr_expect(strstr(out.data, "Unknown") == NULL &&
                  strstr(out.data, "Content-Length: ") != NULL);
        cr_expect((strstr(out.data, "Retry-After: 1\r\n") != NULL) == (WANT[i].retry == 1));
        bh_bytes_free(&out);
    }
    cr_expect(bh_error_by_code("nonsense") == BH_ERROR_INTERNAL);
    cr_expect(bh_error_info(0) == bh_error_info(BH_ERROR_INTERNAL));
    cr_expect(bh_error_info(UINT32_MAX) == bh_error_info(BH_ERROR_INTERNAL));
}

Test(errors, answers)
{
    struct bh_fault fault;
    bh_fault_say(&fault, BH_ERROR_INVALID_VALUE, "n", "say \"%d\"", 5);
    struct bh_bytes out = buffer();
    bh_answer_fault(&out, &fault, BH_HEAD_CLOSE);
    equals(&out,
           "HTTP/1.1 400 Bad Request\r\nContent-Type: application/json\r\nContent-Length: "
           "99\r\nConnection: close\r\n\r\n"
           "{\"error\":{\"message\":\"say "
           "\\\"5\\\"\",\"type\":\"invalid_request_error\",\"param\":\"n\","
           "\"code\":\"invalid_value\"}}");
    bh_fault_set(&fault, BH_ERROR_METHOD_NOT_ALLOWED, NULL);
    fault.allow = 1u << BH_METHOD_GET | 1u << BH_METHOD_POST;
    out = buffer();
    bh_answer_fault(&out, &fault, 0);
    bh_bytes_put(&out, "", 1);
    cr_expect(strstr(out.data, "HTTP/1.1 405 Method Not Allowed\r\n") == out.data);
    cr_expect(strstr(out.data, "\r\nAllow: GET, POST\r\n") != NULL);
    bh_bytes_free(&out);
    bh_fault_set(&fault, BH_ERROR_INVALID_API_KEY, NULL);
    out = buffer();
    bh_answer_fault(&out, &fault, 0);
    bh_bytes_put(&out, "", 1);
    cr_expect(strstr(out.data, "\r\nWWW-Authenticate: Bearer\r\n") != NULL);
    bh_bytes_free(&out);
    /* A fault from a process that went wrong: no terminating NUL, no such error, invalid bytes. */
    memset(&fault, 0xfe, sizeof(fault));
    fault.n_prompt_tokens = fault.n_max_tokens = fault.n_ctx = INT64_MAX;
    out = buffer();
    bh_fault_json(&out, &fault);
    json_t *root = tree(out.data, out.len);
    json_decref(root);
    bh_bytes_free(&out);
}

Test(errors, context_length)
{
    struct bh_fault fault;
    struct bh_fault_numbers numbers = {.n_prompt_tokens = 9000, .n_ctx = 8192};
    bh_fault_context(&fault, &numbers, BH_FAULT_LIMIT_CONTEXT, true);
    struct bh_bytes out = buffer();
    bh_fault_json(&out, &fault);
    equals_json(
        &out,
        "{\"error\":{\"message\":\"This model's maximum context length is 8192 tokens. However, "
        "your messages resulted in 9000 tokens. Please reduce the length of the "
        "messages.\",\"type\":\"invalid_request_error\",\"param\":\"messages\","
        "\"code\":\"context_length_exceeded\",\"n_prompt_tokens\":9000,\"n_ctx\":8192,"
        "\"limit\":\"context\"}}");
    numbers.n_max_tokens = 500;
    bh_fault_context(&fault, &numbers, BH_FAULT_LIMIT_KV_POOL, false);
    out = buffer();
    bh_event_fault(&out, &fault);
    equals_event(
        &out,
        "{\"error\":{\"message\":\"This model's maximum context length is 8192 tokens. However, "
        "you requested 9500 tokens (9000 in the prompt, 500 in the completion). Please reduce "
        "the length of the prompt or completion.\",\"type\":\"invalid_request_error\","
        "\"param\":\"prompt\",\"code\":\"context_length_exceeded\",\"n_prompt_tokens\":9000,"
        "\"n_ctx\":8192,\"n_max_tokens\":500,\"limit\":\"kv_pool\"}}");
    numbers = (struct bh_fault_numbers){UINT64_MAX, 1, UINT64_MAX};
    bh_fault_context(&fault, &numbers, BH_FAULT_LIMIT_CONTEXT, true);
    cr_expect(strstr(fault.detail, "maximum context length is 18446744073709551615 tokens") !=
              NULL);
    cr_expect(strstr(fault.detail, "or completion.") != NULL);
}

static const struct bh_answer_top TOPS[] = {
    {.token = 1, .logprob = -0.25f, .text = "he", .text_len = 2},
    {.token = 2, .logprob = -INFINITY, .text = "\xe2\x82", .text_len = 2},
    {.token = 3, .logprob = -4.0f, .text = "he", .text_len = 2},
};
static const struct bh_answer_token TOKENS[] = {
    {.token = 1,
     .logprob = -0.25f,
     .has_logprob = true,
     .top_cnt = 3,
     .top = TOPS,
     .text = "he",
     .text_len = 2},
    {.token = 2, .logprob = -1.5f, .has_logprob = true, .text = "\xe2\x82", .text_len = 2},
    {.token = 4, .logprob = -2.0f, .has_logprob = true, .text = "\xac!", .text_len = 2},
};
static const struct bh_answer_usage USAGE = {
    .prompt_tokens = 7, .completion_tokens = 3, .cached_tokens = 4};

#define CHAT_LOGPROBS                                                                              \
    "{\"content\":[{\"token\":\"he\",\"bytes\":[104,101],\"logprob\":-0.25,\"top_logprobs\":["     \
    "{\"token\":\"he\",\"bytes\":[104,101],\"logprob\":-0.25},"                                    \
    "{\"token\":\"\\ufffd\",\"bytes\":[226,130],\"logprob\":-9999},"                               \
    "{\"token\":\"he\",\"bytes\":[104,101],\"logprob\":-4}]},"                                     \
    "{\"token\":\"\\ufffd\",\"bytes\":[226,130],\"logprob\":-1.5,\"top_logprobs\":[]},"            \
    "{\"token\":\"\\ufffd!\",\"bytes\":[172,33],\"logprob\":-2,\"top_logprobs\":[]}]}"
#define TEXT_LOGPROBS                                                                              \
    "{\"text_offset\":[10,12,13],\"token_logprobs\":[-0.25,-1.5,-2],"                              \
    "\"tokens\":[\"he\",\"bytes:\\\\xe2\\\\x82\",\"bytes:\\\\xac\\\\x21\"],"                       \
    "\"top_logprobs\":[{\"he\":-0.25,\"bytes:\\\\xe2\\\\x82\":-9999},{},{}]}"
#define USAGE_JSON                                                                                 \
    "{\"prompt_tokens\":7,\"completion_tokens\":3,\"total_tokens\":10,"                            \
    "\"prompt_tokens_details\":{\"cached_tokens\":4}}"

Test(answer, bodies)
{
    struct bh_answer_choice choices[2] = {
        {.index = 0, .finish = BH_FINISH_STOP, .text = "he\xe2\x82\xac!", .text_len = 6},
        {.index = 1, .finish = BH_FINISH_LENGTH, .text = "", .text_len = 0},
    };
    struct bh_bytes out = buffer();
    bh_answer_body(&out, &CHAT, choices, 2, &USAGE);
    equals(&out,
           "{\"id\":\"chatcmpl-" ID "\",\"object\":\"chat.completion\",\"created\":1700000000,"
           "\"model\":\"tiny "
           "\\\"q\\\"\",\"choices\":[{\"index\":0,\"message\":{\"role\":\"assistant\","
           "\"content\":\"he\xe2\x82\xac!\"},\"logprobs\":null,\"finish_reason\":\"stop\"},"
           "{\"index\":1,\"message\":{\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null,"
           "\"finish_reason\":\"length\"}],\"usage\":" USAGE_JSON "}");
    for (size_t i = 0; i < 2; i++) {
        choices[i].logprobs = true;
        choices[i].tokens = TOKENS;
        choices[i].token_cnt = i == 0 ? 3 : 0;
        choices[i].text_offset = 10;
    }
    out = buffer();
    bh_answer_body(&out, &CHAT, choices, 2, &USAGE);
    equals_json(&out,
                "{\"id\":\"chatcmpl-" ID "\",\"object\":\"chat.completion\",\"created\":1700000000,"
                "\"model\":\"tiny \\\"q\\\"\",\"choices\":[{\"index\":0,\"message\":{\"role\":"
                "\"assistant\",\"content\":\"he\xe2\x82\xac!\"},\"logprobs\":" CHAT_LOGPROBS
                ",\"finish_reason\":\"stop\"},{\"index\":1,\"message\":{\"role\":\"assistant\","
                "\"content\":\"\"},\"logprobs\":{\"content\":[]},\"finish_reason\":\"length\"}],"
                "\"usage\":" USAGE_JSON "}");
    struct bh_answer text = CHAT;
    text.chat = false;
    out = buffer();
    bh_answer_body(&out, &text, choices, 1, &USAGE);
    equals_json(
        &out,
        "{\"id\":\"cmpl-" ID "\",\"object\":\"text_completion\",\"created\":1700000000,"
        "\"model\":\"tiny \\\"q\\\"\",\"choices\":[{\"index\":0,\"text\":\"he\xe2\x82\xac!\","
        "\"logprobs\":" TEXT_LOGPROBS ",\"finish_reason\":\"stop\"}],\"usage\":" USAGE_JSON "}");
}

/* The first token of an echoed prompt has no log-probability. */
Test(answer, echo_without_logprob)
{
    struct bh_answer text = CHAT;
    text.chat = false;
    const struct bh_answer_token first = {.token = 1, .text = "he", .text_len = 2};
    const struct bh_answer_choice choice = {.index = 0,
                                            .finish = BH_FINISH_LENGTH,
                                            .text = "he",
                                            .text_len = 2,
                                            .logprobs = true,
                                            .tokens = &first,
                                            .token_cnt = 1};
    struct bh_bytes out = buffer();
    bh_answer_body(&out, &text, &choice, 1, &USAGE);
    equals_json(
        &out,
        "{\"id\":\"cmpl-" ID "\",\"object\":\"text_completion\",\"created\":1700000000,"
        "\"model\":\"tiny \\\"q\\\"\",\"choices\":[{\"index\":0,\"text\":\"he\",\"logprobs\":"
        "{\"text_offset\":[0],\"token_logprobs\":[null],\"tokens\":[\"he\"],"
        "\"top_logprobs\":[null]},\"finish_reason\":\"length\"}],\"usage\":" USAGE_JSON "}");
    cr_expect(bh_text_chars("he\xe2\x82\xac!", 6) == 4);
    cr_expect(bh_text_chars("\xe2\x82", 2) + bh_text_chars("\xac!", 2) == 2);
}

#define CHUNK(choices)                                                                             \
    "{\"id\":\"chatcmpl-" ID "\",\"object\":\"chat.completion.chunk\",\"created\":1700000000,"     \
    "\"model\":\"tiny \\\"q\\\"\",\"choices\":[" choices "]"
#define TEXT_CHUNK(choices)                                                                        \
    "{\"id\":\"cmpl-" ID "\",\"object\":\"text_completion\",\"created\":1700000000,"               \
    "\"model\":\"tiny \\\"q\\\"\",\"choices\":[" choices "]"

Test(answer, chat_events)
{
    struct bh_answer usage = CHAT;
    usage.include_usage = true;
    struct bh_bytes out = buffer();
    bh_event_first(&out, &CHAT, 2);
    equals(&out,
           "data: " CHUNK("{\"index\":2,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},"
                          "\"logprobs\":null,\"finish_reason\":null}") "}\n\n");
    struct bh_answer_choice choice = {.index = 2, .text = "a\nb", .text_len = 3};
    out = buffer();
    bh_event_text(&out, &usage, &choice);
    equals(&out,
           "data: " CHUNK("{\"index\":2,\"delta\":{\"content\":\"a\\nb\"},\"logprobs\":null,"
                          "\"finish_reason\":null}") ",\"usage\":null}\n\n");
    choice.logprobs = true;
    choice.tokens = TOKENS;
    choice.token_cnt = 3;
    out = buffer();
    bh_event_text(&out, &CHAT, &choice);
    equals_event(&out,
                 CHUNK("{\"index\":2,\"delta\":{\"content\":\"a\\nb\"},\"logprobs\":" CHAT_LOGPROBS
                       ",\"finish_reason\":null}") "}");
    out = buffer();
    bh_event_last(&out, &CHAT, 2, BH_FINISH_LENGTH);
    equals(
        &out,
        "data: " CHUNK(
            "{\"index\":2,\"delta\":{},\"logprobs\":null,\"finish_reason\":\"length\"}") "}\n\n");
    out = buffer();
    bh_event_usage(&out, &CHAT, &USAGE);
    cr_expect(out.len == 0);
    bh_event_usage(&out, &usage, &USAGE);
    equals(&out, "data: " CHUNK("") ",\"usage\":" USAGE_JSON "}\n\n");
    out = buffer();
    bh_event_done(&out);
    bh_event_ping(&out);
    equals(&out, "data: [DONE]\n\n: ping\n\n");
}

Test(answer, text_events)
{
    struct bh_answer text = CHAT;
    text.chat = false;
    struct bh_bytes out = buffer();
    bh_event_first(&out, &text, 0);
    cr_expect(out.len == 0);
    struct bh_answer_choice choice = {.index = 1,
                                      .text = "x",
                                      .text_len = 1,
                                      .logprobs = true,
                                      .tokens = TOKENS,
                                      .token_cnt = 3,
                                      .text_offset = 10};
    bh_event_text(&out, &text, &choice);
    equals_event(&out,
                 TEXT_CHUNK("{\"index\":1,\"text\":\"x\",\"logprobs\":" TEXT_LOGPROBS
                            ",\"finish_reason\":null}") "}");
    out = buffer();
    text.include_usage = true;
    bh_event_last(&out, &text, 1, BH_FINISH_STOP);
    equals(&out,
           "data: " TEXT_CHUNK("{\"index\":1,\"text\":\"\",\"logprobs\":null,"
                               "\"finish_reason\":\"stop\"}") ",\"usage\":null}\n\n");
}

Test(answer, overflow_is_told)
{
    struct bh_bytes out;
    bh_bytes_init(&out, 100);
    bh_event_last(&out, &CHAT, 0, BH_FINISH_STOP);
    cr_expect(bh_bytes_status(&out) == BH_ELIMIT);
    bh_bytes_free(&out);
}

Test(info, bodies)
{
    static const char *const NAMES[] = {"tiny", "alias"};
    const struct bh_model_info info = {.names = NAMES,
                                       .name_cnt = 2,
                                       .created_s = 5,
                                       .ctx = 4096,
                                       .ctx_train = 8192,
                                       .kv_tokens = 16384,
                                       .params = 134515008,
                                       .vocab = 49152,
                                       .width = 576,
                                       .file_bytes = 91000000};
#define MODEL(name)                                                                                \
    "{\"id\":\"" name "\",\"object\":\"model\",\"created\":5,\"owned_by\":\"bulkhead\","           \
    "\"max_model_len\":4096,\"meta\":{\"n_ctx\":4096,\"n_ctx_train\":8192,\"n_kv_tokens\":16384,"  \
    "\"n_params\":134515008,\"n_vocab\":49152,\"n_embd\":576,\"size\":91000000}}"
    struct bh_bytes out = buffer();
    bh_body_models(&out, &info);
    equals_json(&out, "{\"object\":\"list\",\"data\":[" MODEL("tiny") "," MODEL("alias") "]}");
    static const uint32_t IDS[] = {0, 4294967295u};
    out = buffer();
    bh_body_tokens(&out, IDS, 2);
    equals(&out, "{\"tokens\":[0,4294967295]}");
    out = buffer();
    bh_body_tokens(&out, NULL, 0);
    equals(&out, "{\"tokens\":[]}");
    static const struct bh_body_piece PIECES[] = {{1, " a\"", 3}, {2, "\xe2\x82", 2}};
    out = buffer();
    bh_body_pieces(&out, PIECES, 2);
    equals(&out, "{\"tokens\":[{\"id\":1,\"piece\":\" a\\\"\"},{\"id\":2,\"piece\":[226,130]}]}");
    out = buffer();
    bh_body_content(&out, "x\n", 2);
    bh_body_prompt(&out, "y", 1, IDS, 2);
    equals(&out, "{\"content\":\"x\\n\"}{\"prompt\":\"y\",\"tokens\":[0,4294967295]}");
}

Test(info, prometheus)
{
    struct bh_bytes out = buffer();
    const struct bh_label labels[] = {{"model_name", "a\"b\\c\nd"}, {"engine", "0"}};
    bh_prom_family(&out, "x:y_total{kind=\"k\"}", "counter", "Help.");
    bh_prom_count(&out, "x:y_total{kind=\"k\"}", labels, 2, UINT64_MAX);
    bh_prom_count(&out, "x:y_total{kind=\"k\"}", NULL, 0, 1);
    bh_prom_count(&out, "z", NULL, 0, 0);
    bh_prom_value(&out, "z", &labels[1], 1, 0.5);
    bh_prom_value(&out, "z", NULL, 0, NAN);
    bh_prom_value(&out, "z", NULL, 0, -INFINITY);
    equals(
        &out,
        "# HELP x:y_total Help.\n# TYPE x:y_total counter\n"
        "x:y_total{kind=\"k\",model_name=\"a\\\"b\\\\c\\nd\",engine=\"0\"} 18446744073709551615\n"
        "x:y_total{kind=\"k\"} 1\nz 0\nz{engine=\"0\"} 0.5\nz NaN\nz -Inf\n");
    static const double BOUNDS[] = {0.005, 1};
    static const uint64_t COUNTS[] = {2, 0, 3};
    const struct bh_prom_histogram histogram = {
        .bounds = BOUNDS, .counts = COUNTS, .bound_cnt = 2, .sum = 9.25};
    out = buffer();
    bh_prom_histogram(&out, "h", &labels[1], 1, &histogram);
    bh_prom_histogram(&out, "g", NULL, 0, &histogram);
    equals(
        &out,
        "h_bucket{engine=\"0\",le=\"0.005\"} 2\nh_bucket{engine=\"0\",le=\"1\"} 2\n"
        "h_bucket{engine=\"0\",le=\"+Inf\"} 5\nh_sum{engine=\"0\"} 9.25\nh_count{engine=\"0\"} 5\n"
        "g_bucket{le=\"0.005\"} 2\ng_bucket{le=\"1\"} 2\ng_bucket{le=\"+Inf\"} 5\ng_sum "
        "9.25\ng_count 5\n");
}
