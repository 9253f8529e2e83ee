/* A question and its answer, rendered frame by frame. Knows no sockets. */
#ifndef BH_EGRESS_QUESTION_H
#define BH_EGRESS_QUESTION_H

#include "src/egress/choice.h"

#define BH_FRAMES_AT_ONCE 32u /* tokens rendered into one send at most */

struct bh_answerer {
    struct bh_world *world;
    struct bh_vocab *vocab;
};

/* One open question. Frame 0 of a stream is its head; with one choice, frame k is what token k - 1
   adds, which may be nothing, and the last of them has the end with it. Other answers are one frame. */
struct bh_asked {
    struct bh_question question;
    uint32_t number; /* of the question on its connection */
    struct bh_choice *choices;
    uint32_t choice_cnt;
    struct bh_answer answer;
    uint32_t frames; /* rendered so far */
    bool head;       /* the status line is rendered */
    bool complete;   /* nothing more will be rendered */
    bool close;      /* the connection ends after it */
    bool stream;
    bool told_first;   /* time to first token was observed */
    bool skipping;     /* frames that a predecessor sent are made again: they are not observed */
    uint64_t token_ns; /* when a token was rendered last */
    uint64_t ping_ns;  /* when something was rendered last, for pings */
};

/* bh_asked_open - read question `number` of a connection. False: the tokenizer's bytes are no
   question; the connection is to be ended. */
bool bh_asked_open(struct bh_asked *asked,
                   const struct bh_answerer *answerer,
                   uint32_t conn_idx,
                   uint32_t conn_gen,
                   uint32_t number);
void bh_asked_close(struct bh_asked *asked);

/* bh_asked_render - append what can be said now to `out`. Returns the number of frames appended. */
uint32_t bh_asked_render(struct bh_asked *asked,
                         struct bh_answerer *answerer,
                         uint32_t conn_idx,
                         uint64_t now_ns,
                         struct bh_bytes *out);

/* bh_asked_skip - a successor goes on at frame `frames`: render those before it into nothing. False:
   this answer cannot be continued. */
bool bh_asked_skip(struct bh_asked *asked,
                   struct bh_answerer *answerer,
                   uint32_t frames,
                   uint64_t now_ns);

/* bh_asked_ping - a stream that has said nothing for BH_PING_MS says so. True if bytes were appended;
   *frames is 1 if the head went with it, else 0: a ping by itself is no frame. */
bool bh_asked_ping(struct bh_asked *asked,
                   struct bh_answerer *answerer,
                   uint64_t now_ns,
                   struct bh_bytes *out,
                   uint32_t *frames);

/* bh_asked_edges - store flags (GONE, CLOSED, STOP) into the edge words of all choices whose slots
   still have their generation, and tell the ledger. */
void bh_asked_edges(const struct bh_asked *asked, struct bh_answerer *answerer, uint32_t flags);

/* Bodies of MODELS, HEALTH and METRICS, heads included (info.c). */
void bh_info_models(const struct bh_world *world, uint32_t flags, struct bh_bytes *out);
void bh_info_health(const struct bh_world *world, uint32_t flags, struct bh_bytes *out);
void bh_info_metrics(const struct bh_world *world, uint32_t flags, struct bh_bytes *out);

#endif
