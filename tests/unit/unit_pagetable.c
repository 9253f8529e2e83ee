/* The page table: words, who may read and write a page, and the names of prefixes. */
#include "shm/pagetable.h"

#include <criterion/criterion.h>
#include <xxhash.h>

#include "tests/unit/shm_fixture.h"

static struct bh_pagetable
make(void)
{
    size_t bytes = bh_pagetable_footprint(&FIXTURE_LIMITS);
    void *mem = fixture_memory(bytes, 0xa5);
    struct bh_pagetable table;
    cr_assert_eq(bh_pagetable_new(mem, &FIXTURE_LIMITS), BH_OK);
    cr_assert_eq(bh_pagetable_join(mem, bytes, &FIXTURE_LIMITS, &table), BH_OK);
    return table;
}

Test(pagetable, new_pages_are_free_and_page_zero_is_retired)
{
    struct bh_pagetable table = make();
    cr_assert_eq(table.page_cnt, 9);
    cr_assert_eq(table.page_tokens, 16);
    for (uint32_t page_idx = 0; page_idx < 9; page_idx++) {
        struct bh_page_view view = bh_page_load(&table, page_idx);
        cr_assert_eq(view.gen, 1);
        cr_assert_eq(view.state, page_idx == 0 ? BH_PAGE_RETIRED : BH_PAGE_FREE);
        cr_assert_eq(view.flags, 0);
        cr_assert_eq(view.owner, 0);
    }
}

Test(pagetable, words_keep_their_fields)
{
    struct bh_page_view view = {
        .gen = 0x01020304u, .state = BH_PAGE_CACHED, .flags = BH_PAGE_FLAGGED, .owner = 0xabcdefu};
    cr_assert_eq(bh_page_pack(view), UINT64_C(0x0102030421abcdef));
    struct bh_page_view back = bh_page_unpack(UINT64_C(0xfffffffe47000001));
    cr_assert_eq(back.gen, 0xfffffffeu);
    cr_assert_eq(back.state, BH_PAGE_QUARANTINED);
    cr_assert_eq(back.flags, 7);
    cr_assert_eq(back.owner, 1);
}

Test(pagetable, readers_and_writers_by_state)
{
    struct bh_pagetable table = make();
    static const struct {
        enum bh_page_state state;
        bool own_reads;
        bool other_reads;
        bool own_writes;
    } RIGHTS[] = {{BH_PAGE_FREE, false, false, false},
                  {BH_PAGE_HELD, true, false, true},
                  {BH_PAGE_CACHED, true, true, false},
                  {BH_PAGE_DIRTY, false, false, false},
                  {BH_PAGE_QUARANTINED, false, false, false},
                  {BH_PAGE_RETIRED, false, false, false}};
    struct bh_page page = bh_page_make(0, 3, 6);
    for (size_t i = 0; i < BH_COUNT(RIGHTS); i++) {
        bh_page_store(
            &table, 3, (struct bh_page_view){.gen = 6, .state = RIGHTS[i].state, .owner = 2});
        cr_assert_eq(bh_page_current(&table, page, 2), RIGHTS[i].own_reads, "state %zu", i);
        cr_assert_eq(bh_page_current(&table, page, 1), RIGHTS[i].other_reads, "state %zu", i);
        cr_assert_eq(bh_page_writable(&table, page, 2), RIGHTS[i].own_writes, "state %zu", i);
        cr_assert_not(bh_page_writable(&table, page, 1), "state %zu", i);
    }
}

Test(pagetable, handles_of_other_lives_or_places_are_refused)
{
    struct bh_pagetable table = make();
    for (uint32_t page_idx = 0; page_idx < 9; page_idx++) {
        bh_page_store(
            &table, page_idx, (struct bh_page_view){.gen = 6, .state = BH_PAGE_HELD, .owner = 2});
    }
    const struct bh_page bad[] = {bh_page_make(0, 3, 5),
                                  bh_page_make(0, 3, 7),
                                  bh_page_make(0, 3, 0),
                                  bh_page_make(1, 3, 6),
                                  bh_page_make(0, 0, 6),
                                  bh_page_make(0, 9, 6),
                                  bh_page_make(0, 0xffffff, 6),
                                  {0}};
    cr_assert(bh_page_current(&table, bh_page_make(0, 8, 6), 2), "the last page");
    for (size_t i = 0; i < BH_COUNT(bad); i++) {
        cr_assert_not(bh_page_current(&table, bad[i], 2), "handle %zu", i);
        cr_assert_not(bh_page_writable(&table, bad[i], 2), "handle %zu", i);
    }
}

Test(pagetable, verify_finds_spoiled_words)
{
    struct bh_pagetable table = make();
    const struct bh_page_view bad[] = {{.gen = 0, .state = BH_PAGE_FREE},
                                       {.gen = 1, .state = BH_PAGE_STATE_CNT},
                                       {.gen = 1, .state = (enum bh_page_state)15},
                                       {.gen = 1, .state = BH_PAGE_HELD, .flags = 2},
                                       {.gen = 1, .state = BH_PAGE_HELD, .owner = 65536},
                                       {.gen = 1, .state = BH_PAGE_CACHED, .owner = 1024}};
    for (size_t i = 0; i < BH_COUNT(bad); i++) {
        bh_page_store(&table, 8, bad[i]);
        cr_assert_eq(bh_pagetable_verify(&table), BH_ECORRUPT, "word %zu", i);
    }
    const struct bh_page_view good[] = {
        {.gen = 1, .state = BH_PAGE_HELD, .owner = 65535},
        {.gen = 1, .state = BH_PAGE_CACHED, .owner = 1023},
        {.gen = 0xffffffffu, .state = BH_PAGE_RETIRED},
        {.gen = 2, .state = BH_PAGE_HELD, .flags = BH_PAGE_FLAGGED}};
    for (size_t i = 0; i < BH_COUNT(good); i++) {
        bh_page_store(&table, 8, good[i]);
        cr_assert_eq(bh_pagetable_verify(&table), BH_OK, "word %zu", i);
    }
    bh_page_store(&table, 0, (struct bh_page_view){.gen = 1, .state = BH_PAGE_FREE});
    cr_assert_eq(bh_pagetable_verify(&table), BH_ECORRUPT, "the null page can be granted");
}

Test(pagetable, a_chain_names_its_whole_prefix)
{
    uint32_t tokens[16];
    for (uint32_t i = 0; i < 16; i++) {
        tokens[i] = i * 977u;
    }
    uint64_t start = bh_chain_start(42, 7);
    uint64_t chain = bh_chain_next(start, tokens, 16);
    cr_assert_neq(bh_chain_start(43, 7), start, "the boot's seed");
    cr_assert_neq(bh_chain_start(42, 8), start, "the namespace");
    cr_assert_eq(bh_chain_next(start, tokens, 16), chain, "a function of its arguments");
    cr_assert_neq(bh_chain_next(chain, tokens, 16), chain, "the same page further on");
    cr_assert_neq(bh_chain_next(start, tokens, 15), chain, "the length");
    for (uint32_t i = 0; i < 16; i++) {
        tokens[i] ^= 1;
        cr_assert_neq(bh_chain_next(start, tokens, 16), chain, "token %u", i);
        tokens[i] ^= 1;
    }
    /* Against the streaming interface of the same function. */
    XXH3_state_t *state = XXH3_createState();
    XXH3_64bits_reset_withSeed(state, start);
    for (uint32_t i = 0; i < 16; i++) {
        XXH3_64bits_update(state, &tokens[i], 4);
    }
    cr_assert_eq(XXH3_64bits_digest(state), chain);
    XXH3_freeState(state);
}
