/* Accepting, reading, handing over and ending connections. See conn.h.

   A connection has one open question at a time. While it is open nothing is read: bytes of the next
   request wait in the kernel, so a client that pipelines is slowed down by itself. */
#include "src/tokenizer/conn.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "shm/hook.h"
#include "shm/region.h"
#include "src/api/answer.h"
#include "src/core/config.h"
#include "src/core/log.h"
#include "src/core/os.h"
#include "src/core/role.h"

#define URING_ENTRIES    1024u
#define REPLY_KEEP_BYTES 262144u /* a reply area that held more gives its memory back */
#define HANDOVER_BYTES   8u

/* User data of completions: what 8 | connection 24 | generation 32. */
enum what { WHAT_ACCEPT = 1, WHAT_BELL = 2, WHAT_RECV = 3 };

static uint64_t
tag(enum what what, uint32_t conn_idx, uint32_t gen)
{
    return ((uint64_t)what << 56) | ((uint64_t)conn_idx << 32) | gen;
}

static void conn_advance(struct bh_conns *conns, uint32_t idx, uint64_t now_ns);

enum bh_status
bh_conns_open(struct bh_conns *conns,
              struct bh_world *world,
              bh_conn_head_fn *on_head,
              bh_conn_request_fn *on_request,
              void *role)
{
    *conns = (struct bh_conns){
        .world = world, .on_head = on_head, .on_request = on_request, .role = role};
    conns->list = calloc(world->limits.conns, sizeof(*conns->list));
    char *buffers = calloc(world->limits.conns, BH_CONN_BUFFER);
    if (conns->list == NULL || buffers == NULL) {
        free(conns->list);
        free(buffers);
        return BH_ESYS;
    }
    for (uint32_t i = 0; i < world->limits.conns; i++) {
        conns->list[i].fd = -1;
        conns->list[i].buffer = buffers + (size_t)i * BH_CONN_BUFFER;
    }
    return BH_OK;
}

static void
arm_accept(struct bh_conns *conns)
{
    struct io_uring_sqe *sqe = bh_uring_sqe(&conns->uring);
    io_uring_prep_multishot_accept(sqe, conns->world->listener_fd, NULL, NULL, SOCK_CLOEXEC);
    io_uring_sqe_set_data64(sqe, tag(WHAT_ACCEPT, 0, 0));
    conns->accepting = true;
}

static void
arm_bell(struct bh_conns *conns)
{
    struct io_uring_sqe *sqe = bh_uring_sqe(&conns->uring);
    io_uring_prep_poll_add(sqe, conns->world->bell_fds[BH_ROLE_TOKENIZER], POLLIN);
    io_uring_sqe_set_data64(sqe, tag(WHAT_BELL, 0, 0));
}

static void
arm_recv(struct bh_conns *conns, uint32_t idx)
{
    struct bh_conn *conn = &conns->list[idx];
    struct io_uring_sqe *sqe = bh_uring_sqe(&conns->uring);
    io_uring_prep_recv(sqe, conn->fd, conn->buffer, BH_CONN_BUFFER, 0);
    io_uring_sqe_set_data64(sqe, tag(WHAT_RECV, idx, conn->gen));
    conn->recv_pending = true;
}

enum bh_status
bh_conns_start(struct bh_conns *conns)
{
    static const uint8_t ops[] = {IORING_OP_ACCEPT, IORING_OP_POLL_ADD, IORING_OP_RECV};
    enum bh_status status = bh_uring_new(&conns->uring, URING_ENTRIES, ops, BH_COUNT(ops));
    if (status != BH_OK) {
        bh_log(
            "io_uring=refused errno=%d the kernel must allow io_uring (kernel.io_uring_disabled=0)",
            errno);
        return status;
    }
    conns->egress_epoch = bh_role_epoch(&conns->world->control, BH_ROLE_EGRESS);
    arm_accept(conns);
    arm_bell(conns);
    bh_uring_submit(&conns->uring);
    return BH_OK;
}

/* Give egress its copy of the socket. Not now is fine: it is tried again before anything else
   happens on this connection. */
static bool
hand_over(struct bh_conns *conns, uint32_t idx)
{
    struct bh_conn *conn = &conns->list[idx];
    uint32_t name[2] = {idx, conn->gen};
    static_assert(sizeof(name) == HANDOVER_BYTES, "what egress reads");
    struct iovec part = {.iov_base = name, .iov_len = sizeof(name)};
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control;
    memset(&control, 0, sizeof(control));
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = control.bytes,
                             .msg_controllen = sizeof(control.bytes)};
    struct cmsghdr *head = CMSG_FIRSTHDR(&message);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(head), &conn->fd, sizeof(int));
    ssize_t sent = sendmsg(conns->world->handover_tx_fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    conn->handed = sent == (ssize_t)sizeof(name);
    return conn->handed;
}

