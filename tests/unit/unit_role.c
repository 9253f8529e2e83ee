/* The life of a role process, with a role made for this test in a real child: descriptors, privileges,
   filter, loop, sleep, fences. What the child did is read from its own status block. */
#include "src/core/role.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>

#include "src/core/os.h"
#include "tests/unit/core_engine.h"

#define ROLE        BH_ROLE_LEDGER
#define DEADLINE_NS UINT64_C(20000000000)
/* What the child reports: metrics that the loop itself does not touch. */
#define SEEN_HINTS  BH_METRIC_steps
#define SEEN_FENCES BH_METRIC_step_rows
#define SEEN_TENDS  BH_METRIC_preemptions

static enum bh_status open_status;
static enum bh_status start_status;
static bool always_pending;

static enum bh_status
child_open(struct bh_world *world, void **state)
{
    *state = world;
    return open_status;
}

static enum bh_status
child_start(void *state)
{
    (void)state;
    return start_status;
}

static uint32_t
child_step(void *state, uint64_t now_ns)
{
    (void)now_ns;
    struct bh_world *world = state;
    struct bh_hint hint;
    if (bh_ring_peek(&world->rx[BH_ROLE_TOKENIZER], &hint) != BH_OK) {
        return 0;
    }
    bh_ring_consume(&world->rx[BH_ROLE_TOKENIZER]);
    bh_metric_add(&world->status[ROLE], SEEN_HINTS, 1);
    return 1;
}

static void
child_tend(void *state, uint64_t now_ns)
{
    (void)now_ns;
    struct bh_world *world = state;
    uint64_t fences = bh_word_load(&world->control.block->fences);
    bh_metric_add(&world->status[ROLE], SEEN_TENDS, 1);
    bh_metric_set(&world->status[ROLE], SEEN_FENCES, fences);
}

static bool
child_pending(void *state)
{
    struct bh_world *world = state;
    struct bh_hint hint;
    return always_pending || bh_ring_peek(&world->rx[BH_ROLE_TOKENIZER], &hint) != BH_EMPTY;
}

static const struct bh_role child_role = {
    .id = ROLE,
    .open = child_open,
    .start = child_start,
    .step = child_step,
    .tend = child_tend,
    .pending = child_pending,
};

static struct core_engine engine;
static struct bh_statusboard board;
static pid_t child;

static void
engine_make(void)
{
    core_engine_make(&engine);
    cr_assert_eq(bh_statusboard_join(engine.maps[BH_ITEM_status_LEDGER],
                                     engine.bytes[BH_ITEM_status_LEDGER],
                                     &engine.limits,
                                     &board),
                 BH_OK);
    struct bh_statusboard supervisor;
    cr_assert_eq(bh_statusboard_join(engine.maps[BH_ITEM_status_SUPERVISOR],
                                     engine.bytes[BH_ITEM_status_SUPERVISOR],
                                     &engine.limits,
                                     &supervisor),
                 BH_OK);
    bh_word_store_relaxed(&supervisor.block->pid, (uint64_t)getpid());
}

static void
child_fork(int extra_fd)
{
    child = fork();
    if (child == 0) {
        core_engine_place(&engine, ROLE);
        if (extra_fd >= 0) {
            dup2(STDERR_FILENO, extra_fd);
        }
        int null = open("/dev/null", O_WRONLY);
        dup2(null, STDERR_FILENO);
        if (null != extra_fd) {
            close(null);
        }
        _exit(bh_role_main(&child_role));
    }
    cr_assert_gt(child, 0);
}

static void
pause_ms(uint32_t ms)
{
    struct timespec pause = {.tv_nsec = (long)ms * 1000000};
    nanosleep(&pause, NULL);
}

static void
wait_started(void)
{
    uint64_t deadline_ns = bh_os_now_ns() + DEADLINE_NS;
    while (!bh_role_started(&board, 1)) {
        cr_assert_lt(bh_os_now_ns(), deadline_ns, "the child did not start");
        pause_ms(1);
    }
}

static void
wait_metric(enum bh_metric metric, uint64_t value)
{
    uint64_t deadline_ns = bh_os_now_ns() + DEADLINE_NS;
    while (bh_metric_get(&board, metric) < value) {
        cr_assert_lt(bh_os_now_ns(), deadline_ns, "metric %d did not reach its value", metric);
        pause_ms(1);
    }
}

