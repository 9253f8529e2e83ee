/* Submissions: the check of records, and the words and areas of connections. */
#include "shm/submit.h"

#include <criterion/criterion.h>
#include <math.h>

#include "tests/unit/shm_fixture.h"

static const struct bh_req REQ = {.slot = 2, .gen = 9};

static struct bh_submit
make(void)
{
    size_t bytes = bh_submit_footprint(&FIXTURE_LIMITS);
    void *mem = fixture_memory(bytes, 0xa5);
    struct bh_submit submit;
    cr_assert_eq(bh_submit_new(mem, &FIXTURE_LIMITS), BH_OK);
    cr_assert_eq(bh_submit_join(mem, bytes, &FIXTURE_LIMITS, &submit), BH_OK);
    return submit;
}

static struct bh_record
good(void)
{
    return (struct bh_record){.slot = 2,
                              .gen = 9,
                              .tenant = 1,
                              .conn_idx = 2,
                              .conn_gen = 1,
                              .question = 1,
                              .choice_cnt = 1,
                              .next_slot = UINT32_MAX,
                              .prompt_cnt = 40,
                              .max_tokens = 24,
                              .logprobs = -1,
                              .temperature = 1.0f,
                              .top_p = 1.0f,
                              .stop_cnt = 2,
                              .stop_end = {3, 1024},
                              .stop_id_cnt = 1,
                              .stop_ids = {99}};
}

#define CHECK(change) check_record(#change, (record = good(), change, &record))

static bool
check_record(const char *what, const struct bh_record *record)
{
    (void)what;
    return bh_record_check(record, REQ, &FIXTURE_LIMITS);
}

Test(submit, records_at_their_limits_pass)
{
    struct bh_record record = good();
    cr_assert(CHECK((void)0));
    cr_assert(CHECK(record.prompt_cnt = 1));
    cr_assert(CHECK((record.prompt_cnt = 63, record.max_tokens = 1)));
    cr_assert(
        CHECK((record.prompt_cnt = 64, record.max_tokens = 0, record.flags = BH_RECORD_ECHO)));
    cr_assert(CHECK(record.logprobs = 20));
    cr_assert(CHECK(record.logprobs = 0));
    cr_assert(CHECK(record.temperature = 0.0f));
    cr_assert(CHECK(record.temperature = 100.0f));
    cr_assert(CHECK(record.min_p = 1.0f));
    cr_assert(CHECK(record.top_k = UINT32_MAX));
    cr_assert(CHECK((record.next_slot = 3, record.next_gen = 1, record.choice_cnt = 64)));
    cr_assert(CHECK((record.choice_cnt = 64, record.choice_idx = 63, record.prompt_idx = 63)));
    cr_assert(CHECK(record.flags = 0xff));
}

Test(submit, records_outside_their_limits_are_refused)
{
    struct bh_record record = good();
    cr_assert_not(CHECK(record.slot = 1));
    cr_assert_not(CHECK(record.gen = 8));
    cr_assert_not(CHECK(record.tenant = 2));
    cr_assert_not(CHECK(record.conn_idx = 3));
    cr_assert_not(CHECK(record.conn_gen = 0));
    cr_assert_not(CHECK(record.question = 0));
    cr_assert_not(CHECK(record.choice_cnt = 0));
    cr_assert_not(CHECK(record.choice_cnt = 65));
    cr_assert_not(CHECK(record.choice_idx = 1));
    cr_assert_not(CHECK(record.prompt_idx = 1));
    cr_assert_not(CHECK((record.next_slot = 4, record.next_gen = 1)));
    cr_assert_not(CHECK((record.next_slot = 3, record.next_gen = 0)));
    cr_assert_not(CHECK((record.next_slot = 2, record.next_gen = 1)));
    cr_assert_not(CHECK(record.prompt_cnt = 0));
    cr_assert_not(CHECK(record.prompt_cnt = 65));
    cr_assert_not(CHECK(record.prompt_cnt = UINT32_MAX));
    cr_assert_not(CHECK(record.max_tokens = 25));
    cr_assert_not(CHECK(record.max_tokens = UINT32_MAX));
    cr_assert_not(CHECK(record.max_tokens = 0));
    cr_assert_not(CHECK(record.flags = 0x100));
    cr_assert_not(CHECK(record.logprobs = -2));
    cr_assert_not(CHECK(record.logprobs = 21));
    cr_assert_not(CHECK(record.temperature = -0.5f));
    cr_assert_not(CHECK(record.temperature = 100.5f));
    cr_assert_not(CHECK(record.temperature = NAN));
    cr_assert_not(CHECK(record.temperature = INFINITY));
    cr_assert_not(CHECK(record.top_p = 0.0f));
    cr_assert_not(CHECK(record.top_p = 1.5f));
    cr_assert_not(CHECK(record.top_p = NAN));
    cr_assert_not(CHECK(record.min_p = -0.1f));
    cr_assert_not(CHECK(record.min_p = NAN));
    cr_assert_not(CHECK(record.stop_cnt = 17));
    cr_assert_not(CHECK(record.stop_end[1] = 3));
    cr_assert_not(CHECK(record.stop_end[0] = 0));
    cr_assert_not(CHECK(record.stop_end[1] = 1025));
    cr_assert_not(CHECK(record.stop_id_cnt = 33));
    cr_assert_not(CHECK(record.stop_ids[0] = 100));
    cr_assert_not(CHECK(record.zero = 1));
}

