/* Giving up privileges. Order matters: limits while still allowed, the user before PDEATHSIG (changing
   it clears that), no_new_privs before landlock (which demands it of the unprivileged). */
#include "src/core/privileges.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/landlock.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/capability.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "src/core/log.h"

/* Of kernels younger than the headers of the distribution. */
#define LANDLOCK_NET_BIND_TCP        UINT64_C(1)
#define LANDLOCK_NET_CONNECT_TCP     UINT64_C(2)
#define LANDLOCK_SCOPE_ABSTRACT_UNIX UINT64_C(1)
#define LANDLOCK_SCOPE_SIGNALS       UINT64_C(2)

struct landlock_attr {
    uint64_t fs;
    uint64_t net;
    uint64_t scoped;
};

#define FDS_SPARE    16u /* rings and timers that a role makes in start() */
#define FDS_PER_CONN 2u  /* a connection, and the one that takes its place */
#define COMPUTE_NICE 5   /* workers yield to those who talk to clients */

static enum bh_status
refused(const char *what)
{
    int saved = errno;
    bh_log("event=privileges_error step=%s errno=%d (%s)", what, saved, strerror(saved));
    errno = saved;
    return BH_ESYS;
}

bool
bh_privileges_check_fds(uint32_t role)
{
    int end = bh_topology_fd_end(role);
    for (int fd = BH_FD_FIRST; fd < end; ++fd) {
        if (fcntl(fd, F_GETFD) < 0) {
            bh_log("event=start_error fd=%d is not open: roles are started by `bulkhead serve`",
                   fd);
            return false;
        }
    }
    DIR *dir = opendir("/proc/self/fd");
    if (dir == NULL) {
        bh_log("event=start_error cannot list open descriptors: mount /proc errno=%d", errno);
        return false;
    }
    int extra = -1;
    for (struct dirent *entry = readdir(dir); entry != NULL; entry = readdir(dir)) {
        char *rest = entry->d_name;
        unsigned long fd = strtoul(entry->d_name, &rest, 10);
        bool number = rest != entry->d_name && *rest == '\0'; /* not "." and ".." */
        if (number && fd >= (unsigned long)end && fd != (unsigned long)dirfd(dir)) {
            extra = (int)fd;
        }
    }
    closedir(dir);
    if (extra >= 0) {
        bh_log("event=start_error fd=%d is open and not in the topology of this role: its starter "
               "must close it",
               extra);
    }
    return extra < 0;
}

static enum bh_status
limit_set(int resource, rlim_t most, const char *what)
{
    struct rlimit limit;
    if (getrlimit((__rlimit_resource_t)resource, &limit) != 0) {
        return refused(what);
    }
    limit.rlim_max = bh_min_u64(limit.rlim_max, most);
    limit.rlim_cur = limit.rlim_max;
    return setrlimit((__rlimit_resource_t)resource, &limit) == 0 ? BH_OK : refused(what);
}

/* RLIMIT_FSIZE stays as it is: at 0 the first line of a log that is a file would kill the role. */
static enum bh_status
limits_drop(const struct bh_world *world)
{
    uint32_t role = world->self;
    bool sockets = role == BH_ROLE_TOKENIZER || role == BH_ROLE_EGRESS;
    bool computes = role == BH_ROLE_PREFILL || role == BH_ROLE_DECODE;
    rlim_t fds = (rlim_t)bh_topology_fd_end(role) + FDS_SPARE;
    fds += sockets ? (rlim_t)world->limits.conns * FDS_PER_CONN : 0;
    enum bh_status status = limit_set(RLIMIT_CORE, 0, "rlimit_core");
    if (status == BH_OK) {
        status = limit_set(RLIMIT_NOFILE, fds, "rlimit_nofile");
    }
    if (status == BH_OK && computes && setpriority(PRIO_PROCESS, 0, COMPUTE_NICE) != 0) {
        status = refused("setpriority");
    }
    return status;
}

