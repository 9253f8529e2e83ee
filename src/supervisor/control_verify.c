/* The verifying child. */
#include "src/supervisor/control_verify.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "src/supervisor/descriptors.h"
#include "src/supervisor/memory.h"

#define DEADLINE_NS (UINT64_C(60000) * BH_NS_PER_MS)

static void
report(void *arg, const char *name, enum bh_status status)
{
    const int *fd = arg;
    dprintf(*fd, "%s %d\n", name, status);
}

enum bh_status
bh_verification_start(const struct bh_engine *engine, struct bh_verification *run, uint64_t now_ns)
{
    if (run->pid != 0) {
        return BH_FULL;
    }
    int ends[2];
    if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) {
        return BH_ESYS;
    }
    /* All lines together are far below the pipe's buffer, so the child never waits for us. */
    static_assert(BH_ITEM_CNT * 48 < BH_VERIFY_BYTES_MAX, "room for every line");
    pid_t pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        bh_memory_verify(engine, report, &ends[1]);
        _exit(0);
    }
    close(ends[1]);
    int fd = bh_fd_raise(ends[0]);
    if (pid < 0 || fd < 0) {
        if (pid > 0) {
            kill(pid, SIGKILL);
            waitpid(pid, NULL, 0);
        }
        if (fd >= 0) {
            close(fd);
        }
        return BH_ESYS;
    }
    run->pid = pid;
    run->fd = fd;
    run->len = 0;
    run->deadline_ns = now_ns + DEADLINE_NS;
    return BH_OK;
}

static const char *
status_name(int status)
{
    switch (status) {
    case BH_OK:
        return "ok";
    case BH_EINVAL:
        return "invalid";
    case BH_ECORRUPT:
        return "corrupt";
    case BH_ELIMIT:
        return "limit";
    case BH_ESYS:
        return "not mappable";
    default:
        return "unknown";
    }
}

static json_t *
answer(struct bh_verification *run, int wait_status)
{
    json_t *objects = json_array();
    bool all_ok = true;
    run->lines[run->len] = '\0';
    for (const char *line = run->lines; *line != '\0'; line += strcspn(line, "\n") + 1) {
        char name[64];
        int status = 0;
        /* A line that a dying child cut off has no end and is left out. */
        if (strchr(line, '\n') == NULL) {
            break;
        }
        if (sscanf(line, "%63s %d", name, &status) == 2) {
            all_ok &= status == BH_OK;
            json_array_append_new(
                objects, json_pack("{s:s, s:s}", "name", name, "status", status_name(status)));
        }
    }
    if (!WIFEXITED(wait_status) || WEXITSTATUS(wait_status) != 0) {
        /* The child died of what it read, or hung: the object after the last one listed did it. */
        return json_pack("{s:b, s:s, s:o}",
                         "ok",
                         0,
                         "error",
                         "the verification did not end; the object after the last one is broken",
                         "objects",
                         objects);
    }
    if (!all_ok) {
        return json_pack(
            "{s:b, s:s, s:o}", "ok", 0, "error", "an object is broken", "objects", objects);
    }
    return json_pack("{s:b, s:o}", "ok", 1, "objects", objects);
}

json_t *
bh_verification_step(struct bh_verification *run, uint64_t now_ns)
{
    if (run->pid == 0) {
        return NULL;
    }
    ssize_t got = 1;
    while (got > 0 && run->len < sizeof(run->lines) - 1) {
        got = read(run->fd, run->lines + run->len, sizeof(run->lines) - 1 - run->len);
        run->len += got > 0 ? (size_t)got : 0;
    }
    bool runs = got < 0 && (errno == EAGAIN || errno == EINTR);
    if (runs && now_ns < run->deadline_ns) {
        return NULL;
    }
    if (runs) {
        kill(run->pid, SIGKILL);
    }
    int wait_status = 0;
    while (waitpid(run->pid, &wait_status, 0) < 0 && errno == EINTR) {
    }
    close(run->fd);
    run->fd = -1;
    run->pid = 0;
    return answer(run, wait_status);
}

void
bh_verification_stop(struct bh_verification *run)
{
    if (run->pid != 0) {
        kill(run->pid, SIGKILL);
        while (waitpid(run->pid, NULL, 0) < 0 && errno == EINTR) {
        }
        close(run->fd);
        run->fd = -1;
        run->pid = 0;
    }
}
