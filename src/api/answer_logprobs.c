/* Log-probabilities in the two shapes that OpenAI's API gives them. Tokens are bytes and need
   not be UTF-8: chat shows them as text with U+FFFD and adds the bytes; completions has no place
   for bytes and uses them as keys, so a token that is not UTF-8 is written "bytes:\xNN...", as
   OpenAI does. */
#include "src/api/answer_body.h"

#include <string.h>

#include "src/api/json_text.h"
#include "src/text/utf8.h"

uint64_t
bh_text_chars(const char *text, size_t len)
{
    uint64_t chars = 0;
    for (size_t i = 0; i < len; i++) {
        chars += ((unsigned char)text[i] & 0xc0u) != 0x80u;
    }
    return chars;
}

static void
put_byte_list(struct bh_bytes *out, const char *text, size_t len)
{
    bh_bytes_text(out, "[");
    for (size_t i = 0; i < len; i++) {
        bh_bytes_format(out, "%s%u", i == 0 ? "" : ",", (unsigned)(unsigned char)text[i]);
    }
    bh_bytes_text(out, "]");
}

/* {"token":...,"bytes":[...],"logprob":... without the closing brace. */
static void
put_chat_entry(struct bh_bytes *out, const char *text, size_t len, float logprob)
{
    bh_bytes_text(out, "{\"token\":");
    bh_json_string(out, text, len);
    bh_bytes_text(out, ",\"bytes\":");
    put_byte_list(out, text, len);
    bh_bytes_text(out, ",\"logprob\":");
    bh_json_logprob(out, logprob);
}

static void
put_chat(struct bh_bytes *out, const struct bh_answer_choice *choice)
{
    bh_bytes_text(out, "{\"content\":[");
    for (uint32_t i = 0; i < choice->token_cnt; i++) {
        const struct bh_answer_token *token = &choice->tokens[i];
        bh_bytes_text(out, i == 0 ? "" : ",");
        put_chat_entry(out, token->text, token->text_len, token->logprob);
        bh_bytes_text(out, ",\"top_logprobs\":[");
        for (uint32_t k = 0; k < token->top_cnt; k++) {
            const struct bh_answer_top *top = &token->top[k];
            bh_bytes_text(out, k == 0 ? "" : ",");
            put_chat_entry(out, top->text, top->text_len, top->logprob);
            bh_bytes_text(out, "}");
        }
        bh_bytes_text(out, "]}");
    }
    bh_bytes_text(out, "]}");
}

static void
put_name(struct bh_bytes *out, const char *text, size_t len)
{
    if (bh_utf8_valid((const uint8_t *)text, len) == len) {
        bh_json_string(out, text, len);
        return;
    }
    bh_bytes_text(out, "\"bytes:");
    for (size_t i = 0; i < len; i++) {
        bh_bytes_format(out, "\\\\x%02x", (unsigned)(unsigned char)text[i]);
    }
    bh_bytes_text(out, "\"");
}

/* Whether an alternative before k has the same text: an object may not have a key twice, and the
   more probable of the two is the one before. */
static bool
seen_before(const struct bh_answer_token *token, uint32_t k)
{
    const struct bh_answer_top *top = token->top;
    for (uint32_t i = 0; i < k; i++) {
        if (top[i].text_len == top[k].text_len &&
            memcmp(top[i].text, top[k].text, top[k].text_len) == 0) {
            return true;
        }
    }
    return false;
}

static void
put_top_object(struct bh_bytes *out, const struct bh_answer_token *token)
{
    if (!token->has_logprob) {
        bh_bytes_text(out, "null");
        return;
    }
    bh_bytes_text(out, "{");
    bool any = false;
    for (uint32_t k = 0; k < token->top_cnt; k++) {
        if (seen_before(token, k)) {
            continue;
        }
        bh_bytes_text(out, any ? "," : "");
        put_name(out, token->top[k].text, token->top[k].text_len);
        bh_bytes_text(out, ":");
        bh_json_logprob(out, token->top[k].logprob);
        any = true;
    }
    bh_bytes_text(out, "}");
}

static void
put_completions(struct bh_bytes *out, const struct bh_answer_choice *choice)
{
    const struct bh_answer_token *tokens = choice->tokens;
    bh_bytes_text(out, "{\"text_offset\":[");
    uint64_t offset = choice->text_offset;
    for (uint32_t i = 0; i < choice->token_cnt; i++) {
        bh_bytes_format(out, "%s%llu", i == 0 ? "" : ",", (unsigned long long)offset);
        offset += bh_text_chars(tokens[i].text, tokens[i].text_len);
    }
    bh_bytes_text(out, "],\"token_logprobs\":[");
    for (uint32_t i = 0; i < choice->token_cnt; i++) {
        bh_bytes_text(out, i == 0 ? "" : ",");
        if (tokens[i].has_logprob) {
            bh_json_logprob(out, tokens[i].logprob);
        } else {
            bh_bytes_text(out, "null");
        }
    }
    bh_bytes_text(out, "],\"tokens\":[");
    for (uint32_t i = 0; i < choice->token_cnt; i++) {
        bh_bytes_text(out, i == 0 ? "" : ",");
        put_name(out, tokens[i].text, tokens[i].text_len);
    }
    bh_bytes_text(out, "],\"top_logprobs\":[");
    for (uint32_t i = 0; i < choice->token_cnt; i++) {
        bh_bytes_text(out, i == 0 ? "" : ",");
        put_top_object(out, &tokens[i]);
    }
    bh_bytes_text(out, "]}");
}

void
bh_put_logprobs(struct bh_bytes *out, bool chat, const struct bh_answer_choice *choice)
{
    if (!choice->logprobs) {
        bh_bytes_text(out, "null");
    } else if (chat) {
        put_chat(out, choice);
    } else {
        put_completions(out, choice);
    }
}
