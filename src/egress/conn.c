/* Sockets: receiving them, writing answers, noticing that a client went away, ending them. See
   conn.h. Order of stores: CLOSED on every slot of an answer, then answered + 1, then the hint, so
   that slots are let go before the next question is asked. */
#include "src/egress/conn.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "shm/hook.h"
#include "src/core/config.h"
#include "src/core/log.h"
#include "src/core/os.h"

#define URING_ENTRIES 1024u
#define OUT_MAX       (64u << 20)
#define NO_CLIENT     UINT32_MAX

enum what { WHAT_BELL = 1, WHAT_HANDOVER = 2, WHAT_SEND = 3, WHAT_POLL = 4 };

static uint64_t
tag(enum what what, uint32_t idx, uint32_t gen)
{
    return ((uint64_t)what << 56) | ((uint64_t)idx << 32) | gen;
}

enum bh_status
bh_clients_open(struct bh_clients *clients, struct bh_world *world, struct bh_vocab *vocab)
{
    *clients = (struct bh_clients){.answerer = {.world = world, .vocab = vocab}};
    clients->list = calloc(world->limits.conns, sizeof(*clients->list));
    clients->slot_client = calloc(world->limits.slots, sizeof(*clients->slot_client));
    if (clients->list == NULL || clients->slot_client == NULL) {
        return BH_ESYS;
    }
    for (uint32_t i = 0; i < world->limits.conns; i++) {
        clients->list[i].fd = -1;
        bh_bytes_init(&clients->list[i].out, OUT_MAX);
    }
    for (uint32_t i = 0; i < world->limits.slots; i++) {
        clients->slot_client[i] = NO_CLIENT;
    }
    return BH_OK;
}

static void
arm_poll(
    struct bh_clients *clients, enum what what, uint32_t idx, uint32_t gen, int fd, uint32_t events)
{
    struct io_uring_sqe *sqe = bh_uring_sqe(&clients->uring);
    io_uring_prep_poll_add(sqe, fd, events);
    io_uring_sqe_set_data64(sqe, tag(what, idx, gen));
}

static void
tell_tokenizer(struct bh_clients *clients, uint32_t idx, uint32_t gen)
{
    bh_world_tell(
        clients->answerer.world, BH_ROLE_TOKENIZER, bh_hint_make(BH_HINT_ANSWERED, idx, gen));
}

/* Question `number` of a connection that nobody will answer: its slots are let go. */
static void
question_drop(struct bh_clients *clients, uint32_t idx, uint32_t gen, uint32_t number)
{
    struct bh_asked asked;
    (void)bh_asked_open(&asked, &clients->answerer, idx, gen, number);
    bh_asked_edges(&asked, &clients->answerer, BH_EDGE_GONE);
    bh_asked_edges(&asked, &clients->answerer, BH_EDGE_CLOSED);
    bh_asked_close(&asked);
}

/* The tokenizer may ask once more before it sees that the life is over; it uses the entry again only
   when that question is answered too. */
static void
question_late(struct bh_clients *clients, uint32_t idx)
{
    struct bh_world *world = clients->answerer.world;
    struct bh_ask ask = bh_ask_load(&world->submit, idx);
    uint32_t answered = bh_answer_load(&world->edge, idx).answered;
    if (ask.gen == bh_conn_closed_load(&world->edge, idx) && (ask.cnt & 0xffffu) != answered) {
        question_drop(clients, idx, ask.gen, answered + 1);
        bh_answer_store(&world->edge, idx, (struct bh_answer_view){.answered = answered + 1});
    }
}

/* The connection's life is over for both sides. Answers are counted on in the next life. */
static void
life_end(struct bh_clients *clients, uint32_t idx, uint32_t gen, uint32_t answered)
{
    struct bh_world *world = clients->answerer.world;
    bh_answer_store(&world->edge, idx, (struct bh_answer_view){.answered = answered});
    bh_conn_closed_store(&world->edge, idx, gen);
    question_late(clients, idx);
    tell_tokenizer(clients, idx, gen);
}

