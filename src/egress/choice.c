/* Token log to text, with stop strings, echo and log-probabilities. See choice.h. */
#include "src/egress/choice.h"

#include <stdlib.h>

#define TEXT_MAX (64u << 20)

bool
bh_choice_new(struct bh_choice *choice, const struct bh_record *record)
{
    *choice = (struct bh_choice){.record = *record};
    bh_bytes_init(&choice->text, TEXT_MAX);
    bh_detok_init(&choice->detok);
    return bh_stopper_init(
               &choice->stopper, record->stop_cnt, record->stop_end, record->stop_bytes) == BH_OK;
}

void
bh_choice_delete(struct bh_choice *choice)
{
    bh_bytes_free(&choice->text);
    free(choice->tokens);
    free(choice->tops);
}

static bool
token_room(struct bh_choice *choice)
{
    if (choice->token_cnt < choice->token_cap) {
        return true;
    }
    uint32_t cap = choice->token_cap == 0 ? 16 : choice->token_cap * 2;
    struct bh_answer_token *tokens = realloc(choice->tokens, cap * sizeof(*tokens));
    if (tokens == NULL) {
        return false;
    }
    choice->tokens = tokens;
    struct bh_answer_top *tops =
        realloc(choice->tops, (size_t)cap * BH_LOG_TOP_MAX * sizeof(*tops));
    if (tops == NULL) {
        return false;
    }
    choice->tops = tops;
    choice->token_cap = cap;
    return true;
}

static const char *
token_text(const struct bh_vocab *vocab, uint32_t token, size_t *len)
{
    const uint8_t *bytes = bh_vocab_bytes(vocab, token, len);
    return bytes != NULL ? (const char *)bytes : "";
}

/* One more token with its log-probability; entry NULL: it has none. */
static void
add_token(struct bh_choice *choice,
          const struct bh_vocab *vocab,
          uint32_t token,
          const struct bh_log_logprob *entry)
{
    if (choice->record.logprobs < 0 || !token_room(choice)) {
        choice->text.failed = choice->text.failed || choice->record.logprobs >= 0;
        return;
    }
    struct bh_answer_token *out = &choice->tokens[choice->token_cnt];
    struct bh_answer_top *tops = &choice->tops[(size_t)choice->token_cnt * BH_LOG_TOP_MAX];
    *out = (struct bh_answer_token){.token = token, .has_logprob = entry != NULL};
    out->text = token_text(vocab, token, &out->text_len);
    if (entry != NULL) {
        out->logprob = entry->logprob;
        out->top_cnt = (uint32_t)bh_min_u64(entry->top_cnt, BH_LOG_TOP_MAX);
        for (uint32_t k = 0; k < out->top_cnt; k++) {
            tops[k] = (struct bh_answer_top){.token = entry->top[k].token,
                                             .logprob = entry->top[k].logprob};
            tops[k].text = token_text(vocab, tops[k].token, &tops[k].text_len);
        }
    }
    choice->token_cnt++;
}

/* The prompt comes back before the answer; stop strings do not apply to it. */
static void
echo_prompt(struct bh_choice *choice, const struct bh_world *world, const struct bh_vocab *vocab)
{
    const struct bh_record *record = &choice->record;
    const uint32_t *prompt = bh_submit_prompt(&world->submit, record->slot);
    bool entries = (record->flags & BH_RECORD_PROMPT_LOGPROBS) != 0;
    struct bh_log_view log = bh_log_load(&world->promptlog, record->slot);
    uint8_t out[BH_DETOK_TOKEN_OUT];
    for (uint32_t i = 0; i < record->prompt_cnt; i++) {
        bh_bytes_put(
            &choice->text, out, bh_detok_token(&choice->detok, vocab, prompt[i], true, out));
        bool has = entries && i > 0 && log.gen == record->gen && i < log.cnt;
        add_token(choice,
                  vocab,
                  prompt[i],
                  has ? bh_log_logprob_at(&world->promptlog, record->slot, i) : NULL);
    }
    bh_bytes_put(&choice->text, out, bh_detok_finish(&choice->detok, out));
    bh_detok_init(&choice->detok);
}

/* What the stopper held back and the unfinished character: the answer ended without a stop string. */
static void
flush(struct bh_choice *choice)
{
    uint8_t tail[4];
    uint8_t out[BH_STOP_BYTES_MAX + sizeof(tail)];
    size_t len = bh_detok_finish(&choice->detok, tail);
    bh_bytes_put(&choice->text, out, bh_stopper_push(&choice->stopper, tail, len, out));
    if (choice->stopper.hit < 0) {
        bh_bytes_put(&choice->text, out, bh_stopper_finish(&choice->stopper, out));
    }
}

