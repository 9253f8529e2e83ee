/* The tokenizer: connections, one open question each, requests into records, and everything that is
   refused before a request exists. */
#include <arpa/inet.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>

#include "tests/unit/front_rig.h"

struct tokenizer {
    struct front front;
    struct sockaddr_in address;
};

static struct bh_submit *
submit_of(struct tokenizer *rig)
{
    return &front_world(&rig->front)->submit;
}

static struct bh_edge *
edge_of(struct tokenizer *rig)
{
    return &rig->front.worlds[BH_ROLE_EGRESS].edge;
}

static void
rig_make(struct tokenizer *rig)
{
    memset(rig, 0, sizeof(*rig));
    front_make(&rig->front, &bh_role_tokenizer);
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    socklen_t len = sizeof(rig->address);
    rig->address =
        (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    cr_assert_eq(bind(listener, (const struct sockaddr *)&rig->address, len), 0);
    cr_assert_eq(getsockname(listener, (struct sockaddr *)&rig->address, &len), 0);
    cr_assert_eq(listen(listener, 16), 0);
    front_world(&rig->front)->listener_fd = listener;
}

static void
rig_open(struct tokenizer *rig)
{
    rig_make(rig);
    front_restart(&rig->front);
}

static int
client_connect(struct tokenizer *rig)
{
    int client = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    cr_assert_eq(connect(client, (const struct sockaddr *)&rig->address, sizeof(rig->address)), 0);
    front_run(&rig->front);
    return client;
}

static void
say(struct tokenizer *rig, int client, const char *text)
{
    cr_assert_eq(send(client, text, strlen(text), MSG_NOSIGNAL), (ssize_t)strlen(text));
    front_run(&rig->front);
}

static void
post(struct tokenizer *rig, int client, const char *path, const char *body)
{
    char text[32768];
    snprintf(text,
             sizeof(text),
             "POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %zu\r\n\r\n%s",
             path,
             strlen(body),
             body);
    say(rig, client, text);
}

/* Question `number` of a connection must be open; returns it. */
static struct bh_question
question(struct tokenizer *rig, uint32_t idx, uint32_t number)
{
    cr_assert_eq(bh_ask_load(submit_of(rig), idx).cnt, number, "questions of connection %u", idx);
    return submit_of(rig)->conns[idx].question;
}

/* The open question must be a reply; does it contain `part`? */
static void
must_reply(struct tokenizer *rig, uint32_t idx, uint32_t number, const char *part)
{
    struct bh_question asked = question(rig, idx, number);
    struct heard heard;
    cr_assert_eq(asked.kind, BH_QUESTION_REPLY, "kind %u", asked.kind);
    memcpy(heard.text, bh_submit_reply(submit_of(rig), idx), asked.reply_bytes);
    heard.text[asked.reply_bytes] = '\0';
    must_hear(&heard, part);
}

static void
egress_answers(struct tokenizer *rig, uint32_t idx)
{
    struct bh_world *egress = &rig->front.worlds[BH_ROLE_EGRESS];
    struct bh_ask ask = bh_ask_load(submit_of(rig), idx);
    bh_answer_store(edge_of(rig), idx, (struct bh_answer_view){.answered = ask.cnt & 0xffffu});
    bh_world_tell(egress, BH_ROLE_TOKENIZER, bh_hint_make(BH_HINT_ANSWERED, idx, ask.gen));
    front_run(&rig->front);
}

static void
egress_closes(struct tokenizer *rig, uint32_t idx)
{
    struct bh_world *egress = &rig->front.worlds[BH_ROLE_EGRESS];
    struct bh_ask ask = bh_ask_load(submit_of(rig), idx);
    bh_answer_store(edge_of(rig), idx, (struct bh_answer_view){.answered = ask.cnt & 0xffffu});
    bh_conn_closed_store(edge_of(rig), idx, ask.gen);
    bh_world_tell(egress, BH_ROLE_TOKENIZER, bh_hint_make(BH_HINT_ANSWERED, idx, ask.gen));
    front_run(&rig->front);
}

/* What the tokenizer handed over next: name[0] connection, name[1] generation. Returns the descriptor. */
static int
handed(struct tokenizer *rig, uint32_t name[2])
{
    struct iovec part = {.iov_base = name, .iov_len = 2 * sizeof(*name)};
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control;
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = control.bytes,
                             .msg_controllen = sizeof(control.bytes)};
    if (recvmsg(rig->front.handover_rx, &message, MSG_DONTWAIT) != (ssize_t)part.iov_len) {
        return -1;
    }
    int fd = -1;
    memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof(fd));
    return fd;
}

