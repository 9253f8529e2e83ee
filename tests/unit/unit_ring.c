/* The ring by one thread: order, limits, dropped hints, and cursors that a peer spoiled. */
#include "shm/ring.h"

#include <criterion/criterion.h>

#include "tests/unit/shm_fixture.h"

/* Where the consumer's and the producer's cursors lie in a ck_ring behind the head. */
#define C_HEAD_OFFSET 64u
#define P_TAIL_OFFSET 128u
#define SIZE_OFFSET   192u

struct both {
    uint8_t *mem;
    struct bh_ring_tx tx;
    struct bh_ring_rx rx;
};

static struct both
make(void)
{
    size_t bytes = bh_ring_footprint(&FIXTURE_LIMITS);
    struct both ring = {.mem = fixture_memory(bytes, 0xa5)};
    cr_assert_eq(bh_ring_new(ring.mem, &FIXTURE_LIMITS), BH_OK);
    cr_assert_eq(bh_ring_join_tx(ring.mem, bytes, &FIXTURE_LIMITS, &ring.tx), BH_OK);
    cr_assert_eq(bh_ring_join_rx(ring.mem, bytes, &FIXTURE_LIMITS, &ring.rx), BH_OK);
    return ring;
}

static unsigned int *
cursor(struct both *ring, size_t offset)
{
    return (unsigned int *)(void *)(ring->mem + offset);
}

static struct bh_hint
numbered(uint32_t number)
{
    return bh_hint_make(BH_HINT_ORDER, number & 0xffffffu, number);
}

Test(ring, hints_come_out_in_order_and_stay_until_consumed)
{
    struct both ring = make();
    struct bh_hint hint = {77};
    cr_assert_eq(bh_ring_peek(&ring.rx, &hint), BH_EMPTY);
    cr_assert_eq(hint.bits, 77, "untouched unless BH_OK");
    /* Several times around, in uneven bursts. */
    uint32_t in = 0;
    uint32_t out = 0;
    for (uint32_t burst = 1; burst < 120; burst++) {
        for (uint32_t i = 0; i < burst; i++) {
            cr_assert_eq(bh_ring_publish(&ring.tx, numbered(in++)), BH_OK);
        }
        for (uint32_t i = 0; i < burst; i++) {
            cr_assert_eq(bh_ring_peek(&ring.rx, &hint), BH_OK);
            cr_assert_eq(hint.bits, numbered(out).bits);
            cr_assert_eq(bh_ring_peek(&ring.rx, &hint), BH_OK, "a second look finds it again");
            cr_assert_eq(hint.bits, numbered(out++).bits);
            bh_ring_consume(&ring.rx);
        }
        cr_assert_eq(bh_ring_peek(&ring.rx, &hint), BH_EMPTY);
    }
    cr_assert_gt(in, 2 * BH_RING_DEPTH);
    cr_assert_not(bh_ring_lost(&ring.rx));
}

Test(ring, a_full_ring_drops_and_counts)
{
    struct both ring = make();
    for (uint32_t i = 0; i < BH_RING_DEPTH - 1; i++) {
        cr_assert_eq(bh_ring_publish(&ring.tx, numbered(i)), BH_OK);
    }
    cr_assert_eq(bh_ring_verify(&ring.rx), BH_OK);
    cr_assert_not(bh_ring_lost(&ring.rx));
    cr_assert_eq(bh_ring_publish(&ring.tx, numbered(9999)), BH_FULL);
    cr_assert(bh_ring_lost(&ring.rx));
    cr_assert_not(bh_ring_lost(&ring.rx), "told once");
    struct bh_hint hint;
    for (uint32_t i = 0; i < BH_RING_DEPTH - 1; i++) {
        cr_assert_eq(bh_ring_peek(&ring.rx, &hint), BH_OK);
        cr_assert_eq(hint.bits, numbered(i).bits);
        bh_ring_consume(&ring.rx);
    }
    cr_assert_eq(bh_ring_peek(&ring.rx, &hint), BH_EMPTY, "the dropped one is nowhere");
    cr_assert_eq(bh_ring_publish(&ring.tx, numbered(1)), BH_OK);
}

Test(ring, a_consumer_that_joins_later_is_not_told_of_older_losses)
{
    struct both ring = make();
    for (uint32_t i = 0; i < BH_RING_DEPTH; i++) {
        (void)bh_ring_publish(&ring.tx, numbered(i));
    }
    struct bh_ring_rx successor;
    size_t bytes = bh_ring_footprint(&FIXTURE_LIMITS);
    cr_assert_eq(bh_ring_join_rx(ring.mem, bytes, &FIXTURE_LIMITS, &successor), BH_OK);
    cr_assert_not(bh_ring_lost(&successor), "it skips and scans anyway");
    bh_ring_skip(&successor);
    struct bh_hint hint;
    cr_assert_eq(bh_ring_peek(&successor, &hint), BH_EMPTY);
    cr_assert_eq(bh_ring_publish(&ring.tx, numbered(5)), BH_OK);
    cr_assert_eq(bh_ring_peek(&successor, &hint), BH_OK);
    cr_assert_eq(hint.bits, numbered(5).bits);
}