static void
forget_question(struct bh_clients *clients, uint32_t idx)
{
    struct bh_client *client = &clients->list[idx];
    for (uint32_t c = 0; c < client->asked.choice_cnt; c++) {
        uint32_t slot = client->asked.choices[c].record.slot;
        if (clients->slot_client[slot] == idx) {
            clients->slot_client[slot] = NO_CLIENT;
        }
    }
    bh_asked_close(&client->asked);
    client->busy = false;
}

/* Second half of ending: the kernel holds no buffer and no descriptor of ours any more. */
static void
client_release(struct bh_clients *clients, uint32_t idx)
{
    struct bh_client *client = &clients->list[idx];
    if (client->send_pending || client->poll_pending) {
        return;
    }
    uint32_t gen = client->gen;
    uint32_t answered = client->answered;
    close(client->fd);
    bh_bytes_free(&client->out);
    struct bh_bytes out = client->out;
    *client = (struct bh_client){.fd = -1, .out = out};
    life_end(clients, idx, gen, answered);
}

/* First half: nobody will read the rest of the answer, and the client learns that it is over. */
static void
client_end(struct bh_clients *clients, uint32_t idx)
{
    struct bh_client *client = &clients->list[idx];
    if (client->ending) {
        return;
    }
    client->ending = true;
    if (client->busy) {
        bh_asked_edges(&client->asked, &clients->answerer, BH_EDGE_GONE);
        bh_asked_edges(&client->asked, &clients->answerer, BH_EDGE_CLOSED);
        forget_question(clients, idx);
        client->answered++;
    }
    (void)shutdown(client->fd, SHUT_RDWR);
    client_release(clients, idx);
}

/* A question whose answer cannot begin: its slots, as far as the records say, are let go. */
static void
question_refuse(struct bh_clients *clients, uint32_t idx)
{
    struct bh_world *world = clients->answerer.world;
    bh_metric_add(&world->status[BH_ROLE_EGRESS], BH_METRIC_hints_refused, 1);
    clients->list[idx].busy = true;
    client_end(clients, idx);
}

static void
question_begin(struct bh_clients *clients, uint32_t idx, uint64_t now_ns)
{
    struct bh_client *client = &clients->list[idx];
    struct bh_world *world = clients->answerer.world;
    if (!bh_asked_open(
            &client->asked, &clients->answerer, idx, client->gen, client->answered + 1)) {
        question_refuse(clients, idx);
        return;
    }
    client->busy = true;
    client->taken_ns = now_ns;
    for (uint32_t c = 0; c < client->asked.choice_cnt; c++) {
        clients->slot_client[client->asked.choices[c].record.slot] = idx;
    }
    struct bh_answer_view answer = bh_answer_load(&world->edge, idx);
    client->sent_frames = answer.sent;
    if (client->asked.question.kind == BH_QUESTION_HANGUP || answer.offered != answer.sent ||
        !bh_asked_skip(&client->asked, &clients->answerer, answer.sent, now_ns)) {
        client_end(clients, idx);
    }
}

/* The last answer of a connection is with the kernel. Closing now would throw it away if the client is
   still sending: bytes that arrive at a closed socket are answered with a reset. So the client learns
   that nothing more comes, the tokenizer reads what it sends into nothing, and its end ends it. */
static void
linger(struct bh_clients *clients, uint32_t idx, uint64_t now_ns)
{
    struct bh_client *client = &clients->list[idx];
    client->lingering = true;
    client->taken_ns = now_ns;
    (void)shutdown(client->fd, SHUT_WR);
}