Test(tokenizer, an_accepted_socket_is_handed_over)
{
    struct tokenizer rig;
    rig_open(&rig);
    int client = client_connect(&rig);
    uint32_t name[2] = {9, 9};
    int fd = handed(&rig, name);
    cr_assert_geq(fd, 0);
    cr_expect_eq(name[0], 0);
    cr_expect_eq(name[1], 1);
    cr_expect_eq(bh_ask_load(submit_of(&rig), 0).gen, 1);
    cr_expect_eq(bh_word_load(&submit_of(&rig)->conns[0].epoch), 1);
    char byte = 0;
    cr_assert_eq(send(fd, "!", 1, 0), 1);
    cr_assert_eq(recv(client, &byte, 1, 0), 1);
    cr_expect_eq(byte, '!', "it is this client's socket");
}

Test(tokenizer, a_completion_becomes_a_record)
{
    struct tokenizer rig;
    rig_open(&rig);
    int client = client_connect(&rig);
    post(&rig,
         client,
         "/v1/completions",
         "{\"prompt\":\"Hi\",\"max_tokens\":7,\"temperature\":0.5,\"top_p\":0.9,\"seed\":4,"
         "\"logprobs\":2,"
         "\"stop\":[\"ab\",\"c\"],\"stop_token_ids\":[7],\"stream\":true}");
    struct bh_question asked = question(&rig, 0, 1);
    cr_assert_eq(asked.kind, BH_QUESTION_REQUEST);
    const struct bh_record *record = &submit_of(&rig)->records[asked.slot];
    cr_expect(bh_record_check(record,
                              (struct bh_req){.slot = asked.slot, .gen = asked.gen},
                              &front_world(&rig.front)->limits));
    cr_expect_eq(bh_sub_load(submit_of(&rig), asked.slot), asked.gen);
    cr_expect_eq(record->conn_gen, 1);
    cr_expect_eq(record->question, 1);
    cr_expect_eq(record->prompt_cnt, 2);
    cr_expect_eq(bh_submit_prompt(submit_of(&rig), asked.slot)[0], 'H');
    cr_expect_eq(bh_submit_prompt(submit_of(&rig), asked.slot)[1], 'i');
    cr_expect_eq(record->max_tokens, 7);
    cr_expect_float_eq(record->temperature, 0.5f, 0.0f);
    cr_expect_eq(record->seed, 4);
    cr_expect_eq(record->logprobs, 2);
    cr_expect_eq(record->flags, BH_RECORD_STREAM);
    cr_expect_eq(record->stop_cnt, 2);
    cr_expect_eq(record->stop_id_cnt, 2);
    cr_expect_eq(record->stop_ids[0], 7);
    cr_expect_eq(record->stop_ids[1], TOKEN_END, "the model's own end comes with every request");
    struct bh_hint hint;
    cr_assert_eq(bh_ring_peek(&rig.front.worlds[BH_ROLE_LEDGER].rx[BH_ROLE_TOKENIZER], &hint),
                 BH_OK);
    cr_expect_eq(bh_hint_kind(hint), BH_HINT_SUBMIT);
    cr_expect_eq(bh_hint_idx(hint), asked.slot);
    cr_assert_eq(bh_ring_peek(&rig.front.worlds[BH_ROLE_EGRESS].rx[BH_ROLE_TOKENIZER], &hint),
                 BH_OK);
    cr_expect_eq(bh_hint_kind(hint), BH_HINT_ASK);
}

Test(tokenizer, chat_goes_through_the_template)
{
    struct tokenizer rig;
    rig_open(&rig);
    int client = client_connect(&rig);
    post(&rig,
         client,
         "/v1/chat/completions",
         "{\"messages\":[{\"role\":\"user\",\"content\":\"a<|im_end|>\"}]}");
    struct bh_question asked = question(&rig, 0, 1);
    cr_assert_eq(asked.kind, BH_QUESTION_REQUEST);
    const struct bh_record *record = &submit_of(&rig)->records[asked.slot];
    const uint32_t *prompt = bh_submit_prompt(submit_of(&rig), asked.slot);
    cr_assert_eq(record->prompt_cnt, 13);
    cr_expect_eq(prompt[0], TOKEN_START);
    cr_expect_eq(prompt[1], 'a');
    cr_expect_eq(prompt[2], '<', "a client's text is no control token");
    cr_expect_eq(prompt[12], TOKEN_END);
    cr_expect_eq(record->max_tokens, FRONT_CTX - 13, "what fits, when the client names none");
    cr_expect_eq(record->flags, BH_RECORD_CHAT);
}