static bool
question_open(const struct bh_conns *conns, uint32_t idx)
{
    const struct bh_conn *conn = &conns->list[idx];
    return bh_answer_load(&conns->world->edge, idx).answered != (conn->asked & 0xffffu);
}

void
bh_conn_ask(struct bh_conns *conns, uint32_t idx, const struct bh_question *question)
{
    struct bh_conn *conn = &conns->list[idx];
    conn->ended = conn->ended || question->close != 0;
    conn->asked++;
    conns->world->submit.conns[idx].question = *question;
    BH_HOOK("tokenizer.ask:before_word");
    bh_ask_store(&conns->world->submit, idx, (struct bh_ask){.gen = conn->gen, .cnt = conn->asked});
    BH_HOOK("tokenizer.ask:after_word");
    bh_world_tell(conns->world, BH_ROLE_EGRESS, bh_hint_make(BH_HINT_ASK, idx, conn->gen));
}

void
bh_conn_reply(struct bh_conns *conns, uint32_t idx, const struct bh_bytes *response, bool close)
{
    struct bh_conn *conn = &conns->list[idx];
    uint8_t *area = bh_submit_reply(&conns->world->submit, idx);
    if (response->failed || response->len > conns->world->limits.reply_bytes) {
        static const char text[] =
            "HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
        memcpy(area, text, sizeof(text) - 1);
        bh_conn_ask(conns,
                    idx,
                    &(struct bh_question){
                        .kind = BH_QUESTION_REPLY, .reply_bytes = sizeof(text) - 1, .close = 1});
        return;
    }
    if (conn->reply_used > REPLY_KEEP_BYTES) {
        bh_region_discard(area, conns->world->limits.reply_bytes);
        conn->reply_used = 0;
    }
    memcpy(area, response->data, response->len);
    conn->reply_used = (uint32_t)bh_max_u64(conn->reply_used, response->len);
    bh_conn_ask(conns,
                idx,
                &(struct bh_question){.kind = BH_QUESTION_REPLY,
                                      .reply_bytes = (uint32_t)response->len,
                                      .close = close ? 1 : 0});
}

static void
hang_up(struct bh_conns *conns, uint32_t idx)
{
    bh_conn_ask(conns, idx, &(struct bh_question){.kind = BH_QUESTION_HANGUP, .close = 1});
}

static void
reply_fault(struct bh_conns *conns, uint32_t idx, const struct bh_fault *fault, bool close)
{
    struct bh_bytes response;
    bh_bytes_init(&response, conns->world->limits.reply_bytes);
    bh_answer_fault(&response, fault, close ? BH_HEAD_CLOSE : 0);
    bh_metric_add(&conns->world->status[BH_ROLE_TOKENIZER], BH_METRIC_http_errors, 1);
    bh_conn_reply(conns, idx, &response, close);
    bh_bytes_free(&response);
}

/* The answerer has let go of this life of the connection: so does the reader. */
static void
conn_release(struct bh_conns *conns, uint32_t idx)
{
    struct bh_conn *conn = &conns->list[idx];
    bh_http_delete(conn->http);
    close(conn->fd);
    if (conn->reply_used > REPLY_KEEP_BYTES) {
        bh_region_discard(bh_submit_reply(&conns->world->submit, idx),
                          conns->world->limits.reply_bytes);
    }
    *conn = (struct bh_conn){.fd = -1, .buffer = conn->buffer};
    conns->open_cnt--;
}

static bool
entry_free(const struct bh_conns *conns, uint32_t idx)
{
    const struct bh_world *world = conns->world;
    /* A predecessor's connection is in use until egress has closed it, and one of ours until egress has
       dropped what was asked after it closed: the slots of that question are named here only. */
    struct bh_ask ask = bh_ask_load(&world->submit, idx);
    return !conns->list[idx].open && ask.gen == bh_conn_closed_load(&world->edge, idx) &&
           (ask.cnt & 0xffffu) == bh_answer_load(&world->edge, idx).answered;
}

