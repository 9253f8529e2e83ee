/* Bodies: every field's ordinary value, default, null, limit and limit + 1, wrong type, and what
   is refused. The expected values are written out by hand; re-serialised JSON is compared as a
   tree. */
#include "src/api/params.h"

#include <criterion/criterion.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define VOCAB 100u
#define MSGS  "\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]"

static const char *const MODELS[] = {"tiny", "alias"};
static const struct bh_params_rules RULES = {.models = MODELS, .model_cnt = 2, .vocab = VOCAB};

/* Parse from a buffer of exact size, so that a sanitizer sees reads beyond it. */
static enum bh_status
parse_bytes(enum bh_route route,
            const char *body,
            size_t len,
            struct bh_params *params,
            struct bh_fault *fault)
{
    char *copy = malloc(len > 0 ? len : 1);
    memcpy(copy, body, len);
    enum bh_status status = bh_params_parse(route, copy, len, &RULES, params, fault);
    free(copy);
    return status;
}

static struct bh_params
good(enum bh_route route, const char *body)
{
    struct bh_params params;
    struct bh_fault fault = {0};
    enum bh_status status = parse_bytes(route, body, strlen(body), &params, &fault);
    cr_assert(status == BH_OK, "%s: %s (%s)", body, fault.detail, fault.param);
    return params;
}

static void
bad(enum bh_route route, const char *body, enum bh_error error, const char *param)
{
    struct bh_params params;
    struct bh_fault fault = {0};
    enum bh_status status = parse_bytes(route, body, strlen(body), &params, &fault);
    cr_expect(status == BH_EINVAL, "accepted: %s", body);
    cr_expect(fault.error == error, "%s: %s", body, bh_error_info(fault.error)->code);
    cr_expect(strcmp(fault.param, param) == 0, "%s: param '%s'", body, fault.param);
    cr_expect(fault.detail[0] != '\0');
    bh_params_free(&params);
}

/* A chat body with `field` added. */
static void
bad_chat(const char *field, enum bh_error error, const char *param)
{
    char body[4096];
    snprintf(body, sizeof(body), "{" MSGS ",%s}", field);
    bad(BH_ROUTE_CHAT, body, error, param);
}

static void
bad_text(const char *field, enum bh_error error, const char *param)
{
    char body[4096];
    snprintf(body, sizeof(body), "{\"prompt\":\"x\",%s}", field);
    bad(BH_ROUTE_COMPLETIONS, body, error, param);
}

static struct bh_params
good_chat(const char *field)
{
    char body[4096];
    snprintf(body, sizeof(body), "{" MSGS ",%s}", field);
    return good(BH_ROUTE_CHAT, body);
}

static struct bh_params
good_text(const char *field)
{
    char body[4096];
    snprintf(body, sizeof(body), "{\"prompt\":\"x\",%s}", field);
    return good(BH_ROUTE_COMPLETIONS, body);
}

static void
same_json(const char *got, const char *want)
{
    cr_assert(got != NULL);
    json_t *a = json_loads(got, JSON_DECODE_ANY, NULL);
    json_t *b = json_loads(want, JSON_DECODE_ANY, NULL);
    cr_assert(a != NULL && b != NULL);
    cr_expect(json_equal(a, b), "%s is not %s", got, want);
    json_decref(a);
    json_decref(b);
}

Test(params, chat_defaults)
{
    struct bh_params p = good(BH_ROUTE_CHAT, "{" MSGS "}");
    cr_expect(strcmp(p.messages, "[{\"role\":\"user\",\"content\":\"hi\"}]") == 0);
    cr_expect(p.model[0] == '\0' && p.tools == NULL && p.template_kwargs == NULL);
    cr_expect(p.add_generation_prompt && p.prompt_cnt == 0 && p.n == 1);
    cr_expect(!p.has_max_tokens && !p.has_seed && p.logprobs == -1);
    cr_expect(p.temperature == 1.0f && p.top_p == 1.0f && p.min_p == 0.0f && p.top_k == 0);
    cr_expect(!p.ignore_eos && !p.stream && !p.include_usage && !p.echo);
    cr_expect(p.stop_cnt == 0 && p.stop_id_cnt == 0);
    bh_params_free(&p);
    /* Explicit null means the default, for every field. */
    p = good_chat(
        "\"model\":null,\"max_tokens\":null,\"max_completion_tokens\":null,\"temperature\":null,"
        "\"top_p\":null,\"top_k\":null,\"min_p\":null,\"seed\":null,\"stop\":null,"
        "\"stop_token_ids\":null,\"ignore_eos\":null,\"stream\":null,\"stream_options\":null,"
        "\"n\":null,\"best_of\":null,\"logprobs\":null,\"top_logprobs\":null,\"echo\":null,"
        "\"tools\":null,\"tool_choice\":null,\"response_format\":null,\"logit_bias\":null,"
        "\"presence_penalty\":null,\"frequency_penalty\":null,\"suffix\":null,"
        "\"chat_template_kwargs\":null,\"add_generation_prompt\":null");
    cr_expect(p.add_generation_prompt && p.temperature == 1.0f && !p.has_max_tokens && p.n == 1);
    bh_params_free(&p);
}