Test(tokenizer, choices_are_linked_and_have_seeds_of_their_own)
{
    struct tokenizer rig;
    rig_open(&rig);
    int client = client_connect(&rig);
    post(&rig,
         client,
         "/v1/completions",
         "{\"prompt\":[[1,2],[3]],\"n\":2,\"seed\":10,\"echo\":true,\"max_tokens\":0}");
    struct bh_question asked = question(&rig, 0, 1);
    uint32_t slot = asked.slot;
    uint32_t gen = asked.gen;
    static const uint64_t seeds[] = {10, 11, 10, 11};
    for (uint32_t c = 0; c < 4; c++) {
        const struct bh_record *record = &submit_of(&rig)->records[slot];
        cr_expect_eq(record->gen, gen);
        cr_expect_eq(record->choice_idx, c);
        cr_expect_eq(record->choice_cnt, 4);
        cr_expect_eq(record->prompt_idx, c / 2);
        cr_expect_eq(record->prompt_cnt, c < 2 ? 2 : 1);
        cr_expect_eq(record->seed, seeds[c]);
        cr_expect_eq(record->flags, BH_RECORD_ECHO);
        cr_expect_eq(record->max_tokens, 0);
        cr_expect_eq(bh_sub_load(submit_of(&rig), slot), gen);
        slot = record->next_slot;
        gen = record->next_gen;
    }
    cr_expect_eq(slot, UINT32_MAX);
}

Test(tokenizer, a_connection_has_one_open_question)
{
    struct tokenizer rig;
    rig_open(&rig);
    int client = client_connect(&rig);
    say(&rig,
        client,
        "GET /health HTTP/1.1\r\nHost: x\r\n\r\nGET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n"
        "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\nGET /live HTTP/1.1\r\nHost: x\r\n\r\nGET /no");
    cr_expect_eq(question(&rig, 0, 1).kind, BH_QUESTION_HEALTH);
    front_pass(&rig.front, 100);
    egress_answers(&rig, 0);
    cr_expect_eq(question(&rig, 0, 2).kind, BH_QUESTION_MODELS);
    egress_answers(&rig, 0);
    cr_expect_eq(question(&rig, 0, 3).kind, BH_QUESTION_METRICS);
    egress_answers(&rig, 0);
    must_reply(&rig, 0, 4, "{\"status\":\"ok\"}");
    egress_answers(&rig, 0);
    say(&rig, client, "thing HTTP/1.1\r\nHost: x\r\n\r\n");
    must_reply(&rig, 0, 5, "HTTP/1.1 404 Not Found\r\n");
    cr_expect_eq(question(&rig, 0, 5).close, 0);
    egress_answers(&rig, 0);
    say(&rig, client, "nonsense\r\n\r\n");
    must_reply(&rig, 0, 6, "HTTP/1.1 400 Bad Request\r\n");
    cr_expect_eq(question(&rig, 0, 6).close, 1);
    cr_expect_eq(front_metric(&rig.front, BH_METRIC_http_requests), 4);
    cr_expect_eq(front_metric(&rig.front, BH_METRIC_http_errors), 2);
}

Test(tokenizer, what_comes_after_the_last_question_is_read_into_nothing)
{
    struct tokenizer rig;
    rig_open(&rig);
    int client = client_connect(&rig);
    say(&rig, client, "nonsense\r\n\r\n");
    cr_assert_eq(fcntl(client, F_SETFL, O_NONBLOCK), 0);
    static const char more[65536];
    size_t sent = 0;
    for (uint32_t i = 0; i < 10000 && sent < (size_t)20 << 20; i++) {
        ssize_t got = send(client, more, sizeof(more), MSG_NOSIGNAL);
        sent += got > 0 ? (size_t)got : 0;
        (void)rig.front.role->step(rig.front.state, rig.front.now_ns);
    }
    cr_expect_geq(
        sent, (size_t)20 << 20, "a client that sends first and looks later would hang: %zu", sent);
    question(&rig, 0, 1);
    close(client);
    front_run(&rig.front);
    question(&rig, 0, 1);
    front_pass(&rig.front, 100);
    cr_expect_eq(front_metric(&rig.front, BH_METRIC_connections), 1);
    egress_closes(&rig, 0);
    front_pass(&rig.front, 100);
    cr_expect_eq(front_metric(&rig.front, BH_METRIC_connections), 0);
}

