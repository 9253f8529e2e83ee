/* An egress role with puppet peers: a tokenizer that asks, a ledger that moves requests, a decode that
   writes tokens, and clients at the other end of socket pairs. */
#ifndef BH_UNIT_EGRESS_RIG_H
#define BH_UNIT_EGRESS_RIG_H

#include "tests/unit/front_rig.h"

struct egress {
    struct front front;
    int client[FRONT_CONNS]; /* the client's end of each connection */
    uint32_t asked[FRONT_CONNS];
};

static inline struct bh_submit *
submit_of(struct egress *rig)
{
    return &rig->front.worlds[BH_ROLE_TOKENIZER].submit;
}

static inline struct bh_edge *
edge_of(struct egress *rig)
{
    return &front_world(&rig->front)->edge;
}

static inline void
rig_open(struct egress *rig)
{
    memset(rig, 0, sizeof(*rig));
    front_make(&rig->front, &bh_role_egress);
    front_restart(&rig->front);
}

static inline void
tokenizer_tells(struct egress *rig, struct bh_hint hint)
{
    bh_world_tell(&rig->front.worlds[BH_ROLE_TOKENIZER], BH_ROLE_EGRESS, hint);
}

static inline void
hand_over(struct egress *rig, uint32_t idx, uint32_t gen, const int *fds, size_t fd_cnt)
{
    uint32_t name[2] = {idx, gen};
    struct iovec part = {.iov_base = name, .iov_len = sizeof(name)};
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(2 * sizeof(int))];
    } control = {0};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    if (fd_cnt > 0) {
        message.msg_control = control.bytes;
        message.msg_controllen = CMSG_SPACE(fd_cnt * sizeof(int));
        struct cmsghdr *head = CMSG_FIRSTHDR(&message);
        head->cmsg_level = SOL_SOCKET;
        head->cmsg_type = SCM_RIGHTS;
        head->cmsg_len = CMSG_LEN(fd_cnt * sizeof(int));
        memcpy(CMSG_DATA(head), fds, fd_cnt * sizeof(int));
    }
    cr_assert_eq(sendmsg(rig->front.handover_tx, &message, 0), (ssize_t)sizeof(name));
}

/* A new life of connection idx, generation gen: what accepting does. Returns the server's end. */
static inline int
connect_client(struct egress *rig, uint32_t idx, uint32_t gen)
{
    int pair[2];
    cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    rig->client[idx] = pair[0];
    rig->asked[idx] = bh_answer_load(edge_of(rig), idx).answered;
    bh_word_store(&submit_of(rig)->conns[idx].epoch, 1);
    bh_ask_store(submit_of(rig), idx, (struct bh_ask){.gen = gen, .cnt = rig->asked[idx]});
    hand_over(rig, idx, gen, &pair[1], 1);
    return pair[1];
}

static inline void
ask(struct egress *rig, uint32_t idx, uint32_t gen, struct bh_question question)
{
    submit_of(rig)->conns[idx].question = question;
    rig->asked[idx]++;
    bh_ask_store(submit_of(rig), idx, (struct bh_ask){.gen = gen, .cnt = rig->asked[idx]});
    tokenizer_tells(rig, bh_hint_make(BH_HINT_ASK, idx, gen));
}

static inline void
ask_reply(struct egress *rig, uint32_t idx, uint32_t gen, const char *text, bool close_after)
{
    memcpy(bh_submit_reply(submit_of(rig), idx), text, strlen(text));
    ask(rig,
        idx,
        gen,
        (struct bh_question){.kind = BH_QUESTION_REPLY,
                             .reply_bytes = (uint32_t)strlen(text),
                             .close = close_after ? 1 : 0});
}