Test(params, chat_fields)
{
    struct bh_params p = good_chat(
        "\"model\":\"alias\",\"max_completion_tokens\":7,\"temperature\":0.5,\"top_p\":0.25,\"top_"
        "k\":40,"
        "\"min_p\":0.125,\"seed\":-2,\"stop\":[\"ab\",\"\\u00e9\"],\"stop_token_ids\":[0,99],"
        "\"ignore_eos\":true,\"stream\":true,\"stream_options\":{\"include_usage\":true,"
        "\"continuous_usage_stats\":true},\"n\":3,\"logprobs\":true,\"top_logprobs\":20,"
        "\"user\":\"someone\",\"metadata\":{\"a\":1},\"store\":false,\"presence_penalty\":0,"
        "\"frequency_penalty\":0.0,\"logit_bias\":{},\"response_format\":{\"type\":\"text\"},"
        "\"add_generation_prompt\":false,\"chat_template_kwargs\":{\"enable_thinking\":false}");
    cr_expect(strcmp(p.model, "alias") == 0 && p.has_max_tokens && p.max_tokens == 7);
    cr_expect(p.temperature == 0.5f && p.top_p == 0.25f && p.top_k == 40 && p.min_p == 0.125f);
    cr_expect(p.has_seed && p.seed == (uint64_t)-2);
    cr_expect(p.stop_cnt == 2 && p.stop_end[0] == 2 && p.stop_end[1] == 4);
    cr_expect(memcmp(p.stop_bytes, "ab\xc3\xa9", 4) == 0);
    cr_expect(p.stop_id_cnt == 2 && p.stop_ids[0] == 0 && p.stop_ids[1] == 99);
    cr_expect(p.ignore_eos && p.stream && p.include_usage && p.n == 3 && p.logprobs == 20);
    cr_expect(!p.add_generation_prompt);
    same_json(p.template_kwargs, "{\"enable_thinking\":false}");
    bh_params_free(&p);
    p = good_chat(
        "\"logprobs\":true,\"top_k\":-1,\"temperature\":1e-9,\"stop\":\"x\",\"model\":\"\"");
    cr_expect(p.logprobs == 0 && p.top_k == 0 && p.temperature == 0.0f && p.stop_cnt == 1);
    bh_params_free(&p);
    p = good_chat(
        "\"logprobs\":false,\"top_logprobs\":0,\"max_tokens\":5,\"max_completion_tokens\":5,"
        "\"seed\":9223372036854775807,\"temperature\":100,\"top_p\":1,\"n\":64,\"best_of\":64");
    cr_expect(p.logprobs == -1 && p.max_tokens == 5 && p.seed == INT64_MAX && p.n == 64);
    bh_params_free(&p);
}

