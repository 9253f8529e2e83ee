/* One HTTP request, whatever its route. See request.h. */
#include "src/tokenizer/request.h"

#include <stdlib.h>
#include <string.h>

#include "src/api/answer.h"
#include "src/api/answer_info.h"
#include "src/core/os.h"
#include "src/text/detok.h"

#define ESTIMATE_BYTES  262144u /* texts up to this are counted exactly, whatever it takes */
#define RENDER_LIMIT_NS 1000000000u

struct asked {
    struct bh_front *front;
    uint32_t conn_idx;
    const struct bh_http_request *http;
    uint32_t tenant;
    struct bh_params params;
    struct bh_fault fault;
};

static void
reply_fault_closing(struct asked *asked, bool close)
{
    struct bh_world *world = asked->front->world;
    struct bh_bytes response;
    bh_bytes_init(&response, world->limits.reply_bytes);
    bh_answer_fault(&response, &asked->fault, close ? BH_HEAD_CLOSE : 0);
    bh_metric_add(&world->status[BH_ROLE_TOKENIZER], BH_METRIC_http_errors, 1);
    bh_conn_reply(&asked->front->conns, asked->conn_idx, &response, close);
    bh_bytes_free(&response);
}

static void
reply_fault(struct asked *asked)
{
    reply_fault_closing(asked, !asked->http->keep_alive);
}

/* A JSON body that this role can answer without the engine. */
static void
reply_json(struct asked *asked, const struct bh_bytes *body)
{
    bool close = !asked->http->keep_alive;
    struct bh_bytes response;
    bh_bytes_init(&response, asked->front->world->limits.reply_bytes);
    bh_answer_json(&response, 200, body, close ? BH_HEAD_CLOSE : 0);
    response.failed = response.failed || body->failed;
    bh_conn_reply(&asked->front->conns, asked->conn_idx, &response, close);
    bh_bytes_free(&response);
}

static bool
prompts_too_long(struct asked *asked, const char *param)
{
    bh_fault_say(&asked->fault,
                 BH_ERROR_INVALID_VALUE,
                 param,
                 "The prompts together are too long; send fewer in one request.");
    return false;
}

static bool
encode(struct asked *asked,
       const char *text,
       size_t len,
       enum bh_bpe_mode mode,
       const char *param,
       size_t *total)
{
    struct bh_front *front = asked->front;
    size_t cnt = 0;
    BH_CHECK(*total < front->ids_max);
    /* What cannot fit is not tokenized, and its tokens are stated as no fewer than this. A mark is three
       bytes that stand for one. */
    size_t token_bytes = (size_t)front->token_bytes_max * (mode == BH_BPE_MARKED ? 3 : 1);
    if (asked->http->route != BH_ROUTE_TOKENIZE && len > ESTIMATE_BYTES &&
        len / token_bytes > front->world->limits.ctx) {
        struct bh_fault_numbers numbers = {.n_prompt_tokens = len / token_bytes,
                                           .n_ctx = front->world->limits.ctx};
        bh_fault_context(
            &asked->fault, &numbers, BH_FAULT_LIMIT_CONTEXT, asked->http->route == BH_ROUTE_CHAT);
        return false;
    }
    enum bh_status status = bh_bpe_encode(
        front->bpe, text, len, mode, front->ids + *total, front->ids_max - *total, &cnt);
    if (status == BH_OK) {
        *total += cnt;
        return true;
    }
    if (status == BH_FULL) {
        struct bh_fault_numbers numbers = {.n_prompt_tokens = cnt,
                                           .n_ctx = front->world->limits.ctx};
        bh_fault_context(
            &asked->fault, &numbers, BH_FAULT_LIMIT_CONTEXT, asked->http->route == BH_ROUTE_CHAT);
    } else if (status == BH_ECORRUPT) {
        bh_fault_say(&asked->fault, BH_ERROR_INVALID_VALUE, param, "The text is not valid UTF-8.");
    } else {
        bh_fault_say(
            &asked->fault, BH_ERROR_INVALID_VALUE, param, "The text is too long to be tokenized.");
    }
    return false;
}