/* Exit status, or 1000 + signal. */
static int
child_end(void)
{
    int status = 0;
    cr_assert_eq(waitpid(child, &status, 0), child);
    return WIFSIGNALED(status) ? 1000 + WTERMSIG(status) : WEXITSTATUS(status);
}

static void
child_kill(void)
{
    kill(child, SIGKILL);
    cr_expect_eq(child_end(), 1000 + SIGKILL);
}

static void
proc_line(const char *name, char out[64])
{
    char path[64];
    char line[256];
    snprintf(path, sizeof(path), "/proc/%d/status", (int)child);
    FILE *file = fopen(path, "r");
    cr_assert_not_null(file);
    out[0] = '\0';
    while (fgets(line, sizeof(line), file) != NULL) {
        if (strncmp(line, name, strlen(name)) == 0 && line[strlen(name)] == ':') {
            snprintf(out, 64, "%.63s", line + strlen(name) + 2);
            out[strcspn(out, "\n")] = '\0';
        }
    }
    fclose(file);
}

Test(role, gives_up_everything_and_says_so, .init = engine_make)
{
    char have[64];
    child_fork(-1);
    wait_started();
    cr_expect_eq(bh_word_load(&board.block->pid), (uint64_t)child);
    cr_expect_not(bh_role_started(&board, 2));
    proc_line("Seccomp", have);
    cr_expect_str_eq(have, "2");
    proc_line("NoNewPrivs", have);
    cr_expect_str_eq(have, "1");
    static const char *const sets[] = {"CapInh", "CapPrm", "CapEff", "CapAmb"};
    for (size_t i = 0; i < BH_COUNT(sets); ++i) {
        proc_line(sets[i], have);
        cr_expect_str_eq(have, "0000000000000000", "%s", sets[i]);
    }
    if (geteuid() == 0) {
        proc_line("Uid", have);
        cr_expect_str_eq(have, "64002\t64002\t64002\t64002");
        proc_line("Gid", have);
        cr_expect_str_eq(have, "64002\t64002\t64002\t64002");
        proc_line("Groups", have);
        cr_expect_str_eq(have, " ");
        proc_line("CapBnd", have);
        cr_expect_str_eq(have, "0000000000000000");
    }
    child_kill();
}

Test(role, works_when_told_and_sleeps_otherwise, .init = engine_make)
{
    struct bh_ring_tx ring;
    struct bh_bells bells;
    cr_assert_eq(bh_ring_join_tx(engine.maps[BH_ITEM_ring_TOKENIZER_LEDGER],
                                 engine.bytes[BH_ITEM_ring_TOKENIZER_LEDGER],
                                 &engine.limits,
                                 &ring),
                 BH_OK);
    cr_assert_eq(
        bh_bells_join(
            engine.maps[BH_ITEM_bells], engine.bytes[BH_ITEM_bells], &engine.limits, &bells),
        BH_OK);
    child_fork(-1);
    wait_started();
    for (uint32_t i = 1; i <= 300; ++i) {
        cr_assert_eq(bh_ring_publish(&ring, bh_hint_make(BH_HINT_SUBMIT, i, 1)), BH_OK);
        if (bh_bell_pull(&bells, ROLE)) {
            bh_os_event_signal(engine.fds[BH_ITEM_fd_bell_ledger]);
        }
        wait_metric(SEEN_HINTS, i);
    }
    /* Idle: ten turns a second and a little for a slow machine; a spinning loop makes millions. */
    uint64_t beats = bh_word_load(&board.block->beat);
    uint64_t busy_ns = bh_metric_get(&board, BH_METRIC_busy_ns);
    cr_expect_gt(busy_ns, 0);
    pause_ms(999);
    beats = bh_word_load(&board.block->beat) - beats;
    busy_ns = bh_metric_get(&board, BH_METRIC_busy_ns) - busy_ns;
    cr_expect(beats >= 3 && beats <= 40, "%lu turns", (unsigned long)beats);
    cr_expect_lt(busy_ns, 50000000, "idle is not work: %lu ns", (unsigned long)busy_ns);
    child_kill();
}

/* Without a bell and without a hint: the tick finds it. */
Test(role, looks_again_though_nobody_rang, .init = engine_make)
{
    struct bh_ring_tx ring;
    cr_assert_eq(bh_ring_join_tx(engine.maps[BH_ITEM_ring_TOKENIZER_LEDGER],
                                 engine.bytes[BH_ITEM_ring_TOKENIZER_LEDGER],
                                 &engine.limits,
                                 &ring),
                 BH_OK);
    child_fork(-1);
    wait_started();
    wait_metric(SEEN_TENDS, 2);
    cr_assert_eq(bh_ring_publish(&ring, bh_hint_make(BH_HINT_SUBMIT, 1, 1)), BH_OK);
    wait_metric(SEEN_HINTS, 1);
    bh_word_store(&engine.control.block->fences, 7);
    wait_metric(SEEN_FENCES, 7);
    child_kill();
}

