/* Client connections as egress sees them: the only process that writes to them. */
#ifndef BH_EGRESS_CONN_H
#define BH_EGRESS_CONN_H

#include "src/core/uring.h"
#include "src/egress/question.h"

struct bh_client {
    bool known;     /* the descriptor of this life is here */
    bool busy;      /* a question is open */
    bool lingering; /* the last answer is out; waits for the client to end its side */
    bool ending;    /* waits for the kernel to let go of the descriptor */
    bool gone;      /* the client went away */
    bool send_pending;
    bool poll_pending;
    int fd;
    uint32_t gen;
    uint32_t tokenizer_epoch; /* of the tokenizer that reads it */
    uint32_t answered;        /* questions answered in this life */
    uint32_t off;             /* out[off..len) is not yet taken by the kernel */
    uint32_t sent_frames;     /* frames the kernel has taken */
    uint64_t taken_ns;        /* when it last took bytes, or began to linger */
    struct bh_bytes out;
    struct bh_asked asked;
};

struct bh_clients {
    struct bh_answerer answerer;
    struct bh_uring uring;
    struct bh_client *list; /* [limits.conns] */
    uint64_t now_ns;        /* of the present step */
    uint32_t *slot_client;  /* [slots] connection whose question has this slot */
};

BH_MUST_USE enum bh_status
bh_clients_open(struct bh_clients *clients, struct bh_world *world, struct bh_vocab *vocab);
BH_MUST_USE enum bh_status bh_clients_start(struct bh_clients *clients);

/* bh_clients_step - completions, hints, and whatever they make possible; returns how many. */
uint32_t bh_clients_step(struct bh_clients *clients, uint64_t now_ns);
/* bh_clients_tend - look at every connection: what hints may have missed, pings, slow clients. */
void bh_clients_tend(struct bh_clients *clients, uint64_t now_ns);
void bh_clients_sleep(struct bh_clients *clients, uint64_t timeout_ns);
bool bh_clients_pending(struct bh_clients *clients);

#endif