static bool
render_expired(void *arg)
{
    return bh_os_now_ns() > *(const uint64_t *)arg;
}

/* Messages to prompt text with marks, in front->text. */
static bool
render(struct asked *asked, size_t *len)
{
    struct bh_front *front = asked->front;
    const struct bh_params *params = &asked->params;
    if (front->template == NULL) {
        bh_fault_say(&asked->fault,
                     BH_ERROR_INVALID_VALUE,
                     "messages",
                     "This model has no usable chat template (%.150s); use /v1/completions.",
                     front->template_error);
        return false;
    }
    uint64_t deadline_ns = bh_os_now_ns() + RENDER_LIMIT_NS;
    struct bh_template_request request = {
        .messages = params->messages,
        .messages_len = strlen(params->messages),
        .tools = params->tools,
        .tools_len = params->tools != NULL ? strlen(params->tools) : 0,
        .kwargs = params->template_kwargs,
        .kwargs_len = params->template_kwargs != NULL ? strlen(params->template_kwargs) : 0,
        .add_generation_prompt = params->add_generation_prompt,
        .now_s = (int64_t)bh_os_unix_s(),
        .expired = render_expired,
        .expired_arg = &deadline_ns,
    };
    struct bh_template_error error;
    enum bh_status status =
        bh_template_render(front->template, &request, front->text, front->text_max, len, &error);
    if (status == BH_OK) {
        return true;
    }
    bh_fault_say(&asked->fault,
                 BH_ERROR_INVALID_VALUE,
                 "messages",
                 "The model's chat template refused the messages: %.180s",
                 error.message[0] != '\0' ? error.message : error.kind);
    return false;
}

static bool
tokenize_chat(struct asked *asked, size_t *prompt_end)
{
    size_t len = 0;
    size_t total = 0;
    if (!render(asked, &len) ||
        !encode(asked, asked->front->text, len, BH_BPE_MARKED, "messages", &total)) {
        return false;
    }
    if (total == 0) {
        bh_fault_say(
            &asked->fault, BH_ERROR_INVALID_VALUE, "messages", "The prompt has no tokens.");
        return false;
    }
    prompt_end[0] = total;
    return true;
}

static bool
tokenize_prompts(struct asked *asked, size_t *prompt_end)
{
    struct bh_front *front = asked->front;
    size_t total = 0;
    for (uint32_t p = 0; p < asked->params.prompt_cnt; p++) {
        const struct bh_prompt *prompt = &asked->params.prompts[p];
        size_t from = total;
        /* Room for a prompt of the greatest length and the token that may stand before it. */
        if (front->ids_max - total <= (size_t)front->world->limits.ctx + 1) {
            return prompts_too_long(asked, "prompt");
        }
        if (prompt->ids != NULL) {
            if (total > 0 && prompt->id_cnt > front->ids_max - 1 - total) {
                return prompts_too_long(asked, "prompt");
            }
            if (prompt->id_cnt > front->ids_max - 1) {
                struct bh_fault_numbers numbers = {.n_prompt_tokens = prompt->id_cnt,
                                                   .n_ctx = front->world->limits.ctx};
                bh_fault_context(&asked->fault, &numbers, BH_FAULT_LIMIT_CONTEXT, false);
                return false;
            }
            memcpy(front->ids + total, prompt->ids, prompt->id_cnt * sizeof(*prompt->ids));
            total += prompt->id_cnt;
        } else {
            if (bh_vocab_add_bos(front->vocab)) {
                front->ids[total++] = bh_vocab_bos(front->vocab);
            }
            if (!encode(asked, prompt->text, prompt->text_len, BH_BPE_SPECIAL, "prompt", &total)) {
                return false;
            }
        }
        if (total == from) {
            bh_fault_say(&asked->fault,
                         BH_ERROR_INVALID_VALUE,
                         "prompt",
                         "The prompt has no tokens; send at least one character or token id.");
            return false;
        }
        prompt_end[p] = total;
    }
    return true;
}

