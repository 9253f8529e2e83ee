/* The fair queue against what it promises: turns between tenants by tokens served, age within one. */
#include <criterion/criterion.h>

#include "src/ledger/queue.h"

static struct bh_queue queue;

static void
make(void)
{
    cr_assert(bh_queue_new(&queue, 16, 4));
}

static void
drop(void)
{
    bh_queue_delete(&queue);
}

TestSuite(queue, .init = make, .fini = drop);

static void
arrive(uint32_t slot, uint32_t tenant, uint64_t ticket)
{
    bh_queue_arrive(&queue, tenant);
    bh_queue_push(&queue, (struct bh_queue_item){.slot = slot, .tenant = tenant, .ticket = ticket});
}

/* Admit whoever is next and charge its tenant. */
static uint32_t
admit(uint64_t tokens)
{
    uint32_t slot;
    cr_assert(bh_queue_next(&queue, &slot));
    bh_queue_chose(&queue, slot);
    bh_queue_charge(&queue, queue.links[slot].item.tenant, tokens);
    bh_queue_remove(&queue, slot);
    return slot;
}

Test(queue, empty_has_no_next)
{
    uint32_t slot = 99;
    cr_assert_not(bh_queue_next(&queue, &slot));
    cr_assert_eq(slot, 99);
    bh_queue_remove(&queue, 3);
    cr_assert_eq(queue.cnt, 0);
}

Test(queue, one_tenant_is_served_by_age)
{
    arrive(5, 1, 10);
    arrive(2, 1, 11);
    arrive(9, 1, 12);
    cr_assert_eq(queue.cnt, 3);
    cr_assert_eq(admit(1), 5);
    cr_assert_eq(admit(1), 2);
    cr_assert_eq(admit(1), 9);
    cr_assert_eq(queue.cnt, 0);
    cr_assert_eq(queue.busy_cnt, 0);
}

Test(queue, preempted_goes_back_to_its_age)
{
    arrive(0, 1, 10);
    arrive(1, 1, 11);
    arrive(2, 1, 12);
    bh_queue_remove(&queue, 1);
    bh_queue_push(&queue, (struct bh_queue_item){.slot = 1, .tenant = 1, .ticket = 11});
    cr_assert_eq(admit(1), 0);
    bh_queue_push(&queue, (struct bh_queue_item){.slot = 0, .tenant = 1, .ticket = 10});
    cr_assert_eq(admit(1), 0, "the oldest comes first however often it was put back");
    cr_assert_eq(admit(1), 1);
    cr_assert_eq(admit(1), 2);
}

Test(queue, many_requests_do_not_buy_more_turns)
{
    for (uint32_t i = 0; i < 8; i++) {
        arrive(i, 0, i);
    }
    arrive(8, 1, 100);
    arrive(9, 1, 101);
    cr_assert_eq(admit(50), 0);
    cr_assert_eq(admit(50), 8, "tenant 1 was served less, however young its requests");
    cr_assert_eq(admit(50), 1);
    cr_assert_eq(admit(50), 9);
    cr_assert_eq(admit(50), 2);
}

Test(queue, turns_are_measured_in_tokens)
{
    for (uint32_t i = 0; i < 4; i++) {
        arrive(i, 0, i);
        arrive(8 + i, 1, 100 + i);
    }
    cr_assert_eq(admit(300), 0);
    cr_assert_eq(admit(100), 8);
    cr_assert_eq(admit(100), 9);
    cr_assert_eq(admit(100), 10);
    cr_assert_eq(admit(100), 1, "both were served 300; the older ticket decides");
    cr_assert_eq(admit(100), 11);
}

Test(queue, idle_time_is_no_credit)
{
    arrive(0, 0, 0);
    cr_assert_eq(admit(100000), 0);
    arrive(1, 0, 1);
    arrive(2, 0, 2);
    cr_assert_eq(admit(100), 1);
    /* Tenant 1 was away all this time: it starts level, not 100100 tokens ahead. */
    arrive(8, 1, 3);
    arrive(9, 1, 4);
    cr_assert_eq(admit(200), 8);
    cr_assert_eq(admit(200), 2);
    cr_assert_eq(admit(200), 9);
}

Test(queue, an_active_tenant_keeps_its_arrears)
{
    arrive(0, 0, 0);
    arrive(8, 1, 1);
    cr_assert_eq(admit(10), 0);
    cr_assert_eq(admit(500), 8);
    cr_assert_eq(queue.tenants[0].served, 10);
    arrive(1, 0, 2);
    cr_assert_eq(queue.tenants[0].served, 10, "slot 0 still runs: tenant 0 was never idle");
    bh_queue_depart(&queue, 0);
    bh_queue_depart(&queue, 0);
    cr_assert_eq(queue.tenants[0].alive, 0);
}

Test(queue, remove_from_every_place)
{
    for (uint32_t victim = 0; victim < 3; victim++) {
        for (uint32_t i = 0; i < 3; i++) {
            bh_queue_push(&queue, (struct bh_queue_item){.slot = i, .tenant = 2, .ticket = i});
        }
        bh_queue_remove(&queue, victim);
        bh_queue_remove(&queue, victim);
        cr_assert_eq(queue.cnt, 2);
        uint32_t last = 99;
        for (uint32_t left = 2; left > 0; left--) {
            uint32_t slot = admit(1);
            cr_assert_neq(slot, victim);
            cr_assert(last == 99 || slot > last);
            last = slot;
        }
    }
}

Test(queue, busy_tenants_stay_findable)
{
    arrive(0, 0, 0);
    arrive(1, 1, 1);
    arrive(2, 2, 2);
    bh_queue_remove(&queue, 0);
    bh_queue_remove(&queue, 2);
    cr_assert_eq(queue.busy_cnt, 1);
    cr_assert_eq(admit(1), 1);
    cr_assert_eq(queue.busy_cnt, 0);
}