Test(submit, a_record_is_for_its_handle)
{
    struct bh_record record = good();
    cr_assert_not(bh_record_check(&record, (struct bh_req){.slot = 2, .gen = 8}, &FIXTURE_LIMITS));
    cr_assert_not(bh_record_check(&record, (struct bh_req){.slot = 1, .gen = 9}, &FIXTURE_LIMITS));
    record.gen = 0;
    cr_assert_not(bh_record_check(&record, (struct bh_req){.slot = 2, .gen = 0}, &FIXTURE_LIMITS));
    record = good();
    record.slot = 4;
    cr_assert_not(bh_record_check(&record, (struct bh_req){.slot = 4, .gen = 9}, &FIXTURE_LIMITS));
}

Test(submit, areas_do_not_overlap)
{
    struct bh_submit submit = make();
    uint8_t *end = (uint8_t *)submit.head + bh_submit_footprint(&FIXTURE_LIMITS);
    for (uint32_t slot = 0; slot < 4; slot++) {
        cr_assert_eq(bh_sub_load(&submit, slot), 0);
        memset(bh_submit_prompt(&submit, slot), (int)slot + 1, 64 * sizeof(uint32_t));
    }
    for (uint32_t conn_idx = 0; conn_idx < 3; conn_idx++) {
        cr_assert_eq(bh_ask_load(&submit, conn_idx).cnt, 0);
        memset(bh_submit_reply(&submit, conn_idx), (int)conn_idx + 100, 256);
    }
    for (uint32_t slot = 0; slot < 4; slot++) {
        cr_assert_eq(((uint8_t *)bh_submit_prompt(&submit, slot))[0], slot + 1);
        cr_assert_eq(((uint8_t *)bh_submit_prompt(&submit, slot))[255], slot + 1);
    }
    for (uint32_t conn_idx = 0; conn_idx < 3; conn_idx++) {
        cr_assert_eq(bh_submit_reply(&submit, conn_idx)[0], conn_idx + 100);
        cr_assert_eq(bh_submit_reply(&submit, conn_idx)[255], conn_idx + 100);
    }
    cr_assert_leq(bh_submit_reply(&submit, 2) + 256, end);
    cr_assert_eq(bh_submit_verify(&submit), BH_OK);
}

Test(submit, words_keep_their_fields)
{
    struct bh_submit submit = make();
    bh_ask_store(&submit, 1, (struct bh_ask){.gen = 0x01020304u, .cnt = 0x05060708u});
    cr_assert_eq(bh_word_load(&submit.conns[1].ask), UINT64_C(0x0102030405060708));
    cr_assert_eq(bh_ask_load(&submit, 1).gen, 0x01020304u);
    cr_assert_eq(bh_ask_load(&submit, 1).cnt, 0x05060708u);
    bh_sub_store(&submit, 3, 0xffffffffu);
    cr_assert_eq(bh_sub_load(&submit, 3), 0xffffffffu);
}

Test(submit, verify_finds_spoiled_questions)
{
    struct bh_submit submit = make();
    struct bh_question *question = &submit.conns[1].question;
    question->kind = 99;
    cr_assert_eq(bh_submit_verify(&submit), BH_OK, "nothing was asked");
    bh_ask_store(&submit, 1, (struct bh_ask){.gen = 1, .cnt = 1});
    cr_assert_eq(bh_submit_verify(&submit), BH_ECORRUPT);
    *question = (struct bh_question){.kind = BH_QUESTION_REQUEST, .slot = 4};
    cr_assert_eq(bh_submit_verify(&submit), BH_ECORRUPT);
    *question = (struct bh_question){.kind = BH_QUESTION_REPLY, .reply_bytes = 257};
    cr_assert_eq(bh_submit_verify(&submit), BH_ECORRUPT);
    *question = (struct bh_question){.kind = BH_QUESTION_HANGUP, .close = 2};
    cr_assert_eq(bh_submit_verify(&submit), BH_ECORRUPT);
    *question = (struct bh_question){.kind = BH_QUESTION_REPLY, .reply_bytes = 256, .close = 1};
    cr_assert_eq(bh_submit_verify(&submit), BH_OK);
    bh_ask_store(&submit, 1, (struct bh_ask){.gen = 0, .cnt = 1});
    cr_assert_eq(bh_submit_verify(&submit), BH_ECORRUPT, "generation 0");
    bh_ask_store(&submit, 1, (struct bh_ask){.gen = 1, .cnt = 1});
    bh_word_store(&submit.subs[0], UINT64_C(1) << 32);
    cr_assert_eq(bh_submit_verify(&submit), BH_ECORRUPT);
}