static void
answer_completion(struct asked *asked)
{
    size_t prompt_end[BH_CHOICES_MAX];
    bool chat = asked->http->route == BH_ROUTE_CHAT;
    bool ok = chat ? tokenize_chat(asked, prompt_end) : tokenize_prompts(asked, prompt_end);
    uint32_t prompt_cnt = chat ? 1 : asked->params.prompt_cnt;
    ok = ok && bh_front_submit(asked->front,
                               asked->conn_idx,
                               &asked->params,
                               asked->tenant,
                               prompt_end,
                               prompt_cnt,
                               &asked->fault);
    if (!ok) {
        reply_fault(asked);
    }
}

static void
answer_tokenize(struct asked *asked)
{
    struct bh_front *front = asked->front;
    const struct bh_prompt *prompt = &asked->params.prompts[0];
    size_t total = 0;
    if (asked->params.add_special && bh_vocab_add_bos(front->vocab)) {
        front->ids[total++] = bh_vocab_bos(front->vocab);
    }
    enum bh_bpe_mode mode = asked->params.parse_special ? BH_BPE_SPECIAL : BH_BPE_PLAIN;
    if (!encode(asked, prompt->text, prompt->text_len, mode, "content", &total)) {
        reply_fault(asked);
        return;
    }
    struct bh_bytes body;
    bh_bytes_init(&body, front->world->limits.reply_bytes);
    if (asked->params.with_pieces) {
        struct bh_body_piece *pieces = calloc(total > 0 ? total : 1, sizeof(*pieces));
        body.failed = pieces == NULL;
        for (size_t i = 0; i < total && pieces != NULL; i++) {
            pieces[i].token = front->ids[i];
            pieces[i].text =
                (const char *)bh_vocab_bytes(front->vocab, front->ids[i], &pieces[i].text_len);
        }
        bh_body_pieces(&body, pieces, pieces != NULL ? (uint32_t)total : 0);
        free(pieces);
    } else {
        bh_body_tokens(&body, front->ids, (uint32_t)total);
    }
    reply_json(asked, &body);
    bh_bytes_free(&body);
}

static void
answer_detokenize(struct asked *asked)
{
    struct bh_front *front = asked->front;
    const struct bh_prompt *prompt = &asked->params.prompts[0];
    struct bh_bytes text;
    struct bh_bytes body;
    struct bh_detok detok;
    uint8_t out[BH_DETOK_TOKEN_OUT];
    bh_bytes_init(&text, front->world->limits.reply_bytes);
    bh_bytes_init(&body, front->world->limits.reply_bytes);
    bh_detok_init(&detok);
    for (uint32_t i = 0; i < prompt->id_cnt; i++) {
        bh_bytes_put(&text, out, bh_detok_token(&detok, front->vocab, prompt->ids[i], true, out));
    }
    bh_bytes_put(&text, out, bh_detok_finish(&detok, out));
    bh_body_content(&body, text.data, text.len);
    body.failed = body.failed || text.failed;
    reply_json(asked, &body);
    bh_bytes_free(&text);
    bh_bytes_free(&body);
}

static void
answer_apply_template(struct asked *asked)
{
    struct bh_front *front = asked->front;
    size_t len = 0;
    size_t total = 0;
    if (!render(asked, &len) ||
        !encode(asked, front->text, len, BH_BPE_MARKED, "messages", &total)) {
        reply_fault(asked);
        return;
    }
    uint8_t *text = (uint8_t *)front->text;
    len = bh_marks_remove(bh_template_marks(front->template), text, len, text, NULL);
    struct bh_bytes body;
    bh_bytes_init(&body, front->world->limits.reply_bytes);
    bh_body_prompt(&body, front->text, len, front->ids, (uint32_t)total);
    reply_json(asked, &body);
    bh_bytes_free(&body);
}