static void
question_end(struct bh_clients *clients, uint32_t idx, uint64_t now_ns)
{
    struct bh_client *client = &clients->list[idx];
    struct bh_world *world = clients->answerer.world;
    bool close_after = client->asked.close;
    bh_asked_edges(&client->asked, &clients->answerer, BH_EDGE_CLOSED);
    BH_HOOK("egress.answer:before_answered");
    forget_question(clients, idx);
    client->answered++;
    if (close_after) {
        /* `answered` is said when the life ends: nothing is asked before. */
        linger(clients, idx, now_ns);
        return;
    }
    client->sent_frames = 0;
    bh_answer_store(
        &world->edge, idx, (struct bh_answer_view){.answered = client->answered & 0xffffu});
    tell_tokenizer(clients, idx, client->gen);
}

static void
send_rest(struct bh_clients *clients, uint32_t idx)
{
    struct bh_client *client = &clients->list[idx];
    struct io_uring_sqe *sqe = bh_uring_sqe(&clients->uring);
    io_uring_prep_send(sqe,
                       client->fd,
                       client->out.data + client->off,
                       client->out.len - client->off,
                       MSG_NOSIGNAL);
    io_uring_sqe_set_data64(sqe, tag(WHAT_SEND, idx, client->gen));
    client->send_pending = true;
}

static void
send_begin(struct bh_clients *clients, uint32_t idx, uint32_t frames, uint64_t now_ns)
{
    struct bh_client *client = &clients->list[idx];
    struct bh_world *world = clients->answerer.world;
    if (client->out.failed) {
        bh_log("answer=too_large limit_bytes=%u a connection was ended", OUT_MAX);
        client_end(clients, idx);
        return;
    }
    /* A ping without a head is no frame, but half of one must not be followed by anything: it is
       offered like one. */
    bh_answer_store(
        &world->edge,
        idx,
        (struct bh_answer_view){.answered = client->answered & 0xffffu,
                                .offered = client->sent_frames + (frames == 0 ? 1 : frames),
                                .sent = client->sent_frames});
    BH_HOOK("egress.frame:offered");
    client->off = 0;
    client->taken_ns = now_ns;
    client->sent_frames += frames;
    if (client->out.len > 0) {
        send_rest(clients, idx);
    }
}

static void
frames_sent(struct bh_clients *clients, uint32_t idx)
{
    struct bh_client *client = &clients->list[idx];
    BH_HOOK("egress.frame:before_sent");
    bh_answer_store(&clients->answerer.world->edge,
                    idx,
                    (struct bh_answer_view){.answered = client->answered & 0xffffu,
                                            .offered = client->sent_frames,
                                            .sent = client->sent_frames});
    bh_bytes_clear(&client->out);
}

/* Whatever can happen next on this connection happens. */
static void
client_advance(struct bh_clients *clients, uint32_t idx, uint64_t now_ns)
{
    struct bh_client *client = &clients->list[idx];
    struct bh_world *world = clients->answerer.world;
    while (client->known && !client->lingering && !client->ending && !client->send_pending) {
        if (client->gone) {
            client_end(clients, idx);
            return;
        }
        if (!client->busy) {
            struct bh_ask ask = bh_ask_load(&world->submit, idx);
            if (ask.gen == client->gen && (ask.cnt & 0xffffu) != (client->answered & 0xffffu)) {
                question_begin(clients, idx, now_ns);
                continue;
            }
            if (client->tokenizer_epoch <= bh_role_reaped(&world->control, BH_ROLE_TOKENIZER)) {
                client_end(clients, idx); /* nobody reads it any more */
            }
            return;
        }
        uint32_t frames =
            bh_asked_render(&client->asked, &clients->answerer, idx, now_ns, &client->out);
        bool ping =
            frames == 0 && !client->asked.complete &&
            bh_asked_ping(&client->asked, &clients->answerer, now_ns, &client->out, &frames);
        if (frames > 0 || ping) {
            send_begin(clients, idx, frames, now_ns);
            if (!client->ending && !client->send_pending) {
                frames_sent(clients, idx); /* frames without bytes: text that is held back */
            }
        } else if (client->asked.complete) {
            question_end(clients, idx, now_ns);
        } else {
            return;
        }
    }
}