Test(params, messages)
{
    struct bh_params p =
        good(BH_ROUTE_CHAT,
             "{\"messages\":[{\"role\":\"system\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},"
             "{\"type\":\"text\",\"text\":\"\\\"b\"}]},{\"role\":\"developer\",\"content\":null},"
             "{\"role\":\"assistant\",\"tool_calls\":[{\"id\":\"1\",\"function\":{\"arguments\":\"{"
             "broken\"}}]},"
             "{\"content\":\"r\",\"role\":\"tool\",\"tool_call_id\":\"1\"},{\"role\":\"user\","
             "\"content\":[]}]}");
    same_json(p.messages,
              "[{\"role\":\"system\",\"content\":\"a\\n\\\"b\"},{\"role\":\"developer\","
              "\"content\":\"\"},"
              "{\"role\":\"assistant\",\"tool_calls\":[{\"id\":\"1\",\"function\":{\"arguments\":"
              "\"{broken\"}}],"
              "\"content\":\"\"},{\"content\":\"r\",\"role\":\"tool\",\"tool_call_id\":\"1\"},"
              "{\"role\":\"user\",\"content\":\"\"}]");
    bh_params_free(&p);
#define BAD_MSG(text, param)                                                                       \
    bad(BH_ROUTE_CHAT, "{\"messages\":" text "}", BH_ERROR_INVALID_VALUE, param)
    bad(BH_ROUTE_CHAT, "{}", BH_ERROR_INVALID_VALUE, "messages");
    BAD_MSG("null", "messages");
    BAD_MSG("\"hi\"", "messages");
    BAD_MSG("[]", "messages");
    BAD_MSG("[1]", "messages[0]");
    BAD_MSG("[{\"content\":\"x\"}]", "messages[0].role");
    BAD_MSG("[{\"role\":\"root\",\"content\":\"x\"}]", "messages[0].role");
    BAD_MSG("[{\"role\":1,\"content\":\"x\"}]", "messages[0].role");
    BAD_MSG("[{\"role\":\"user\",\"content\":\"x\"},{\"role\":\"user\"}]", "messages[1].content");
    BAD_MSG("[{\"role\":\"user\",\"content\":5}]", "messages[0].content");
    BAD_MSG("[{\"role\":\"user\",\"content\":[\"x\"]}]", "messages[0].content");
    BAD_MSG("[{\"role\":\"user\",\"content\":[{\"type\":\"text\"}]}]", "messages[0].content");
    BAD_MSG("[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\",\"image_url\":{\"url\":\"x\"}"
            "}]}]",
            "messages[0].content");
}

Test(params, tools)
{
    struct bh_params p = good_chat("\"tools\":[{\"type\":\"function\"}],\"tool_choice\":\"auto\"");
    same_json(p.tools, "[{\"type\":\"function\"}]");
    bh_params_free(&p);
    p = good_chat("\"tools\":[{\"type\":\"function\"}],\"tool_choice\":\"none\"");
    cr_expect(p.tools == NULL);
    bh_params_free(&p);
    p = good_chat("\"tools\":[]");
    cr_expect(p.tools == NULL);
    bh_params_free(&p);
    bad_chat("\"tools\":[{}],\"tool_choice\":\"required\"", BH_ERROR_UNSUPPORTED, "tool_choice");
    bad_chat("\"tools\":[{}],\"tool_choice\":{\"type\":\"function\"}",
             BH_ERROR_UNSUPPORTED,
             "tool_choice");
    bad_chat("\"tool_choice\":\"perhaps\"", BH_ERROR_INVALID_VALUE, "tool_choice");
    bad_chat("\"tools\":{}", BH_ERROR_INVALID_VALUE, "tools");
    bad_chat("\"tools\":[1]", BH_ERROR_INVALID_VALUE, "tools");
    bad_chat("\"chat_template_kwargs\":[]", BH_ERROR_INVALID_VALUE, "chat_template_kwargs");
    bad_chat("\"add_generation_prompt\":1", BH_ERROR_INVALID_VALUE, "add_generation_prompt");
}

