/* Pages that may not be read: each reason is made, must be named with page and layer before anything
   comes out, must leave the neighbours in the batch untouched; and right pages must pass. */
#include "src/model/model.h"

#include "tests/unit/model_fixture.h"

#define LAYERS 3u
#define PROMPT 40u /* pages of 16: two full ones and a half */
#define VICTIM 0u
#define OTHER  1u

static struct rig_file file;
static struct rig rig;
static float *logits; /* [2][vocab] of a step, [1][vocab] of the neighbour alone */
static uint32_t tokens[2][PROMPT + 8];

static void
setup(void)
{
    struct rig_options options = fixture_options();
    fixture_open(&file, "--type q8_0 --layers 3");
    rig_new(&rig, &file, &options);
    logits = calloc((size_t)3 * file.dims.vocab, sizeof(*logits));
    cr_assert_not_null(logits);
    for (uint32_t s = 0; s < 2; s++) {
        for (uint32_t i = 0; i < PROMPT + 8; i++) {
            tokens[s][i] = fixture_token(s, i);
        }
        rig_feed(&rig, s, tokens[s], PROMPT, 512, NULL, NULL);
    }
    /* what the neighbour gives alone; then its place is as before */
    rig_place(&rig, 0, OTHER, &tokens[OTHER][PROMPT], 1, true);
    rig_step(&rig, 1);
    bh_forward_logits(rig.forward, 0, 1, logits + (size_t)2 * file.dims.vocab);
    rig.seqs[OTHER].tokens = PROMPT;
}

static void
teardown(void)
{
    free(logits);
    rig_delete(&rig);
    rig_file_close(&file);
}

TestSuite(violation, .init = setup, .fini = teardown);

static void
step_both(void)
{
    rig.stamp_calls = 0;
    rig_place(&rig, VICTIM, VICTIM, &tokens[VICTIM][PROMPT], 1, true);
    rig_place(&rig, OTHER, OTHER, &tokens[OTHER][PROMPT], 1, true);
    rig_step(&rig, 2);
    bh_forward_logits(rig.forward, 0, 2, logits);
}

/* The step must refuse the victim with this reason there, and nothing else must change. */
static void
expect(enum bh_violation violation, uint32_t page, uint32_t layer)
{
    size_t vocab = file.dims.vocab;
    step_both();
    cr_assert_eq(rig.batch[VICTIM].violation, violation, "is %d", (int)rig.batch[VICTIM].violation);
    cr_assert_eq(rig.batch[VICTIM].violation_page, page);
    cr_assert_eq(rig.batch[VICTIM].violation_layer, layer);
    for (size_t i = 0; i < vocab; i++) {
        cr_assert(logits[i] == 0.0f, "an output of a refused row");
    }
    cr_assert_eq(rig.batch[OTHER].violation, BH_VIOLATION_NONE);
    cr_assert(memcmp(logits + vocab, logits + 2 * vocab, vocab * sizeof(float)) == 0,
              "the neighbour changed");
    /* the neighbour stamped in every layer, the victim at most up to the layer of the refusal */
    cr_assert(rig.stamp_calls >= LAYERS && rig.stamp_calls <= LAYERS + layer + 1);
}

static void
set_word(struct bh_stamp *stamp, uint32_t gen, uint32_t filled, uint32_t flags)
{
    bh_word_store(&stamp->word, bh_stamp_word(gen, filled, flags));
}

Test(violation, right_pages_pass)
{
    step_both();
    cr_assert_eq(rig.batch[VICTIM].violation, BH_VIOLATION_NONE);
    cr_assert_eq(rig.batch[OTHER].violation, BH_VIOLATION_NONE);
    cr_assert(logits[0] != 0.0f);
    size_t vocab = file.dims.vocab;
    cr_assert(memcmp(logits + vocab, logits + 2 * vocab, vocab * sizeof(float)) == 0);
    cr_assert_eq(rig.stamp_calls, 2 * LAYERS);
}