Test(ring, consuming_nothing_changes_nothing)
{
    struct both ring = make();
    bh_ring_consume(&ring.rx);
    struct bh_hint hint;
    cr_assert_eq(bh_ring_publish(&ring.tx, numbered(3)), BH_OK);
    cr_assert_eq(bh_ring_peek(&ring.rx, &hint), BH_OK);
    cr_assert_eq(hint.bits, numbered(3).bits);
}

Test(ring, cursors_wrap_at_the_end_of_their_type)
{
    struct both ring = make();
    *cursor(&ring, C_HEAD_OFFSET) = 0xfffffffeu;
    *cursor(&ring, P_TAIL_OFFSET) = 0xfffffffeu;
    struct bh_hint hint;
    for (uint32_t i = 0; i < 5; i++) {
        cr_assert_eq(bh_ring_publish(&ring.tx, numbered(i)), BH_OK);
        cr_assert_eq(bh_ring_verify(&ring.rx), BH_OK);
        cr_assert_eq(bh_ring_peek(&ring.rx, &hint), BH_OK);
        cr_assert_eq(hint.bits, numbered(i).bits);
        bh_ring_consume(&ring.rx);
    }
}

Test(ring, a_spoiled_producer_cursor_is_reported_and_skipped)
{
    struct both ring = make();
    cr_assert_eq(bh_ring_publish(&ring.tx, numbered(1)), BH_OK);
    *cursor(&ring, P_TAIL_OFFSET) = BH_RING_DEPTH;
    struct bh_hint hint = {77};
    cr_assert_eq(bh_ring_verify(&ring.rx), BH_ECORRUPT);
    cr_assert_eq(bh_ring_peek(&ring.rx, &hint), BH_ECORRUPT);
    cr_assert_eq(hint.bits, 77);
    bh_ring_consume(&ring.rx);
    cr_assert_eq(*cursor(&ring, C_HEAD_OFFSET), 0, "nothing is consumed on a spoiled cursor");
    bh_ring_skip(&ring.rx);
    cr_assert_eq(bh_ring_peek(&ring.rx, &hint), BH_EMPTY);
    cr_assert_eq(bh_ring_publish(&ring.tx, numbered(2)), BH_OK);
    cr_assert_eq(bh_ring_peek(&ring.rx, &hint), BH_OK);
    cr_assert_eq(hint.bits, numbered(2).bits);
}

Test(ring, a_spoiled_consumer_cursor_drops)
{
    struct both ring = make();
    *cursor(&ring, C_HEAD_OFFSET) = 5; /* ahead of the producer */
    cr_assert_eq(bh_ring_publish(&ring.tx, numbered(1)), BH_FULL);
    cr_assert(bh_ring_lost(&ring.rx));
}

Test(ring, a_spoiled_mask_cannot_lead_outside)
{
    struct both ring = make();
    cursor(&ring, SIZE_OFFSET)[0] = 0xffffffffu;
    cursor(&ring, SIZE_OFFSET)[1] = 0xffffffffu;
    *cursor(&ring, C_HEAD_OFFSET) = 0x40000000u;
    *cursor(&ring, P_TAIL_OFFSET) = 0x40000000u;
    struct bh_hint hint;
    cr_assert_eq(bh_ring_publish(&ring.tx, numbered(6)), BH_OK);
    cr_assert_eq(bh_ring_peek(&ring.rx, &hint), BH_OK);
    cr_assert_eq(hint.bits, numbered(6).bits);
}

Test(ring, sides_are_empty_after_leave)
{
    struct both ring = make();
    bh_ring_leave_tx(&ring.tx);
    bh_ring_leave_rx(&ring.rx);
    cr_assert_null(ring.tx.shared);
    cr_assert_null(ring.rx.shared);
}

Test(ring, hints_and_handles_keep_their_fields)
{
    struct bh_hint hint = bh_hint_make(BH_HINT_LOG, 0xabcdefu, 0x01020304u);
    cr_assert_eq(hint.bits, UINT64_C(0x0cabcdef01020304));
    cr_assert_eq(bh_hint_kind(hint), BH_HINT_LOG);
    cr_assert_eq(bh_hint_idx(hint), 0xabcdefu);
    cr_assert_eq(bh_hint_gen(hint), 0x01020304u);
    struct bh_page page = bh_page_make(0x12u, 0xabcdefu, 0x01020304u);
    cr_assert_eq(page.bits, UINT64_C(0x12abcdef01020304));
    cr_assert_eq(bh_page_pool(page), 0x12u);
    cr_assert_eq(bh_page_idx(page), 0xabcdefu);
    cr_assert_eq(bh_page_gen(page), 0x01020304u);
}