static void
conn_accept(struct bh_conns *conns, int fd, uint64_t now_ns)
{
    uint32_t cnt = conns->world->limits.conns;
    uint32_t idx = 0;
    while (idx < cnt && !entry_free(conns, idx)) {
        idx++;
    }
    struct bh_http *http = idx < cnt ? bh_http_new(BH_BODY_BYTES) : NULL;
    if (http == NULL) {
        static struct bh_log_site site;
        bh_log_limited(
            &site, now_ns, "connections=%u all in use; a new one was closed", conns->open_cnt);
        close(fd);
        return;
    }
    struct bh_conn *conn = &conns->list[idx];
    uint32_t gen = bh_ask_load(&conns->world->submit, idx).gen + 1;
    *conn = (struct bh_conn){.open = true,
                             .fd = fd,
                             .gen = gen == 0 ? 1 : gen,
                             .asked = bh_answer_load(&conns->world->edge, idx).answered,
                             .http = http,
                             .since_ns = now_ns,
                             .buffer = conn->buffer};
    /* Relaxed: the ask of this life, stored next, makes it visible (edge conn.ask). */
    bh_word_store_relaxed(&conns->world->submit.conns[idx].epoch, conns->world->epoch);
    bh_ask_store(&conns->world->submit, idx, (struct bh_ask){.gen = conn->gen, .cnt = conn->asked});
    conns->open_cnt++;
    (void)hand_over(conns, idx);
    conn_advance(conns, idx, now_ns);
}

static void
request_forget(struct bh_conn *conn)
{
    bh_http_reset(conn->http);
    conn->continued = false;
    conn->admitted = false;
}

/* One parser call on what is buffered. Returns false when more bytes are needed. */
static bool
parse_buffered(struct bh_conns *conns, uint32_t idx)
{
    struct bh_conn *conn = &conns->list[idx];
    size_t used = 0;
    uint32_t asked = conn->asked;
    enum bh_status status =
        bh_http_feed(conn->http, conn->buffer + conn->off, conn->len - conn->off, &used);
    const struct bh_http_request *request = bh_http_request(conn->http);
    conn->off += (uint32_t)used;
    switch (status) {
    case BH_OK:
        bh_metric_add(&conns->world->status[BH_ROLE_TOKENIZER], BH_METRIC_http_requests, 1);
        bh_role_beat(conns->world); /* many may be complete at once, and each takes its time */
        conns->on_request(conns->role, idx);
        BH_CHECK(conn->asked > asked);
        request_forget(conn);
        return true;
    case BH_EINVAL: {
        bool close = !request->keep_alive;
        reply_fault(conns, idx, &request->fault, close);
        request_forget(conn);
        return true;
    }
    default:
        if (request->head_done && !conn->admitted) {
            conn->admitted = true;
            if (!conns->on_head(conns->role, idx)) {
                request_forget(conn);
                return true;
            }
        }
        if (request->head_done && request->expect_continue && !conn->continued) {
            conn->continued = true;
            bh_conn_ask(conns, idx, &(struct bh_question){.kind = BH_QUESTION_INTERIM});
            return true;
        }
        return false;
    }
}

/* Whatever can happen next on this connection happens: parse, ask, read, release. */
static void
conn_advance(struct bh_conns *conns, uint32_t idx, uint64_t now_ns)
{
    struct bh_conn *conn = &conns->list[idx];
    if (!conn->open) {
        return;
    }
    if (bh_conn_closed_load(&conns->world->edge, idx) == conn->gen) {
        if (!conn->recv_pending) {
            conn_release(conns, idx);
        }
        return;
    }
    if (!conn->handed && !hand_over(conns, idx)) {
        return;
    }
    while (!conn->ended && !conn->recv_pending && !question_open(conns, idx)) {
        if (bh_http_idle(conn->http)) {
            /* A request has its own limit, from its first byte on, however slowly the rest comes. */
            conn->since_ns = now_ns;
        }
        if (conn->off == conn->len || !parse_buffered(conns, idx)) {
            conn->off = 0;
            conn->len = 0;
            arm_recv(conns, idx);
        }
    }
    if (conn->ended && !conn->recv_pending && !conn->eof) {
        /* What still comes is read into nothing, until egress has closed: a client that sends and does
           not look must find the answer when it does. */
        arm_recv(conns, idx);
    }
}

static void
conn_received(struct bh_conns *conns, uint32_t idx, uint32_t gen, int32_t result, uint64_t now_ns)
{
    struct bh_conn *conn = &conns->list[idx];
    if (!conn->open || conn->gen != gen) {
        return;
    }
    conn->recv_pending = false;
    if (result == -EINTR || result == -EAGAIN) {
        conn_advance(conns, idx, now_ns);
        return;
    }
    if (result <= 0) {
        conn->eof = true;
        if (bh_conn_closed_load(&conns->world->edge, idx) == gen) {
            conn_release(conns, idx);
        } else if (!conn->ended) {
            hang_up(conns, idx);
        }
        return;
    }
    conn->off = 0;
    conn->len = (uint32_t)result;
    conn_advance(conns, idx, now_ns);
}

