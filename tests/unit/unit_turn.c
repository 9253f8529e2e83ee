/* The turn by one thread: who gets it, who is passed over, and what overruling does. */
#include "shm/turn.h"

#include <criterion/criterion.h>

#include "shm/hook.h"
#include "tests/unit/shm_fixture.h"

static struct bh_turn turn;

static void
make(void)
{
    size_t bytes = bh_turn_footprint(&FIXTURE_LIMITS);
    void *mem = fixture_memory(bytes, 0xa5);
    cr_assert_eq(bh_turn_new(mem, &FIXTURE_LIMITS), BH_OK);
    cr_assert_eq(bh_turn_join(mem, bytes, &FIXTURE_LIMITS, &turn), BH_OK);
}

static uint32_t
word(void)
{
    return bh_swap_load(&turn.block->word);
}

TestSuite(turn, .init = make);

Test(turn, nobodys_turn_is_taken)
{
    uint32_t seen = 0;
    cr_assert(bh_turn_ask(&turn, 3, &seen));
    cr_assert(bh_turn_held(&turn, 3));
    cr_assert_not(bh_turn_held(&turn, 2));
    cr_assert_eq(word(), 0x00010004u, "sequence 1, nobody absent, member 3");
    cr_assert(bh_turn_ask(&turn, 3, &seen), "asking again keeps it");
    cr_assert_eq(word(), 0x00010004u, "and moves nothing");
    cr_assert_not(bh_turn_ask(&turn, 5, &seen));
    cr_assert_eq(seen, 0x00010004u, "what to wait on");
    cr_assert(bh_turn_wanted(&turn, 3));
    cr_assert(bh_turn_wanted(&turn, 5), "member 3 still wants it");
}

Test(turn, pass_goes_to_the_next_in_cyclic_order)
{
    uint32_t seen;
    cr_assert(bh_turn_ask(&turn, 3, &seen));
    cr_assert_not(bh_turn_pass(&turn, 3, false), "nobody else wants it: kept");
    cr_assert(bh_turn_held(&turn, 3));
    cr_assert_not(bh_turn_ask(&turn, 1, &seen));
    cr_assert_not(bh_turn_ask(&turn, 6, &seen));
    cr_assert_not(bh_turn_ask(&turn, 0, &seen));
    cr_assert(bh_turn_pass(&turn, 3, true));
    cr_assert(bh_turn_held(&turn, 6));
    cr_assert(bh_turn_pass(&turn, 6, true));
    cr_assert(bh_turn_held(&turn, 0));
    cr_assert(bh_turn_pass(&turn, 0, false));
    cr_assert(bh_turn_held(&turn, 1), "member 0 wants it still, and waits for its round");
    cr_assert(bh_turn_pass(&turn, 1, true));
    cr_assert(bh_turn_held(&turn, 0));
    cr_assert_not(bh_turn_wanted(&turn, 0));
    cr_assert(bh_turn_pass(&turn, 0, true));
    cr_assert_eq(word() & 0xffu, 0, "let go");
    cr_assert_not(bh_turn_pass(&turn, 0, true), "not the holder");
}

Test(turn, a_silent_holder_is_overruled_and_passed_over)
{
    uint32_t seen;
    cr_assert(bh_turn_ask(&turn, 3, &seen));
    cr_assert_not(bh_turn_ask(&turn, 5, &seen));
    cr_assert(bh_turn_overrule(&turn, 5, seen));
    cr_assert(bh_turn_held(&turn, 5));
    cr_assert_eq(word(), 0x00020806u, "member 3 is absent");
    cr_assert_not(bh_turn_pass(&turn, 3, true), "the overruled changes nothing");
    cr_assert_eq(word(), 0x00020806u);
    bh_swap_store(&turn.block->members[3].want, 1);
    cr_assert_not(bh_turn_wanted(&turn, 5), "an absent member's wish does not count");
    cr_assert_not(bh_turn_pass(&turn, 5, false));
    cr_assert_not(bh_turn_ask(&turn, 3, &seen), "it is back, and waits");
    cr_assert_eq(word(), 0x00030006u, "present again");
    cr_assert(bh_turn_pass(&turn, 5, false));
    cr_assert(bh_turn_held(&turn, 3));
}

Test(turn, overruling_needs_a_word_that_stood_still)
{
    uint32_t seen;
    cr_assert(bh_turn_ask(&turn, 3, &seen));
    cr_assert_not(bh_turn_ask(&turn, 5, &seen));
    cr_assert(bh_turn_pass(&turn, 3, false));
    cr_assert(bh_turn_pass(&turn, 5, false));
    cr_assert(bh_turn_held(&turn, 3), "the same holder again");
    cr_assert_not(bh_turn_overrule(&turn, 5, seen), "but somebody moved");
    cr_assert(bh_turn_held(&turn, 3));
    cr_assert_not(bh_turn_overrule(&turn, 3, word()), "nobody overrules itself");
    cr_assert_not(bh_turn_overrule(&turn, 5, 0), "nor nobody");
}

Test(turn, an_absent_member_takes_a_free_turn)
{
    uint32_t seen;
    cr_assert(bh_turn_ask(&turn, 3, &seen));
    cr_assert_not(bh_turn_ask(&turn, 5, &seen));
    cr_assert(bh_turn_overrule(&turn, 5, seen));
    bh_swap_store(&turn.block->members[3].want, 0);
    cr_assert(bh_turn_pass(&turn, 5, true));
    cr_assert_eq(word(), 0x00030800u);
    cr_assert(bh_turn_ask(&turn, 3, &seen));
    cr_assert_eq(word(), 0x00040004u);
}

Test(turn, the_sequence_wraps)
{
    uint32_t seen;
    bh_swap_store(&turn.block->word, 0xffff0000u);
    cr_assert(bh_turn_ask(&turn, 7, &seen));
    cr_assert_eq(word(), 0x00000008u);
}

/* Another member overrules the holder between its look at the word and its swap. */
static bool
overrule_meanwhile(const char *place)
{
    if (strcmp(place, "turn.pass:before_swap") == 0) {
        bh_hook_handler = NULL;
        cr_assert(bh_turn_overrule(&turn, 5, word()));
    }
    return false;
}

Test(turn, a_pass_that_comes_too_late_changes_nothing)
{
    uint32_t seen;
    cr_assert(bh_turn_ask(&turn, 3, &seen));
    cr_assert_not(bh_turn_ask(&turn, 6, &seen));
    bh_hook_handler = overrule_meanwhile;
    cr_assert_not(bh_turn_pass(&turn, 3, true));
    cr_assert(bh_turn_held(&turn, 5));
    cr_assert_eq(word() >> 8 & 0xffu, 0x08u);
}

Test(turn, verify_finds_spoiled_words)
{
    cr_assert_eq(bh_turn_verify(&turn), BH_OK);
    bh_swap_store(&turn.block->word, 9);
    cr_assert_eq(bh_turn_verify(&turn), BH_ECORRUPT);
    bh_swap_store(&turn.block->word, 8);
    cr_assert_eq(bh_turn_verify(&turn), BH_OK);
    bh_swap_store(&turn.block->members[7].want, 2);
    cr_assert_eq(bh_turn_verify(&turn), BH_ECORRUPT);
}
