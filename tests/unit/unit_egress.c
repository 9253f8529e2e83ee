/* Egress: what it answers: replies, whole answers, streams, errors. */
#include "tests/unit/egress_rig.h"

Test(egress, replies_go_out_one_after_the_other)
{
    struct egress rig;
    struct heard heard = {.len = 0};
    rig_open(&rig);
    connect_client(&rig, 0, 1);
    ask_reply(&rig, 0, 1, "first", false);
    front_run(&rig.front);
    hear(rig.client[0], &heard);
    cr_expect_str_eq(heard.text, "first");
    cr_expect_eq(bh_answer_load(edge_of(&rig), 0).answered, 1);
    struct bh_hint hint;
    cr_assert_eq(bh_ring_peek(&rig.front.worlds[BH_ROLE_TOKENIZER].rx[BH_ROLE_EGRESS], &hint),
                 BH_OK);
    cr_expect_eq(bh_hint_kind(hint), BH_HINT_ANSWERED);
    ask_reply(&rig, 0, 1, "|second", false);
    front_run(&rig.front);
    hear(rig.client[0], &heard);
    cr_expect_str_eq(heard.text, "first|second");
    cr_expect_eq(bh_answer_load(edge_of(&rig), 0).answered, 2);
    cr_expect_eq(bh_conn_closed_load(edge_of(&rig), 0), 0);
    cr_expect_not(heard.ended);
}

Test(egress, the_last_answer_ends_the_connection_when_the_client_has_it)
{
    struct egress rig;
    struct heard heard = {.len = 0};
    rig_open(&rig);
    connect_client(&rig, 0, 1);
    ask_reply(&rig, 0, 1, "bye", true);
    front_run(&rig.front);
    hear(rig.client[0], &heard);
    cr_expect_str_eq(heard.text, "bye");
    cr_expect(heard.ended, "the client must learn that nothing more comes");
    cr_expect_eq(bh_conn_closed_load(edge_of(&rig), 0),
                 0,
                 "the socket may not be closed under what is sent");
    close(rig.client[0]);
    front_run(&rig.front);
    cr_expect_eq(bh_conn_closed_load(edge_of(&rig), 0), 1);
    /* One that never ends its side is cut off. */
    connect_client(&rig, 0, 2);
    ask_reply(&rig, 0, 2, "bye", true);
    front_run(&rig.front);
    front_pass(&rig.front, 1900);
    cr_expect_eq(bh_conn_closed_load(edge_of(&rig), 0), 1);
    front_pass(&rig.front, 200);
    cr_expect_eq(bh_conn_closed_load(edge_of(&rig), 0), 2);
}

Test(egress, a_whole_answer_lets_the_slot_go_before_the_next_question)
{
    struct egress rig;
    struct heard heard = {.len = 0};
    rig_open(&rig);
    connect_client(&rig, 0, 1);
    struct bh_record *record = record_make(&rig, 3, BH_RECORD_CHAT);
    record->logprobs = 1;
    ask_request(&rig, 3);
    front_run(&rig.front);
    ledger_moves(&rig, 3, BH_REQUEST_DECODE, BH_CAUSE_NONE);
    front_world(&rig.front)->requests.rows[3].cached = 1;
    decode_says(&rig, 3, "abc", BH_FINISH_NONE);
    front_run(&rig.front);
    hear(rig.client[0], &heard);
    cr_expect_eq(heard.len, 0, "half an answer was sent");
    decode_says(&rig, 3, "d", BH_FINISH_LENGTH);
    front_run(&rig.front);
    hear(rig.client[0], &heard);
    must_hear(&heard, "HTTP/1.1 200 OK\r\n");
    must_hear(&heard, "\"content\":\"abcd\"");
    must_hear(&heard, "\"finish_reason\":\"length\"");
    must_hear(&heard, "\"prompt_tokens\":2,\"completion_tokens\":4,\"total_tokens\":6");
    must_hear(&heard, "\"cached_tokens\":1");
    must_hear(&heard, "\"logprob\":-1.5");
    must_hear(&heard, "\"model\":\"testmodel\"");
    cr_expect_eq(edge_flags(&rig, 3), BH_EDGE_CLOSED);
    cr_expect_eq(bh_answer_load(edge_of(&rig), 0).answered, 1);
}