Test(params, completions)
{
    struct bh_params p = good(BH_ROUTE_COMPLETIONS, "{\"prompt\":\"a\\u00e9\"}");
    cr_expect(p.prompt_cnt == 1 && strcmp(p.prompts[0].text, "a\xc3\xa9") == 0);
    cr_expect(p.prompts[0].text_len == 3 && p.prompts[0].ids == NULL);
    cr_expect(!p.has_max_tokens && p.max_tokens == 16 && p.logprobs == -1 && p.messages == NULL);
    bh_params_free(&p);
    p = good(BH_ROUTE_COMPLETIONS, "{\"prompt\":[\"a\",\"\"],\"n\":32,\"max_tokens\":2147483647}");
    cr_expect(p.prompt_cnt == 2 && strcmp(p.prompts[1].text, "") == 0 && p.n == 32);
    cr_expect(p.has_max_tokens && p.max_tokens == 2147483647);
    bh_params_free(&p);
    p = good(BH_ROUTE_COMPLETIONS, "{\"prompt\":[0,99,5]}");
    cr_expect(p.prompt_cnt == 1 && p.prompts[0].text == NULL && p.prompts[0].id_cnt == 3);
    cr_expect(p.prompts[0].ids[0] == 0 && p.prompts[0].ids[1] == 99 && p.prompts[0].ids[2] == 5);
    bh_params_free(&p);
    p = good(BH_ROUTE_COMPLETIONS,
             "{\"prompt\":[[1],[2,3]],\"logprobs\":20,\"echo\":true,\"max_tokens\":0}");
    cr_expect(p.prompt_cnt == 2 && p.prompts[1].id_cnt == 2 && p.prompts[1].ids[1] == 3);
    cr_expect(p.logprobs == 20 && p.echo && p.has_max_tokens && p.max_tokens == 0);
    bh_params_free(&p);
    p = good_text("\"logprobs\":0,\"suffix\":\"\"");
    cr_expect(p.logprobs == 0);
    bh_params_free(&p);
#define BAD_PROMPT(text)                                                                           \
    bad(BH_ROUTE_COMPLETIONS, "{\"prompt\":" text "}", BH_ERROR_INVALID_VALUE, "prompt")
    bad(BH_ROUTE_COMPLETIONS, "{}", BH_ERROR_INVALID_VALUE, "prompt");
    BAD_PROMPT("null");
    BAD_PROMPT("5");
    BAD_PROMPT("{}");
    BAD_PROMPT("[]");
    BAD_PROMPT("[[]]");
    BAD_PROMPT("[100]");
    BAD_PROMPT("[-1]");
    BAD_PROMPT("[1.0]");
    BAD_PROMPT("[1,\"a\"]");
    BAD_PROMPT("[\"a\",1]");
    BAD_PROMPT("[\"a\",[1]]");
    BAD_PROMPT("[[1],2]");
    BAD_PROMPT("[[1],[\"a\"]]");
    BAD_PROMPT("[null]");
    BAD_PROMPT("[[1],[1,99999999999999999999]]");
    bad_text("\"logprobs\":true", BH_ERROR_INVALID_VALUE, "logprobs");
    bad_text("\"logprobs\":21", BH_ERROR_INVALID_VALUE, "logprobs");
    bad_text("\"max_tokens\":0", BH_ERROR_INVALID_VALUE, "max_tokens");
    bad(BH_ROUTE_COMPLETIONS, "{\"prompt\":[\"a\",\"b\"],\"n\":33}", BH_ERROR_INVALID_VALUE, "n");
}

Test(params, prompt_count)
{
    for (int over = 0; over < 2; over++) {
        char body[1024] = "{\"prompt\":[\"p\"";
        for (int i = 1; i < BH_CHOICES_MAX + over; i++) {
            strcat(body, ",\"p\"");
        }
        strcat(body, "]}");
        if (over == 1) {
            bad(BH_ROUTE_COMPLETIONS, body, BH_ERROR_INVALID_VALUE, "prompt");
        } else {
            struct bh_params p = good(BH_ROUTE_COMPLETIONS, body);
            cr_expect(p.prompt_cnt == BH_CHOICES_MAX);
            bh_params_free(&p);
        }
    }
}