Test(tokenizer, an_expecting_client_is_told_to_go_on)
{
    struct tokenizer rig;
    rig_open(&rig);
    int client = client_connect(&rig);
    say(&rig,
        client,
        "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 14\r\nExpect: "
        "100-continue\r\n\r\n");
    cr_expect_eq(question(&rig, 0, 1).kind, BH_QUESTION_INTERIM);
    egress_answers(&rig, 0);
    say(&rig, client, "{\"prompt\":[5]}");
    cr_expect_eq(question(&rig, 0, 2).kind, BH_QUESTION_REQUEST);
}

Test(tokenizer, bad_requests_never_exist)
{
    static const char *const cases[][3] = {
        {"/v1/completions", "{", "invalid_json"},
        {"/v1/completions", "{}", "invalid_value"},
        {"/v1/completions", "{\"prompt\":[999999]}", "invalid_value"},
        {"/v1/completions", "{\"prompt\":\"\"}", "The prompt has no tokens"},
        {"/v1/completions", "{\"prompt\":[5],\"model\":\"other\"}", "model_not_found"},
        {"/v1/completions",
         "{\"prompt\":[5],\"max_tokens\":64}",
         "maximum context length is 64 tokens"},
        {"/v1/chat/completions", "{\"messages\":[]}", "invalid_value"},
        {"/v1/chat/completions",
         "{\"messages\":[{\"role\":\"user\",\"content\":5}]}",
         "invalid_value"},
        {"/v1/completions",
         "{\"prompt\":[5],\"stop_token_ids\":[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,"
         "21,22,23,24,25,26,27,"
         "28,29,30,31,32]}",
         "at most 31 ids"},
    };
    struct tokenizer rig;
    rig_open(&rig);
    int client = client_connect(&rig);
    for (uint32_t i = 0; i < BH_COUNT(cases); i++) {
        post(&rig, client, cases[i][0], cases[i][1]);
        must_reply(&rig, 0, i + 1, cases[i][2]);
        egress_answers(&rig, 0);
    }
    for (uint32_t slot = 0; slot < FRONT_SLOTS; slot++) {
        cr_expect_eq(bh_sub_load(submit_of(&rig), slot), 0);
    }
}

Test(tokenizer, lengths_at_the_limit)
{
    static const struct {
        uint32_t prompt;
        int32_t max_tokens; /* -1: not given */
        uint32_t got;       /* max_tokens of the record; UINT32_MAX: refused */
    } cases[] = {
        {63, -1, 1},
        {63, 1, 1},
        {63, 2, UINT32_MAX},
        {64, -1, UINT32_MAX},
        {64, 1, UINT32_MAX},
        {65, -1, UINT32_MAX},
        {1000, 1, UINT32_MAX},
        {1, 63, 63},
        {1, 64, UINT32_MAX},
        {1, 2147483647, UINT32_MAX},
        {50, -1, 14},
    };
    struct tokenizer rig;
    rig_open(&rig);
    int client = client_connect(&rig);
    for (uint32_t i = 0; i < BH_COUNT(cases); i++) {
        char body[8192] = "{\"prompt\":[5";
        char number[32];
        for (uint32_t t = 1; t < cases[i].prompt; t++) {
            strcat(body, ",5");
        }
        strcat(body, "]");
        if (cases[i].max_tokens >= 0) {
            snprintf(number, sizeof(number), ",\"max_tokens\":%d", cases[i].max_tokens);
            strcat(body, number);
        }
        strcat(body, "}");
        post(&rig, client, "/v1/completions", body);
        if (cases[i].got == UINT32_MAX) {
            must_reply(&rig, 0, i + 1, "context_length_exceeded");
            snprintf(number, sizeof(number), "\"n_prompt_tokens\":%u", cases[i].prompt);
            must_reply(&rig, 0, i + 1, number);
        } else {
            struct bh_question asked = question(&rig, 0, i + 1);
            cr_assert_eq(asked.kind, BH_QUESTION_REQUEST, "case %u", i);
            cr_expect_eq(
                submit_of(&rig)->records[asked.slot].max_tokens, cases[i].got, "case %u", i);
        }
        egress_answers(&rig, 0);
    }
}

