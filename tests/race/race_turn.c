/* The turn between threads: without deaths it excludes; with a holder that dies the others go
   on, and the dead one comes back. */
#include "shm/turn.h"

#include "tests/race/race.h"

#define MEMBER_CNT 3u
#define TURN_CNT   1500u
#define PATIENCE   200u /* looks at a word that does not move, before it is overruled */

static struct bh_turn turn;
static uint64_t total; /* plain: the turn alone keeps it right while nobody is overruled */
static struct bh_swap inside;
static struct bh_word overlaps;
static struct bh_word taken[BH_TURN_MEMBERS_MAX];
static struct bh_word overruled_cnt;
static uint32_t numbers[MEMBER_CNT] = {0, 4, 7};

/* Takes the turn. Overrules only `mortal` (BH_TURN_MEMBERS_MAX: nobody), as a time limit would a
   holder that really is gone. */
static bool
take(uint32_t member, uint32_t mortal)
{
    uint32_t seen;
    uint32_t patience = 0;
    uint32_t before = 0;
    while (!bh_turn_ask(&turn, member, &seen)) {
        patience = seen == before ? patience + 1 : 0;
        before = seen;
        if (patience > PATIENCE && (seen & 0xffu) == mortal + 1 &&
            bh_turn_overrule(&turn, member, seen)) {
            bh_word_store_relaxed(&overruled_cnt, bh_word_load_relaxed(&overruled_cnt) + 1);
            return true;
        }
        if (!race_wait()) {
            return false;
        }
    }
    return true;
}

static void *
exclusive(void *arg)
{
    uint32_t member = *(const uint32_t *)arg;
    uint64_t random = member + 1;
    for (uint32_t i = 0; i < TURN_CNT; i++) {
        if (!take(member, BH_TURN_MEMBERS_MAX)) {
            return NULL;
        }
        if (bh_swap_add(&inside, 1) != 0) {
            bh_word_store(&overlaps, 1);
        }
        total++;
        (void)bh_swap_add(&inside, UINT32_MAX);
        bh_word_store_relaxed(&taken[member], i + 1);
        bool done = race_random(&random) % 4 == 0 || i + 1 == TURN_CNT;
        (void)bh_turn_pass(&turn, member, done);
    }
    return NULL;
}

static void
members_exclude_each_other(void)
{
    pthread_t threads[MEMBER_CNT];
    for (uint32_t i = 0; i < MEMBER_CNT; i++) {
        race_start(&threads[i], exclusive, &numbers[i]);
    }
    for (uint32_t i = 0; i < MEMBER_CNT; i++) {
        race_join(threads[i]);
    }
    race_report(bh_word_load(&overlaps) == 0, "one member computes at a time");
    race_report(total == (uint64_t)MEMBER_CNT * TURN_CNT, "every member had all its turns");
    race_report((bh_swap_load(&turn.block->word) & 0xffu) == 0, "done: nobody holds it");
}

/* Member 4 dies while it holds the turn: its thread returns without passing. */
static void *
mortal_body(void *arg)
{
    (void)arg;
    if (take(4, BH_TURN_MEMBERS_MAX)) {
        bh_word_store_relaxed(&taken[4], bh_word_load_relaxed(&taken[4]) + 1);
    }
    return NULL;
}

static void *
survivor_body(void *arg)
{
    uint32_t member = *(const uint32_t *)arg;
    for (uint32_t i = 0; i < TURN_CNT / 10; i++) {
        if (!take(member, 4)) {
            return NULL;
        }
        bh_word_store_relaxed(&taken[member], bh_word_load_relaxed(&taken[member]) + 1);
        (void)bh_turn_pass(&turn, member, i + 1 == TURN_CNT / 10);
    }
    return NULL;
}

static void
survivors_go_on(void)
{
    free(turn.head);
    RACE_MAKE(turn, &turn);
    memset(taken, 0, sizeof(taken));
    pthread_t survivor;
    const uint32_t death_cnt = 5;
    for (uint32_t i = 0; i < death_cnt; i++) {
        /* The mortal takes it and dies with it; then the survivor must get all its turns. */
        pthread_t mortal;
        race_start(&mortal, mortal_body, NULL);
        race_join(mortal);
        race_start(&survivor, survivor_body, &numbers[2]);
        race_join(survivor);
    }
    race_report(bh_word_load(&taken[4]) == death_cnt,
                "the dead one takes it again when it is back");
    race_report(bh_word_load(&taken[7]) == (uint64_t)death_cnt * (TURN_CNT / 10),
                "the survivor had all its turns");
    race_report(bh_word_load(&overruled_cnt) == death_cnt, "each death costs one overruling");
    race_report(bh_turn_verify(&turn) == BH_OK, "the word is well formed");
}

int
main(int argc, char **argv)
{
    (void)race_begin(argc, argv, 7);
    RACE_MAKE(turn, &turn);
    members_exclude_each_other();
    survivors_go_on();
    return race_finish();
}