Test(params, invalid_values)
{
    static const struct {
        const char *field;
        const char *param;
    } CASES[] = {
        {"\"model\":1", "model"},
        {"\"max_tokens\":-1", "max_tokens"},
        {"\"max_tokens\":0", "max_tokens"},
        {"\"max_tokens\":2147483648", "max_tokens"},
        {"\"max_tokens\":1.0", "max_tokens"},
        {"\"max_tokens\":\"9\"", "max_tokens"},
        {"\"max_tokens\":true", "max_tokens"},
        {"\"max_completion_tokens\":[]", "max_completion_tokens"},
        {"\"max_tokens\":4,\"max_completion_tokens\":5", "max_completion_tokens"},
        {"\"temperature\":-0.1", "temperature"},
        {"\"temperature\":100.1", "temperature"},
        {"\"temperature\":\"1\"", "temperature"},
        {"\"temperature\":1e999", "temperature"},
        {"\"temperature\" : -1e999", "temperature"},
        {"\"temperature\":NaN", "temperature"},
        {"\"temperature\": Infinity", "temperature"},
        {"\"temperature\":-Infinity", "temperature"},
        {"\"top_p\":0", "top_p"},
        {"\"top_p\":1e-60", "top_p"},
        {"\"top_p\":1.01", "top_p"},
        {"\"min_p\":1.01", "min_p"},
        {"\"min_p\":-0.5", "min_p"},
        {"\"top_k\":-2", "top_k"},
        {"\"top_k\":2147483648", "top_k"},
        {"\"top_k\":1.5", "top_k"},
        {"\"seed\":9223372036854775808", "seed"},
        {"\"seed\":-9223372036854775809", "seed"},
        {"\"seed\":1.5", "seed"},
        {"\"seed\":\"1\"", "seed"},
        {"\"n\":0", "n"},
        {"\"n\":65", "n"},
        {"\"n\":2,\"best_of\":1", "best_of"},
        {"\"stop\":5", "stop"},
        {"\"stop\":\"\"", "stop"},
        {"\"stop\":[\"a\",\"\"]", "stop"},
        {"\"stop\":[\"a\",1]", "stop"},
        {"\"stop_token_ids\":1", "stop_token_ids"},
        {"\"stop_token_ids\":[100]", "stop_token_ids"},
        {"\"stop_token_ids\":[\"a\"]", "stop_token_ids"},
        {"\"ignore_eos\":1", "ignore_eos"},
        {"\"stream\":\"true\"", "stream"},
        {"\"stream_options\":{}", "stream_options"},
        {"\"stream\":true,\"stream_options\":[]", "stream_options"},
        {"\"stream\":true,\"stream_options\":{\"include_usage\":1}",
         "stream_options.include_usage"},
        {"\"logprobs\":1", "logprobs"},
        {"\"top_logprobs\":1", "top_logprobs"},
        {"\"logprobs\":true,\"top_logprobs\":21", "top_logprobs"},
        {"\"logprobs\":true,\"top_logprobs\":-1", "top_logprobs"},
        {"\"logprobs\":true,\"top_logprobs\":true", "top_logprobs"},
        {"\"response_format\":\"text\"", "response_format"},
        {"\"response_format\":{}", "response_format"},
        {"\"presence_penalty\":\"0\"", "presence_penalty"},
        {"\"use_beam_search\":0", "use_beam_search"},
    };
    for (size_t i = 0; i < BH_COUNT(CASES); i++) {
        bad_chat(CASES[i].field, BH_ERROR_INVALID_VALUE, CASES[i].param);
    }
    bad_chat("\"model\":\"other\"", BH_ERROR_MODEL_NOT_FOUND, "model");
}

Test(params, unsupported)
{
    static const struct {
        const char *field;
        const char *param;
    } CASES[] = {
        {"\"response_format\":{\"type\":\"json_schema\"}", "response_format"},
        {"\"response_format\":{\"type\":\"json_object\"}", "response_format"},
        {"\"logit_bias\":{\"5\":1}", "logit_bias"},
        {"\"presence_penalty\":0.1", "presence_penalty"},
        {"\"frequency_penalty\":-1", "frequency_penalty"},
        {"\"repetition_penalty\":1.1", "repetition_penalty"},
        {"\"repeat_penalty\":0", "repeat_penalty"},
        {"\"suffix\":\"x\"", "suffix"},
        {"\"best_of\":2", "best_of"},
        {"\"min_tokens\":1", "min_tokens"},
        {"\"use_beam_search\":true", "use_beam_search"},
        {"\"functions\":[{}]", "functions"},
        {"\"grammar\":\"root ::= x\"", "grammar"},
        {"\"guided_json\":{}", "guided_json"},
        {"\"mirostat\":2", "mirostat"},
        {"\"audio\":{}", "audio"},
        {"\"prompt_logprobs\":0", "prompt_logprobs"},
        {"\"include_stop_str_in_output\":true", "include_stop_str_in_output"},
        {"\"continue_final_message\":true", "continue_final_message"},
        {"\"echo\":true", "echo"},
    };
    for (size_t i = 0; i < BH_COUNT(CASES); i++) {
        bad_chat(CASES[i].field, BH_ERROR_UNSUPPORTED, CASES[i].param);
    }
    struct bh_params p =
        good_chat("\"repetition_penalty\":1,\"repeat_penalty\":1.0,\"use_beam_search\":false,"
                  "\"min_tokens\":0,\"grammar\":\"\",\"functions\":[],\"mirostat\":0");
    bh_params_free(&p);
}

