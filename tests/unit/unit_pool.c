/* The pool: what a stamp proves, what it refuses and with which reason, digests, scrubbing, and
   what is there if the writer dies between two stores. */
#include "shm/pool.h"

#include <criterion/criterion.h>
#include <signal.h>
#include <xxhash.h>

#include "shm/hook.h"
#include "tests/unit/shm_fixture.h"

#define PAGE         5u
#define GEN          7u
#define CHAIN        UINT64_C(0x1122334455667788)
#define NAMESPACE    UINT64_C(0xaabbccdd)
#define BLOCK_BYTES  (64u + 2u * 2u * 8u * 16u * 2u)
#define PAGES_OFFSET 4096u

static const struct bh_stamp_want OWN = {.gen = GEN,
                                         .page_idx = PAGE,
                                         .ordinal = 2,
                                         .writer_slot = 3,
                                         .writer_gen = 11,
                                         .name_space = NAMESPACE};

static uint8_t *pool_mem;

static struct bh_pool
make(void)
{
    size_t bytes = bh_pool_footprint(&FIXTURE_LIMITS);
    pool_mem = fixture_memory(bytes, 0);
    struct bh_pool pool;
    cr_assert_eq(bh_pool_new(pool_mem, &FIXTURE_LIMITS), BH_OK);
    cr_assert_eq(bh_pool_join(pool_mem, bytes, &FIXTURE_LIMITS, &pool), BH_OK);
    return pool;
}

/* Where the layout says a block is, computed apart from kv.h. */
static uint8_t *
block_at(uint32_t page_idx, uint32_t layer)
{
    return pool_mem + PAGES_OFFSET + ((size_t)page_idx * 2 + layer) * BLOCK_BYTES;
}

static void
write_bytes(uint32_t page_idx, uint8_t first)
{
    for (uint32_t layer = 0; layer < 2; layer++) {
        for (uint32_t i = 64; i < BLOCK_BYTES; i++) {
            block_at(page_idx, layer)[i] = (uint8_t)(first + layer * 31 + i * 7);
        }
    }
}

static void
stamp_all(struct bh_pool *pool, const struct bh_stamp_want *want, uint32_t filled)
{
    for (uint32_t layer = 0; layer < 2; layer++) {
        bh_pool_stamp(pool, want, layer, filled, CHAIN);
    }
}

static void
assert_refused(const struct bh_pool *pool,
               struct bh_stamp_want want,
               uint32_t filled,
               enum bh_violation expected,
               const char *what)
{
    uint32_t layer = 99;
    cr_assert_eq(bh_pool_prove(pool, &want, filled, &layer), expected, "%s", what);
    cr_assert(expected == BH_VIOLATION_NONE ? layer == 99 : layer < 2, "%s: layer %u", what, layer);
}

Test(pool, layout_is_as_the_card_says)
{
    struct bh_pool pool = make();
    cr_assert_eq(bh_pool_footprint(&FIXTURE_LIMITS), PAGES_OFFSET + 9 * 2 * BLOCK_BYTES);
    cr_assert_eq((uint8_t *)bh_pool_stamp_at(&pool, PAGE, 1), block_at(PAGE, 1));
    uint8_t *block = block_at(PAGE, 1);
    cr_assert_eq(bh_kv_k(&pool.kv, block, 1), block + 64 + 8 * 16 * 2);
    cr_assert_eq(bh_kv_v(&pool.kv, block, 0), block + 64 + 2 * 8 * 16 * 2);
}

