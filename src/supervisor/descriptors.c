/* Bells, hand-over pair, key file, /dev/null: made once, held for the life of the engine, so that a
   role that restarts finds the same ones. */
#include "src/supervisor/descriptors.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "src/api/keys.h"
#include "src/core/log.h"
#include "src/core/os.h"

#define KEY_FILE_BYTES_MAX (1u << 20)

int
bh_fd_raise(int fd)
{
    if (fd < 0) {
        return -1;
    }
    int high = fcntl(fd, F_DUPFD_CLOEXEC, BH_FD_HIGH);
    int saved = errno;
    close(fd);
    errno = saved;
    return high;
}

void
bh_descriptors_init(struct bh_engine *engine)
{
    for (uint32_t id = 0; id < BH_ITEM_CNT; id++) {
        engine->fds[id] = -1;
        engine->readonly_fds[id] = -1;
    }
    for (uint32_t role = 0; role < BH_ROLE_CNT; role++) {
        engine->children[role].pidfd = -1;
    }
    engine->null_fd = -1;
}

/* The whole file through its descriptor, leaving the offset at 0 for the tokenizer that shares it. */
static enum bh_status
read_keys(const char *path, int fd, char **text, size_t *len)
{
    struct stat info;
    if (fstat(fd, &info) != 0) {
        bh_log("key file %s: %s", path, strerror(errno));
        return BH_ESYS;
    }
    if (!S_ISREG(info.st_mode) || info.st_size > (off_t)KEY_FILE_BYTES_MAX) {
        bh_log(
            "key file %s: expected a regular file of at most %u bytes", path, KEY_FILE_BYTES_MAX);
        return BH_EINVAL;
    }
    *len = (size_t)info.st_size;
    *text = malloc(*len + 1);
    if (*text == NULL || pread(fd, *text, *len, 0) != (ssize_t)*len) {
        bh_log("key file %s: cannot be read: %s", path, strerror(errno));
        free(*text);
        *text = NULL;
        return BH_ESYS;
    }
    return BH_OK;
}

enum bh_status
bh_descriptors_keys(struct bh_engine *engine)
{
    const char *path = engine->config.api_key_file;
    engine->auth = path[0] != '\0';
    int fd = open(engine->auth ? path : "/dev/null", O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    fd = bh_fd_raise(fd);
    if (fd < 0) {
        bh_log("key file %s: %s", engine->auth ? path : "/dev/null", strerror(errno));
        return BH_ESYS;
    }
    engine->fds[BH_ITEM_fd_keys] = fd;
    char *text = NULL;
    size_t len = 0;
    if (engine->auth) {
        enum bh_status status = read_keys(path, fd, &text, &len);
        if (status != BH_OK) {
            return status;
        }
    }
    struct bh_keys *keys = NULL;
    char error[BH_KEYS_ERROR_MAX] = "no memory";
    enum bh_status status = bh_keys_new(text, len, &keys, error);
    if (text != NULL) {
        explicit_bzero(text, len);
        free(text);
    }
    if (status != BH_OK) {
        bh_log("--api-key-file %s: %s", path, error);
        return status;
    }
    engine->tenant_cnt = bh_keys_tenant_cnt(keys);
    bh_keys_delete(keys);
    return BH_OK;
}

enum bh_status
bh_descriptors_make(struct bh_engine *engine)
{
    for (uint32_t role = BH_ROLE_TOKENIZER; role < BH_ROLE_CNT; role++) {
        uint32_t id = BH_ITEM_fd_bell_tokenizer + role - BH_ROLE_TOKENIZER;
        engine->fds[id] = bh_fd_raise(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
        if (engine->fds[id] < 0) {
            bh_log("eventfd: %s", strerror(errno));
            return BH_ESYS;
        }
    }
    int pair[2] = {-1, -1};
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair) != 0) {
        bh_log("socketpair: %s", strerror(errno));
        return BH_ESYS;
    }
    engine->fds[BH_ITEM_fd_handover_tx] = bh_fd_raise(pair[0]);
    engine->fds[BH_ITEM_fd_handover_rx] = bh_fd_raise(pair[1]);
    engine->null_fd = bh_fd_raise(open("/dev/null", O_RDONLY | O_CLOEXEC));
    if (engine->fds[BH_ITEM_fd_handover_tx] < 0 || engine->fds[BH_ITEM_fd_handover_rx] < 0 ||
        engine->null_fd < 0) {
        bh_log("descriptors: %s", strerror(errno));
        return BH_ESYS;
    }
    return BH_OK;
}

void
bh_descriptors_ring(const struct bh_engine *engine, uint32_t role)
{
    bh_os_event_signal(engine->fds[BH_ITEM_fd_bell_tokenizer + role - BH_ROLE_TOKENIZER]);
}

void
bh_descriptors_ring_all(const struct bh_engine *engine)
{
    for (uint32_t role = BH_ROLE_TOKENIZER; role < BH_ROLE_CNT; role++) {
        bh_descriptors_ring(engine, role);
    }
}