static void
client_new(struct bh_clients *clients, uint32_t idx, uint32_t gen, int fd)
{
    struct bh_client *client = &clients->list[idx];
    struct bh_world *world = clients->answerer.world;
    if (client->known || bh_conn_closed_load(&world->edge, idx) == gen) {
        close(fd); /* handed over twice, or over already */
        return;
    }
    int one = 1;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    client->known = true;
    client->fd = fd;
    client->gen = gen;
    client->answered = bh_answer_load(&world->edge, idx).answered;
    /* Relaxed: stored before the descriptor was sent, and the kernel orders the two. */
    client->tokenizer_epoch = (uint32_t)bh_word_load_relaxed(&world->submit.conns[idx].epoch);
    arm_poll(clients, WHAT_POLL, idx, gen, fd, POLLRDHUP | POLLHUP | POLLERR);
    client->poll_pending = true;
}

/* One accepted socket out of the handover socket. False: nothing there. */
static bool
handover_take(struct bh_clients *clients, uint32_t *idx)
{
    struct bh_world *world = clients->answerer.world;
    uint32_t name[2] = {0, 0};
    struct iovec part = {.iov_base = name, .iov_len = sizeof(name)};
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control;
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = control.bytes,
                             .msg_controllen =
                                 CMSG_LEN(sizeof(int))}; /* one descriptor, never two */
    ssize_t got = recvmsg(world->handover_rx_fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (got < 0) {
        return false;
    }
    struct cmsghdr *head = CMSG_FIRSTHDR(&message);
    int fd = -1;
    if (head != NULL && head->cmsg_level == SOL_SOCKET && head->cmsg_type == SCM_RIGHTS &&
        head->cmsg_len == CMSG_LEN(sizeof(int))) {
        memcpy(&fd, CMSG_DATA(head), sizeof(int));
    }
    *idx = name[0];
    if (fd < 0) {
        return got > 0;
    }
    if (got != (ssize_t)sizeof(name) || name[0] >= world->limits.conns || name[1] == 0) {
        bh_metric_add(&world->status[BH_ROLE_EGRESS], BH_METRIC_hints_refused, 1);
        close(fd);
        *idx = NO_CLIENT;
        return true;
    }
    client_new(clients, name[0], name[1], fd);
    return true;
}

static uint32_t
handover_read(struct bh_clients *clients, uint64_t now_ns)
{
    uint32_t taken = 0;
    uint32_t idx = NO_CLIENT;
    while (taken < clients->answerer.world->limits.conns && handover_take(clients, &idx)) {
        if (idx < clients->answerer.world->limits.conns) {
            client_advance(clients, idx, now_ns);
        }
        taken++;
    }
    return taken;
}

enum bh_status
bh_clients_start(struct bh_clients *clients)
{
    static const uint8_t ops[] = {IORING_OP_SEND, IORING_OP_POLL_ADD};
    struct bh_world *world = clients->answerer.world;
    enum bh_status status = bh_uring_new(&clients->uring, URING_ENTRIES, ops, BH_COUNT(ops));
    if (status != BH_OK) {
        bh_log(
            "io_uring=refused errno=%d the kernel must allow io_uring (kernel.io_uring_disabled=0)",
            errno);
        return status;
    }
    arm_poll(clients, WHAT_BELL, 0, 0, world->bell_fds[BH_ROLE_EGRESS], POLLIN);
    arm_poll(clients, WHAT_HANDOVER, 0, 0, world->handover_rx_fd, POLLIN);
    bh_uring_submit(&clients->uring);
    return BH_OK;
}

static void
send_done(struct bh_clients *clients, uint32_t idx, int32_t result, uint64_t now_ns)
{
    struct bh_client *client = &clients->list[idx];
    client->send_pending = false;
    if (client->ending) {
        client_release(clients, idx);
        return;
    }
    if (result <= 0 && result != -EINTR && result != -EAGAIN) {
        client->gone = true;
    } else {
        client->off += result > 0 ? (uint32_t)result : 0;
        client->taken_ns = result > 0 ? now_ns : client->taken_ns;
        if (client->off < client->out.len && !client->gone) {
            send_rest(clients, idx);
            return;
        }
        frames_sent(clients, idx);
    }
    client_advance(clients, idx, now_ns);
}