/* A pending() that always says yes costs the role, not a core. */
Test(role, a_wrong_pending_does_not_spin, .init = engine_make)
{
    always_pending = true;
    child_fork(-1);
    wait_started();
    uint64_t beats = bh_word_load(&board.block->beat);
    pause_ms(500);
    beats = bh_word_load(&board.block->beat) - beats;
    cr_expect_lt(beats, 1000, "%lu turns", (unsigned long)beats);
    child_kill();
}

Test(role, ignores_what_is_for_the_supervisor, .init = engine_make)
{
    child_fork(-1);
    wait_started();
    kill(child, SIGINT);
    kill(child, SIGTERM);
    kill(child, SIGHUP);
    uint64_t tends = bh_metric_get(&board, SEEN_TENDS);
    wait_metric(SEEN_TENDS, tends + 2);
    child_kill();
}

static int
end_with(int extra_fd)
{
    child_fork(extra_fd);
    int end = child_end();
    cr_expect_not(bh_role_started(&board, 1));
    return end;
}

Test(role, refuses_to_start_in_a_wrong_world, .init = engine_make)
{
    cr_expect_eq(end_with(bh_topology_fd_end(ROLE)), 1, "a descriptor too many");
    cr_expect_eq(end_with(700), 1, "a descriptor too many, far away");
    int saved = engine.fds[BH_ITEM_fd_bell_egress];
    engine.fds[BH_ITEM_fd_bell_egress] = -1;
    cr_expect_eq(end_with(-1), 1, "a descriptor too few");
    engine.fds[BH_ITEM_fd_bell_egress] = saved;
    bh_role_epoch_store(&engine.control, ROLE, 0);
    cr_expect_eq(end_with(-1), 1, "no epoch");
    bh_role_epoch_store(&engine.control, ROLE, 1);
    struct bh_object_head *head = engine.maps[BH_ITEM_requests];
    head->layout ^= 1;
    cr_expect_eq(end_with(-1), 1, "memory of another build");
    head->layout ^= 1;
    open_status = BH_ESYS;
    cr_expect_eq(end_with(-1), 1, "open failed");
    open_status = BH_OK;
    start_status = BH_ESYS;
    cr_expect_eq(end_with(-1), 1, "start failed");
    start_status = BH_OK;
    child_fork(-1);
    wait_started();
    child_kill();
}

/* A started=1 that a predecessor left is not the newborn's. */
Test(role, started_belongs_to_one_epoch, .init = engine_make)
{
    child_fork(-1);
    wait_started();
    child_kill();
    bh_role_epoch_store(&engine.control, ROLE, 2);
    cr_expect_not(bh_role_started(&board, 2));
    start_status = BH_ESYS;
    child_fork(-1);
    cr_expect_eq(child_end(), 1);
    cr_expect_eq(bh_word_load(&board.block->epoch), 2);
    cr_expect_not(bh_role_started(&board, 2));
}

/* The supervisor is a process in between, which dies: before the role runs, and while it runs. */
Test(role, does_not_outlive_its_supervisor, .init = engine_make)
{
    struct bh_statusboard supervisor;
    cr_assert_eq(bh_statusboard_join(engine.maps[BH_ITEM_status_SUPERVISOR],
                                     engine.bytes[BH_ITEM_status_SUPERVISOR],
                                     &engine.limits,
                                     &supervisor),
                 BH_OK);
    prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
    pid_t between = fork();
    if (between == 0) {
        bh_word_store_relaxed(&supervisor.block->pid, (uint64_t)getpid());
        child_fork(-1);
        for (;;) {
            pause();
        }
    }
    wait_started();
    child = (pid_t)bh_word_load(&board.block->pid);
    kill(between, SIGKILL);
    cr_assert_eq(waitpid(between, NULL, 0), between);
    cr_expect_eq(child_end(), 1000 + SIGKILL);
    /* The supervisor named in its word is not the parent any more. */
    bh_role_epoch_store(&engine.control, ROLE, 2);
    child_fork(-1);
    cr_expect_eq(child_end(), 1);
}
