/* Whole answers and the events of a stream: the JSON around the text. */
#include "src/api/answer_body.h"

#include <inttypes.h>
#include <string.h>

#include "src/api/json_text.h"

void
bh_put_start(struct bh_bytes *out, const struct bh_answer *answer, const char *object)
{
    bh_bytes_format(out,
                    "{\"id\":\"%s-%016" PRIx64 "%016" PRIx64
                    "\",\"object\":\"%s\",\"created\":%" PRIu64 ",\"model\":",
                    answer->chat ? "chatcmpl" : "cmpl",
                    answer->id[0],
                    answer->id[1],
                    object,
                    answer->created_s);
    bh_json_string(out, answer->model, strlen(answer->model));
}

void
bh_put_usage(struct bh_bytes *out, const struct bh_answer_usage *usage)
{
    bh_bytes_format(out,
                    "{\"prompt_tokens\":%" PRIu64 ",\"completion_tokens\":%" PRIu64
                    ",\"total_tokens\":%" PRIu64
                    ",\"prompt_tokens_details\":{\"cached_tokens\":%" PRIu64 "}}",
                    usage->prompt_tokens,
                    usage->completion_tokens,
                    usage->prompt_tokens + usage->completion_tokens,
                    usage->cached_tokens);
}

void
bh_put_finish(struct bh_bytes *out, enum bh_finish finish)
{
    bh_bytes_text(out,
                  finish == BH_FINISH_STOP     ? "\"stop\""
                  : finish == BH_FINISH_LENGTH ? "\"length\""
                                               : "null");
}

static void
put_choice(struct bh_bytes *out, bool chat, const struct bh_answer_choice *choice)
{
    bh_bytes_format(out, "{\"index\":%u,", choice->index);
    bh_bytes_text(out, chat ? "\"message\":{\"role\":\"assistant\",\"content\":" : "\"text\":");
    bh_json_string(out, choice->text, choice->text_len);
    bh_bytes_text(out, chat ? "},\"logprobs\":" : ",\"logprobs\":");
    bh_put_logprobs(out, chat, choice);
    bh_bytes_text(out, ",\"finish_reason\":");
    bh_put_finish(out, choice->finish);
    bh_bytes_text(out, "}");
}

void
bh_answer_body(struct bh_bytes *out,
               const struct bh_answer *answer,
               const struct bh_answer_choice *choices,
               uint32_t choice_cnt,
               const struct bh_answer_usage *usage)
{
    bh_put_start(out, answer, answer->chat ? "chat.completion" : "text_completion");
    bh_bytes_text(out, ",\"choices\":[");
    for (uint32_t i = 0; i < choice_cnt; i++) {
        bh_bytes_text(out, i == 0 ? "" : ",");
        put_choice(out, answer->chat, &choices[i]);
    }
    bh_bytes_text(out, "],\"usage\":");
    bh_put_usage(out, usage);
    bh_bytes_text(out, "}");
}

/* Open an event up to the list of choices. */
static void
event_start(struct bh_bytes *out, const struct bh_answer *answer)
{
    bh_bytes_text(out, "data: ");
    bh_put_start(out, answer, answer->chat ? "chat.completion.chunk" : "text_completion");
    bh_bytes_text(out, ",\"choices\":[");
}

static void
event_end(struct bh_bytes *out, const struct bh_answer *answer)
{
    bh_bytes_text(out, answer->include_usage ? "],\"usage\":null}\n\n" : "]}\n\n");
}

void
bh_event_first(struct bh_bytes *out, const struct bh_answer *answer, uint32_t index)
{
    if (!answer->chat) {
        return;
    }
    event_start(out, answer);
    bh_bytes_format(out,
                    "{\"index\":%u,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},"
                    "\"logprobs\":null,\"finish_reason\":null}",
                    index);
    event_end(out, answer);
}

void
bh_event_text(struct bh_bytes *out,
              const struct bh_answer *answer,
              const struct bh_answer_choice *choice)
{
    event_start(out, answer);
    bh_bytes_format(out, "{\"index\":%u,", choice->index);
    bh_bytes_text(out, answer->chat ? "\"delta\":{\"content\":" : "\"text\":");
    bh_json_string(out, choice->text, choice->text_len);
    bh_bytes_text(out, answer->chat ? "},\"logprobs\":" : ",\"logprobs\":");
    bh_put_logprobs(out, answer->chat, choice);
    bh_bytes_text(out, ",\"finish_reason\":null}");
    event_end(out, answer);
}

void
bh_event_last(struct bh_bytes *out,
              const struct bh_answer *answer,
              uint32_t index,
              enum bh_finish finish)
{
    event_start(out, answer);
    bh_bytes_format(out, "{\"index\":%u,", index);
    bh_bytes_text(out, answer->chat ? "\"delta\":{}" : "\"text\":\"\"");
    bh_bytes_text(out, ",\"logprobs\":null,\"finish_reason\":");
    bh_put_finish(out, finish);
    bh_bytes_text(out, "}");
    event_end(out, answer);
}

void
bh_event_usage(struct bh_bytes *out,
               const struct bh_answer *answer,
               const struct bh_answer_usage *usage)
{
    if (!answer->include_usage) {
        return;
    }
    event_start(out, answer);
    bh_bytes_text(out, "],\"usage\":");
    bh_put_usage(out, usage);
    bh_bytes_text(out, "}\n\n");
}

void
bh_event_done(struct bh_bytes *out)
{
    bh_bytes_text(out, "data: [DONE]\n\n");
}

void
bh_event_fault(struct bh_bytes *out, const struct bh_fault *fault)
{
    bh_bytes_text(out, "data: ");
    bh_fault_json(out, fault);
    bh_bytes_text(out, "\n\n");
}

void
bh_event_ping(struct bh_bytes *out)
{
    bh_bytes_text(out, ": ping\n\n");
}
