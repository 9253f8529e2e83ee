/* Rendering of answers: whole, streamed, and errors of both. See question.h. */
#include "src/egress/question.h"

#include <stdlib.h>

#include "shm/hook.h"
#include "src/core/config.h"
#include "src/core/os.h"

static const char *const cause_codes[] = {
#define CAUSE(name, code, meaning) code,
#include "shm/cause.def"
#undef CAUSE
};

/* Copy the records of all choices. Every field that is used as an index is checked on the copy. */
static bool
open_choices(struct bh_asked *asked,
             const struct bh_answerer *answerer,
             uint32_t conn_idx,
             uint32_t conn_gen)
{
    const struct bh_world *world = answerer->world;
    struct bh_req req = {.slot = asked->question.slot, .gen = asked->question.gen};
    uint32_t cnt = 1;
    for (uint32_t c = 0; c < cnt; c++) {
        if (req.slot >= world->limits.slots) {
            return false;
        }
        struct bh_record record = world->submit.records[req.slot];
        if (!bh_record_check(&record, req, &world->limits) || record.conn_idx != conn_idx ||
            record.conn_gen != conn_gen || record.choice_idx != c ||
            (record.question & 0xffffu) != (asked->number & 0xffffu)) {
            return false;
        }
        if (c == 0) {
            cnt = record.choice_cnt;
            asked->choices = calloc(cnt, sizeof(*asked->choices));
            if (asked->choices == NULL) {
                return false;
            }
        } else if (record.choice_cnt != cnt) {
            return false;
        }
        if (!bh_choice_new(&asked->choices[c], &record)) {
            return false;
        }
        asked->choice_cnt = c + 1;
        req = (struct bh_req){.slot = record.next_slot, .gen = record.next_gen};
    }
    return true;
}

bool
bh_asked_open(struct bh_asked *asked,
              const struct bh_answerer *answerer,
              uint32_t conn_idx,
              uint32_t conn_gen,
              uint32_t number)
{
    const struct bh_world *world = answerer->world;
    *asked =
        (struct bh_asked){.question = world->submit.conns[conn_idx].question, .number = number};
    asked->close = asked->question.close != 0;
    if (asked->question.kind == BH_QUESTION_REPLY) {
        return asked->question.reply_bytes <= world->limits.reply_bytes;
    }
    if (asked->question.kind != BH_QUESTION_REQUEST) {
        return asked->question.kind > BH_QUESTION_NONE &&
               asked->question.kind < BH_QUESTION_KIND_CNT;
    }
    if (!open_choices(asked, answerer, conn_idx, conn_gen)) {
        return false;
    }
    const struct bh_record *record = &asked->choices[0].record;
    asked->stream = (record->flags & BH_RECORD_STREAM) != 0;
    asked->close = asked->close || (record->flags & BH_RECORD_CLOSE) != 0;
    asked->answer = (struct bh_answer){.chat = (record->flags & BH_RECORD_CHAT) != 0,
                                       .include_usage = (record->flags & BH_RECORD_USAGE) != 0,
                                       .id = {record->id[0], record->id[1]},
                                       .created_s = record->created_s,
                                       .model = world->control.block->model_name};
    asked->ping_ns = record->accepted_ns;
    return true;
}

void
bh_asked_close(struct bh_asked *asked)
{
    for (uint32_t c = 0; c < asked->choice_cnt; c++) {
        bh_choice_delete(&asked->choices[c]);
    }
    free(asked->choices);
    *asked = (struct bh_asked){0};
}

static void
edge_add(struct bh_answerer *answerer, const struct bh_choice *choice, uint32_t flags)
{
    struct bh_world *world = answerer->world;
    uint32_t slot = choice->record.slot;
    uint32_t gen = choice->record.gen;
    if (bh_request_load(&world->requests, slot).gen != gen) {
        return;
    }
    struct bh_edge_view edge = bh_edge_load(&world->edge, slot);
    if (edge.gen != gen) {
        edge = (struct bh_edge_view){.gen = gen};
    }
    edge.flags |= flags;
    if ((flags & BH_EDGE_STOP) != 0) {
        edge.stop_at = choice->used;
    }
    bh_edge_store(&world->edge, slot, edge);
    BH_HOOK("egress.edge:after_word");
    bh_world_tell(world, BH_ROLE_LEDGER, bh_hint_make(BH_HINT_EDGE, slot, gen));
}