/* Stop strings at their limits: 16 of them, 1024 bytes together, 32 ids. */
Test(params, stop_limits)
{
    char body[4096];
    for (int over = 0; over < 2; over++) {
        strcpy(body, "{\"prompt\":\"x\",\"stop\":[\"a\"");
        for (int i = 1; i < BH_STOP_MAX + over; i++) {
            strcat(body, ",\"a\"");
        }
        strcat(body, "]}");
        struct bh_params p;
        struct bh_fault fault = {0};
        enum bh_status status = parse_bytes(BH_ROUTE_COMPLETIONS, body, strlen(body), &p, &fault);
        cr_expect(status == (over == 0 ? BH_OK : BH_EINVAL));
        bh_params_free(&p);

        char word[BH_STOP_BYTES_MAX + 2] = {0};
        memset(word, 'w', (size_t)(BH_STOP_BYTES_MAX - 1 + over));
        snprintf(body, sizeof(body), "{\"prompt\":\"x\",\"stop\":[\"%s\",\"z\"]}", word);
        status = parse_bytes(BH_ROUTE_COMPLETIONS, body, strlen(body), &p, &fault);
        cr_expect(status == (over == 0 ? BH_OK : BH_EINVAL));
        cr_expect(over == 1 || (p.stop_end[1] == BH_STOP_BYTES_MAX && p.stop_bytes[1023] == 'z'));
        bh_params_free(&p);

        strcpy(body, "{\"prompt\":\"x\",\"stop_token_ids\":[1");
        for (int i = 1; i < BH_STOP_IDS_MAX + over; i++) {
            strcat(body, ",1");
        }
        strcat(body, "]}");
        status = parse_bytes(BH_ROUTE_COMPLETIONS, body, strlen(body), &p, &fault);
        cr_expect(status == (over == 0 ? BH_OK : BH_EINVAL));
        bh_params_free(&p);
    }
}

Test(params, invalid_json)
{
    static const char *const CASES[] = {
        "",
        " ",
        "{",
        "[]",
        "\"x\"",
        "5",
        "null",
        "{\"prompt\":\"x\"} x",
        "{\"prompt\":\"x\",}",
        "{'prompt':'x'}",
        "{\"prompt\":\"x\",\"prompt\":\"x\"}",
        "{\"prompt\":\"a\\u0000b\"}",
        "{\"prompt\":\"\xff\"}",
        "{\"prompt\":\"\xed\xa0\x80\"}",
        "{\"prompt\":\"\\ud800\"}",
        "{\"prompt\":\"a\nb\"}",
        "{\"prompt\":tru}",
        "{\"a\\u0000\":1}",
        "[NaN]",
        "99999999999999999999",
    };
    for (size_t i = 0; i < BH_COUNT(CASES); i++) {
        bad(BH_ROUTE_COMPLETIONS, CASES[i], BH_ERROR_INVALID_JSON, "");
    }
    struct bh_params p;
    struct bh_fault fault = {0};
    cr_expect(parse_bytes(BH_ROUTE_COMPLETIONS, "{\"prompt\":\"a\0\"}", 14, &p, &fault) ==
              BH_EINVAL);
    cr_expect(fault.error == BH_ERROR_INVALID_JSON);
    bh_params_free(&p);
}

Test(params, depth)
{
    for (uint32_t over = 0; over < 2; over++) {
        /* The root object is the first level. */
        uint32_t depth = BH_JSON_DEPTH_MAX - 1 + over;
        char body[512] = "{\"prompt\":\"[[[\\\"[\",\"x\":";
        memset(body + strlen(body), '[', depth);
        memset(body + strlen(body), ']', depth);
        strcat(body, "}");
        if (over == 1) {
            bad(BH_ROUTE_COMPLETIONS, body, BH_ERROR_INVALID_JSON, "");
        } else {
            struct bh_params p = good(BH_ROUTE_COMPLETIONS, body);
            bh_params_free(&p);
        }
    }
    size_t len = 3u << 20;
    char *many = malloc(len + 1);
    many[len] = '\0';
    static const char FILL[] = {',', ':'};
    for (size_t i = 0; i < BH_COUNT(FILL); i++) {
        memset(many, FILL[i], len);
        bad(BH_ROUTE_COMPLETIONS, many, BH_ERROR_INVALID_JSON, "");
    }
    free(many);
}