static void
take_token(struct bh_choice *choice, const struct bh_world *world, const struct bh_vocab *vocab)
{
    uint32_t slot = choice->record.slot;
    uint32_t token = *bh_log_token(&world->tokenlog, slot, choice->used);
    uint8_t chars[BH_DETOK_TOKEN_OUT];
    uint8_t out[BH_DETOK_TOKEN_OUT + BH_STOP_BYTES_MAX];
    size_t len = bh_detok_token(&choice->detok, vocab, token, false, chars);
    bh_bytes_put(&choice->text, out, bh_stopper_push(&choice->stopper, chars, len, out));
    add_token(choice,
              vocab,
              token,
              choice->record.logprobs >= 0 ? bh_log_logprob_at(&world->tokenlog, slot, choice->used)
                                           : NULL);
    choice->used++;
    choice->completion = choice->used;
    if (choice->stopper.hit >= 0) {
        choice->over = true;
        choice->stop_found = true;
        choice->finish = BH_FINISH_STOP;
    }
}

/* Is this answer for the connection and question that the ledger knows? */
static bool
same_request(const struct bh_record *ours, const struct bh_record *admitted)
{
    return ours->conn_idx == admitted->conn_idx && ours->conn_gen == admitted->conn_gen &&
           ours->question == admitted->question && ours->choice_idx == admitted->choice_idx &&
           ours->tenant == admitted->tenant;
}

uint32_t
bh_choice_pull(struct bh_choice *choice,
               const struct bh_world *world,
               const struct bh_vocab *vocab,
               uint32_t tokens_max)
{
    uint32_t slot = choice->record.slot;
    if (choice->over) {
        return 0;
    }
    struct bh_request_view view = bh_request_load(&world->requests, slot);
    if (view.gen != choice->record.gen) {
        choice->lost = true;
        choice->over = true;
        return 0;
    }
    if (view.state != BH_REQUEST_FREE && view.state != BH_REQUEST_REJECTED &&
        !same_request(&choice->record, &world->requests.records[slot])) {
        choice->lost =
            true; /* the tokenizer's record is not the one the ledger checked and admitted */
        choice->over = true;
        return 0;
    }
    if (bh_request_terminal(view.state) && view.state != BH_REQUEST_DONE) {
        choice->cause = view.cause;
        choice->lost = view.cause == BH_CAUSE_NONE; /* ended by nothing: never an answer */
        choice->over = true;
        return 0;
    }
    choice->cached = world->requests.rows[slot].cached;
    struct bh_log_view log = bh_log_load(&world->tokenlog, slot);
    if (log.gen != choice->record.gen || (log.cnt == 0 && log.finish == BH_FINISH_NONE)) {
        return 0;
    }
    if (choice->used == 0 && !choice->first_sent && (choice->record.flags & BH_RECORD_ECHO) != 0 &&
        choice->text.len == 0 && choice->token_cnt == 0) {
        echo_prompt(choice, world, vocab);
    }
    uint32_t cnt = (uint32_t)bh_min_u64(log.cnt, world->limits.ctx);
    uint32_t taken = 0;
    while (choice->used < cnt && taken < tokens_max && !choice->over) {
        if (choice->used + 1 == cnt && log.finish == BH_FINISH_STOP) {
            /* The token that ended the answer prints nothing. */
            choice->used++;
            choice->completion = choice->used;
        } else {
            take_token(choice, world, vocab);
        }
        taken++;
    }
    if (!choice->over && choice->used == cnt && log.finish != BH_FINISH_NONE) {
        flush(choice);
        choice->stop_found = choice->stopper.hit >= 0;
        choice->over = true;
        choice->finish = choice->stop_found ? BH_FINISH_STOP : log.finish;
    }
    return taken;
}

struct bh_answer_choice
bh_choice_view(const struct bh_choice *choice)
{
    for (uint32_t i = 0; i < choice->token_cnt; i++) {
        choice->tokens[i].top = &choice->tops[(size_t)i * BH_LOG_TOP_MAX];
    }
    return (struct bh_answer_choice){.index = choice->record.choice_idx,
                                     .finish = choice->finish,
                                     .text = choice->text.data,
                                     .text_len = choice->text.len,
                                     .logprobs = choice->record.logprobs >= 0,
                                     .tokens = choice->tokens,
                                     .token_cnt = choice->token_cnt,
                                     .text_offset = choice->text_chars};
}

void
bh_choice_rendered(struct bh_choice *choice)
{
    for (uint32_t i = 0; i < choice->token_cnt; i++) {
        choice->text_chars += bh_text_chars(choice->tokens[i].text, choice->tokens[i].text_len);
    }
    choice->token_cnt = 0;
    bh_bytes_clear(&choice->text);
}