Test(tokenizer, no_free_slot_is_a_full_queue)
{
    struct tokenizer rig;
    rig_open(&rig);
    int client = client_connect(&rig);
    post(&rig, client, "/v1/completions", "{\"prompt\":[5],\"n\":9}");
    must_reply(&rig, 0, 1, "queue_full");
    egress_answers(&rig, 0);
    post(&rig, client, "/v1/completions", "{\"prompt\":[5],\"n\":8}");
    cr_expect_eq(question(&rig, 0, 2).kind, BH_QUESTION_REQUEST);
    egress_answers(&rig, 0);
    post(&rig, client, "/v1/completions", "{\"prompt\":[5]}");
    must_reply(&rig, 0, 3, "HTTP/1.1 503 Service Unavailable\r\n");
    must_reply(&rig, 0, 3, "Retry-After: 1\r\n");
    egress_answers(&rig, 0);
    /* The ledger ends a life: that slot is free again. */
    struct bh_requests *requests = &rig.front.worlds[BH_ROLE_LEDGER].requests;
    uint32_t gen = bh_request_load(requests, 4).gen;
    bh_request_store(requests, 4, (struct bh_request_view){.gen = gen + 1});
    post(&rig, client, "/v1/completions", "{\"prompt\":[5]}");
    struct bh_question asked = question(&rig, 0, 4);
    cr_expect_eq(asked.kind, BH_QUESTION_REQUEST);
    cr_expect_eq(asked.slot, 4);
    cr_expect_eq(asked.gen, gen + 1);
}

Test(tokenizer, it_serves_only_when_the_engine_does)
{
    struct tokenizer rig;
    rig_open(&rig);
    int client = client_connect(&rig);
    struct bh_control_block *block = front_world(&rig.front)->control.block;
    bh_word_store(&block->ready, 0);
    post(&rig, client, "/v1/completions", "{\"prompt\":[5]}");
    must_reply(&rig, 0, 1, "\"loading\"");
    egress_answers(&rig, 0);
    bh_word_store(&block->ready, 1);
    bh_word_store(&block->drain, BH_DRAIN_REFUSE);
    post(&rig, client, "/v1/completions", "{\"prompt\":[5]}");
    must_reply(&rig, 0, 2, "\"draining\"");
    egress_answers(&rig, 0);
    post(&rig, client, "/tokenize", "{\"content\":\"Hi\"}");
    must_reply(&rig, 0, 3, "{\"tokens\":[72,105]}");
}

Test(tokenizer, text_routes_need_no_engine)
{
    struct tokenizer rig;
    rig_open(&rig);
    int client = client_connect(&rig);
    post(&rig, client, "/tokenize", "{\"content\":\"\xc3\xa9\",\"with_pieces\":true}");
    must_reply(&rig, 0, 1, "{\"id\":195,\"piece\":[195]},{\"id\":169,\"piece\":[169]}");
    egress_answers(&rig, 0);
    post(&rig, client, "/detokenize", "{\"tokens\":[72,195,169,258]}");
    must_reply(&rig, 0, 2, "{\"content\":\"H\xc3\xa9Hello\"}");
    egress_answers(&rig, 0);
    post(&rig, client, "/apply-template", "{\"messages\":[{\"role\":\"user\",\"content\":\"q\"}]}");
    must_reply(&rig, 0, 3, "\"prompt\":\"<|im_start|>q<|im_end|>\",\"tokens\":[257,113,256]");
}