Test(egress, a_stream_sends_each_token_as_a_frame)
{
    struct egress rig;
    struct heard heard = {.len = 0};
    rig_open(&rig);
    connect_client(&rig, 0, 1);
    record_make(&rig, 0, BH_RECORD_STREAM | BH_RECORD_USAGE);
    ask_request(&rig, 0);
    ledger_moves(&rig, 0, BH_REQUEST_DECODE, BH_CAUSE_NONE);
    front_run(&rig.front);
    hear(rig.client[0], &heard);
    cr_expect_eq(heard.len, 0, "200 goes with the first token");
    static const char text[] = "x\xc3\xa9z"; /* the second character is two tokens */
    for (size_t i = 0; text[i] != '\0'; i++) {
        char one[2] = {text[i], '\0'};
        decode_says(&rig, 0, one, text[i + 1] == '\0' ? BH_FINISH_LENGTH : BH_FINISH_NONE);
        if (text[i + 1] != '\0') {
            front_run(&rig.front);
            cr_expect_eq(
                bh_answer_load(edge_of(&rig), 0).sent, i + 2, "head and %zu tokens", i + 1);
            cr_expect_eq(bh_answer_load(edge_of(&rig), 0).offered, i + 2);
        }
    }
    front_run(&rig.front);
    hear(rig.client[0], &heard);
    must_hear(&heard, "Transfer-Encoding: chunked\r\n");
    must_hear(&heard, "\"text\":\"x\"");
    must_hear(&heard, "\"text\":\"\xc3\xa9\"");
    must_not_hear(&heard, "\xef\xbf\xbd");
    must_hear(&heard, "\"text\":\"z\"");
    must_hear(&heard, "\"finish_reason\":\"length\"");
    must_hear(&heard, "\"completion_tokens\":4");
    cr_expect(strcmp(heard.text + heard.len - 21, "data: [DONE]\n\n\r\n0\r\n\r\n") == 0,
              "%s",
              heard.text);
    cr_expect_eq(edge_flags(&rig, 0), BH_EDGE_CLOSED);
}

Test(egress, a_stop_string_is_told_to_the_ledger)
{
    struct egress rig;
    struct heard heard = {.len = 0};
    rig_open(&rig);
    connect_client(&rig, 0, 1);
    struct bh_record *record = record_make(&rig, 0, BH_RECORD_STREAM);
    record->stop_cnt = 1;
    record->stop_end[0] = 3;
    memcpy(record->stop_bytes, "cde", 3);
    ask_request(&rig, 0);
    ledger_moves(&rig, 0, BH_REQUEST_DECODE, BH_CAUSE_NONE);
    decode_says(&rig, 0, "abcd", BH_FINISH_NONE);
    front_run(&rig.front);
    cr_expect_eq(edge_flags(&rig, 0), 0, "the string is not complete");
    decode_says(&rig, 0, "efg", BH_FINISH_NONE);
    front_run(&rig.front);
    hear(rig.client[0], &heard);
    cr_expect_eq(edge_flags(&rig, 0), BH_EDGE_STOP | BH_EDGE_CLOSED);
    cr_expect_eq(bh_edge_load(edge_of(&rig), 0).stop_at, 5);
    must_hear(&heard, "\"text\":\"b\"");
    must_not_hear(&heard, "\"text\":\"c");
    must_not_hear(&heard, "\"text\":\"f");
    must_hear(&heard, "\"finish_reason\":\"stop\"");
}

