/* The decode batch: its rows from joining to their last token. The role loop around it is role.c. */
#ifndef BH_DECODE_BATCH_H
#define BH_DECODE_BATCH_H

#include "src/model/sampler.h"
#include "src/worker/worker.h"

/* One request in the batch. `cnt` tokens are in its log; the KV of prompt_cnt + cnt - 1 tokens is in
   its pages, and each step feeds the token after those. */
struct bh_row {
    struct bh_sequence sequence;
    uint32_t cnt;
    uint32_t wanted; /* pages asked for by the last WANT report, 0: none */
    uint32_t token;  /* fed in the step at hand */
};

struct bh_decode {
    struct bh_worker worker;
    struct bh_row *rows; /* [rows_max] */
    uint32_t *batch;     /* [rows_max] row index of each sequence of the step */
    struct bh_seq *seqs; /* [rows_max] */
    uint32_t seq_cnt;
    float *logits; /* [rows_max][vocab] */
    struct bh_sampler *sampler;
};

BH_MUST_USE enum bh_status bh_decode_open(struct bh_decode *decode, struct bh_world *world);

/* bh_decode_join - prove everything about this request and put it into a free row; or release its
   order with the reason. False: no row is free now. */
bool bh_decode_join(struct bh_decode *decode, const struct bh_live *live);

/* bh_decode_attend - rows whose order or request is over leave; lists that grew are taken up. */
void bh_decode_attend(struct bh_decode *decode);

/* bh_decode_has_slot - is this slot in a row? */
bool bh_decode_has_slot(const struct bh_decode *decode, uint32_t slot);

/* bh_decode_begin - load all rows that have the page for their next token into a step; the others ask
   for it. Returns how many rows the step has. */
uint32_t bh_decode_begin(struct bh_decode *decode);

/* bh_decode_finish - after the last layer: check again what was read, sample, log, publish. */
void bh_decode_finish(struct bh_decode *decode);

/* bh_decode_runnable - could a step begin now? */
bool bh_decode_runnable(const struct bh_decode *decode);

#endif
