/* Transport of the control socket: bounded buffers, nothing blocks, silence is closed. */
#include "src/supervisor/control_socket.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "src/core/log.h"
#include "src/supervisor/control_answer.h"
#include "src/supervisor/descriptors.h"

void
bh_control_socket_init(struct bh_control_socket *control)
{
    memset(control, 0, sizeof(*control));
    control->fd = -1;
    control->verification.fd = -1;
    for (size_t i = 0; i < BH_CONTROL_CLIENTS; i++) {
        control->clients[i].fd = -1;
    }
}

static struct sockaddr_un
address_of(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    static_assert(sizeof(address.sun_path) == sizeof(((struct bh_engine *)0)->control_path),
                  "engine->control_path is as long as the system allows");
    memcpy(address.sun_path, path, strlen(path) + 1);
    return address;
}

/* What is at the path now? A socket whose server is gone is left over from a crash; anything else
   belongs to somebody. */
static enum bh_status
clear_path(const char *path)
{
    struct stat info;
    if (lstat(path, &info) != 0) {
        return BH_OK;
    }
    if (!S_ISSOCK(info.st_mode)) {
        bh_log("control socket %s: the path exists and is no socket: give another --control", path);
        return BH_EINVAL;
    }
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) {
        bh_log("control socket: %s", strerror(errno));
        return BH_ESYS;
    }
    struct sockaddr_un address = address_of(path);
    bool dead =
        connect(fd, (struct sockaddr *)&address, sizeof(address)) != 0 && errno == ECONNREFUSED;
    close(fd);
    if (!dead) {
        bh_log("control socket %s: another server answers there: give another --control", path);
        return BH_EINVAL;
    }
    if (unlink(path) != 0) {
        bh_log("control socket %s: cannot be removed: %s", path, strerror(errno));
        return BH_ESYS;
    }
    return BH_OK;
}