Test(pool, a_stamped_page_is_proved)
{
    struct bh_pool pool = make();
    write_bytes(PAGE, 1);
    stamp_all(&pool, &OWN, 5);
    assert_refused(&pool, OWN, 5, BH_VIOLATION_NONE, "as written");
    assert_refused(&pool, OWN, 1, BH_VIOLATION_NONE, "fewer are wanted than written");
    assert_refused(&pool, OWN, 6, BH_VIOLATION_FILLED, "one more than written");
    const struct bh_stamp *stamp = bh_pool_stamp_at(&pool, PAGE, 1);
    cr_assert_eq(bh_word_load(&stamp->word), (UINT64_C(7) << 32) | (5u << 8));
    cr_assert_eq(stamp->page_idx, PAGE);
    cr_assert_eq(stamp->layer, 1);
    cr_assert_eq(stamp->kind, 0);
    cr_assert_eq(stamp->ordinal, 2);
    cr_assert_eq(stamp->writer_slot, 3);
    cr_assert_eq(stamp->writer_gen, 11);
    cr_assert_eq(stamp->name_space, NAMESPACE);
    cr_assert_eq(stamp->chain, 0, "not sealed yet");
    cr_assert_eq(stamp->digest, 0);
    stamp_all(&pool, &OWN, 6);
    assert_refused(&pool, OWN, 6, BH_VIOLATION_NONE, "it grew");
    cr_assert_eq(bh_pool_verify(&pool), BH_OK);
}

Test(pool, reserved_is_not_written)
{
    struct bh_pool pool = make();
    assert_refused(&pool, OWN, 1, BH_VIOLATION_GENERATION, "zeroed");
    assert_refused(&pool,
                   (struct bh_stamp_want){.page_idx = PAGE},
                   0,
                   BH_VIOLATION_GENERATION,
                   "generation 0 is never valid");
    bh_pool_scrub(&pool, PAGE);
    assert_refused(&pool, OWN, 0, BH_VIOLATION_GENERATION, "wiped");
    bh_pool_stamp(&pool, &OWN, 0, 16, CHAIN);
    uint32_t layer = 99;
    cr_assert_eq(bh_pool_prove(&pool, &OWN, 16, &layer), BH_VIOLATION_GENERATION);
    cr_assert_eq(layer, 1, "the layer nobody wrote");
}

Test(pool, every_field_of_a_stamp_is_compared)
{
    struct bh_pool pool = make();
    stamp_all(&pool, &OWN, 5);
    struct bh_stamp_want want = OWN;
    want.gen = GEN + 1;
    assert_refused(&pool, want, 1, BH_VIOLATION_GENERATION, "younger life");
    want = OWN;
    want.ordinal = 3;
    assert_refused(&pool, want, 1, BH_VIOLATION_PLACE, "ordinal");
    want = OWN;
    want.writer_slot = 0;
    assert_refused(&pool, want, 1, BH_VIOLATION_WRITER, "slot");
    want = OWN;
    want.writer_gen = 12;
    assert_refused(&pool, want, 1, BH_VIOLATION_WRITER, "generation of the slot");
    want = OWN;
    want.page_idx = 0;
    assert_refused(&pool, want, 1, BH_VIOLATION_HANDLE, "null page");
    want.page_idx = 9;
    assert_refused(&pool, want, 1, BH_VIOLATION_HANDLE, "behind the pool");
    /* Another page's block, stamp and all, copied over this one: every number right but its
       place. */
    struct bh_stamp_want other = OWN;
    other.page_idx = PAGE + 1;
    stamp_all(&pool, &other, 5);
    memcpy(block_at(PAGE, 0), block_at(PAGE + 1, 0), 2 * BLOCK_BYTES);
    assert_refused(&pool, OWN, 1, BH_VIOLATION_PLACE, "page index");
    stamp_all(&pool, &(struct bh_stamp_want){.gen = 8, .page_idx = 4, .ordinal = 0}, 5);
    memcpy(block_at(4, 1), block_at(4, 0), BLOCK_BYTES);
    assert_refused(
        &pool, (struct bh_stamp_want){.gen = 8, .page_idx = 4}, 1, BH_VIOLATION_PLACE, "layer");
}

