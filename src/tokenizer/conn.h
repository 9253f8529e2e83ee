/* Client connections as the tokenizer sees them: sockets it reads, never writes. What it has to say
   to a client becomes a question to egress, one open question per connection. */
#ifndef BH_TOKENIZER_CONN_H
#define BH_TOKENIZER_CONN_H

#include "src/api/http.h"
#include "src/core/uring.h"
#include "src/core/world.h"

#define BH_CONN_BUFFER 16384u

struct bh_conn {
    bool open;
    bool handed;       /* egress has the descriptor of this life */
    bool recv_pending; /* the kernel may write into `buffer` */
    bool ended;        /* no more questions: the last one closes */
    bool eof;          /* the client will send nothing more */
    bool continued;    /* "100 Continue" was asked for */
    bool admitted;     /* the head of the present request was looked at */
    int fd;
    uint32_t gen;
    uint32_t asked; /* questions put */
    uint32_t off;   /* buffer[off..len) is not parsed yet */
    uint32_t len;
    uint32_t reply_used; /* most bytes the reply area held in this life */
    uint64_t since_ns;   /* when the present wait for bytes began */
    struct bh_http *http;
    char *buffer; /* [BH_CONN_BUFFER] */
};

/* What arrived on a connection, for whoever answers (request.h). */
typedef void bh_conn_request_fn(void *role, uint32_t conn_idx);
/* May the request go on? False: it was answered, and the connection ends. */
typedef bool bh_conn_head_fn(void *role, uint32_t conn_idx);

struct bh_conns {
    struct bh_world *world;
    struct bh_uring uring;
    struct bh_conn *list; /* [limits.conns] */
    bool accepting;       /* an accept is armed */
    uint64_t now_ns;      /* of the present step */
    uint32_t egress_epoch;
    uint32_t open_cnt;
    bh_conn_head_fn *on_head;       /* the head of a request is in conn.http, its body is not */
    bh_conn_request_fn *on_request; /* a complete HTTP request is in conn.http */
    void *role;
};

BH_MUST_USE enum bh_status bh_conns_open(struct bh_conns *conns,
                                         struct bh_world *world,
                                         bh_conn_head_fn *on_head,
                                         bh_conn_request_fn *on_request,
                                         void *role);

/* bh_conns_start - make the io_uring, begin accepting, learn which entries a predecessor left in use. */
BH_MUST_USE enum bh_status bh_conns_start(struct bh_conns *conns);

/* bh_conns_step - take completions and ANSWERED hints; returns how many. */
uint32_t bh_conns_step(struct bh_conns *conns, uint64_t now_ns);
void bh_conns_tend(struct bh_conns *conns, uint64_t now_ns);
void bh_conns_sleep(struct bh_conns *conns, uint64_t timeout_ns);
bool bh_conns_pending(struct bh_conns *conns);

/* bh_conn_ask - put the next question of a connection; question->close ends it afterwards. */
void bh_conn_ask(struct bh_conns *conns, uint32_t conn_idx, const struct bh_question *question);

/* bh_conn_reply - put a complete HTTP response as a question. Too long for the reply area: a 500. */
void bh_conn_reply(struct bh_conns *conns,
                   uint32_t conn_idx,
                   const struct bh_bytes *response,
                   bool close);

#endif
