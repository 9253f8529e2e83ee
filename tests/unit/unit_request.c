/* The request table: words, the one constructor of live requests, and what verify finds. */
#include "shm/request.h"

#include <criterion/criterion.h>

#include "shm/hook.h"
#include "tests/unit/shm_fixture.h"

#define SLOT  2u
#define EPOCH 4u

static struct bh_requests
make(void)
{
    size_t bytes = bh_requests_footprint(&FIXTURE_LIMITS);
    void *mem = fixture_memory(bytes, 0xa5);
    struct bh_requests requests;
    cr_assert_eq(bh_requests_new(mem, &FIXTURE_LIMITS), BH_OK);
    cr_assert_eq(bh_requests_join(mem, bytes, &FIXTURE_LIMITS, &requests), BH_OK);
    return requests;
}

static void
set_state(struct bh_requests *requests, enum bh_request_state state)
{
    bh_request_store(requests, SLOT, (struct bh_request_view){.gen = 9, .state = state});
}

static void
set_order(struct bh_requests *requests, enum bh_order_verb verb, uint32_t role, uint32_t epoch)
{
    bh_order_store(
        requests, SLOT, (struct bh_order){.seq = 5, .verb = verb, .role = role, .epoch = epoch});
}

Test(request, words_keep_their_fields)
{
    cr_assert_eq(bh_request_pack((struct bh_request_view){
                     .gen = 0x01020304u, .state = BH_REQUEST_FAILED, .cause = BH_CAUSE_VIOLATION}),
                 UINT64_C(0x0102030407080000));
    struct bh_request_view view = bh_request_unpack(UINT64_C(0xffffffff04010000));
    cr_assert_eq(view.gen, 0xffffffffu);
    cr_assert_eq(view.state, BH_REQUEST_DONE);
    cr_assert_eq(view.cause, BH_CAUSE_STOP);
    cr_assert_eq(
        bh_order_pack((struct bh_order){
            .seq = 0x01020304u, .verb = BH_ORDER_STOP, .role = BH_ROLE_DECODE, .epoch = 0xabcdefu}),
        UINT64_C(0x0102030484abcdef));
    struct bh_order order = bh_order_unpack(UINT64_C(0x0102030443000007));
    cr_assert_eq(order.seq, 0x01020304u);
    cr_assert_eq(order.verb, BH_ORDER_RUN);
    cr_assert_eq(order.role, BH_ROLE_PREFILL);
    cr_assert_eq(order.epoch, 7);
    cr_assert_eq(bh_list_pack((struct bh_list){.cnt = 0x123456u, .shared = 0xabcdefu}),
                 UINT64_C(0x0000123456abcdef));
    struct bh_list list = bh_list_unpack(UINT64_C(0x0000123456abcdef));
    cr_assert_eq(list.cnt, 0x123456u);
    cr_assert_eq(list.shared, 0xabcdefu);
}

Test(request, new_slots_are_free)
{
    struct bh_requests requests = make();
    cr_assert_eq(requests.slots, 4);
    cr_assert_eq(requests.list_max, 4);
    for (uint32_t slot = 0; slot < 4; slot++) {
        struct bh_request_view view = bh_request_load(&requests, slot);
        cr_assert_eq(view.gen, 1);
        cr_assert_eq(view.state, BH_REQUEST_FREE);
        cr_assert_eq(bh_order_load(&requests, slot).verb, BH_ORDER_NONE);
        cr_assert_eq(bh_list_load(&requests, slot).cnt, 0);
        cr_assert_eq(requests.rows[slot].deaths, 0);
    }
}

Test(request, entries_of_slots_do_not_overlap)
{
    struct bh_requests requests = make();
    for (uint32_t slot = 0; slot < 4; slot++) {
        for (uint32_t ord = 0; ord < 4; ord++) {
            bh_list_page_store(&requests, slot, ord, bh_page_make(0, 1 + slot, 1 + ord));
        }
    }
    for (uint32_t slot = 0; slot < 4; slot++) {
        for (uint32_t ord = 0; ord < 4; ord++) {
            cr_assert_eq(bh_list_page(&requests, slot, ord).bits,
                         bh_page_make(0, 1 + slot, 1 + ord).bits);
        }
    }
    cr_assert_eq(bh_request_load(&requests, 3).gen, 1, "rows are untouched");
}

