/* The life of a role process, and the one loop all roles share: who is called when, when to sleep,
   and the heartbeat. A role cannot forget to beat, to look again before it sleeps, or to tend. */
#include "src/core/role.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "shm/hook.h"
#include "src/core/config.h"
#include "src/core/log.h"
#include "src/core/os.h"
#include "src/core/privileges.h"
#include "src/core/sandbox.h"
#ifdef BH_HOOKS
#include "src/core/inject.h"
#endif

#define EXIT_REFUSED    1
#define TICK_NS         ((uint64_t)BH_TICK_MS * 1000000u)
/* A role whose pending() says yes while its step() does nothing has a bug; it costs it a pause, not
   the machine a core. */
#define EMPTY_TURNS_MAX 16u
#define EMPTY_PAUSE_NS  UINT64_C(1000000)

struct loop {
    const struct bh_role *role;
    struct bh_world *world;
    void *state;
    uint64_t turn_ns; /* when the present turn began */
    uint64_t tend_ns; /* when tend was called last; 0: never */
    uint64_t fences;
    uint32_t empty_turns; /* in a row: nothing done, yet something pending */
};

static const char *
status_text(enum bh_status status)
{
    switch (status) {
    case BH_EINVAL:
        return "wrong size or argument";
    case BH_ECORRUPT:
        return "made by another build, or overwritten";
    case BH_ELIMIT:
        return "above a limit";
    case BH_ESYS:
        return strerror(errno);
    case BH_ESTALE:
        return "of another life";
    case BH_OK:
    case BH_EMPTY:
    case BH_FULL:
    case BH_AGAIN:
        break;
    }
    return "not available";
}

void
bh_role_beat(struct bh_world *world)
{
    struct bh_word *beat = &world->status[world->self].block->beat;
    bh_word_store_relaxed(beat, bh_word_load_relaxed(beat) + 1);
}

static uint64_t
fences_load(const struct bh_world *world)
{
    /* What a fence means is in the words `reaped`, which the role loads itself (edge role.reaped). */
    return bh_word_load_relaxed(&world->control.block->fences);
}

static void
account(struct loop *loop, uint64_t now_ns)
{
    if (now_ns > loop->turn_ns) {
        bh_metric_add(
            &loop->world->status[loop->role->id], BH_METRIC_busy_ns, now_ns - loop->turn_ns);
    }
    loop->turn_ns = now_ns;
}

static void
sleep_until(struct loop *loop, uint64_t deadline_ns)
{
    uint64_t now_ns = bh_os_now_ns();
    account(loop, now_ns);
    if (now_ns < deadline_ns) {
        if (loop->role->sleep != NULL) {
            loop->role->sleep(loop->state, deadline_ns - now_ns);
        } else {
            bh_os_event_wait(loop->world->bell_fds[loop->role->id], deadline_ns - now_ns);
        }
    }
    loop->turn_ns = bh_os_now_ns(); /* what lies between was sleep, not work */
}

/* Nothing to do: sleep, unless something arrived while the bell was being set. */
static void
idle(struct loop *loop)
{
    struct bh_world *world = loop->world;
    bh_bell_doze(&world->bells, world->self);
    BH_HOOK("role.idle:after_doze");
    bool pending = loop->role->pending(loop->state) || fences_load(world) != loop->fences;
    loop->empty_turns = pending ? loop->empty_turns + 1 : 0;
    if (!pending) {
        sleep_until(loop, loop->tend_ns + TICK_NS);
    } else if (loop->empty_turns >= EMPTY_TURNS_MAX) {
        sleep_until(loop, bh_os_now_ns() + EMPTY_PAUSE_NS);
    }
    bh_bell_rise(&world->bells, world->self);
}