static bool
hint_take(void *role, uint32_t producer, struct bh_hint hint)
{
    struct bh_conns *conns = role;
    (void)producer;
    if (bh_hint_kind(hint) != BH_HINT_ANSWERED || bh_hint_idx(hint) >= conns->world->limits.conns) {
        return false;
    }
    conn_advance(conns, bh_hint_idx(hint), conns->now_ns);
    return true;
}

static uint32_t
take_hints(struct bh_conns *conns)
{
    bool scan = false;
    uint32_t taken =
        bh_world_hints(conns->world, BH_ROLE_EGRESS, BH_RING_DEPTH, hint_take, conns, &scan);
    for (uint32_t idx = 0; scan && idx < conns->world->limits.conns; idx++) {
        conn_advance(conns, idx, conns->now_ns);
    }
    return taken;
}

uint32_t
bh_conns_step(struct bh_conns *conns, uint64_t now_ns)
{
    conns->now_ns = now_ns;
    uint32_t done = 0;
    uint64_t user_data;
    int32_t result;
    bool more;
    while (done < URING_ENTRIES && bh_uring_next(&conns->uring, &user_data, &result, &more)) {
        done++;
        switch ((enum what)(user_data >> 56)) {
        case WHAT_ACCEPT:
            if (result >= 0) {
                conn_accept(conns, result, now_ns);
            }
            /* Refused (no descriptor left, for instance): tend tries again, not at once. */
            conns->accepting = more;
            if (!more && result >= 0) {
                arm_accept(conns);
            }
            break;
        case WHAT_BELL:
            (void)bh_os_event_wait(conns->world->bell_fds[BH_ROLE_TOKENIZER], 0);
            arm_bell(conns);
            break;
        case WHAT_RECV:
        default:
            conn_received(conns,
                          (uint32_t)(user_data >> 32) & 0xffffffu,
                          (uint32_t)user_data,
                          result,
                          now_ns);
            break;
        }
    }
    done += take_hints(conns);
    bh_uring_submit(&conns->uring);
    return done;
}

/* A new egress knows no descriptor: it gets all of them again (twice is harmless). */
static void
hand_over_again(struct bh_conns *conns)
{
    uint32_t epoch = bh_role_epoch(&conns->world->control, BH_ROLE_EGRESS);
    if (epoch == conns->egress_epoch) {
        return;
    }
    conns->egress_epoch = epoch;
    for (uint32_t idx = 0; idx < conns->world->limits.conns; idx++) {
        conns->list[idx].handed = false;
    }
}

void
bh_conns_tend(struct bh_conns *conns, uint64_t now_ns)
{
    hand_over_again(conns);
    if (!conns->accepting) {
        arm_accept(conns);
    }
    for (uint32_t idx = 0; idx < conns->world->limits.conns; idx++) {
        struct bh_conn *conn = &conns->list[idx];
        conn_advance(conns, idx, now_ns);
        if (!conn->open || conn->ended || !conn->recv_pending || question_open(conns, idx)) {
            continue;
        }
        uint64_t waited_ms = (now_ns - conn->since_ns) / 1000000u;
        if (bh_http_idle(conn->http)) {
            if (waited_ms > BH_IDLE_CONN_MS) {
                hang_up(conns, idx);
            }
        } else if (waited_ms > BH_HEADER_MS) {
            struct bh_fault fault;
            bh_fault_set(&fault, BH_ERROR_REQUEST_TIMEOUT, NULL);
            reply_fault(conns, idx, &fault, true);
        }
    }
    bh_metric_set(&conns->world->status[BH_ROLE_TOKENIZER], BH_METRIC_connections, conns->open_cnt);
    bh_uring_submit(&conns->uring);
}

void
bh_conns_sleep(struct bh_conns *conns, uint64_t timeout_ns)
{
    bh_uring_wait(&conns->uring, timeout_ns);
}

bool
bh_conns_pending(struct bh_conns *conns)
{
    struct bh_hint hint;
    return io_uring_cq_ready(&conns->uring.ring) > 0 ||
           bh_ring_peek(&conns->world->rx[BH_ROLE_EGRESS], &hint) != BH_EMPTY ||
           bh_ring_peek(&conns->world->rx[BH_ROLE_LEDGER], &hint) != BH_EMPTY;
}