/* Drop the bounding set while CAP_SETPCAP is there; a failure there is final only for root. */
static enum bh_status
user_drop(uint32_t role)
{
    if (geteuid() != 0) {
        bh_log("event=privileges uid_split=no why=not_root");
        return BH_OK;
    }
    for (unsigned long cap = 0; prctl(PR_CAPBSET_READ, cap, 0, 0, 0) >= 0; ++cap) {
        if (prctl(PR_CAPBSET_DROP, cap, 0, 0, 0) != 0 && errno != EPERM) {
            return refused("capbset_drop");
        }
    }
    uid_t id = BH_ROLE_UID_BASE + role;
    if (setgroups(0, NULL) == 0 && setresgid(id, id, id) == 0 && setresuid(id, id, id) == 0) {
        return BH_OK;
    }
    /* Root of a user namespace that maps few ids has no other user to become; that root is an ordinary
       user outside, so this is the case of a start without root. */
    if (errno == EINVAL || errno == EPERM) {
        bh_log("event=privileges uid_split=no why=unmapped uid=%u", id);
        return BH_OK;
    }
    return refused("setresuid");
}

static enum bh_status
caps_drop(void)
{
    cap_t none = cap_init();
    if (none == NULL) {
        return refused("cap_init");
    }
    int result = cap_set_proc(none);
    enum bh_status status = result == 0 ? BH_OK : refused("cap_set_proc");
    cap_free(none);
    return status;
}

/* No rule is added: nothing of the file system may be opened, no TCP port bound or connected, no
   process outside signalled. Descriptors that are open stay usable. */
static enum bh_status
landlock_enter(void)
{
    long abi = syscall(
        SYS_landlock_create_ruleset, NULL, (size_t)0, (uint32_t)LANDLOCK_CREATE_RULESET_VERSION);
    if (abi < 1) {
        bh_log("event=privileges landlock=no errno=%d: file access is limited by the system-call "
               "filter only",
               errno);
        return BH_OK;
    }
    /* 13 rights in version 1; 2, 3 and 5 brought one each (refer, truncate, ioctl_dev). */
    uint32_t fs_cnt = 13u + (abi >= 2) + (abi >= 3) + (abi >= 5);
    struct landlock_attr attr = {.fs = (UINT64_C(1) << fs_cnt) - 1};
    size_t attr_bytes = sizeof(attr.fs);
    if (abi >= 4) {
        attr.net = LANDLOCK_NET_BIND_TCP | LANDLOCK_NET_CONNECT_TCP;
        attr_bytes += sizeof(attr.net);
    }
    if (abi >= 6) {
        attr.scoped = LANDLOCK_SCOPE_ABSTRACT_UNIX | LANDLOCK_SCOPE_SIGNALS;
        attr_bytes += sizeof(attr.scoped);
    } else {
        bh_log("event=privileges landlock_abi=%ld net=%s scopes=no", abi, abi >= 4 ? "yes" : "no");
    }
    long ruleset = syscall(SYS_landlock_create_ruleset, &attr, attr_bytes, 0u);
    if (ruleset < 0) {
        return refused("landlock_create_ruleset");
    }
    long result = syscall(SYS_landlock_restrict_self, (int)ruleset, 0u);
    enum bh_status status = result == 0 ? BH_OK : refused("landlock_restrict_self");
    close((int)ruleset);
    return status;
}

/* A supervisor that died before PDEATHSIG was set is noticed by looking at the parent afterwards. The
   supervisor's own word says who that is; a supervisor that says nothing is at least not process 1. */
static enum bh_status
tie_to_parent(const struct bh_world *world)
{
    if (prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) != 0 || prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0) != 0) {
        return refused("prctl");
    }
    const struct bh_word *pid = &world->status[BH_ROLE_SUPERVISOR].block->pid;
    uint64_t supervisor = bh_word_load_relaxed(pid);
    uint64_t parent = (uint64_t)getppid();
    if (supervisor != 0 ? parent != supervisor : parent == 1) {
        bh_log("event=start_error the supervisor is gone ppid=%u", (unsigned)parent);
        return BH_EINVAL;
    }
    return BH_OK;
}

enum bh_status
bh_privileges_drop(const struct bh_world *world)
{
    enum bh_status status = limits_drop(world);
    if (status == BH_OK) {
        status = user_drop(world->self);
    }
    if (status == BH_OK) {
        status = caps_drop();
    }
    if (status == BH_OK && prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) {
        status = refused("no_new_privs");
    }
    if (status == BH_OK) {
        status = landlock_enter();
    }
    if (status == BH_OK) {
        status = tie_to_parent(world);
    }
    return status;
}