static void
completion(struct bh_clients *clients, uint64_t user_data, int32_t result, uint64_t now_ns)
{
    struct bh_world *world = clients->answerer.world;
    uint32_t idx = (uint32_t)(user_data >> 32) & 0xffffffu;
    uint32_t gen = (uint32_t)user_data;
    switch ((enum what)(user_data >> 56)) {
    case WHAT_BELL:
        (void)bh_os_event_wait(world->bell_fds[BH_ROLE_EGRESS], 0);
        arm_poll(clients, WHAT_BELL, 0, 0, world->bell_fds[BH_ROLE_EGRESS], POLLIN);
        return;
    case WHAT_HANDOVER:
        (void)handover_read(clients, now_ns);
        arm_poll(clients, WHAT_HANDOVER, 0, 0, world->handover_rx_fd, POLLIN);
        return;
    case WHAT_SEND:
    case WHAT_POLL:
    default:
        break;
    }
    struct bh_client *client = &clients->list[idx];
    BH_CHECK(client->known && client->gen == gen);
    if ((enum what)(user_data >> 56) == WHAT_SEND) {
        send_done(clients, idx, result, now_ns);
        return;
    }
    client->poll_pending = false;
    client->gone = true;
    if (client->ending) {
        client_release(clients, idx);
    } else if (client->send_pending || client->lingering) {
        /* Bytes on their way may never be taken: shutdown makes the kernel give them up. */
        client_end(clients, idx);
    } else {
        client_advance(clients, idx, now_ns);
    }
}

static bool
hint_take(void *role, uint32_t producer, struct bh_hint hint)
{
    struct bh_clients *clients = role;
    const struct bh_limits *limits = &clients->answerer.world->limits;
    uint32_t idx = bh_hint_idx(hint);
    (void)producer;
    switch (bh_hint_kind(hint)) {
    case BH_HINT_ASK:
        if (idx >= limits->conns) {
            return false;
        }
        if (!clients->list[idx].known) {
            (void)handover_read(clients, clients->now_ns);
        }
        if (clients->list[idx].known) {
            client_advance(clients, idx, clients->now_ns);
        } else {
            question_late(clients, idx);
        }
        return true;
    case BH_HINT_STATE:
    case BH_HINT_LOG:
        if (idx >= limits->slots) {
            return false;
        }
        if (clients->slot_client[idx] != NO_CLIENT) {
            client_advance(clients, clients->slot_client[idx], clients->now_ns);
        }
        return true;
    default:
        return false;
    }
}

static uint32_t
take_hints(struct bh_clients *clients, uint32_t producer)
{
    bool scan = false;
    uint32_t taken =
        bh_world_hints(clients->answerer.world, producer, BH_RING_DEPTH, hint_take, clients, &scan);
    if (scan) {
        bh_clients_tend(clients, clients->now_ns);
    }
    return taken;
}

uint32_t
bh_clients_step(struct bh_clients *clients, uint64_t now_ns)
{
    clients->now_ns = now_ns;
    uint32_t done = 0;
    uint64_t user_data;
    int32_t result;
    bool more;
    while (done < URING_ENTRIES && bh_uring_next(&clients->uring, &user_data, &result, &more)) {
        completion(clients, user_data, result, now_ns);
        done++;
    }
    done += take_hints(clients, BH_ROLE_TOKENIZER);
    done += take_hints(clients, BH_ROLE_LEDGER);
    done += take_hints(clients, BH_ROLE_DECODE);
    bh_uring_submit(&clients->uring);
    return done;
}

/* Slots that nobody will ever close otherwise: a tokenizer that broke or died submitted them for a
   connection life that is over, or for a question that is answered already. The ledger's copy of the
   record says which; what is asked and not yet begun is left alone. */
