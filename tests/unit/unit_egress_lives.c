/* Egress: lives of connections: clients that go, peers that die or lie, and what a successor makes of the
   words. */
#include "tests/unit/egress_rig.h"

/* The tokenizer's memory is not believed: an answer goes to the connection that the ledger admitted. */
Test(egress_lives, a_record_changed_after_admission_is_no_answer)
{
    struct egress rig;
    struct heard heard = {.len = 0};
    rig_open(&rig);
    connect_client(&rig, 0, 1);
    record_make(&rig, 0, 0);
    struct bh_requests *requests = &rig.front.worlds[BH_ROLE_LEDGER].requests;
    ledger_moves(&rig, 0, BH_REQUEST_QUEUED, BH_CAUSE_NONE);
    requests->records[0].conn_idx = 1;
    ask_request(&rig, 0);
    front_pass(&rig.front, 100);
    hear(rig.client[0], &heard);
    must_hear(&heard, "HTTP/1.1 503 ");
}

Test(egress_lives, a_slot_that_no_question_names_is_let_go)
{
    struct egress rig;
    rig_open(&rig);
    connect_client(&rig, 0, 1);
    struct bh_record *record = record_make(&rig, 0, 0);
    record->conn_gen = 7; /* a life that this connection never had */
    ledger_moves(&rig, 0, BH_REQUEST_QUEUED, BH_CAUSE_NONE);
    front_pass(&rig.front, 200);
    cr_expect_eq(bh_edge_load(edge_of(&rig), 0).flags, BH_EDGE_GONE | BH_EDGE_CLOSED);
}

Test(egress_lives, a_slot_whose_question_is_open_is_kept)
{
    struct egress rig;
    rig_open(&rig);
    connect_client(&rig, 0, 1);
    record_make(&rig, 0, 0);
    ask_request(&rig, 0);
    ledger_moves(&rig, 0, BH_REQUEST_QUEUED, BH_CAUSE_NONE);
    front_pass(&rig.front, 200);
    cr_expect_eq(bh_edge_load(edge_of(&rig), 0).flags, 0);
}

Test(egress_lives, a_client_that_goes_cancels)
{
    for (uint32_t moment = 0; moment < 3; moment++) {
        struct egress rig;
        rig_open(&rig);
        connect_client(&rig, 0, 1);
        record_make(&rig, 0, BH_RECORD_STREAM);
        ask_request(&rig, 0);
        if (moment > 0) {
            front_run(&rig.front);
        }
        if (moment > 1) {
            ledger_moves(&rig, 0, BH_REQUEST_DECODE, BH_CAUSE_NONE);
            decode_says(&rig, 0, "ab", BH_FINISH_NONE);
            front_run(&rig.front);
        }
        close(rig.client[0]);
        front_run(&rig.front);
        front_pass(&rig.front, 100);
        cr_expect_eq(edge_flags(&rig, 0), BH_EDGE_GONE | BH_EDGE_CLOSED, "moment %u", moment);
        cr_expect_eq(bh_conn_closed_load(edge_of(&rig), 0), 1);
    }
}

Test(egress_lives, a_client_that_takes_nothing_is_gone_in_the_end)
{
    struct egress rig;
    rig_open(&rig);
    int server = connect_client(&rig, 0, 1);
    int small = 4096;
    cr_assert_eq(setsockopt(server, SOL_SOCKET, SO_SNDBUF, &small, sizeof(small)), 0);
    static char text[16384];
    memset(text, 'x', sizeof(text) - 1);
    ask_reply(&rig, 0, 1, text, false);
    front_run(&rig.front);
    front_pass(&rig.front, 29000);
    cr_expect_eq(bh_conn_closed_load(edge_of(&rig), 0), 0);
    front_pass(&rig.front, 2000);
    cr_expect_eq(bh_conn_closed_load(edge_of(&rig), 0), 1);
}

/* The bytes of a stream of `text`, with a successor after `restart` tokens (or none, SIZE_MAX), and a
   ping before the first token if `ping`. */
