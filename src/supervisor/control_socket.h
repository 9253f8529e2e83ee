/* The control socket: one JSON object a line in, one JSON object a line out. Only the owner of the
   server (and root) may connect; even so no client can make the supervisor wait, grow or stop. */
#ifndef BH_SUPERVISOR_CONTROL_SOCKET_H
#define BH_SUPERVISOR_CONTROL_SOCKET_H

#include <poll.h>

#include "src/supervisor/control_verify.h"
#include "src/supervisor/engine.h"

/* One client. While `out` is being sent, or a verification runs, nothing more is read from it. */
struct bh_control_client {
    int fd;         /* -1: free */
    bool closing;   /* after `out` is sent */
    bool verifying; /* its answer comes from the verification that runs */
    char in[BH_CONTROL_LINE];
    size_t in_len;
    char *out;
    size_t out_len;
    size_t out_sent;
    uint64_t moved_ns;
};

struct bh_control_socket {
    int fd;
    bool bound; /* the path is ours to remove */
    struct bh_control_client clients[BH_CONTROL_CLIENTS];
    struct bh_verification verification;
};

#define BH_CONTROL_POLL_CNT (2 + BH_CONTROL_CLIENTS)

/* bh_control_socket_init - so that close is allowed whatever happened before. */
void bh_control_socket_init(struct bh_control_socket *socket);

/* bh_control_socket_open - bind engine->control_path, mode 0600. A socket that nobody answers is
   replaced, a live one is not. Logged: BH_EINVAL (in use, or no socket), BH_ESYS. */
BH_MUST_USE enum bh_status bh_control_socket_open(const struct bh_engine *engine,
                                                  struct bh_control_socket *socket);
/* bh_control_socket_close - clients, verification, and the path. */
void bh_control_socket_close(const struct bh_engine *engine, struct bh_control_socket *socket);

/* bh_control_socket_poll - what to wait for; unused entries have fd -1.
   bh_control_socket_step - act on what was seen. May change engine->stop (drain, stop). */
void bh_control_socket_poll(const struct bh_control_socket *socket,
                            struct pollfd polls[BH_CONTROL_POLL_CNT]);
void bh_control_socket_step(struct bh_engine *engine,
                            struct bh_control_socket *socket,
                            const struct pollfd polls[BH_CONTROL_POLL_CNT],
                            uint64_t now_ns);

#endif