void
bh_asked_edges(const struct bh_asked *asked, struct bh_answerer *answerer, uint32_t flags)
{
    /* The last choice first: a successor that finds the first one still there finds all that are left. */
    for (uint32_t c = asked->choice_cnt; c > 0; c--) {
        edge_add(answerer, &asked->choices[c - 1], flags);
    }
}

static uint32_t
head_flags(const struct bh_asked *asked)
{
    return asked->close ? (uint32_t)BH_HEAD_CLOSE : 0u;
}

static struct bh_answer_usage
usage_of(const struct bh_asked *asked)
{
    struct bh_answer_usage usage = {0};
    uint32_t prompts = 0; /* choices of one prompt follow each other */
    for (uint32_t c = 0; c < asked->choice_cnt; c++) {
        const struct bh_choice *choice = &asked->choices[c];
        usage.completion_tokens += choice->completion;
        if (choice->record.prompt_idx == prompts) {
            prompts++;
            usage.prompt_tokens += choice->record.prompt_cnt;
            usage.cached_tokens += bh_min_u64(choice->cached, choice->record.prompt_cnt);
        }
    }
    return usage;
}

static void
fault_of(const struct bh_choice *choice, const struct bh_world *world, struct bh_fault *fault)
{
    if (choice->lost) {
        bh_fault_set(fault, BH_ERROR_WORKER_LOST, NULL);
        return;
    }
    const char *code = choice->cause < BH_CAUSE_CNT ? cause_codes[choice->cause] : NULL;
    enum bh_error error = bh_error_by_code(code != NULL ? code : "internal_error");
    bh_fault_set(fault, error, NULL);
    if (error == BH_ERROR_CONTEXT_LENGTH) {
        struct bh_fault_numbers numbers = {.n_prompt_tokens = choice->record.prompt_cnt,
                                           .n_max_tokens = choice->record.max_tokens,
                                           .n_ctx = world->limits.ctx};
        bh_fault_context(
            fault, &numbers, BH_FAULT_LIMIT_CONTEXT, (choice->record.flags & BH_RECORD_CHAT) != 0);
    }
}

/* An error ends the answer: as a whole response while nothing was said, else as the last event of the
   stream, after which the connection ends, so that nobody takes it for an answer. */
static void
render_fault(struct bh_asked *asked,
             struct bh_answerer *answerer,
             const struct bh_choice *choice,
             struct bh_bytes *out)
{
    struct bh_fault fault;
    fault_of(choice, answerer->world, &fault);
    bh_asked_edges(asked, answerer, BH_EDGE_GONE);
    asked->complete = true;
    if (!asked->head) {
        asked->head = true;
        bh_answer_fault(out, &fault, head_flags(asked));
        return;
    }
    asked->close = true;
    bool chunked = (asked->choices[0].record.flags & BH_RECORD_HTTP10) == 0;
    size_t begin = chunked ? bh_chunk_begin(out) : 0;
    bh_event_fault(out, &fault);
    if (chunked) {
        bh_chunk_end(out, begin);
        bh_chunk_last(out);
    }
}

static void
observe_token(struct bh_asked *asked, struct bh_answerer *answerer, uint64_t now_ns)
{
    struct bh_statusboard *board = &answerer->world->status[BH_ROLE_EGRESS];
    const struct bh_record *record = &asked->choices[0].record;
    if (asked->skipping) {
        asked->told_first = true;
    } else if (!asked->told_first) {
        asked->told_first = true;
        bh_histogram_observe(
            board, BH_HISTOGRAM_ttft_seconds, (double)(now_ns - record->accepted_ns) / 1e9);
    } else {
        bh_histogram_observe(
            board, BH_HISTOGRAM_itl_seconds, (double)(now_ns - asked->token_ns) / 1e9);
    }
    asked->token_ns = now_ns;
}

static void
observe_end(const struct bh_asked *asked, struct bh_answerer *answerer, uint64_t now_ns)
{
    struct bh_statusboard *board = &answerer->world->status[BH_ROLE_EGRESS];
    for (uint32_t c = 0; c < asked->choice_cnt; c++) {
        const struct bh_choice *choice = &asked->choices[c];
        bh_histogram_observe(
            board, BH_HISTOGRAM_e2e_seconds, (double)(now_ns - choice->record.accepted_ns) / 1e9);
        bh_histogram_observe(board, BH_HISTOGRAM_prompt_tokens_hist, choice->record.prompt_cnt);
        bh_histogram_observe(board, BH_HISTOGRAM_generation_tokens_hist, choice->completion);
    }
}

