/* The system-call filter of each role, asked from inside: a child loads it and makes one call. Which
   calls must be impossible is written here by hand, not taken from sandbox.def. */
#include "src/core/sandbox.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "src/core/os.h"
#include "tests/unit/core_engine.h"

#define EXIT_WORKED    0
#define EXIT_NO_FILTER 99
#define KILLED         (1000 + SIGSYS)
/* Other exit statuses: errno of the call that was refused. */

static struct core_engine engine;

static void
engine_make(void)
{
    core_engine_make(&engine);
}

/* How did a child of `role` that did this inside the filter end? */
static int
inside(uint32_t role, int (*act)(void *arg), void *arg)
{
    pid_t pid = fork();
    if (pid == 0) {
        struct rlimit none = {0, 0};
        setrlimit(RLIMIT_CORE, &none);
        core_engine_place(&engine, role);
        if (bh_sandbox_enter(role) != BH_OK) {
            _exit(EXIT_NO_FILTER);
        }
        _exit(act(arg) == 0 ? EXIT_WORKED : errno);
    }
    int status = 0;
    cr_assert_eq(waitpid(pid, &status, 0), pid);
    return WIFSIGNALED(status) ? 1000 + WTERMSIG(status) : WEXITSTATUS(status);
}

struct call {
    const char *name;
    long number;
    long args[3];
};

static int
act_call(void *arg)
{
    const struct call *call = arg;
    long result = syscall(call->number, call->args[0], call->args[1], call->args[2], 0L, 0L, 0L);
    return result < 0 ? -1 : 0;
}

Test(sandbox, what_no_role_may_do, .init = engine_make)
{
    static const struct call calls[] = {
        {"open", SYS_open, {(long)"/etc/passwd", O_RDONLY, 0}},
        {"creat", SYS_creat, {(long)"/tmp/x", 0600, 0}},
        {"socket", SYS_socket, {AF_INET, SOCK_STREAM, 0}},
        {"connect", SYS_connect, {3, 0, 0}},
        {"bind", SYS_bind, {3, 0, 0}},
        {"execve", SYS_execve, {(long)"/bin/sh", 0, 0}},
        {"execveat", SYS_execveat, {-1, (long)"/bin/sh", 0}},
        {"ptrace", SYS_ptrace, {0, 0, 0}},
        {"process_vm_readv", SYS_process_vm_readv, {1, 0, 0}},
        {"pidfd_getfd", SYS_pidfd_getfd, {3, 3, 0}},
        {"fork", SYS_fork, {0, 0, 0}},
        {"clone", SYS_clone, {SIGCHLD, 0, 0}},
        {"clone3", SYS_clone3, {0, 0, 0}},
        {"kill", SYS_kill, {1, 0, 0}},
        {"setuid", SYS_setuid, {0, 0, 0}},
        {"memfd_create", SYS_memfd_create, {(long)"x", 0, 0}},
        {"io_uring_setup", SYS_io_uring_setup, {8, 0, 0}},
        {"io_uring_register", SYS_io_uring_register, {3, 0, 0}},
        {"userfaultfd", SYS_userfaultfd, {0, 0, 0}},
        {"prctl", SYS_prctl, {PR_SET_DUMPABLE, 1, 0}},
        {"seccomp", SYS_seccomp, {0, 0, 0}},
        {"unlink", SYS_unlink, {(long)"/tmp/x", 0, 0}},
        {"mount", SYS_mount, {0, 0, 0}},
        {"bpf", SYS_bpf, {0, 0, 0}},
        {"dup", SYS_dup, {3, 0, 0}},
        {"fcntl", SYS_fcntl, {3, F_SETFL, 0}},
        {"ftruncate", SYS_ftruncate, {3, 0, 0}},
        {"shmat", SYS_shmat, {0, 0, 0}},
    };
    for (uint32_t role = BH_ROLE_TOKENIZER; role < BH_ROLE_CNT; ++role) {
        for (size_t i = 0; i < BH_COUNT(calls); ++i) {
            struct call call = calls[i];
            int end = inside(role, act_call, &call);
            cr_expect_eq(end, KILLED, "%s by role %u ended with %d", call.name, role, end);
        }
    }
}