Test(pool, shared_pages_prove_their_prefix_instead_of_their_writer)
{
    struct bh_pool pool = make();
    struct bh_stamp_want reader = {.gen = GEN,
                                   .page_idx = PAGE,
                                   .ordinal = 2,
                                   .writer_slot = 1,
                                   .writer_gen = 99,
                                   .shared = 1,
                                   .name_space = NAMESPACE,
                                   .chain = CHAIN};
    stamp_all(&pool, &OWN, 15);
    assert_refused(&pool, reader, 15, BH_VIOLATION_NAMESPACE, "not sealed");
    stamp_all(&pool, &OWN, 16);
    assert_refused(&pool, reader, 16, BH_VIOLATION_NONE, "sealed for this prefix");
    struct bh_stamp_want want = reader;
    want.name_space ^= 1;
    assert_refused(&pool, want, 16, BH_VIOLATION_NAMESPACE, "another tenant");
    want = reader;
    want.chain ^= 1;
    assert_refused(&pool, want, 16, BH_VIOLATION_NAMESPACE, "another prefix");
    want = reader;
    want.shared = 0;
    assert_refused(&pool, want, 16, BH_VIOLATION_WRITER, "not listed as shared");
}

/* The digest, by the streaming interface and from the block's bytes, apart from the pool's own
   code. */
static uint64_t
digest_of(uint32_t page_idx, uint32_t layer, const uint32_t place[5])
{
    XXH3_state_t *state = XXH3_createState();
    cr_assert_not_null(state);
    XXH3_64bits_reset(state);
    XXH3_64bits_update(state, place, 20);
    uint64_t seed = XXH3_64bits_digest(state);
    XXH3_64bits_reset_withSeed(state, seed);
    for (uint32_t i = 64; i < BLOCK_BYTES; i++) {
        XXH3_64bits_update(state, block_at(page_idx, layer) + i, 1);
    }
    uint64_t result = XXH3_64bits_digest(state);
    XXH3_freeState(state);
    return result;
}

Test(pool, a_full_block_is_sealed_with_its_digest)
{
    struct bh_pool pool = make();
    write_bytes(PAGE, 3);
    stamp_all(&pool, &OWN, 15);
    cr_assert_not(bh_pool_digest_ok(&pool, PAGE), "not sealed");
    stamp_all(&pool, &OWN, 16);
    for (uint32_t layer = 0; layer < 2; layer++) {
        const struct bh_stamp *stamp = bh_pool_stamp_at(&pool, PAGE, layer);
        cr_assert_eq(bh_word_load(&stamp->word), (UINT64_C(7) << 32) | (16u << 8) | 1u);
        cr_assert_eq(stamp->chain, CHAIN);
        const uint32_t place[5] = {3, 11, 2, layer, 0};
        cr_assert_eq(stamp->digest, digest_of(PAGE, layer, place));
    }
    cr_assert(bh_pool_digest_ok(&pool, PAGE));
    cr_assert_eq(bh_pool_verify(&pool), BH_OK);
    cr_assert_not(bh_pool_digest_ok(&pool, 0));
    cr_assert_not(bh_pool_digest_ok(&pool, 9));
}

Test(pool, the_digest_sees_every_byte_and_its_place)
{
    struct bh_pool pool = make();
    write_bytes(PAGE, 3);
    stamp_all(&pool, &OWN, 16);
    for (uint32_t i = 64; i < BLOCK_BYTES; i++) {
        block_at(PAGE, i % 2)[i] ^= 0x10;
        cr_assert_not(bh_pool_digest_ok(&pool, PAGE), "byte %u", i);
        block_at(PAGE, i % 2)[i] ^= 0x10;
    }
    cr_assert(bh_pool_digest_ok(&pool, PAGE));
    struct bh_stamp *stamp = bh_pool_stamp_at(&pool, PAGE, 1);
    uint32_t *fields[] = {&stamp->ordinal, &stamp->writer_slot, &stamp->writer_gen};
    for (size_t i = 0; i < BH_COUNT(fields); i++) {
        *fields[i] += 1;
        cr_assert_not(bh_pool_digest_ok(&pool, PAGE), "field %zu", i);
        *fields[i] -= 1;
    }
    /* Layer 0's block in the place of layer 1, relabelled: same bytes, other place. */
    memcpy(block_at(PAGE, 1), block_at(PAGE, 0), BLOCK_BYTES);
    stamp->layer = 1;
    cr_assert_not(bh_pool_digest_ok(&pool, PAGE));
}