Test(tokenizer, clients_that_stop_are_let_go)
{
    struct tokenizer rig;
    rig_open(&rig);
    int client = client_connect(&rig);
    close(client);
    front_run(&rig.front);
    cr_expect_eq(question(&rig, 0, 1).kind, BH_QUESTION_HANGUP, "end of input");
    egress_closes(&rig, 0);

    client = client_connect(&rig);
    uint32_t first = bh_ask_load(submit_of(&rig), 0).cnt;
    front_pass(&rig.front, 119000);
    cr_expect_eq(bh_ask_load(submit_of(&rig), 0).cnt, first);
    front_pass(&rig.front, 2000);
    cr_expect_eq(question(&rig, 0, first + 1).kind, BH_QUESTION_HANGUP, "idle for too long");
    egress_closes(&rig, 0);
    close(client);
    front_pass(&rig.front, 100);

    client = client_connect(&rig);
    first = bh_ask_load(submit_of(&rig), 0).cnt;
    say(&rig, client, "GET /health HT");
    front_pass(&rig.front, 20000);
    say(&rig, client, "TP/1");
    front_pass(&rig.front, 9000);
    cr_expect_eq(bh_ask_load(submit_of(&rig), 0).cnt, first);
    front_pass(&rig.front, 2000);
    must_reply(&rig, 0, first + 1, "HTTP/1.1 408 Request Timeout\r\n");
    cr_expect_eq(question(&rig, 0, first + 1).close, 1);
}

Test(tokenizer, a_pipelined_request_has_its_time_from_its_own_begin)
{
    struct tokenizer rig;
    rig_open(&rig);
    int client = client_connect(&rig);
    say(&rig, client, "GET /health HTTP/1.1\r\nHost: x\r\n\r\nGET /hea");
    question(&rig, 0, 1);
    front_pass(&rig.front, 60000); /* the first answer takes long */
    egress_answers(&rig, 0);
    front_pass(&rig.front, 100);
    question(&rig, 0, 1);
    say(&rig, client, "lth HTTP/1.1\r\nHost: x\r\n\r\n");
    cr_expect_eq(question(&rig, 0, 2).kind, BH_QUESTION_HEALTH);
}

Test(tokenizer, entries_are_used_again_when_both_sides_let_go)
{
    struct tokenizer rig;
    rig_open(&rig);
    int clients[FRONT_CONNS + 1];
    for (uint32_t i = 0; i < FRONT_CONNS; i++) {
        clients[i] = client_connect(&rig);
        cr_expect_eq(bh_ask_load(submit_of(&rig), i).gen, 1);
    }
    struct heard heard = {.len = 0};
    clients[FRONT_CONNS] = client_connect(&rig);
    hear(clients[FRONT_CONNS], &heard);
    cr_expect(heard.ended, "no entry: closed at once");
    close(clients[2]);
    front_run(&rig.front);
    int again = client_connect(&rig);
    heard.ended = false;
    hear(again, &heard);
    cr_expect(heard.ended, "egress has not closed it yet");
    egress_closes(&rig, 2);
    again = client_connect(&rig);
    cr_expect_eq(bh_ask_load(submit_of(&rig), 2).gen, 2);
    post(&rig, again, "/v1/completions", "{\"prompt\":[5]}");
    struct bh_question asked = question(&rig, 2, 2); /* numbers are counted on */
    cr_expect_eq(submit_of(&rig)->records[asked.slot].conn_gen, 2);
    cr_expect_eq(submit_of(&rig)->records[asked.slot].question, 2);
}

Test(tokenizer, a_successor_leaves_its_predecessors_connections_alone)
{
    struct tokenizer rig;
    rig_open(&rig);
    (void)client_connect(&rig);
    uint32_t name[2];
    (void)handed(&rig, name);
    front_world(&rig.front)->epoch = 2;
    /* The old incarnation's accept is still armed in this process: the new one gets another listener. */
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    socklen_t len = sizeof(rig.address);
    rig.address.sin_port = 0;
    cr_assert_eq(bind(listener, (const struct sockaddr *)&rig.address, len), 0);
    cr_assert_eq(getsockname(listener, (struct sockaddr *)&rig.address, &len), 0);
    cr_assert_eq(listen(listener, 16), 0);
    front_world(&rig.front)->listener_fd = listener;
    front_restart(&rig.front);
    (void)client_connect(&rig);
    cr_assert_geq(handed(&rig, name), 0);
    cr_expect_eq(name[0], 1, "entry 0 is in use until egress has closed it");
    cr_expect_eq(bh_word_load(&submit_of(&rig)->conns[1].epoch), 2);
    cr_expect_eq(bh_word_load(&submit_of(&rig)->conns[0].epoch), 1);
}