enum bh_status
bh_control_socket_open(const struct bh_engine *engine, struct bh_control_socket *control)
{
    enum bh_status status = clear_path(engine->control_path);
    if (status != BH_OK) {
        return status;
    }
    int fd = bh_fd_raise(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (fd < 0) {
        bh_log("control socket: %s", strerror(errno));
        return BH_ESYS;
    }
    control->fd = fd;
    struct sockaddr_un address = address_of(engine->control_path);
    /* The mask, not a later chmod: between bind and chmod anybody could connect. */
    mode_t mask = umask(0177);
    int bound = bind(fd, (struct sockaddr *)&address, sizeof(address));
    int saved = errno;
    umask(mask);
    control->bound = bound == 0;
    if (bound != 0 || listen(fd, BH_CONTROL_CLIENTS) != 0) {
        bh_log("control socket %s: %s", engine->control_path, strerror(bound != 0 ? saved : errno));
        return BH_ESYS;
    }
    return BH_OK;
}

static void
drop(struct bh_control_client *client)
{
    close(client->fd);
    free(client->out);
    memset(client, 0, sizeof(*client));
    client->fd = -1;
}

void
bh_control_socket_close(const struct bh_engine *engine, struct bh_control_socket *control)
{
    bh_verification_stop(&control->verification);
    for (size_t i = 0; i < BH_CONTROL_CLIENTS; i++) {
        if (control->clients[i].fd >= 0) {
            drop(&control->clients[i]);
        }
    }
    if (control->fd >= 0) {
        close(control->fd);
        control->fd = -1;
    }
    if (control->bound) {
        unlink(engine->control_path);
        control->bound = false;
    }
}

static bool
has_line(const struct bh_control_client *client)
{
    return memchr(client->in, '\n', client->in_len) != NULL;
}

void
bh_control_socket_poll(const struct bh_control_socket *control,
                       struct pollfd polls[BH_CONTROL_POLL_CNT])
{
    polls[0] = (struct pollfd){.fd = control->fd, .events = POLLIN};
    polls[1] = (struct pollfd){.fd = control->verification.fd, .events = POLLIN};
    for (size_t i = 0; i < BH_CONTROL_CLIENTS; i++) {
        const struct bh_control_client *client = &control->clients[i];
        short events = POLLIN;
        if (client->verifying) {
            events = 0;
        } else if (client->out != NULL || has_line(client)) {
            /* A line that is here already needs no more input, only another turn of the loop. */
            events = POLLOUT;
        }
        polls[2 + i] = (struct pollfd){.fd = client->fd, .events = events};
    }
}

static void
flush(struct bh_control_client *client, uint64_t now_ns)
{
    ssize_t sent = send(client->fd,
                        client->out + client->out_sent,
                        client->out_len - client->out_sent,
                        MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0) {
        if (errno != EAGAIN && errno != EINTR) {
            drop(client);
        }
        return;
    }
    client->out_sent += (size_t)sent;
    client->moved_ns = now_ns;
    if (client->out_sent == client->out_len) {
        free(client->out);
        client->out = NULL;
        client->out_len = 0;
        client->out_sent = 0;
        if (client->closing) {
            drop(client);
        }
    }
}

/* Takes the answer; NULL: memory ran out, and the client is let go. */
static void
reply(struct bh_control_client *client, json_t *answer, uint64_t now_ns)
{
    char *text = answer != NULL ? json_dumps(answer, JSON_COMPACT) : NULL;
    json_decref(answer);
    size_t len = text != NULL ? strlen(text) : 0;
    char *line = text != NULL ? realloc(text, len + 2) : NULL;
    if (line == NULL) {
        free(text);
        drop(client);
        return;
    }
    line[len] = '\n';
    client->out = line;
    client->out_len = len + 1;
    client->out_sent = 0;
    flush(client, now_ns);
}

static void
act(struct bh_engine *engine,
    struct bh_control_socket *control,
    struct bh_control_client *client,
    size_t line_len,
    uint64_t now_ns)
{
    const char *error = NULL;
    const char *command = bh_control_command(client->in, line_len, &error);
    client->in_len -= line_len + 1;
    memmove(client->in, client->in + line_len + 1, client->in_len);
    if (command == NULL) {
        reply(client, bh_control_error(error), now_ns);
        return;
    }
    if (strcmp(command, "verify") != 0) {
        reply(client, bh_control_answer(engine, command, now_ns), now_ns);
        return;
    }
    enum bh_status status = bh_verification_start(engine, &control->verification, now_ns);
    if (status == BH_OK) {
        client->verifying = true;
    } else {
        error = status == BH_FULL ? "a verification runs already" : "no process for it";
        reply(client, bh_control_error(error), now_ns);
    }
}

/* One line a turn, so that no client gets more of the loop than another, or than a fence. */
static void
act_on_line(struct bh_engine *engine,
            struct bh_control_socket *control,
            struct bh_control_client *client,
            uint64_t now_ns)
{
    const char *end = memchr(client->in, '\n', client->in_len);
    if (end != NULL) {
        act(engine, control, client, (size_t)(end - client->in), now_ns);
    } else if (client->in_len == sizeof(client->in)) {
        client->closing = true;
        client->in_len = 0;
        reply(client, bh_control_error("the line is too long"), now_ns);
    }
}

static void
receive(struct bh_control_client *client, uint64_t now_ns)
{
    size_t room = sizeof(client->in) - client->in_len;
    ssize_t got = recv(client->fd, client->in + client->in_len, room, MSG_DONTWAIT);
    if (got > 0) {
        client->in_len += (size_t)got;
        client->moved_ns = now_ns;
    } else if (got == 0 || (errno != EAGAIN && errno != EINTR)) {
        drop(client);
    }
}

static void
accept_one(struct bh_control_socket *control, uint64_t now_ns)
{
    int fd = bh_fd_raise(accept4(control->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (fd < 0) {
        return;
    }
    for (size_t i = 0; i < BH_CONTROL_CLIENTS; i++) {
        if (control->clients[i].fd < 0) {
            control->clients[i].fd = fd;
            control->clients[i].moved_ns = now_ns;
            return;
        }
    }
    close(fd);
}

static void
step_client(struct bh_engine *engine,
            struct bh_control_socket *control,
            struct bh_control_client *client,
            short seen,
            uint64_t now_ns)
{
    if (client->verifying) {
        /* Its answer comes by itself; only its going away matters. */
        if ((seen & (POLLERR | POLLHUP)) != 0) {
            drop(client);
        }
        return;
    }
    if (client->out != NULL) {
        if (seen != 0) {
            flush(client, now_ns);
        }
    } else if (has_line(client)) {
        act_on_line(engine, control, client, now_ns);
    } else if (seen != 0) {
        receive(client, now_ns);
        if (client->fd >= 0) {
            act_on_line(engine, control, client, now_ns);
        }
    }
    if (client->fd >= 0 && !client->verifying &&
        now_ns - client->moved_ns > BH_CONTROL_IDLE_MS * BH_NS_PER_MS) {
        drop(client);
    }
}

static void
step_verification(struct bh_control_socket *control, uint64_t now_ns)
{
    json_t *answer = bh_verification_step(&control->verification, now_ns);
    if (answer == NULL) {
        return;
    }
    for (size_t i = 0; i < BH_CONTROL_CLIENTS; i++) {
        struct bh_control_client *client = &control->clients[i];
        if (client->fd >= 0 && client->verifying) {
            client->verifying = false;
            client->moved_ns = now_ns;
            reply(client, json_incref(answer), now_ns);
        }
    }
    json_decref(answer);
}

void
bh_control_socket_step(struct bh_engine *engine,
                       struct bh_control_socket *control,
                       const struct pollfd polls[BH_CONTROL_POLL_CNT],
                       uint64_t now_ns)
{
    step_verification(control, now_ns);
    for (size_t i = 0; i < BH_CONTROL_CLIENTS; i++) {
        struct bh_control_client *client = &control->clients[i];
        if (client->fd >= 0) {
            step_client(engine, control, client, polls[2 + i].revents, now_ns);
        }
    }
    if ((polls[0].revents & POLLIN) != 0) {
        accept_one(control, now_ns);
    }
}