/* Take what the logs have; a stop string that was found is told to the ledger at once. */
static uint32_t
pull(struct bh_asked *asked,
     struct bh_answerer *answerer,
     struct bh_choice *choice,
     uint32_t tokens_max,
     uint64_t now_ns)
{
    bool stopped = choice->stop_found;
    uint32_t taken = bh_choice_pull(choice, answerer->world, answerer->vocab, tokens_max);
    if (choice->stop_found && !stopped) {
        edge_add(answerer, choice, BH_EDGE_STOP);
    }
    if (taken > 0) {
        observe_token(asked, answerer, now_ns);
    }
    return taken;
}

static uint32_t
render_whole(struct bh_asked *asked,
             struct bh_answerer *answerer,
             uint64_t now_ns,
             struct bh_bytes *out)
{
    bool all_over = true;
    for (uint32_t c = 0; c < asked->choice_cnt; c++) {
        struct bh_choice *choice = &asked->choices[c];
        (void)pull(asked, answerer, choice, UINT32_MAX, now_ns);
        if (choice->cause != BH_CAUSE_NONE || choice->lost) {
            render_fault(asked, answerer, choice, out);
            return 1;
        }
        all_over = all_over && choice->over;
    }
    if (!all_over) {
        return 0;
    }
    struct bh_answer_choice views[BH_CHOICES_MAX];
    for (uint32_t c = 0; c < asked->choice_cnt; c++) {
        views[c] = bh_choice_view(&asked->choices[c]);
        out->failed = out->failed || asked->choices[c].text.failed;
    }
    struct bh_answer_usage usage = usage_of(asked);
    struct bh_bytes body;
    bh_bytes_init(&body, out->max);
    bh_answer_body(&body, &asked->answer, views, asked->choice_cnt, &usage);
    bh_answer_json(out, 200, &body, head_flags(asked));
    bh_bytes_free(&body);
    asked->head = true;
    asked->complete = true;
    observe_end(asked, answerer, now_ns);
    return 1;
}

/* The events that choice has to say now; a stream begins with its role event. */
static void
render_events(struct bh_asked *asked, struct bh_choice *choice, struct bh_bytes *out)
{
    if (!choice->first_sent) {
        choice->first_sent = true;
        bh_event_first(out, &asked->answer, choice->record.choice_idx);
    }
    if (choice->text.len > 0 || (choice->over && choice->token_cnt > 0)) {
        struct bh_answer_choice view = bh_choice_view(choice);
        view.finish = BH_FINISH_NONE;
        out->failed = out->failed || choice->text.failed;
        bh_event_text(out, &asked->answer, &view);
        bh_choice_rendered(choice);
    }
    if (choice->over && !choice->last_sent) {
        choice->last_sent = true;
        bh_event_last(out, &asked->answer, choice->record.choice_idx, choice->finish);
    }
}

/* Returns the frames appended: a head is one, and there is one head. */
static uint32_t
render_head(struct bh_asked *asked, bool chunked, struct bh_bytes *out)
{
    if (asked->head) {
        return 0;
    }
    asked->head = true;
    bh_head_stream(out, head_flags(asked) | (chunked ? (uint32_t)BH_HEAD_CHUNKED : 0u));
    return 1;
}

/* One token of one choice at a time, so that with one choice a frame is a token. */
static uint32_t
render_stream(struct bh_asked *asked,
              struct bh_answerer *answerer,
              uint64_t now_ns,
              struct bh_bytes *out)
{
    bool chunked = (asked->choices[0].record.flags & BH_RECORD_HTTP10) == 0;
    bool all_over = true;
    uint32_t frames = 0;
    for (uint32_t c = 0; c < asked->choice_cnt; c++) {
        struct bh_choice *choice = &asked->choices[c];
        if (choice->last_sent) {
            continue;
        }
        uint32_t taken = pull(asked, answerer, choice, 1, now_ns);
        if (choice->cause != BH_CAUSE_NONE || choice->lost) {
            render_fault(asked, answerer, choice, out);
            return frames + 1;
        }
        if (taken > 0 || choice->over) {
            frames += render_head(asked, chunked, out);
            size_t begin = chunked ? bh_chunk_begin(out) : 0;
            render_events(asked, choice, out);
            if (chunked) {
                bh_chunk_end(out, begin);
            }
            frames++;
        }
        all_over = all_over && choice->over;
    }
    if (all_over) {
        struct bh_answer_usage usage = usage_of(asked);
        size_t begin = chunked ? bh_chunk_begin(out) : 0;
        bh_event_usage(out, &asked->answer, &usage);
        bh_event_done(out);
        if (chunked) {
            bh_chunk_end(out, begin);
            bh_chunk_last(out);
        } else {
            asked->close = true;
        }
        asked->complete = true;
        observe_end(asked, answerer, now_ns);
    }
    return frames;
}

