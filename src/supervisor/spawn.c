/* fork, exec, pidfd. A role gets nothing by inheritance: descriptors are put in place one by one and
   everything above them is closed, the environment is a constant, signals are as after boot. */
#include "src/supervisor/spawn.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/close_range.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "src/core/log.h"
#include "src/supervisor/descriptors.h"

#define ENVIRONMENT_MAX 8

/* Only constants: what an operator has in his environment (tokens, proxies, preload libraries) is
   none of a role's business. Test builds hand the injected fault on. */
static void
make_environment(char *environment[ENVIRONMENT_MAX])
{
    static char path[] = "PATH=/usr/bin:/bin";
    static char locale[] = "LC_ALL=C.UTF-8";
    size_t cnt = 0;
    environment[cnt++] = path;
    environment[cnt++] = locale;
#ifdef BH_HOOKS
    static const char *const passed[] = {"BH_INJECT=", "ASAN_OPTIONS=", "UBSAN_OPTIONS="};
    for (char **at = environ; *at != NULL; at++) {
        for (size_t i = 0; i < BH_COUNT(passed); i++) {
            if (strncmp(*at, passed[i], strlen(passed[i])) == 0 && cnt + 1 < ENVIRONMENT_MAX) {
                environment[cnt++] = *at;
            }
        }
    }
#endif
    environment[cnt] = NULL;
}

/* Between fork and exec: system calls only. */
static _Noreturn void
fail_child(const char *what)
{
    ssize_t wrote = write(STDERR_FILENO, what, strlen(what));
    (void)wrote;
    _exit(127);
}

static void
place_descriptors(const struct bh_engine *engine, uint32_t role)
{
    for (uint32_t id = 0; id < BH_ITEM_CNT; id++) {
        int target = bh_topology_fd(role, id);
        if (target < 0) {
            continue;
        }
        const struct bh_item *item = bh_topology_item(id);
        bool readonly = item->kind != BH_ITEM_DESCRIPTOR && item->rights[role] != BH_RIGHT_WRITE;
        if (dup2(readonly ? engine->readonly_fds[id] : engine->fds[id], target) != target) {
            fail_child("bulkhead: dup2 of a role's descriptor failed\n");
        }
    }
    /* Standard output is the supervisor's, for the line that says it is ready. */
    if (dup2(engine->null_fd, STDIN_FILENO) < 0 || dup2(STDERR_FILENO, STDOUT_FILENO) < 0) {
        fail_child("bulkhead: dup2 of a role's standard streams failed\n");
    }
    if (syscall(SYS_close_range, (unsigned)bh_topology_fd_end(role), ~0U, 0) != 0) {
        fail_child("bulkhead: close_range failed\n");
    }
}

static _Noreturn void
become_role(const struct bh_engine *engine, uint32_t role, char *environment[ENVIRONMENT_MAX])
{
    static char program[] = "bulkhead";
    static char verb[] = "role";
    char name[32];
    snprintf(name, sizeof(name), "%s", bh_role_name(role));
    char *argv[] = {program, verb, name, NULL};
    sigset_t none;
    sigemptyset(&none);
    /* Its own process group: an interrupt typed at a terminal is for the supervisor to act on. */
    if (setpgid(0, 0) != 0 || sigprocmask(SIG_SETMASK, &none, NULL) != 0) {
        fail_child("bulkhead: a role's process group or signal mask was refused\n");
    }
    place_descriptors(engine, role);
    execve("/proc/self/exe", argv, environment);
    fail_child("bulkhead: exec of /proc/self/exe failed\n");
}

enum bh_status
bh_spawn(struct bh_engine *engine, uint32_t role, uint64_t now_ns)
{
    struct bh_child *child = &engine->children[role];
    BH_CHECK(child->phase == BH_CHILD_ABSENT || child->phase == BH_CHILD_BACKOFF);
    child->epoch += 1;
    child->spawned_ns = now_ns;
    child->moved_ns = now_ns;
    child->start_ticks = 0;
    child->pulse =
        (struct bh_pulse){.beat = bh_word_load_relaxed(&engine->view.status[role].block->beat)};
    bh_role_epoch_store(&engine->view.control, role, child->epoch);
    char *environment[ENVIRONMENT_MAX];
    make_environment(environment);
    pid_t pid = fork();
    if (pid == 0) {
        become_role(engine, role, environment);
    }
    if (pid < 0) {
        bh_log("role=%s fork: %s", bh_role_name(role), strerror(errno));
        return BH_ESYS;
    }
    /* Not yet waited for, so the number cannot have been given to another process. */
    child->pid = pid;
    child->pidfd = bh_fd_raise((int)syscall(SYS_pidfd_open, pid, 0));
    if (child->pidfd < 0) {
        bh_log("role=%s pidfd_open: %s", bh_role_name(role), strerror(errno));
        kill(pid, SIGKILL);
        while (waitpid(pid, NULL, 0) < 0 && errno == EINTR) {
        }
        return BH_ESYS;
    }
    child->phase = BH_CHILD_STARTING;
    return BH_OK;
}

void
bh_spawn_kill(struct bh_engine *engine, uint32_t role, const char *reason)
{
    struct bh_child *child = &engine->children[role];
    if (child->phase != BH_CHILD_STARTING && child->phase != BH_CHILD_UP) {
        return;
    }
    bh_log("role=%s epoch=%u pid=%d killed: %s",
           bh_role_name(role),
           child->epoch,
           (int)child->pid,
           reason);
    /* ESRCH: it is dead already, and the pidfd says so. */
    syscall(SYS_pidfd_send_signal, child->pidfd, SIGKILL, NULL, 0);
    child->phase = BH_CHILD_KILLED;
}

void
bh_spawn_kill_all(struct bh_engine *engine)
{
    for (uint32_t role = BH_ROLE_TOKENIZER; role < BH_ROLE_CNT; role++) {
        if (engine->children[role].pidfd >= 0) {
            syscall(SYS_pidfd_send_signal, engine->children[role].pidfd, SIGKILL, NULL, 0);
        }
    }
    for (uint32_t role = BH_ROLE_TOKENIZER; role < BH_ROLE_CNT; role++) {
        struct bh_child *child = &engine->children[role];
        if (child->pidfd >= 0) {
            while (waitpid(child->pid, NULL, 0) < 0 && errno == EINTR) {
            }
            close(child->pidfd);
            child->pidfd = -1;
            child->phase = BH_CHILD_ABSENT;
        }
    }
}
