/* Doorbells. First, one sleeper and two producers with an eventfd: a fact that is stored while
   the sleeper lies down must wake it; a wake-up that is lost shows as a wait that reaches its
   deadline. Second, the two halves alone, started at the same instant again and again: each may
   come first, but they may not both miss the other, which is what happens without the fences. */
#include "shm/bell.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "tests/race/race.h"

#define ROUND_CNT    20000u
#define LAST_ROUND   UINT64_MAX
#define PRODUCER_CNT 2u
#define WAIT_MS      10000
#define MEET_CNT     40000u
#define SPIN_CNT     2000u
#define SKEW_CNT     128u

static struct bh_bells bells;
static struct bh_word facts[PRODUCER_CNT]; /* rounds each producer has announced */
static struct bh_word seen[PRODUCER_CNT];  /* rounds the sleeper has seen */
static int event_fd;
static uint64_t start_seed;

static struct {
    uint64_t slept;
    uint64_t woken[PRODUCER_CNT];
    uint64_t rounds[PRODUCER_CNT];
    bool lost;
} counts;

static void *
produce(void *arg)
{
    uint32_t self = *(const uint32_t *)arg;
    uint64_t random = start_seed ^ self;
    uint64_t budget_end_ns = race_now_ns() + RACE_BUDGET_NS;
    for (uint64_t i = 1;; i++) {
        bool last = i >= ROUND_CNT / PRODUCER_CNT || race_now_ns() > budget_end_ns;
        uint64_t round = last ? LAST_ROUND : i;
        /* edge race.bell: release; pairs with acquire in look. */
        bh_word_store(&facts[self], round);
        if (bh_bell_pull(&bells, BH_ROLE_LEDGER)) {
            uint64_t one = 1;
            BH_CHECK(write(event_fd, &one, sizeof(one)) == sizeof(one));
            counts.woken[self]++;
        }
        counts.rounds[self] = i;
        /* The next round starts when this one was seen, after a pause that lets it meet the
           sleeper at any point of lying down. */
        while (bh_word_load(&seen[self]) < round) {
            if (!race_wait()) {
                return NULL;
            }
        }
        if (last) {
            return NULL;
        }
        uint64_t pause = race_random(&random) % 300;
        for (uint64_t spin = 0; spin < pause; spin++) {
            (void)bh_word_load(&seen[self]);
        }
    }
}

/* Takes in what is new; true if anything was. */
static bool
look(void)
{
    bool any = false;
    for (uint32_t i = 0; i < PRODUCER_CNT; i++) {
        /* edge race.bell: acquire; pairs with release in produce. */
        uint64_t fact = bh_word_load(&facts[i]);
        if (fact != bh_word_load(&seen[i])) {
            bh_word_store(&seen[i], fact);
            any = true;
        }
    }
    return any;
}

static bool
complete(void)
{
    for (uint32_t i = 0; i < PRODUCER_CNT; i++) {
        if (bh_word_load(&seen[i]) != LAST_ROUND) {
            return false;
        }
    }
    return true;
}

static void *
consume(void *arg)
{
    (void)arg;
    while (!complete()) {
        if (look()) {
            continue;
        }
        bh_bell_doze(&bells, BH_ROLE_LEDGER);
        if (!look()) {
            counts.slept++;
            struct pollfd waited = {.fd = event_fd, .events = POLLIN};
            int got = poll(&waited, 1, WAIT_MS);
            if (got == 0) {
                counts.lost = true;
                return NULL;
            }
        }
        bh_bell_rise(&bells, BH_ROLE_LEDGER);
        uint64_t cleared;
        ssize_t bytes = read(event_fd, &cleared, sizeof(cleared));
        BH_CHECK(bytes == sizeof(cleared) || bytes < 0);
    }
    return NULL;
}