static void
streamed(const char *text, size_t restart, bool ping, struct heard *heard)
{
    static struct egress rig;
    rig_open(&rig);
    int server = connect_client(&rig, 0, 1);
    int again = dup(server);
    struct bh_record *record =
        record_make(&rig, 0, BH_RECORD_STREAM | BH_RECORD_CHAT | BH_RECORD_USAGE);
    record->logprobs = 1;
    record->stop_cnt = 1;
    record->stop_end[0] = 2;
    memcpy(record->stop_bytes, "!!", 2);
    ask_request(&rig, 0);
    ledger_moves(&rig, 0, BH_REQUEST_PREFILL, BH_CAUSE_NONE);
    front_run(&rig.front);
    front_pass(&rig.front, ping ? 11000 : 1);
    ledger_moves(&rig, 0, BH_REQUEST_DECODE, BH_CAUSE_NONE);
    for (size_t i = 0; text[i] != '\0' || i == restart; i++) {
        if (i == restart) {
            front_restart(&rig.front);
            hand_over(&rig, 0, 1, &again, 1);
            front_run(&rig.front);
            front_pass(&rig.front, 100);
        }
        if (text[i] == '\0') {
            break;
        }
        char one[2] = {text[i], '\0'};
        decode_says(&rig, 0, one, text[i + 1] == '\0' ? BH_FINISH_LENGTH : BH_FINISH_NONE);
        front_run(&rig.front);
    }
    *heard = (struct heard){.len = 0};
    hear(rig.client[0], heard);
}

Test(egress_lives, a_successor_goes_on_where_the_dead_one_stood, .timeout = 60)
{
    static const char text[] = "a!\xc3\xa9!b";
    static struct heard whole;
    static struct heard other;
    for (uint32_t ping = 0; ping < 2; ping++) {
        streamed(text, SIZE_MAX, ping != 0, &whole);
        must_hear(&whole, "[DONE]");
        for (size_t restart = 0; restart < sizeof(text) - 1; restart++) {
            streamed(text, restart, ping != 0, &other);
            cr_expect_str_eq(
                other.text, whole.text, "restart after %zu tokens, ping %u", restart, ping);
            cr_expect_not(other.ended);
        }
    }
}

Test(egress_lives, a_successor_ends_what_it_cannot_continue)
{
    for (uint32_t which = 0; which < 3; which++) {
        struct egress rig;
        struct heard heard = {.len = 0};
        rig_open(&rig);
        int again = dup(connect_client(&rig, 0, 1));
        record_make(&rig, 0, which == 2 ? 0 : BH_RECORD_STREAM);
        ask_request(&rig, 0);
        ledger_moves(&rig, 0, BH_REQUEST_DECODE, BH_CAUSE_NONE);
        decode_says(&rig, 0, "ab", BH_FINISH_NONE);
        front_run(&rig.front);
        struct bh_answer_view answer = bh_answer_load(edge_of(&rig), 0);
        if (which == 0) {
            answer.offered++; /* unknown whether it left */
        } else if (which == 1) {
            ledger_moves(&rig,
                         0,
                         BH_REQUEST_FAILED,
                         BH_CAUSE_VIOLATION); /* frame 0 may have been an error */
            answer.offered = 1;
            answer.sent = 1;
        } else {
            answer.offered = 1; /* a whole answer */
            answer.sent = 1;
        }
        bh_answer_store(edge_of(&rig), 0, answer);
        front_restart(&rig.front);
        hand_over(&rig, 0, 1, &again, 1);
        front_run(&rig.front);
        hear(rig.client[0], &heard);
        cr_expect(heard.ended, "case %u", which);
        must_not_hear(&heard, "[DONE]");
        cr_expect_eq(edge_flags(&rig, 0), BH_EDGE_GONE | BH_EDGE_CLOSED, "case %u", which);
    }
}

Test(egress_lives, words_are_enough_without_hints)
{
    struct egress rig;
    struct heard heard = {.len = 0};
    rig_open(&rig);
    connect_client(&rig, 0, 1);
    record_make(&rig, 0, 0);
    ask_request(&rig, 0);
    ledger_moves(&rig, 0, BH_REQUEST_DONE, BH_CAUSE_LENGTH);
    decode_says(&rig, 0, "abc", BH_FINISH_LENGTH);
    bh_ring_skip(&front_world(&rig.front)->rx[BH_ROLE_TOKENIZER]);
    bh_ring_skip(&front_world(&rig.front)->rx[BH_ROLE_LEDGER]);
    bh_ring_skip(&front_world(&rig.front)->rx[BH_ROLE_DECODE]);
    front_pass(&rig.front, 100);
    hear(rig.client[0], &heard);
    must_hear(&heard, "\"text\":\"abc\"");
}