Test(tokenizer, a_new_egress_gets_all_sockets_again)
{
    struct tokenizer rig;
    rig_open(&rig);
    (void)client_connect(&rig);
    (void)client_connect(&rig);
    uint32_t name[2];
    cr_assert_geq(handed(&rig, name), 0);
    cr_assert_geq(handed(&rig, name), 0);
    cr_assert_lt(handed(&rig, name), 0);
    front_pass(&rig.front, 100);
    cr_assert_lt(handed(&rig, name), 0);
    bh_role_epoch_store(&rig.front.worlds[BH_ROLE_SUPERVISOR].control, BH_ROLE_EGRESS, 2);
    front_pass(&rig.front, 100);
    for (uint32_t i = 0; i < 2; i++) {
        cr_assert_geq(handed(&rig, name), 0);
        cr_expect_eq(name[0], i);
        cr_expect_eq(name[1], 1);
    }
}

Test(tokenizer, hints_that_name_nothing_are_refused)
{
    struct tokenizer rig;
    rig_open(&rig);
    struct bh_world *egress = &rig.front.worlds[BH_ROLE_EGRESS];
    struct bh_world *ledger = &rig.front.worlds[BH_ROLE_LEDGER];
    bh_world_tell(egress, BH_ROLE_TOKENIZER, bh_hint_make(BH_HINT_ANSWERED, FRONT_CONNS, 1));
    bh_world_tell(egress, BH_ROLE_TOKENIZER, bh_hint_make(BH_HINT_LOG, 0, 1));
    bh_world_tell(ledger, BH_ROLE_TOKENIZER, bh_hint_make(BH_HINT_FREE, FRONT_SLOTS, 1));
    bh_world_tell(ledger, BH_ROLE_TOKENIZER, bh_hint_make(BH_HINT_ANSWERED, 0, 1));
    front_run(&rig.front);
    cr_expect_eq(front_metric(&rig.front, BH_METRIC_hints_refused), 4);
    bh_world_tell(egress, BH_ROLE_TOKENIZER, bh_hint_make(BH_HINT_ANSWERED, 3, 1));
    bh_world_tell(ledger, BH_ROLE_TOKENIZER, bh_hint_make(BH_HINT_FREE, 3, 1));
    front_run(&rig.front);
    cr_expect_eq(front_metric(&rig.front, BH_METRIC_hints_refused), 4);
}

Test(tokenizer, keys_choose_the_tenant)
{
    static const char keys[] = "first-key-1 red\nsecond-key-2 blue\n";
    struct tokenizer rig;
    rig_make(&rig);
    int fd = memfd_create("keys", MFD_CLOEXEC);
    cr_assert_eq(write(fd, keys, sizeof(keys) - 1), (ssize_t)sizeof(keys) - 1);
    front_world(&rig.front)->keys_fd = fd;
    front_world(&rig.front)->control.block->auth = 1;
    front_restart(&rig.front);
    int client = client_connect(&rig);
    static const char request[] =
        "POST /v1/completions HTTP/1.1\r\nHost: x\r\n%sContent-Length: 14\r\n\r\n{\"prompt\":[5]}";
    char text[512];
    snprintf(text, sizeof(text), request, "");
    say(&rig, client, text);
    must_reply(&rig, 0, 1, "HTTP/1.1 401 Unauthorized\r\n");
    egress_answers(&rig, 0);
    snprintf(text, sizeof(text), request, "Authorization: Bearer second-key-1\r\n");
    say(&rig, client, text);
    must_reply(&rig, 0, 2, "WWW-Authenticate: Bearer\r\n");
    egress_answers(&rig, 0);
    uint64_t spaces[2];
    for (uint32_t tenant = 0; tenant < 2; tenant++) {
        snprintf(text,
                 sizeof(text),
                 request,
                 tenant == 0 ? "Authorization: Bearer first-key-1\r\n"
                             : "Authorization: Bearer second-key-2\r\n");
        say(&rig, client, text);
        struct bh_question asked = question(&rig, 0, 3 + tenant);
        cr_assert_eq(asked.kind, BH_QUESTION_REQUEST);
        cr_expect_eq(submit_of(&rig)->records[asked.slot].tenant, tenant);
        spaces[tenant] = submit_of(&rig)->records[asked.slot].name_space;
        egress_answers(&rig, 0);
    }
    cr_expect_neq(spaces[0], spaces[1], "tenants share no cache");
}