/* Of each of these somebody has a right to, the others have none. */
Test(sandbox, what_only_some_roles_may_do, .init = engine_make)
{
    static const struct {
        struct call call;
        int ends[BH_ROLE_CNT]; /* TLPDE from index 1 */
    } cases[] = {
        {{"openat", SYS_openat, {AT_FDCWD, (long)"/etc/passwd", O_RDONLY}},
         {0, EACCES, KILLED, KILLED, KILLED, EACCES}},
        {{"ioctl", SYS_ioctl, {0, 0x5401, 0}}, {0, ENOTTY, KILLED, KILLED, KILLED, KILLED}},
        {{"io_uring_enter", SYS_io_uring_enter, {-1, 0, 0}},
         {0, EBADF, KILLED, KILLED, KILLED, EBADF}},
        {{"sendmsg", SYS_sendmsg, {-1, 0, 0}}, {0, EBADF, KILLED, KILLED, KILLED, KILLED}},
        {{"recvmsg", SYS_recvmsg, {-1, 0, 0}}, {0, KILLED, KILLED, KILLED, KILLED, EBADF}},
        {{"close", SYS_close, {-1, 0, 0}}, {0, EBADF, KILLED, KILLED, KILLED, EBADF}},
        {{"read 0", SYS_read, {0, 0, 0}}, {0, 0, KILLED, KILLED, KILLED, 0}},
        {{"getrandom", SYS_getrandom, {0, 0, 0}}, {0, 0, 0, KILLED, KILLED, 0}},
        {{"setsockopt tcp", SYS_setsockopt, {-1, IPPROTO_TCP, TCP_NODELAY}},
         {0, KILLED, KILLED, KILLED, KILLED, EBADF}},
        {{"setsockopt sol", SYS_setsockopt, {-1, SOL_SOCKET, SO_REUSEADDR}},
         {0, KILLED, KILLED, KILLED, KILLED, KILLED}},
    };
    for (size_t i = 0; i < BH_COUNT(cases); ++i) {
        for (uint32_t role = BH_ROLE_TOKENIZER; role < BH_ROLE_CNT; ++role) {
            struct call call = cases[i].call;
            int end = inside(role, act_call, &call);
            cr_expect_eq(
                end, cases[i].ends[role], "%s by role %u ended with %d", call.name, role, end);
        }
    }
}

static int
act_map_exec(void *arg)
{
    (void)arg;
    return mmap(NULL, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) ==
           MAP_FAILED;
}

static int
act_protect_exec(void *arg)
{
    (void)arg;
    void *mem = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return mprotect(mem, 4096, PROT_READ | PROT_EXEC);
}

static int
act_write(void *arg)
{
    const int *fd = arg;
    uint64_t one = 1;
    return write(*fd, &one, sizeof(one)) == (ssize_t)sizeof(one) ? 0 : -1;
}

static int
act_kill_other(void *arg)
{
    return (int)syscall(SYS_tgkill, *(const pid_t *)arg, *(const pid_t *)arg, 0);
}

static int
act_hugepage(void *arg)
{
    (void)arg;
    void *mem = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return madvise(mem, 4096, MADV_MERGEABLE);
}

Test(sandbox, arguments_are_limited, .init = engine_make)
{
    pid_t self = getpid();
    for (uint32_t role = BH_ROLE_TOKENIZER; role < BH_ROLE_CNT; ++role) {
        int own_bell = bh_topology_fd(role, BH_ITEM_fd_bell_tokenizer + role - BH_ROLE_TOKENIZER);
        int control = bh_topology_fd(role, BH_ITEM_control);
        int input = 0;
        cr_expect_eq(inside(role, act_map_exec, NULL), KILLED);
        cr_expect_eq(inside(role, act_protect_exec, NULL), KILLED);
        cr_expect_eq(inside(role, act_hugepage, NULL), KILLED);
        cr_expect_eq(inside(role, act_kill_other, &self), KILLED);
        cr_expect_eq(inside(role, act_write, &own_bell), EXIT_WORKED);
        cr_expect_eq(inside(role, act_write, &control), KILLED);
        cr_expect_eq(inside(role, act_write, &input), KILLED);
    }
    /* Prefill rings the ledger only: it has no other bell, and the number of one is not enough. */
    int bell = bh_topology_fd(BH_ROLE_PREFILL, BH_ITEM_fd_bell_ledger);
    int above = bh_topology_fd_end(BH_ROLE_PREFILL);
    cr_expect_eq(inside(BH_ROLE_PREFILL, act_write, &bell), EXIT_WORKED);
    cr_expect_eq(inside(BH_ROLE_PREFILL, act_write, &above), KILLED);
}