static void
wake_ups(void)
{
    event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    BH_CHECK(event_fd >= 0);
    pthread_t sleeper;
    pthread_t producers[PRODUCER_CNT];
    static uint32_t numbers[PRODUCER_CNT] = {0, 1};
    race_start(&sleeper, consume, NULL);
    for (uint32_t i = 0; i < PRODUCER_CNT; i++) {
        race_start(&producers[i], produce, &numbers[i]);
    }
    race_join(sleeper);
    for (uint32_t i = 0; i < PRODUCER_CNT; i++) {
        race_join(producers[i]);
    }
    uint64_t woken = counts.woken[0] + counts.woken[1];
    printf("# rounds %llu slept %llu woken %llu\n",
           (unsigned long long)(counts.rounds[0] + counts.rounds[1]),
           (unsigned long long)counts.slept,
           (unsigned long long)woken);
    race_report(!counts.lost, "no wake-up was lost");
    race_report(complete(), "every round was seen");
    race_report(counts.slept > 0 && woken > 0, "the sleeper did sleep, and was woken");
}

/* ---- the two halves alone ---- */

static struct {
    _Alignas(BH_CACHE_LINE) struct bh_word arrived[2];
    _Alignas(BH_CACHE_LINE) struct bh_word fact;
    _Alignas(BH_CACHE_LINE) uint8_t pulled[MEET_CNT];
    uint8_t looked[MEET_CNT];
} meeting;

/* Both are here: what follows runs in both threads at once, as far as the machine allows. */
static bool
meet(uint32_t self, uint64_t round)
{
    /* edge race.meet: release; pairs with acquire below, in the other thread. */
    bh_word_store(&meeting.arrived[self], round);
    uint32_t spins = 0;
    /* edge race.meet: acquire; pairs with release above, in the other thread. */
    while (bh_word_load(&meeting.arrived[1 - self]) < round) {
        spins++;
        if (spins > SPIN_CNT && !race_wait()) {
            return false;
        }
    }
    return true;
}

/* Waits a few nanoseconds: which thread leaves a meeting first depends on the machine, so all small
   differences are tried. */
static void
skew(uint32_t self, uint32_t steps)
{
    for (uint32_t i = 0; i < steps % SKEW_CNT; i++) {
        (void)bh_word_load(&meeting.arrived[self]);
    }
}

static void *
pull_half(void *arg)
{
    (void)arg;
    for (uint32_t i = 0; i < MEET_CNT; i++) {
        if (!meet(0, 2 * i + 1)) {
            return NULL;
        }
        skew(0, i);
        /* edge race.half: release; pairs with acquire in halves_meet. */
        bh_word_store(&meeting.fact, i + 1);
        meeting.pulled[i] = bh_bell_pull(&bells, BH_ROLE_DECODE) ? 1 : 0;
        if (!meet(0, 2 * i + 2)) {
            return NULL;
        }
    }
    return NULL;
}

static void
halves_meet(void)
{
    pthread_t other;
    race_start(&other, pull_half, NULL);
    uint32_t round_cnt = 0;
    uint64_t budget_end_ns = race_now_ns() + RACE_BUDGET_NS;
    while (round_cnt < MEET_CNT && race_now_ns() < budget_end_ns && meet(1, 2 * round_cnt + 1)) {
        skew(1, round_cnt / SKEW_CNT);
        bh_bell_doze(&bells, BH_ROLE_DECODE);
        /* edge race.half: acquire; pairs with release in pull_half. */
        meeting.looked[round_cnt] = bh_word_load(&meeting.fact) == round_cnt + 1 ? 1 : 0;
        if (!meet(1, 2 * round_cnt + 2)) {
            break;
        }
        bh_bell_rise(&bells, BH_ROLE_DECODE);
        round_cnt++;
    }
    /* The other one need not wait any more; its further rounds are not counted. */
    bh_word_store(&meeting.arrived[1], LAST_ROUND);
    race_join(other);
    uint32_t missed = 0;
    uint32_t both = 0;
    for (uint32_t i = 0; i < round_cnt; i++) {
        missed += meeting.pulled[i] == 0 && meeting.looked[i] == 0 ? 1 : 0;
        both += meeting.pulled[i] == 1 && meeting.looked[i] == 1 ? 1 : 0;
    }
    printf("# met %u, saw each other %u, missed each other %u\n", round_cnt, both, missed);
    race_report(round_cnt > 0, "the halves met");
    race_report(missed == 0, "sleeper and producer never miss each other");
}

int
main(int argc, char **argv)
{
    start_seed = race_begin(argc, argv, 6);
    RACE_MAKE(bells, &bells);
    wake_ups();
    halves_meet();
    race_report(bh_bells_verify(&bells) == BH_OK, "flags are 0 or 1");
    return race_finish();
}