static void
turn(struct loop *loop)
{
    uint64_t now_ns = bh_os_now_ns();
    account(loop, now_ns);
    bh_role_beat(loop->world);
    uint64_t fences = fences_load(loop->world);
    if (loop->tend_ns == 0 || fences != loop->fences || now_ns - loop->tend_ns >= TICK_NS) {
        /* Before tend, so that a fence during it is seen in the next turn. */
        loop->fences = fences;
        loop->tend_ns = now_ns;
        loop->role->tend(loop->state, now_ns);
    }
    BH_HOOK("role.turn:before_step");
    if (loop->role->step(loop->state, now_ns) > 0) {
        loop->empty_turns = 0;
        return;
    }
    idle(loop);
}

static _Noreturn void
loop_run(struct loop *loop)
{
    loop->turn_ns = bh_os_now_ns();
    for (;;) {
        turn(loop);
    }
}

/* A terminal's ^C and a service manager's TERM reach the whole group. What they mean is the
   supervisor's decision (drain); it ends roles by SIGKILL. */
static void
signals_reset(void)
{
    static const int ignored[] = {SIGINT, SIGTERM, SIGHUP, SIGPIPE};
    for (size_t i = 0; i < BH_COUNT(ignored); ++i) {
        signal(ignored[i], SIG_IGN);
    }
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
}

static bool
join(uint32_t role, struct bh_world *world)
{
    enum bh_item_id item = BH_ITEM_CNT;
    if (!bh_privileges_check_fds(role)) {
        return false;
    }
    enum bh_status status = bh_world_join(role, world, &item);
    if (status != BH_OK) {
        bh_log("event=start_error item=%s fd=%d cannot be joined: %s",
               item < BH_ITEM_CNT ? bh_topology_item(item)->name : "?",
               item < BH_ITEM_CNT ? bh_topology_fd(role, item) : -1,
               status_text(status));
        return false;
    }
    if (world->epoch == 0) {
        bh_log("event=start_error epoch=0: the supervisor stores an epoch before it spawns");
        return false;
    }
#ifdef BH_HOOKS
    const char *bad = NULL;
    if (bh_inject_install(world->epoch, &bad) != BH_OK) {
        bh_log("event=start_error BH_INJECT cannot be understood from: %s", bad);
        return false;
    }
#endif
    struct bh_status_block *block = world->status[role].block;
    bh_word_store_relaxed(&block->started, 0);
    bh_word_store_relaxed(&block->pid, (uint64_t)getpid());
    /* edge status.epoch: release; pairs with acquire in bh_role_started. */
    bh_word_store(&block->epoch, world->epoch);
    bh_role_beat(world);
    return true;
}

int
bh_role_main(const struct bh_role *role)
{
    static struct bh_world world;
    bh_log_role(bh_role_name(role->id));
    signals_reset();
    if (!join(role->id, &world)) {
        return EXIT_REFUSED;
    }
    struct loop loop = {.role = role, .world = &world};
    if (role->open(&world, &loop.state) != BH_OK) {
        return EXIT_REFUSED;
    }
    tzset(); /* reads a file, and is called by whoever formats a time first */
    bh_role_beat(&world);
    if (bh_privileges_drop(&world) != BH_OK) {
        return EXIT_REFUSED;
    }
    BH_HOOK("role.start:before_start");
    enum bh_status status = role->start(loop.state);
    if (status != BH_OK) {
        bh_log("event=start_error start() failed: %s", status_text(status));
        return EXIT_REFUSED;
    }
    status = bh_sandbox_enter(role->id);
    if (status != BH_OK) {
        bh_log("event=start_error the system-call filter was refused: %s; the kernel needs "
               "CONFIG_SECCOMP_FILTER",
               status_text(status));
        return EXIT_REFUSED;
    }
    bh_word_store_relaxed(&world.status[role->id].block->started, 1);
    bh_flight_note(&world.status[role->id], bh_os_now_ns(), "started", world.epoch, 0);
    bh_log("event=started epoch=%u", world.epoch);
    loop_run(&loop);
}