/* What every role does all day. */
static int
act_ordinary(void *arg)
{
    uint32_t role = *(const uint32_t *)arg;
    int bell = bh_topology_fd(role, BH_ITEM_fd_bell_tokenizer + role - BH_ROLE_TOKENIZER);
    bh_os_event_signal(bell);
    if (!bh_os_event_wait(bell, 1000000000) || bh_os_event_wait(bell, 1000000)) {
        return -1;
    }
    void *small = malloc(100);
    uint8_t *large = malloc(64u << 20);
    if (small == NULL || large == NULL) {
        return -1;
    }
    large[1 << 20] = 1;
    large = realloc(large, 128u << 20);
    free(large);
    free(small);
    uint8_t *mem = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    mem[5000] = 1;
    bh_region_discard(mem, 8192);
    struct bh_swap word = {0};
    bh_os_futex_wait(&word, 0, 1000000);
    bh_os_futex_wake(&word, 1);
    return mem[5000] == 0 && bh_os_now_ns() > 0 && bh_os_unix_s() > 0 ? 0 : -1;
}

Test(sandbox, ordinary_work_goes_on, .init = engine_make)
{
    for (uint32_t role = BH_ROLE_TOKENIZER; role < BH_ROLE_CNT; ++role) {
        cr_expect_eq(inside(role, act_ordinary, &role), EXIT_WORKED, "role %u", role);
    }
}

static int
act_die(void *arg)
{
    (void)arg;
    BH_CHECK(arg != NULL);
    return 0;
}

/* A failed check must end as what it is, with its message, not as a filter's kill. */
Test(sandbox, abort_is_allowed, .init = engine_make)
{
    for (uint32_t role = BH_ROLE_TOKENIZER; role < BH_ROLE_CNT; ++role) {
        cr_expect_eq(inside(role, act_die, NULL), 1000 + SIGABRT);
    }
}

static void *
other_thread(void *arg)
{
    const int *go = arg;
    uint64_t count;
    if (read(*go, &count, sizeof(count)) > 0) {
        syscall(SYS_getuid);
    }
    return NULL;
}

/* A thread that was made before the filter is under it too. */
Test(sandbox, all_threads_are_filtered, .init = engine_make)
{
    pid_t pid = fork();
    if (pid == 0) {
        struct rlimit none = {0, 0};
        setrlimit(RLIMIT_CORE, &none);
        core_engine_place(&engine, BH_ROLE_DECODE);
        int go = bh_topology_fd(BH_ROLE_DECODE, BH_ITEM_fd_bell_decode);
        fcntl(go, F_SETFL, 0);
        pthread_t thread;
        pthread_create(&thread, NULL, other_thread, &go);
        if (bh_sandbox_enter(BH_ROLE_DECODE) != BH_OK) {
            _exit(EXIT_NO_FILTER);
        }
        bh_os_event_signal(go);
        pthread_join(thread, NULL);
        _exit(EXIT_WORKED);
    }
    int status = 0;
    cr_assert_eq(waitpid(pid, &status, 0), pid);
    cr_expect(WIFSIGNALED(status) && WTERMSIG(status) == SIGSYS);
}

static void *
thread_that_ends(void *arg)
{
    return arg;
}

/* A thread may be so young that its first instructions, which are system calls of the C library, come
   after the filter. */
Test(sandbox, young_threads_survive_the_filter, .init = engine_make)
{
    for (uint32_t i = 0; i < 50; ++i) {
        uint32_t role = i % 2 == 0 ? BH_ROLE_PREFILL : BH_ROLE_DECODE;
        pid_t pid = fork();
        if (pid == 0) {
            pthread_t threads[4];
            core_engine_place(&engine, role);
            for (size_t k = 0; k < BH_COUNT(threads); ++k) {
                pthread_create(&threads[k], NULL, thread_that_ends, NULL);
            }
            if (bh_sandbox_enter(role) != BH_OK) {
                _exit(EXIT_NO_FILTER);
            }
            for (size_t k = 0; k < BH_COUNT(threads); ++k) {
                pthread_join(threads[k], NULL);
            }
            _exit(EXIT_WORKED);
        }
        int status = 0;
        cr_assert_eq(waitpid(pid, &status, 0), pid);
        cr_assert(WIFEXITED(status) && WEXITSTATUS(status) == EXIT_WORKED, "status %x", status);
    }
}

Test(sandbox, only_roles_have_a_filter)
{
    cr_expect_eq(bh_sandbox_enter(BH_ROLE_SUPERVISOR), BH_EINVAL);
    cr_expect_eq(bh_sandbox_enter(BH_ROLE_CNT), BH_EINVAL);
}