static void
slots_orphaned_end(struct bh_clients *clients)
{
    struct bh_world *world = clients->answerer.world;
    for (uint32_t slot = 0; slot < world->limits.slots; slot++) {
        struct bh_request_view view = bh_request_load(&world->requests, slot);
        struct bh_edge_view edge = bh_edge_load(&world->edge, slot);
        if (view.state == BH_REQUEST_FREE || clients->slot_client[slot] != NO_CLIENT ||
            (edge.gen == view.gen && (edge.flags & BH_EDGE_CLOSED) != 0)) {
            continue;
        }
        const struct bh_record *record = &world->requests.records[slot];
        if (record->conn_gen != 0 && record->conn_idx < world->limits.conns) {
            struct bh_ask ask = bh_ask_load(&world->submit, record->conn_idx);
            uint32_t answered = bh_answer_load(&world->edge, record->conn_idx).answered;
            bool asked = ask.gen == record->conn_gen && ask.cnt == record->question;
            if (asked && ((answered + 1) & 0xffffu) == (record->question & 0xffffu)) {
                continue;
            }
        }
        bh_edge_store(
            &world->edge,
            slot,
            (struct bh_edge_view){.gen = view.gen, .flags = BH_EDGE_GONE | BH_EDGE_CLOSED});
        bh_world_tell(world, BH_ROLE_LEDGER, bh_hint_make(BH_HINT_EDGE, slot, view.gen));
    }
}

/* A life whose descriptor will never come: the tokenizer that had it is gone. An open question is a
   late one then. */
static void
orphan_end(struct bh_clients *clients, uint32_t idx)
{
    struct bh_world *world = clients->answerer.world;
    uint32_t gen = bh_ask_load(&world->submit, idx).gen;
    life_end(clients, idx, gen, bh_answer_load(&world->edge, idx).answered);
}

void
bh_clients_tend(struct bh_clients *clients, uint64_t now_ns)
{
    struct bh_world *world = clients->answerer.world;
    (void)handover_read(clients, now_ns);
    for (uint32_t idx = 0; idx < world->limits.conns; idx++) {
        struct bh_client *client = &clients->list[idx];
        if (!client->known) {
            /* The tokenizer of now has an epoch above the one that is reaped, and hands its own over. */
            uint32_t gen = bh_ask_load(&world->submit, idx).gen;
            question_late(clients, idx);
            /* Relaxed: the epoch of life `gen` was stored before its ask (edge conn.ask). */
            if (gen != bh_conn_closed_load(&world->edge, idx) &&
                bh_word_load_relaxed(&world->submit.conns[idx].epoch) <=
                    bh_role_reaped(&world->control, BH_ROLE_TOKENIZER)) {
                orphan_end(clients, idx);
            }
            continue;
        }
        uint64_t limit_ms = client->lingering ? BH_LINGER_MS : BH_SLOW_CLIENT_MS;
        if ((client->send_pending || client->lingering) && !client->ending &&
            now_ns - client->taken_ns > limit_ms * 1000000u) {
            client->gone = true;
            client_end(clients, idx);
        }
        client_advance(clients, idx, now_ns);
    }
    slots_orphaned_end(clients);
    bh_uring_submit(&clients->uring);
}

void
bh_clients_sleep(struct bh_clients *clients, uint64_t timeout_ns)
{
    bh_uring_wait(&clients->uring, timeout_ns);
}

bool
bh_clients_pending(struct bh_clients *clients)
{
    struct bh_hint hint;
    const uint32_t producers[] = {BH_ROLE_TOKENIZER, BH_ROLE_LEDGER, BH_ROLE_DECODE};
    for (uint32_t i = 0; i < BH_COUNT(producers); i++) {
        if (bh_ring_peek(&clients->answerer.world->rx[producers[i]], &hint) != BH_EMPTY) {
            return true;
        }
    }
    return io_uring_cq_ready(&clients->uring.ring) > 0;
}