Test(violation, stale_generation)
{
    uint32_t gen = rig.seqs[VICTIM].wants[1].gen;
    set_word(rig_stamp_at(&rig, VICTIM, 1, 1), gen - 1, 16, BH_STAMP_SEALED);
    expect(BH_VIOLATION_GENERATION, 1, 1);
}

Test(violation, stale_generation_of_the_handle)
{
    rig.seqs[VICTIM].wants[0].gen++;
    expect(BH_VIOLATION_GENERATION, 0, 0);
}

Test(violation, zero_stamp_and_zero_handle)
{
    memset(rig_stamp_at(&rig, VICTIM, 0, 0), 0, sizeof(struct bh_stamp));
    rig.seqs[VICTIM].wants[0].gen = 0;
    expect(BH_VIOLATION_GENERATION, 0, 0);
}

Test(violation, filled_short_by_one)
{
    uint32_t gen = rig.seqs[VICTIM].wants[0].gen;
    set_word(rig_stamp_at(&rig, VICTIM, 0, 2), gen, 15, 0);
    expect(BH_VIOLATION_FILLED, 0, 2);
}

Test(violation, filled_more_is_enough)
{
    uint32_t gen = rig.seqs[VICTIM].wants[0].gen;
    set_word(rig_stamp_at(&rig, VICTIM, 0, 2), gen, 17, 0);
    step_both();
    cr_assert_eq(rig.batch[VICTIM].violation, BH_VIOLATION_NONE);
}

/* The page that the step continues holds 8 tokens; if it says 7, nothing may be stored there. */
Test(violation, continued_page_short_is_not_written)
{
    struct bh_stamp *stamp = rig_stamp_at(&rig, VICTIM, 2, 0);
    size_t bytes = bh_kv_block_bytes(&rig.kv);
    uint8_t *before = malloc(bytes);
    cr_assert_not_null(before);
    set_word(stamp, rig.seqs[VICTIM].wants[2].gen, 7, 0);
    memcpy(before, stamp, bytes);
    expect(BH_VIOLATION_FILLED, 2, 0);
    cr_assert_eq(rig.stamp_calls, LAYERS);
    cr_assert(memcmp(before, stamp, bytes) == 0, "a refused page was written");
    free(before);
}

Test(violation, another_writer)
{
    rig_stamp_at(&rig, VICTIM, 1, 0)->writer_slot++;
    expect(BH_VIOLATION_WRITER, 1, 0);
}

Test(violation, another_life_of_the_writer)
{
    rig_stamp_at(&rig, VICTIM, 1, 0)->writer_gen++;
    expect(BH_VIOLATION_WRITER, 1, 0);
}

Test(violation, another_ordinal)
{
    rig_stamp_at(&rig, VICTIM, 1, 2)->ordinal = 0;
    expect(BH_VIOLATION_PLACE, 1, 2);
}

/* Two pages of one sequence in the wrong order: their stamps agree with their handles. */
Test(violation, pages_swapped_in_the_list)
{
    struct bh_stamp_want *wants = rig.seqs[VICTIM].wants;
    struct bh_stamp_want first = wants[0];
    wants[0] = wants[1];
    wants[1] = first;
    expect(BH_VIOLATION_PLACE, 0, 0);
}

Test(violation, another_page_index)
{
    rig_stamp_at(&rig, VICTIM, 0, 1)->page_idx++;
    expect(BH_VIOLATION_PLACE, 0, 1);
}

Test(violation, another_layer)
{
    rig_stamp_at(&rig, VICTIM, 0, 1)->layer = 2;
    expect(BH_VIOLATION_PLACE, 0, 1);
}

/* A page of the neighbour, rightly sealed, at the victim's place. */
Test(violation, page_of_the_neighbour)
{
    rig.seqs[VICTIM].wants[1].page_idx = rig.seqs[OTHER].wants[1].page_idx;
    rig.seqs[VICTIM].wants[1].gen = rig.seqs[OTHER].wants[1].gen;
    expect(BH_VIOLATION_WRITER, 1, 0);
}

