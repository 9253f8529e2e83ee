/* From a complete HTTP request to a question: authenticate, read the body, render, tokenize, compare
   with the published limit, submit. Everything that is wrong with a request is found here or in the
   ledger, before any page exists for it. */
#ifndef BH_TOKENIZER_REQUEST_H
#define BH_TOKENIZER_REQUEST_H

#include "src/api/keys.h"
#include "src/api/params.h"
#include "src/text/bpe.h"
#include "src/text/template.h"
#include "src/tokenizer/conn.h"

#define BH_EOG_MAX 16u

struct bh_front {
    struct bh_world *world;
    struct bh_conns conns;
    struct bh_keys *keys;
    struct bh_vocab *vocab;
    struct bh_bpe *bpe;
    struct bh_template *template; /* NULL: the model file has none, or it does not compile */
    char template_error[BH_TEMPLATE_MESSAGE_MAX];
    char *text; /* [text_max] rendered prompt */
    size_t text_max;
    uint32_t *ids; /* [ids_max] tokens of the prompts of one question, one after the other */
    size_t ids_max;
    uint32_t eog[BH_EOG_MAX]; /* tokens that end an answer */
    uint32_t eog_cnt;
    uint32_t
        token_bytes_max; /* of the longest token: a text longer than the context times this is too
                                 long, whatever its tokens are */
    uint32_t next_slot;  /* where the search for a free slot begins */
};

/* bh_front_request - the bh_conn_request_fn: exactly one question results. */
void bh_front_request(void *front, uint32_t conn_idx);

/* bh_front_head - may this request go on? Asked when its head is complete, so that nobody without a
   key makes the server hold a body. True: yes. False: a refusal was put as a question, and the
   connection ends after it. */
bool bh_front_head(void *front, uint32_t conn_idx);

/* bh_front_submit - turn tokenized prompts into records and submit them (submit.c). prompt_end[i] is the
   end of prompt i, of prompt_cnt, in front->ids. Returns false with *fault set when it does not fit or no slot is free. */
bool bh_front_submit(struct bh_front *front,
                     uint32_t conn_idx,
                     const struct bh_params *params,
                     uint32_t tenant,
                     const size_t *prompt_end,
                     uint32_t prompt_cnt,
                     struct bh_fault *fault);

#endif