Test(pool, a_sealed_block_is_never_stamped_again)
{
    struct bh_pool pool = make();
    write_bytes(PAGE, 3);
    stamp_all(&pool, &OWN, 16);
    uint8_t before[64];
    memcpy(before, block_at(PAGE, 0), 64);
    bh_pool_stamp(&pool, &OWN, 0, 16, CHAIN ^ 1);
    cr_assert_eq(memcmp(before, block_at(PAGE, 0), 64), 0);
}

Test(pool, reopen_forgets_what_was_filled)
{
    struct bh_pool pool = make();
    bh_pool_stamp(&pool, &OWN, 0, 16, CHAIN);
    bh_pool_stamp(&pool, &OWN, 1, 9, CHAIN);
    bh_pool_reopen(&pool, &OWN);
    assert_refused(&pool, OWN, 1, BH_VIOLATION_FILLED, "nothing is written");
    cr_assert_eq(bh_pool_verify(&pool), BH_OK);
    stamp_all(&pool, &OWN, 4);
    assert_refused(&pool, OWN, 4, BH_VIOLATION_NONE, "written again, less than before");
    cr_assert_eq(bh_pool_stamp_at(&pool, PAGE, 0)->chain, 0, "no longer sealed");
    struct bh_stamp_want fresh = {.gen = 3, .page_idx = 6};
    bh_pool_reopen(&pool, &fresh);
    cr_assert_eq(bh_pool_verify(&pool), BH_OK, "a page opened before its first stamp");
}

Test(pool, a_new_life_writes_the_whole_line)
{
    struct bh_pool pool = make();
    write_bytes(PAGE, 3);
    stamp_all(&pool, &OWN, 16);
    struct bh_stamp_want next = {.gen = GEN + 1,
                                 .page_idx = PAGE,
                                 .ordinal = 0,
                                 .writer_slot = 1,
                                 .writer_gen = 2,
                                 .name_space = 5};
    stamp_all(&pool, &next, 1);
    assert_refused(&pool, next, 1, BH_VIOLATION_NONE, "new life");
    assert_refused(&pool, OWN, 1, BH_VIOLATION_GENERATION, "old life");
    cr_assert_eq(bh_pool_stamp_at(&pool, PAGE, 0)->digest, 0);
}

Test(pool, scrub_leaves_nothing_but_nan)
{
    struct bh_pool pool = make();
    write_bytes(PAGE - 1, 1);
    write_bytes(PAGE, 3);
    write_bytes(PAGE + 1, 5);
    stamp_all(&pool, &OWN, 16);
    uint8_t neighbours[2][2 * BLOCK_BYTES];
    memcpy(neighbours[0], block_at(PAGE - 1, 0), 2 * BLOCK_BYTES);
    memcpy(neighbours[1], block_at(PAGE + 1, 0), 2 * BLOCK_BYTES);
    bh_pool_scrub(&pool, PAGE);
    for (uint32_t layer = 0; layer < 2; layer++) {
        for (uint32_t i = 0; i < BLOCK_BYTES; i++) {
            cr_assert_eq(block_at(PAGE, layer)[i], i < 64 ? 0x00 : 0xff);
        }
        float as_f32;
        memcpy(&as_f32, block_at(PAGE, layer) + 64, sizeof(as_f32));
        cr_assert(as_f32 != as_f32, "NaN as f32");
        uint16_t as_f16;
        memcpy(&as_f16, block_at(PAGE, layer) + 64, sizeof(as_f16));
        cr_assert_gt(as_f16 & 0x7fff, 0x7c00, "NaN as f16");
    }
    cr_assert_eq(memcmp(neighbours[0], block_at(PAGE - 1, 0), 2 * BLOCK_BYTES), 0);
    cr_assert_eq(memcmp(neighbours[1], block_at(PAGE + 1, 0), 2 * BLOCK_BYTES), 0);
    cr_assert_eq(bh_pool_verify(&pool), BH_OK);
}