Test(egress, every_bad_end_is_an_error_and_never_an_answer)
{
    static const struct {
        enum bh_request_state state;
        enum bh_cause cause;
        const char *status;
        const char *code;
    } cases[] = {
        {BH_REQUEST_REJECTED, BH_CAUSE_CONTEXT, " 400 ", "context_length_exceeded"},
        {BH_REQUEST_REJECTED, BH_CAUSE_TENANT_LIMIT, " 429 ", "rate_limit_exceeded"},
        {BH_REQUEST_REJECTED, BH_CAUSE_QUEUE_FULL, " 503 ", "queue_full"},
        {BH_REQUEST_FAILED, BH_CAUSE_VIOLATION, " 500 ", "kv_integrity_failure"},
        {BH_REQUEST_FAILED, BH_CAUSE_WORKER, " 503 ", "worker_lost"},
        {BH_REQUEST_CANCELLED, BH_CAUSE_SHUTDOWN, " 503 ", "shutting_down"},
        {BH_REQUEST_FAILED, BH_CAUSE_NONE, " 503 ", "worker_lost"},
        {(enum bh_request_state)200, (enum bh_cause)200, " 500 ", "internal_error"},
    };
    for (size_t i = 0; i < BH_COUNT(cases); i++) {
        for (uint32_t late = 0; late < 3; late++) {
            struct egress rig;
            struct heard heard = {.len = 0};
            rig_open(&rig);
            connect_client(&rig, 0, 1);
            record_make(&rig, 0, late > 0 ? BH_RECORD_STREAM : 0);
            ask_request(&rig, 0);
            if (late == 2) {
                ledger_moves(&rig, 0, BH_REQUEST_DECODE, BH_CAUSE_NONE);
                decode_says(&rig, 0, "ab", BH_FINISH_NONE);
                front_run(&rig.front);
            }
            ledger_moves(&rig, 0, cases[i].state, cases[i].cause);
            front_run(&rig.front);
            hear(rig.client[0], &heard);
            must_hear(&heard, late == 2 ? " 200 " : cases[i].status);
            must_hear(&heard, cases[i].code);
            must_not_hear(&heard, "[DONE]");
            must_not_hear(&heard, "\"finish_reason\":\"");
            cr_expect_eq(heard.ended, late == 2, "case %zu %u", i, late);
            cr_expect_eq(edge_flags(&rig, 0), BH_EDGE_GONE | BH_EDGE_CLOSED);
        }
    }
}

Test(egress, a_request_whose_life_ended_unseen_is_answered)
{
    struct egress rig;
    struct heard heard = {.len = 0};
    rig_open(&rig);
    connect_client(&rig, 0, 1);
    record_make(&rig, 0, 0);
    ask_request(&rig, 0);
    front_run(&rig.front);
    struct bh_requests *requests = &rig.front.worlds[BH_ROLE_LEDGER].requests;
    uint32_t gen = bh_request_load(requests, 0).gen;
    bh_request_store(requests, 0, (struct bh_request_view){.gen = gen + 1});
    front_pass(&rig.front, 100);
    hear(rig.client[0], &heard);
    must_hear(&heard, "HTTP/1.1 503 ");
    cr_expect_neq(bh_edge_load(edge_of(&rig), 0).gen, gen + 1, "the next life was marked");
}

Test(egress, silent_streams_ping_once_the_request_runs)
{
    struct egress rig;
    struct heard heard = {.len = 0};
    rig_open(&rig);
    connect_client(&rig, 0, 1);
    record_make(&rig, 0, BH_RECORD_STREAM);
    ask_request(&rig, 0);
    ledger_moves(&rig, 0, BH_REQUEST_QUEUED, BH_CAUSE_NONE);
    front_pass(&rig.front, 11000);
    hear(rig.client[0], &heard);
    cr_expect_eq(heard.len, 0, "a request that may still be refused has no 200");
    ledger_moves(&rig, 0, BH_REQUEST_PREFILL, BH_CAUSE_NONE);
    front_pass(&rig.front, 100);
    hear(rig.client[0], &heard);
    must_hear(&heard, "HTTP/1.1 200 OK\r\n");
    must_hear(&heard, ": ping\n\n");
    front_pass(&rig.front, 9000);
    size_t len = heard.len;
    hear(rig.client[0], &heard);
    cr_expect_eq(heard.len, len);
    front_pass(&rig.front, 1500);
    hear(rig.client[0], &heard);
    cr_expect_gt(heard.len, len);
    ledger_moves(&rig, 0, BH_REQUEST_DECODE, BH_CAUSE_NONE);
    decode_says(&rig, 0, "a", BH_FINISH_LENGTH);
    front_run(&rig.front);
    hear(rig.client[0], &heard);
    cr_expect_null(strstr(heard.text + 10, "HTTP/1.1"), "a second head: %s", heard.text);
    must_hear(&heard, "[DONE]");
}