Test(egress_lives, a_dead_tokenizers_connections_end)
{
    struct egress rig;
    struct heard heard = {.len = 0};
    rig_open(&rig);
    connect_client(&rig, 0, 1); /* idle */
    front_run(&rig.front);
    record_make(&rig, 2, 0)->conn_idx = 1; /* asked on connection 1, whose descriptor never came */
    bh_word_store(&submit_of(&rig)->conns[1].epoch, 1);
    submit_of(&rig)->conns[1].question = (struct bh_question){
        .kind = BH_QUESTION_REQUEST, .slot = 2, .gen = submit_of(&rig)->records[2].gen};
    bh_ask_store(submit_of(&rig), 1, (struct bh_ask){.gen = 1, .cnt = 1});
    front_pass(&rig.front, 100);
    cr_expect_eq(edge_flags(&rig, 2), 0, "its tokenizer lives and will hand it over");
    bh_role_reaped_store(&rig.front.worlds[BH_ROLE_SUPERVISOR].control, BH_ROLE_TOKENIZER, 1);
    front_pass(&rig.front, 100);
    hear(rig.client[0], &heard);
    cr_expect(heard.ended);
    cr_expect_eq(bh_conn_closed_load(edge_of(&rig), 0), 1);
    cr_expect_eq(bh_conn_closed_load(edge_of(&rig), 1), 1);
    cr_expect_eq(edge_flags(&rig, 2), BH_EDGE_GONE | BH_EDGE_CLOSED);
}

static void
spoil_next_slot(struct bh_record *record)
{
    record->choice_cnt = 2;
    record->next_slot = 0xffffff;
}

static void
spoil_connection(struct bh_record *record)
{
    record->conn_idx = 1;
}

static void
spoil_question(struct bh_record *record)
{
    record->question = 2;
}

static void
spoil_stop(struct bh_record *record)
{
    record->stop_cnt = 1;
    record->stop_end[0] = 9999;
}

static void
spoil_prompt(struct bh_record *record)
{
    record->prompt_cnt = FRONT_CTX + 1;
}

static void
spoil_gen(struct bh_record *record)
{
    record->gen++;
}

Test(egress_lives, a_tokenizer_that_lies_costs_its_connection)
{
    void (*const spoils[])(struct bh_record *) = {
        spoil_next_slot, spoil_connection, spoil_question, spoil_stop, spoil_prompt, spoil_gen};
    for (size_t i = 0; i < BH_COUNT(spoils) + 4; i++) {
        struct egress rig;
        struct heard heard = {.len = 0};
        rig_open(&rig);
        connect_client(&rig, 0, 1);
        if (i < BH_COUNT(spoils)) {
            spoils[i](record_make(&rig, 0, 0));
            ask(&rig, 0, 1, (struct bh_question){.kind = BH_QUESTION_REQUEST, .slot = 0, .gen = 1});
        } else {
            const struct bh_question questions[] = {
                {.kind = BH_QUESTION_NONE},
                {.kind = 99},
                {.kind = BH_QUESTION_REPLY, .reply_bytes = 16385},
                {.kind = BH_QUESTION_REQUEST, .slot = FRONT_SLOTS, .gen = 1},
            };
            ask(&rig, 0, 1, questions[i - BH_COUNT(spoils)]);
        }
        front_run(&rig.front);
        hear(rig.client[0], &heard);
        cr_expect_eq(heard.len, 0, "case %zu was answered: %s", i, heard.text);
        cr_expect(heard.ended);
        cr_expect_eq(front_metric(&rig.front, BH_METRIC_hints_refused), 1, "case %zu", i);
        cr_expect_eq(bh_conn_closed_load(edge_of(&rig), 0), 1);
    }
}