static void
share_first_page(void)
{
    struct bh_stamp_want *want = &rig.seqs[VICTIM].wants[0];
    want->shared = 1;
    want->chain = 4711;
    want->writer_slot = 999; /* does not matter for a shared page */
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        rig_stamp_at(&rig, VICTIM, 0, layer)->chain = 4711;
    }
}

Test(violation, shared_and_sealed_passes_with_the_same_bits)
{
    size_t vocab = file.dims.vocab;
    float *own = malloc(vocab * sizeof(float));
    cr_assert_not_null(own);
    step_both();
    memcpy(own, logits, vocab * sizeof(float));
    rig.seqs[VICTIM].tokens = PROMPT;
    rig.seqs[OTHER].tokens = PROMPT;
    share_first_page();
    step_both();
    cr_assert_eq(rig.batch[VICTIM].violation, BH_VIOLATION_NONE);
    cr_assert(memcmp(own, logits, vocab * sizeof(float)) == 0);
    free(own);
}

Test(violation, shared_but_not_sealed)
{
    share_first_page();
    set_word(rig_stamp_at(&rig, VICTIM, 0, 1), rig.seqs[VICTIM].wants[0].gen, 16, 0);
    expect(BH_VIOLATION_NAMESPACE, 0, 1);
}

Test(violation, shared_from_another_namespace)
{
    share_first_page();
    rig_stamp_at(&rig, VICTIM, 0, 0)->name_space++;
    expect(BH_VIOLATION_NAMESPACE, 0, 0);
}

Test(violation, shared_with_another_prefix)
{
    share_first_page();
    rig_stamp_at(&rig, VICTIM, 0, 0)->chain++;
    expect(BH_VIOLATION_NAMESPACE, 0, 0);
}

/* Pages to be written: the null page, one without a life, a shared one. Nothing is stored, at no layer. */
static void
expect_handle(void)
{
    uint8_t *before = malloc(bh_kv_page_bytes(&rig.kv));
    uint8_t *page = bh_kv_block(&rig.kv, rig.pool, rig.seqs[VICTIM].wants[2].page_idx, 0);
    cr_assert_not_null(before);
    memcpy(before, page, bh_kv_page_bytes(&rig.kv));
    expect(BH_VIOLATION_HANDLE, 2, 0);
    cr_assert_eq(rig.stamp_calls, LAYERS);
    cr_assert(memcmp(before, page, bh_kv_page_bytes(&rig.kv)) == 0);
    free(before);
}

Test(violation, null_page_is_not_written)
{
    rig.seqs[VICTIM].wants[2].page_idx = 0;
    expect_handle();
}

Test(violation, page_without_a_life_is_not_written)
{
    rig.seqs[VICTIM].wants[2].gen = 0;
    expect_handle();
}

Test(violation, shared_page_is_not_written)
{
    rig.seqs[VICTIM].wants[2].shared = 1;
    expect_handle();
}

/* In prefill: a chunk over a spoiled page of an earlier chunk; and its other rows are not computed. */
Test(violation, chunk_after_a_spoiled_page)
{
    static uint32_t more[200];
    for (uint32_t i = 0; i < 200; i++) {
        more[i] = fixture_token(9, i);
    }
    rig_stamp_at(&rig, VICTIM, 1, 1)->writer_gen++;
    rig.stamp_calls = 0;
    rig_place(&rig, 0, VICTIM, more, 200, false);
    rig_step(&rig, 1);
    cr_assert_eq(rig.batch[0].violation, BH_VIOLATION_WRITER);
    cr_assert_eq(rig.batch[0].violation_page, 1);
    cr_assert_eq(rig.batch[0].violation_layer, 1);
    /* pages 2 to 14 in layers 0 and 1, none in layer 2 */
    cr_assert_eq(rig.stamp_calls, 2 * 13);
}
