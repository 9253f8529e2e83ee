/* The team of compute threads. A run is announced by counting `call` up, and is over when `left` is
   zero. Both sides spin for a moment before they sleep in the kernel on the word they wait for. */
#include "src/core/team.h"

#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "shm/atomic.h"

/* Long enough for the gaps between two matrix products, short enough to leave a shared core soon. */
#define SPIN_NS 20000

/* Looks at the word this often before it reads the clock. */
#define SPIN_BURST 64

struct word {
    struct bh_swap value;
    struct bh_swap asleep; /* threads in, or on their way into, futex_wait on `value` */
    uint32_t zero[14];     /* a line each: the leader's word and the members' do not share one */
};

struct bh_team {
    struct word call; /* counts runs; the members wait on it */
    struct word left; /* members that have not returned; the leader waits on it */
    bh_team_fn *fn;   /* NULL: go home */
    void *arg;
    uint32_t cnt;
    uint32_t started; /* threads to join */
    struct member {
        pthread_t thread;
        struct bh_team *team;
        uint32_t idx;
    } members[BH_TEAM_MAX];
};

static uint64_t
now_ns(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static uint32_t *
futex_word(struct word *word)
{
    return (uint32_t *)(void *)&word->value; /* the one member of a struct bh_swap */
}

/* Store first, then look who sleeps; the sleeper announces itself first, then looks at the word (and
   the kernel looks once more). The fences make that one of both sees the other. */
static void
word_wake(struct word *word)
{
    bh_fence_seq_cst();
    /* edge team.asleep: acquire; pairs with release in word_wait. */
    if (bh_swap_load(&word->asleep) != 0) {
        (void)syscall(SYS_futex, futex_word(word), FUTEX_WAKE_PRIVATE, BH_TEAM_MAX, NULL, NULL, 0);
    }
}

/* Waits until (value == `value`) is `equal`, and returns the value then seen. */
static uint32_t
word_wait(struct word *word, uint32_t value, bool equal)
{
    uint64_t until_ns = 0;
    for (;;) {
        for (uint32_t i = 0; i < SPIN_BURST; i++) {
            /* edge team.call or team.left: acquire, for the caller that names it. */
            uint32_t seen = bh_swap_load(&word->value);
            if ((seen == value) == equal) {
                return seen;
            }
            BH_PAUSE();
        }
        uint64_t now = now_ns();
        until_ns = until_ns == 0 ? now + SPIN_NS : until_ns;
        if (now < until_ns) {
            continue;
        }
        /* edge team.asleep: release; pairs with acquire in word_wake, over the two fences. */
        (void)bh_swap_add(&word->asleep, 1);
        bh_fence_seq_cst();
        uint32_t seen = bh_swap_load(&word->value);
        if ((seen == value) != equal) {
            (void)syscall(SYS_futex, futex_word(word), FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
        }
        (void)bh_swap_add(&word->asleep, UINT32_MAX);
    }
}

static void *
member_main(void *arg)
{
    struct member *self = arg;
    struct bh_team *team = self->team;
    uint32_t seen = 0;
    for (;;) {
        /* edge team.call: acquire; pairs with release in bh_team_run. */
        seen = word_wait(&team->call, seen, false);
        bh_team_fn *fn = team->fn;
        if (fn == NULL) {
            return NULL;
        }
        fn(team->arg, self->idx, team->cnt);
        /* edge team.left: release; pairs with acquire in bh_team_run. */
        if (bh_swap_add(&team->left.value, UINT32_MAX) == 1) {
            word_wake(&team->left);
        }
    }
}

static void
announce(struct bh_team *team, bh_team_fn *fn, void *arg)
{
    team->fn = fn;
    team->arg = arg;
    bh_swap_store(&team->left.value, team->cnt - 1);
    /* edge team.call: release; pairs with acquire in member_main. Makes fn, arg and all that the
       leader wrote before visible to the members. */
    (void)bh_swap_add(&team->call.value, 1);
    word_wake(&team->call);
}

struct bh_team *
bh_team_new(uint32_t member_cnt)
{
    if (member_cnt < 1 || member_cnt > BH_TEAM_MAX) {
        errno = EINVAL;
        return NULL;
    }
    struct bh_team *team = aligned_alloc(BH_CACHE_LINE, bh_round_up(sizeof(*team), BH_CACHE_LINE));
    if (team == NULL) {
        return NULL;
    }
    *team = (struct bh_team){.cnt = member_cnt};
    for (uint32_t i = 1; i < member_cnt; i++) {
        team->members[i] = (struct member){.team = team, .idx = i};
        int error = pthread_create(&team->members[i].thread, NULL, member_main, &team->members[i]);
        if (error != 0) {
            bh_team_delete(team);
            errno = error;
            return NULL;
        }
        team->started = i;
    }
    return team;
}

void
bh_team_delete(struct bh_team *team)
{
    if (team == NULL) {
        return;
    }
    announce(team, NULL, NULL);
    for (uint32_t i = 1; i <= team->started; i++) {
        (void)pthread_join(team->members[i].thread, NULL);
    }
    free(team);
}

uint32_t
bh_team_cnt(const struct bh_team *team)
{
    return team->cnt;
}

void
bh_team_run(struct bh_team *team, bh_team_fn *fn, void *arg)
{
    if (team->cnt == 1) {
        fn(arg, 0, 1);
        return;
    }
    announce(team, fn, arg);
    fn(arg, 0, team->cnt);
    /* edge team.left: acquire; pairs with release in member_main. */
    (void)word_wait(&team->left, 0, true);
}