/* The record of a request in `slot`, asked on connection 0 as its next question. */
static inline struct bh_record *
record_make(struct egress *rig, uint32_t slot, uint32_t flags)
{
    struct bh_record *record = &submit_of(rig)->records[slot];
    uint32_t gen = bh_request_load(&front_world(&rig->front)->requests, slot).gen;
    *record = (struct bh_record){.slot = slot,
                                 .gen = gen,
                                 .conn_gen = 1,
                                 .question = rig->asked[0] + 1,
                                 .choice_cnt = 1,
                                 .next_slot = UINT32_MAX,
                                 .prompt_cnt = 2,
                                 .max_tokens = 20,
                                 .flags = flags,
                                 .logprobs = -1,
                                 .temperature = 1.0f,
                                 .top_p = 1.0f,
                                 .id = {1, 2},
                                 .accepted_ns = rig->front.now_ns};
    bh_submit_prompt(submit_of(rig), slot)[0] = TOKEN_HELLO;
    bh_submit_prompt(submit_of(rig), slot)[1] = TOKEN_WORLD;
    return record;
}

static inline void
ask_request(struct egress *rig, uint32_t slot)
{
    uint32_t gen = submit_of(rig)->records[slot].gen;
    ask(rig, 0, 1, (struct bh_question){.kind = BH_QUESTION_REQUEST, .slot = slot, .gen = gen});
}

/* A question with two choices, in `slot` and the one after it. */
static inline void
ask_two_choices(struct egress *rig, uint32_t slot, uint32_t flags)
{
    for (uint32_t c = 0; c < 2; c++) {
        struct bh_record *record = record_make(rig, slot + c, flags);
        record->choice_idx = c;
        record->choice_cnt = 2;
        record->next_slot = c == 0 ? slot + 1 : UINT32_MAX;
        record->next_gen = c == 0 ? record->gen : 0;
    }
    ask_request(rig, slot);
}

static inline void
ledger_moves(struct egress *rig, uint32_t slot, enum bh_request_state state, enum bh_cause cause)
{
    struct bh_world *ledger = &rig->front.worlds[BH_ROLE_LEDGER];
    struct bh_request_view view = bh_request_load(&ledger->requests, slot);
    uint32_t gen = view.gen;
    if (view.state == BH_REQUEST_FREE) {
        ledger->requests.records[slot] = ledger->submit.records[slot];
    }
    bh_request_store(&ledger->requests,
                     slot,
                     (struct bh_request_view){.gen = gen, .state = state, .cause = cause});
    bh_world_tell(ledger, BH_ROLE_EGRESS, bh_hint_make(BH_HINT_STATE, slot, gen));
}

static inline void
decode_says(struct egress *rig, uint32_t slot, const char *text, enum bh_finish finish)
{
    struct bh_world *decode = &rig->front.worlds[BH_ROLE_DECODE];
    uint32_t gen = bh_request_load(&decode->requests, slot).gen;
    struct bh_log_view log = bh_log_load(&decode->tokenlog, slot);
    if (log.gen != gen) {
        log = (struct bh_log_view){.gen = gen};
    }
    for (; *text != '\0'; text++) {
        *bh_log_token(&decode->tokenlog, slot, log.cnt) = (uint8_t)*text;
        *bh_log_logprob_at(&decode->tokenlog, slot, log.cnt) = (struct bh_log_logprob){
            .logprob = -1.5f, .top_cnt = 1, .top = {{.token = (uint8_t)*text, .logprob = -1.5f}}};
        log.cnt++;
        log.finish = text[1] == '\0' ? finish : BH_FINISH_NONE;
        bh_log_store(&decode->tokenlog, slot, log);
        bh_world_tell(decode, BH_ROLE_EGRESS, bh_hint_make(BH_HINT_LOG, slot, gen));
    }
}

static inline uint32_t
edge_flags(struct egress *rig, uint32_t slot)
{
    struct bh_edge_view edge = bh_edge_load(edge_of(rig), slot);
    uint32_t gen = bh_request_load(&front_world(&rig->front)->requests, slot).gen;
    return edge.gen == gen ? edge.flags : 0;
}

#endif