Test(egress_lives, handovers_and_hints_that_name_nothing_are_refused)
{
    struct egress rig;
    struct heard heard = {.len = 0};
    rig_open(&rig);
    int pair[2];
    cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
    hand_over(&rig, FRONT_CONNS, 1, pair, 1);
    hand_over(&rig, 0, 0, pair, 1);
    hand_over(&rig, 0, 1, NULL, 0);
    front_run(&rig.front);
    cr_expect_eq(front_metric(&rig.front, BH_METRIC_hints_refused), 2);
    tokenizer_tells(&rig, bh_hint_make(BH_HINT_ASK, FRONT_CONNS, 1));
    tokenizer_tells(&rig, bh_hint_make(BH_HINT_LOG, FRONT_SLOTS, 1));
    tokenizer_tells(&rig, bh_hint_make(BH_HINT_SUBMIT, 0, 1));
    tokenizer_tells(&rig, bh_hint_make((enum bh_hint_kind)0xff, 0xffffff, 0xffffffff));
    front_run(&rig.front);
    cr_expect_eq(front_metric(&rig.front, BH_METRIC_hints_refused), 6);
    tokenizer_tells(&rig, bh_hint_make(BH_HINT_LOG, 0, 1));
    tokenizer_tells(&rig, bh_hint_make(BH_HINT_ASK, 3, 1));
    front_run(&rig.front);
    cr_expect_eq(
        front_metric(&rig.front, BH_METRIC_hints_refused), 6, "hints that name something are none");
    /* Two descriptors in one message: one is taken, none is left over. */
    int before = dup(0);
    close(before);
    bh_ask_store(submit_of(&rig), 0, (struct bh_ask){.gen = 1});
    bh_word_store(&submit_of(&rig)->conns[0].epoch, 1);
    hand_over(&rig, 0, 1, pair, 2);
    front_run(&rig.front);
    int after = dup(0);
    cr_expect_leq(after, before + 1, "descriptors were left open");
    (void)heard;
}

Test(egress_lives, a_question_after_the_end_lets_its_slots_go)
{
    struct egress rig;
    rig_open(&rig);
    connect_client(&rig, 0, 1);
    front_run(&rig.front);
    close(rig.client[0]);
    front_run(&rig.front);
    cr_assert_eq(bh_conn_closed_load(edge_of(&rig), 0), 1);
    record_make(&rig, 3, 0); /* the tokenizer had not seen the end yet */
    ask_request(&rig, 3);
    front_pass(&rig.front, 100);
    cr_expect_eq(edge_flags(&rig, 3), BH_EDGE_GONE | BH_EDGE_CLOSED);
    cr_expect_eq(bh_answer_load(edge_of(&rig), 0).answered, 1);
    /* The next life counts on, and is answered. */
    struct heard heard = {.len = 0};
    connect_client(&rig, 0, 2);
    ask_reply(&rig, 0, 2, "hello", false);
    front_run(&rig.front);
    hear(rig.client[0], &heard);
    cr_expect_str_eq(heard.text, "hello");
}

/* A writer that dies between the two stores must leave the first choice, by which a successor finds the
   rest: the last one is let go first. */
Test(egress_lives, the_first_choice_is_let_go_last)
{
    struct egress rig;
    rig_open(&rig);
    connect_client(&rig, 0, 1);
    ask_two_choices(&rig, 5, 0);
    for (uint32_t slot = 5; slot <= 6; slot++) {
        ledger_moves(&rig, slot, BH_REQUEST_DECODE, BH_CAUSE_NONE);
        decode_says(&rig, slot, "a", BH_FINISH_LENGTH);
    }
    front_run(&rig.front);
    struct bh_ring_rx *ring = &rig.front.worlds[BH_ROLE_LEDGER].rx[BH_ROLE_EGRESS];
    static const uint32_t order[] = {6, 5};
    for (uint32_t i = 0; i < BH_COUNT(order); i++) {
        struct bh_hint hint;
        cr_assert_eq(bh_ring_peek(ring, &hint), BH_OK);
        cr_expect_eq(bh_hint_kind(hint), BH_HINT_EDGE);
        cr_expect_eq(bh_hint_idx(hint), order[i]);
        bh_ring_consume(ring);
    }
}