Test(pool, verify_finds_spoiled_stamps)
{
    struct bh_pool pool = make();
    stamp_all(&pool, &OWN, 5);
    struct bh_stamp *stamp = bh_pool_stamp_at(&pool, PAGE, 1);
    const uint64_t bad_words[] = {bh_stamp_word(0, 5, 0),
                                  bh_stamp_word(GEN, 17, 0),
                                  bh_stamp_word(GEN, 16, 0),
                                  bh_stamp_word(GEN, 5, BH_STAMP_SEALED),
                                  bh_stamp_word(GEN, 5, 2)};
    for (size_t i = 0; i < BH_COUNT(bad_words); i++) {
        bh_word_store(&stamp->word, bad_words[i]);
        cr_assert_eq(bh_pool_verify(&pool), BH_ECORRUPT, "word %zu", i);
    }
    bh_word_store(&stamp->word, bh_stamp_word(GEN, 5, 0));
    cr_assert_eq(bh_pool_verify(&pool), BH_OK);
    stamp->page_idx++;
    cr_assert_eq(bh_pool_verify(&pool), BH_ECORRUPT);
    stamp->page_idx--;
    stamp->layer = 0;
    cr_assert_eq(bh_pool_verify(&pool), BH_ECORRUPT);
    stamp->layer = 1;
    bh_word_store(&bh_pool_stamp_at(&pool, 0, 0)->word, bh_stamp_word(1, 1, 0));
    cr_assert_eq(bh_pool_verify(&pool), BH_ECORRUPT, "the null page is never stamped");
}

/* What another process would see if the writer were killed at the hook's place. */
static struct bh_pool *watched;
static const char *watched_place;
static uint32_t hook_cnt;
static void (*watched_check)(void);

static bool
watch(const char *place)
{
    if (strcmp(place, watched_place) == 0) {
        hook_cnt++;
        watched_check();
    }
    return false;
}

static void
check_unproved(void)
{
    uint32_t layer;
    cr_assert_neq(bh_pool_prove(watched, &OWN, 16, &layer), BH_VIOLATION_NONE);
    cr_assert_not(bh_pool_digest_ok(watched, PAGE));
    cr_assert_eq(bh_pool_verify(watched), BH_OK);
}

static void
check_words_gone(void)
{
    for (uint32_t layer = 0; layer < 2; layer++) {
        cr_assert_eq(bh_word_load(&bh_pool_stamp_at(watched, PAGE, layer)->word), 0);
    }
    cr_assert_eq(bh_pool_verify(watched), BH_OK);
}

Test(pool, a_writer_killed_before_the_word_wrote_nothing)
{
    struct bh_pool pool = make();
    write_bytes(PAGE, 3);
    watched = &pool;
    watched_place = "pool.stamp:before_word";
    watched_check = check_unproved;
    bh_hook_handler = watch;
    stamp_all(&pool, &OWN, 16);
    bh_hook_handler = NULL;
    cr_assert_eq(hook_cnt, 2);
    cr_assert(bh_pool_digest_ok(&pool, PAGE));
}

Test(pool, a_torn_scrub_is_covered_by_no_stamp)
{
    struct bh_pool pool = make();
    write_bytes(PAGE, 3);
    stamp_all(&pool, &OWN, 16);
    watched = &pool;
    watched_place = "pool.scrub:before_stamp";
    watched_check = check_words_gone;
    bh_hook_handler = watch;
    bh_pool_scrub(&pool, PAGE);
    bh_hook_handler = NULL;
    cr_assert_eq(hook_cnt, 2);
}

/* A caller that breaks the contract has a bug and must not go on. */
Test(pool, stamping_the_null_page_is_fatal, .signal = SIGABRT)
{
    struct bh_pool pool = make();
    struct bh_stamp_want want = OWN;
    want.page_idx = 0;
    bh_pool_stamp(&pool, &want, 0, 1, 0);
}

Test(pool, filling_backwards_is_fatal, .signal = SIGABRT)
{
    struct bh_pool pool = make();
    bh_pool_stamp(&pool, &OWN, 0, 5, 0);
    bh_pool_stamp(&pool, &OWN, 0, 4, 0);
}

Test(pool, overfilling_is_fatal, .signal = SIGABRT)
{
    struct bh_pool pool = make();
    bh_pool_stamp(&pool, &OWN, 0, 17, 0);
}

Test(pool, scrubbing_outside_is_fatal, .signal = SIGABRT)
{
    struct bh_pool pool = make();
    bh_pool_scrub(&pool, 9);
}