Test(egress, it_says_what_the_server_is)
{
    struct egress rig;
    struct heard heard = {.len = 0};
    rig_open(&rig);
    connect_client(&rig, 0, 1);
    ask(&rig, 0, 1, (struct bh_question){.kind = BH_QUESTION_HEALTH});
    front_run(&rig.front);
    hear(rig.client[0], &heard);
    must_hear(&heard, "HTTP/1.1 200 OK\r\n");
    bh_word_store(&front_world(&rig.front)->control.block->ready, 0);
    ask(&rig, 0, 1, (struct bh_question){.kind = BH_QUESTION_HEALTH});
    front_run(&rig.front);
    heard.len = 0;
    hear(rig.client[0], &heard);
    must_hear(&heard, "HTTP/1.1 503 ");
    must_hear(&heard, "Loading model");
    ask(&rig, 0, 1, (struct bh_question){.kind = BH_QUESTION_MODELS});
    front_run(&rig.front);
    heard.len = 0;
    hear(rig.client[0], &heard);
    must_hear(&heard, "\"max_model_len\":64");
    must_hear(&heard, "\"n_kv_tokens\":224");
    ask(&rig, 0, 1, (struct bh_question){.kind = BH_QUESTION_METRICS});
    front_run(&rig.front);
    heard.len = 0;
    hear(rig.client[0], &heard);
    must_hear(&heard, "vllm:num_requests_running{model_name=\"testmodel\"} 0");
    ask(&rig, 0, 1, (struct bh_question){.kind = BH_QUESTION_INTERIM});
    front_run(&rig.front);
    heard.len = 0;
    hear(rig.client[0], &heard);
    cr_expect_str_eq(heard.text, "HTTP/1.1 100 Continue\r\n\r\n");
    ask(&rig, 0, 1, (struct bh_question){.kind = BH_QUESTION_HANGUP, .close = 1});
    front_run(&rig.front);
    hear(rig.client[0], &heard);
    cr_expect(heard.ended);
    cr_expect_eq(bh_conn_closed_load(edge_of(&rig), 0), 1);
}

Test(egress, choices_of_one_stream_share_it)
{
    struct egress rig;
    struct heard heard = {.len = 0};
    rig_open(&rig);
    connect_client(&rig, 0, 1);
    ask_two_choices(&rig, 5, BH_RECORD_STREAM | BH_RECORD_USAGE);
    ledger_moves(&rig, 5, BH_REQUEST_DECODE, BH_CAUSE_NONE);
    decode_says(&rig, 5, "ab", BH_FINISH_LENGTH);
    front_run(&rig.front);
    hear(rig.client[0], &heard);
    must_hear(&heard, "\"index\":0,\"text\":\"b\"");
    must_not_hear(&heard, "[DONE]");
    cr_expect_eq(edge_flags(&rig, 5), 0, "the answer is still open");
    ledger_moves(&rig, 6, BH_REQUEST_DECODE, BH_CAUSE_NONE);
    decode_says(&rig, 6, "c", BH_FINISH_LENGTH);
    front_run(&rig.front);
    hear(rig.client[0], &heard);
    must_hear(&heard, "\"index\":1,\"text\":\"c\"");
    must_hear(&heard, "\"prompt_tokens\":2,\"completion_tokens\":3");
    must_hear(&heard, "[DONE]");
    cr_expect_eq(edge_flags(&rig, 5), BH_EDGE_CLOSED);
    cr_expect_eq(edge_flags(&rig, 6), BH_EDGE_CLOSED);
}

Test(egress, one_bad_choice_ends_them_all)
{
    struct egress rig;
    struct heard heard = {.len = 0};
    rig_open(&rig);
    connect_client(&rig, 0, 1);
    ask_two_choices(&rig, 5, 0);
    ledger_moves(&rig, 5, BH_REQUEST_DECODE, BH_CAUSE_NONE);
    decode_says(&rig, 5, "ab", BH_FINISH_LENGTH);
    ledger_moves(&rig, 6, BH_REQUEST_FAILED, BH_CAUSE_VIOLATION);
    front_run(&rig.front);
    hear(rig.client[0], &heard);
    must_hear(&heard, "HTTP/1.1 500 ");
    must_not_hear(&heard, "\"text\"");
    cr_expect_eq(edge_flags(&rig, 5), BH_EDGE_GONE | BH_EDGE_CLOSED);
    cr_expect_eq(edge_flags(&rig, 6), BH_EDGE_GONE | BH_EDGE_CLOSED);
}