Test(request, terminal_states_are_neither_live_nor_free)
{
    for (int state = BH_REQUEST_FREE; state < BH_REQUEST_STATE_CNT; state++) {
        bool terminal = state == BH_REQUEST_DONE || state == BH_REQUEST_REJECTED ||
                        state == BH_REQUEST_CANCELLED || state == BH_REQUEST_FAILED;
        bool live =
            state == BH_REQUEST_QUEUED || state == BH_REQUEST_PREFILL || state == BH_REQUEST_DECODE;
        cr_assert_eq(bh_request_terminal((enum bh_request_state)state), terminal);
        cr_assert_eq(bh_request_live((enum bh_request_state)state), live);
    }
}

Test(request, claim_gives_live_ordered_requests_only)
{
    struct bh_requests requests = make();
    static const uint32_t WORKERS[] = {BH_ROLE_PREFILL, BH_ROLE_DECODE};
    for (size_t i = 0; i < BH_COUNT(WORKERS); i++) {
        uint32_t role = WORKERS[i];
        for (int state = BH_REQUEST_FREE; state < BH_REQUEST_STATE_CNT; state++) {
            set_state(&requests, (enum bh_request_state)state);
            set_order(&requests, BH_ORDER_RUN, role, EPOCH);
            bool acts = (role == BH_ROLE_PREFILL && state == BH_REQUEST_PREFILL) ||
                        (role == BH_ROLE_DECODE && state == BH_REQUEST_DECODE);
            struct bh_live live = {.req = {.slot = 77}};
            enum bh_status status = bh_request_claim(&requests, SLOT, role, EPOCH, &live);
            cr_assert_eq(status, acts ? BH_OK : BH_ESTALE, "role %u state %d", role, state);
            cr_assert_eq(live.req.slot, acts ? SLOT : 77);
            if (acts) {
                cr_assert_eq(live.req.gen, 9);
                cr_assert_eq(live.state, (enum bh_request_state)state);
                cr_assert_eq(live.order.seq, 5);
                cr_assert_eq(live.order.epoch, EPOCH);
            }
        }
    }
}

Test(request, claim_refuses_what_is_ordered_to_others)
{
    struct bh_requests requests = make();
    struct bh_live live;
    set_state(&requests, BH_REQUEST_PREFILL);
    set_order(&requests, BH_ORDER_NONE, BH_ROLE_PREFILL, EPOCH);
    cr_assert_eq(bh_request_claim(&requests, SLOT, BH_ROLE_PREFILL, EPOCH, &live), BH_EMPTY);
    set_order(&requests, BH_ORDER_STOP, BH_ROLE_PREFILL, EPOCH);
    cr_assert_eq(bh_request_claim(&requests, SLOT, BH_ROLE_PREFILL, EPOCH, &live), BH_EMPTY);
    set_order(&requests, BH_ORDER_RUN, BH_ROLE_DECODE, EPOCH);
    cr_assert_eq(bh_request_claim(&requests, SLOT, BH_ROLE_PREFILL, EPOCH, &live), BH_EMPTY);
    set_order(&requests, BH_ORDER_RUN, BH_ROLE_PREFILL, EPOCH - 1);
    cr_assert_eq(bh_request_claim(&requests, SLOT, BH_ROLE_PREFILL, EPOCH, &live), BH_EMPTY);
    set_order(&requests, BH_ORDER_RUN, BH_ROLE_PREFILL, EPOCH);
    cr_assert_eq(bh_request_claim(&requests, SLOT, BH_ROLE_PREFILL, EPOCH, &live), BH_OK);
    cr_assert_eq(bh_request_claim(&requests, 3, BH_ROLE_PREFILL, EPOCH, &live), BH_EMPTY);
    cr_assert_eq(bh_request_claim(&requests, 4, BH_ROLE_PREFILL, EPOCH, &live), BH_EINVAL);
    cr_assert_eq(bh_request_claim(&requests, UINT32_MAX, BH_ROLE_PREFILL, EPOCH, &live), BH_EINVAL);
}

/* The ledger lets the slot go and uses it again between the two loads of a claim. */
static struct bh_requests *reused;

static bool
reuse_slot(const char *place)
{
    if (strcmp(place, "request.claim:between_words") == 0) {
        set_order(reused, BH_ORDER_NONE, BH_ROLE_PREFILL, EPOCH);
        bh_request_store(
            reused, SLOT, (struct bh_request_view){.gen = 10, .state = BH_REQUEST_PREFILL});
    }
    return false;
}