static void
render_once(struct bh_asked *asked,
            struct bh_answerer *answerer,
            uint32_t conn_idx,
            struct bh_bytes *out)
{
    struct bh_world *world = answerer->world;
    switch ((enum bh_question_kind)asked->question.kind) {
    case BH_QUESTION_REPLY:
        bh_bytes_put(out, bh_submit_reply(&world->submit, conn_idx), asked->question.reply_bytes);
        break;
    case BH_QUESTION_INTERIM:
        bh_head_continue(out);
        break;
    case BH_QUESTION_MODELS:
        bh_info_models(world, head_flags(asked), out);
        break;
    case BH_QUESTION_HEALTH:
        bh_info_health(world, head_flags(asked), out);
        break;
    case BH_QUESTION_METRICS:
        bh_info_metrics(world, head_flags(asked), out);
        break;
    case BH_QUESTION_HANGUP:
    case BH_QUESTION_REQUEST:
    case BH_QUESTION_NONE:
    case BH_QUESTION_KIND_CNT:
    default:
        break;
    }
    asked->complete = true;
}

uint32_t
bh_asked_render(struct bh_asked *asked,
                struct bh_answerer *answerer,
                uint32_t conn_idx,
                uint64_t now_ns,
                struct bh_bytes *out)
{
    uint32_t frames = 0;
    if (asked->complete) {
        return 0;
    }
    if (asked->question.kind != BH_QUESTION_REQUEST) {
        render_once(asked, answerer, conn_idx, out);
        frames = 1;
    } else if (!asked->stream) {
        frames = render_whole(asked, answerer, now_ns, out);
    } else {
        uint32_t more = 1;
        while (more > 0 && !asked->complete && frames < BH_FRAMES_AT_ONCE) {
            more = render_stream(asked, answerer, now_ns, out);
            frames += more;
        }
    }
    asked->frames += frames;
    if (frames > 0) {
        asked->ping_ns = now_ns;
    }
    return frames;
}

bool
bh_asked_skip(struct bh_asked *asked,
              struct bh_answerer *answerer,
              uint32_t frames,
              uint64_t now_ns)
{
    if (frames == 0) {
        return true;
    }
    if (!asked->stream || asked->choice_cnt != 1) {
        return false;
    }
    const struct bh_record *record = &asked->choices[0].record;
    struct bh_request_view view = bh_request_load(&answerer->world->requests, record->slot);
    if (view.gen != record->gen ||
        (bh_request_terminal(view.state) && view.state != BH_REQUEST_DONE)) {
        return false; /* the first frame may have been a whole error answer instead of a head */
    }
    bool chunked = (record->flags & BH_RECORD_HTTP10) == 0;
    struct bh_bytes nothing;
    bh_bytes_init(&nothing, 1u << 20);
    asked->skipping = true;
    asked->frames = render_head(asked, chunked, &nothing);
    while (asked->frames < frames && !asked->complete) {
        bh_bytes_clear(&nothing);
        uint32_t more = render_stream(asked, answerer, now_ns, &nothing);
        if (more == 0) {
            break;
        }
        asked->frames += more;
    }
    asked->skipping = false;
    asked->ping_ns = now_ns;
    bh_bytes_free(&nothing);
    return asked->frames == frames && !asked->complete;
}

bool
bh_asked_ping(struct bh_asked *asked,
              struct bh_answerer *answerer,
              uint64_t now_ns,
              struct bh_bytes *out,
              uint32_t *frames)
{
    if (!asked->stream || asked->complete ||
        now_ns - asked->ping_ns < (uint64_t)BH_PING_MS * 1000000u) {
        return false;
    }
    enum bh_request_state state =
        bh_request_load(&answerer->world->requests, asked->choices[0].record.slot).state;
    if (!asked->head && state != BH_REQUEST_PREFILL && state != BH_REQUEST_DECODE) {
        return false;
    }
    bool chunked = (asked->choices[0].record.flags & BH_RECORD_HTTP10) == 0;
    *frames = render_head(asked, chunked, out);
    asked->frames += *frames;
    size_t begin = chunked ? bh_chunk_begin(out) : 0;
    bh_event_ping(out);
    if (chunked) {
        bh_chunk_end(out, begin);
    }
    asked->ping_ns = now_ns;
    return true;
}
