/* The listening TCP socket. The supervisor makes and keeps it, so that connections which arrive while
   the tokenizer is being restarted wait in its queue instead of being refused. */
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "src/core/log.h"
#include "src/supervisor/descriptors.h"

#define BACKLOG 512

/* "[::1]" is what URLs make people type. */
static void
bare_host(const char *host, char out[256])
{
    size_t len = strlen(host);
    if (len >= 2 && host[0] == '[' && host[len - 1] == ']') {
        host += 1;
        len -= 2;
    }
    len = (size_t)bh_min_u64(len, 255);
    memcpy(out, host, len);
    out[len] = '\0';
}

static int
bind_one(const struct addrinfo *address)
{
    int fd = socket(address->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, IPPROTO_TCP);
    if (fd < 0) {
        return -1;
    }
    int one = 1;
    if (setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)) != 0 ||
        bind(fd, address->ai_addr, address->ai_addrlen) != 0) {
        int saved = errno;
        close(fd);
        errno = saved;
        return -1;
    }
    return fd;
}

static enum bh_status
name_url(struct bh_engine *engine, const char *host, int fd)
{
    struct sockaddr_storage bound;
    socklen_t len = sizeof(bound);
    char port[16];
    if (getsockname(fd, (struct sockaddr *)&bound, &len) != 0 ||
        getnameinfo((struct sockaddr *)&bound, len, NULL, 0, port, sizeof(port), NI_NUMERICSERV) !=
            0) {
        bh_log("getsockname: %s", strerror(errno));
        return BH_ESYS;
    }
    bool colon = strchr(host, ':') != NULL;
    snprintf(engine->url,
             sizeof(engine->url),
             "http://%s%.80s%s:%s",
             colon ? "[" : "",
             host,
             colon ? "]" : "",
             port);
    if (engine->config.control[0] != '\0') {
        size_t len_control = strlen(engine->config.control);
        if (len_control >= sizeof(engine->control_path)) {
            bh_log("--control %s: longer than %zu bytes",
                   engine->config.control,
                   sizeof(engine->control_path) - 1);
            return BH_EINVAL;
        }
        memcpy(engine->control_path, engine->config.control, len_control + 1);
    } else {
        snprintf(engine->control_path, sizeof(engine->control_path), "/tmp/bulkhead-%s.sock", port);
    }
    return BH_OK;
}

enum bh_status
bh_listener_bind(struct bh_engine *engine)
{
    char host[256];
    char port[16];
    bare_host(engine->config.host, host);
    snprintf(port, sizeof(port), "%u", engine->config.port);
    struct addrinfo hints = {
        .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV};
    struct addrinfo *found = NULL;
    int code = getaddrinfo(host, port, &hints, &found);
    if (code != 0) {
        bh_log("--host %s: %s", engine->config.host, gai_strerror(code));
        return BH_EINVAL;
    }
    int fd = -1;
    for (const struct addrinfo *at = found; at != NULL && fd < 0; at = at->ai_next) {
        fd = bh_fd_raise(bind_one(at));
    }
    int saved = errno;
    freeaddrinfo(found);
    if (fd < 0) {
        bh_log("cannot listen on %s port %s: %s: give another --host or --port",
               host,
               port,
               strerror(saved));
        return BH_ESYS;
    }
    engine->fds[BH_ITEM_fd_listener] = fd;
    return name_url(engine, host, fd);
}

enum bh_status
bh_listener_open(struct bh_engine *engine)
{
    if (listen(engine->fds[BH_ITEM_fd_listener], BACKLOG) != 0) {
        bh_log("listen on %s: %s", engine->url, strerror(errno));
        return BH_ESYS;
    }
    return BH_OK;
}