Test(request, claim_does_not_mix_two_lives)
{
    struct bh_requests requests = make();
    struct bh_live live = {.req = {.slot = 77}};
    set_state(&requests, BH_REQUEST_PREFILL);
    set_order(&requests, BH_ORDER_RUN, BH_ROLE_PREFILL, EPOCH);
    reused = &requests;
    bh_hook_handler = reuse_slot;
    cr_assert_eq(bh_request_claim(&requests, SLOT, BH_ROLE_PREFILL, EPOCH, &live), BH_EMPTY);
    bh_hook_handler = NULL;
    cr_assert_eq(live.req.slot, 77, "untouched unless BH_OK");
}

static enum bh_status
verify_with(struct bh_requests *requests, uint64_t request, uint64_t order, uint64_t list)
{
    bh_word_store(&requests->rows[SLOT].request, request);
    bh_word_store(&requests->rows[SLOT].order, order);
    bh_word_store(&requests->rows[SLOT].list, list);
    return bh_requests_verify(requests);
}

Test(request, verify_finds_spoiled_words)
{
    struct bh_requests requests = make();
    const uint64_t decode = bh_request_pack((struct bh_request_view){9, BH_REQUEST_DECODE, 0});
    const uint64_t unused = bh_request_pack((struct bh_request_view){9, BH_REQUEST_FREE, 0});
    const uint64_t run = bh_order_pack((struct bh_order){5, BH_ORDER_RUN, BH_ROLE_DECODE, EPOCH});
    const uint64_t none = bh_order_pack((struct bh_order){5, BH_ORDER_NONE, 0, 0});
    const uint64_t two = bh_list_pack((struct bh_list){2, 1});
    bh_list_page_store(&requests, SLOT, 0, bh_page_make(0, 3, 1));
    bh_list_page_store(&requests, SLOT, 1, bh_page_make(0, 4, 1));
    cr_assert_eq(verify_with(&requests, decode, run, two), BH_OK);
    cr_assert_eq(verify_with(&requests, unused, none, 0), BH_OK);

    cr_assert_eq(verify_with(&requests, decode & 0xffffffffu, run, two), BH_ECORRUPT, "gen 0");
    cr_assert_eq(verify_with(&requests, (UINT64_C(9) << 32) | (8u << 24), run, two), BH_ECORRUPT);
    cr_assert_eq(verify_with(&requests, decode | (200u << 16), run, two), BH_ECORRUPT, "cause");
    cr_assert_eq(verify_with(&requests, decode | 1, run, two), BH_ECORRUPT, "padding");
    cr_assert_eq(verify_with(&requests, decode, run | (3u << 30), two), BH_ECORRUPT, "verb 3");
    cr_assert_eq(verify_with(&requests, decode, run & ~UINT64_C(0xffffff), two), BH_ECORRUPT);
    cr_assert_eq(
        verify_with(&requests,
                    decode,
                    bh_order_pack((struct bh_order){5, BH_ORDER_RUN, BH_ROLE_EGRESS, EPOCH}),
                    two),
        BH_ECORRUPT,
        "egress is no worker");
    cr_assert_eq(verify_with(&requests, decode, run, bh_list_pack((struct bh_list){5, 0})),
                 BH_ECORRUPT,
                 "longer than list_max");
    cr_assert_eq(verify_with(&requests, decode, run, bh_list_pack((struct bh_list){1, 2})),
                 BH_ECORRUPT,
                 "more shared than listed");
    cr_assert_eq(verify_with(&requests, decode, run, two | (UINT64_C(1) << 48)), BH_ECORRUPT);
    cr_assert_eq(verify_with(&requests, unused, run, 0), BH_ECORRUPT, "order for a FREE slot");
    cr_assert_eq(verify_with(&requests, unused, none, two), BH_ECORRUPT, "pages of a FREE slot");
    bh_list_page_store(&requests, SLOT, 1, bh_page_make(0, 0, 1));
    cr_assert_eq(verify_with(&requests, decode, run, two), BH_ECORRUPT, "the null page is listed");
    cr_assert_eq(verify_with(&requests, decode, run, bh_list_pack((struct bh_list){1, 1})),
                 BH_OK,
                 "entries behind the list do not matter");
}