static void
ask_plain(struct asked *asked, enum bh_question_kind kind)
{
    bh_conn_ask(&asked->front->conns,
                asked->conn_idx,
                &(struct bh_question){.kind = kind, .close = asked->http->keep_alive ? 0 : 1});
}

/* Is the server in a state to take completions? */
static bool
serving(struct asked *asked)
{
    const struct bh_control_block *block = asked->front->world->control.block;
    /* Relaxed: neither word guards any other memory. */
    if (bh_word_load_relaxed(&block->drain) != BH_DRAIN_NO) {
        bh_fault_set(&asked->fault, BH_ERROR_DRAINING, NULL);
        return false;
    }
    if (bh_word_load_relaxed(&block->ready) == 0) {
        bh_fault_set(&asked->fault, BH_ERROR_LOADING, NULL);
        return false;
    }
    return true;
}

static void
answer_post(struct asked *asked)
{
    struct bh_front *front = asked->front;
    const char *name = front->world->control.block->model_name;
    struct bh_params_rules rules = {
        .models = &name, .model_cnt = 1, .vocab = front->world->limits.vocab};
    enum bh_route route = asked->http->route;
    enum bh_status status = bh_params_parse(
        route, asked->http->body, asked->http->body_len, &rules, &asked->params, &asked->fault);
    bool completion = route == BH_ROUTE_CHAT || route == BH_ROUTE_COMPLETIONS;
    if (status != BH_OK || (completion && !serving(asked))) {
        reply_fault(asked);
    } else if (completion) {
        answer_completion(asked);
    } else if (route == BH_ROUTE_TOKENIZE) {
        answer_tokenize(asked);
    } else if (route == BH_ROUTE_DETOKENIZE) {
        answer_detokenize(asked);
    } else {
        answer_apply_template(asked);
    }
    bh_params_free(&asked->params);
}

/* Whose request this is. False: nobody's; the fault says so. */
static bool
tenant_find(struct asked *asked)
{
    if (asked->http->public || bh_keys_find(asked->front->keys,
                                            asked->http->token,
                                            asked->http->token_len,
                                            &asked->tenant) == BH_OK) {
        return true;
    }
    bh_fault_set(&asked->fault, BH_ERROR_INVALID_API_KEY, NULL);
    return false;
}

bool
bh_front_head(void *role, uint32_t conn_idx)
{
    struct bh_front *front = role;
    struct asked asked = {.front = front,
                          .conn_idx = conn_idx,
                          .http = bh_http_request(front->conns.list[conn_idx].http)};
    if (tenant_find(&asked)) {
        return true;
    }
    reply_fault_closing(&asked, true);
    return false;
}

void
bh_front_request(void *role, uint32_t conn_idx)
{
    struct bh_front *front = role;
    struct asked asked = {.front = front,
                          .conn_idx = conn_idx,
                          .http = bh_http_request(front->conns.list[conn_idx].http)};
    if (!tenant_find(&asked)) {
        reply_fault(&asked);
        return;
    }
    struct bh_bytes body;
    switch (asked.http->route) {
    case BH_ROUTE_HEALTH:
        ask_plain(&asked, BH_QUESTION_HEALTH);
        break;
    case BH_ROUTE_MODELS:
        ask_plain(&asked, BH_QUESTION_MODELS);
        break;
    case BH_ROUTE_METRICS:
        ask_plain(&asked, BH_QUESTION_METRICS);
        break;
    case BH_ROUTE_LIVE:
        bh_bytes_init(&body, 256);
        bh_body_health(&body);
        reply_json(&asked, &body);
        bh_bytes_free(&body);
        break;
    default:
        answer_post(&asked);
        break;
    }
}