Test(params, small_routes)
{
    struct bh_params p = good(BH_ROUTE_TOKENIZE, "{\"content\":\"x\"}");
    cr_expect(strcmp(p.prompts[0].text, "x") == 0 && !p.add_special && p.parse_special &&
              !p.with_pieces);
    bh_params_free(&p);
    p = good(
        BH_ROUTE_TOKENIZE,
        "{\"content\":\"\",\"add_special\":true,\"parse_special\":false,\"with_pieces\":true}");
    cr_expect(p.prompts[0].text_len == 0 && p.add_special && !p.parse_special && p.with_pieces);
    bh_params_free(&p);
    p = good(BH_ROUTE_DETOKENIZE, "{\"tokens\":[1,2]}");
    cr_expect(p.prompts[0].id_cnt == 2 && p.prompts[0].ids[1] == 2);
    bh_params_free(&p);
    p = good(BH_ROUTE_DETOKENIZE, "{\"tokens\":[]}");
    cr_expect(p.prompt_cnt == 1 && p.prompts[0].id_cnt == 0);
    bh_params_free(&p);
    p = good(BH_ROUTE_APPLY_TEMPLATE, "{" MSGS ",\"temperature\":\"ignored here\"}");
    cr_expect(p.messages != NULL && p.add_generation_prompt);
    bh_params_free(&p);
    bad(BH_ROUTE_TOKENIZE, "{}", BH_ERROR_INVALID_VALUE, "content");
    bad(BH_ROUTE_TOKENIZE, "{\"content\":1}", BH_ERROR_INVALID_VALUE, "content");
    bad(BH_ROUTE_TOKENIZE,
        "{\"content\":\"\",\"add_special\":1}",
        BH_ERROR_INVALID_VALUE,
        "add_special");
    bad(BH_ROUTE_DETOKENIZE, "{\"tokens\":\"1\"}", BH_ERROR_INVALID_VALUE, "tokens");
    bad(BH_ROUTE_DETOKENIZE, "{\"tokens\":[100]}", BH_ERROR_INVALID_VALUE, "tokens");
    bad(BH_ROUTE_APPLY_TEMPLATE, "{}", BH_ERROR_INVALID_VALUE, "messages");
    struct bh_fault fault = {0};
    cr_expect(bh_params_parse(BH_ROUTE_HEALTH, "{}", 2, &RULES, &p, &fault) == BH_EINVAL);
    cr_expect(fault.error == BH_ERROR_INTERNAL);
    bh_params_free(&p);
    const struct bh_params_rules any = {.vocab = VOCAB};
    static const char OTHER[] = "{\"prompt\":\"x\",\"model\":\"other\"}";
    cr_expect(bh_params_parse(BH_ROUTE_COMPLETIONS, OTHER, sizeof(OTHER) - 1, &any, &p, &fault) ==
              BH_OK);
    cr_expect(strcmp(p.model, "other") == 0);
    bh_params_free(&p);
}

Test(params, record)
{
    struct bh_record record;
    memset(&record, 0x5a, sizeof(record));
    record.flags = BH_RECORD_CLOSE | BH_RECORD_CHAT | BH_RECORD_ECHO;
    struct bh_params p =
        good_chat("\"stream\":true,\"stream_options\":{\"include_usage\":true},\"seed\":5,"
                  "\"ignore_eos\":true,\"logprobs\":true,\"top_logprobs\":2,\"top_p\":0.5,"
                  "\"stop\":\"ab\",\"stop_token_ids\":[7],\"top_k\":3,\"n\":2");
    bh_params_record(&p, 1, 1000, &record);
    cr_expect(record.flags == (BH_RECORD_CLOSE | BH_RECORD_CHAT | BH_RECORD_STREAM |
                               BH_RECORD_USAGE | BH_RECORD_IGNORE_EOS));
    cr_expect(record.seed == 6 && record.logprobs == 2 && record.top_k == 3);
    cr_expect(record.temperature == 1.0f && record.top_p == 0.5f && record.min_p == 0.0f);
    cr_expect(record.stop_cnt == 1 && record.stop_end[0] == 2 &&
              memcmp(record.stop_bytes, "ab", 2) == 0);
    cr_expect(record.stop_id_cnt == 1 && record.stop_ids[0] == 7);
    cr_expect(record.max_tokens == 0x5a5a5a5a);
    bh_params_free(&p);
    p = good_text("\"echo\":true,\"logprobs\":0");
    bh_params_record(&p, 0, 1000, &record);
    cr_expect(record.flags == (BH_RECORD_CLOSE | BH_RECORD_ECHO | BH_RECORD_PROMPT_LOGPROBS));
    cr_expect(record.seed == 1000 && record.logprobs == 0 && record.stop_cnt == 0);
    bh_params_free(&p);
}
