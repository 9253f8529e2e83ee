/* One choice of an answer: from the token log to text. A function of the record and the log alone, so
   that a successor that is fed the same log makes the same text. Pure but for reading the log. */
#ifndef BH_EGRESS_CHOICE_H
#define BH_EGRESS_CHOICE_H

#include "src/api/answer.h"
#include "src/core/world.h"
#include "src/text/detok.h"
#include "src/text/vocab.h"

struct bh_choice {
    struct bh_record record;
    struct bh_detok detok;
    struct bh_stopper stopper;
    uint32_t used;       /* log tokens taken into text */
    uint32_t completion; /* tokens of the answer, for usage */
    uint64_t cached;     /* prompt tokens that the prefix cache had, for usage */
    bool over;           /* no more text will come */
    bool last_sent;      /* streams: the finish event is rendered */
    bool first_sent;     /* streams: the role event is rendered */
    bool stop_found;     /* a stop string; the edge word says so */
    enum bh_finish finish;
    enum bh_cause cause;  /* not NONE: ended with this error */
    bool lost;            /* its life is over and nobody said how */
    struct bh_bytes text; /* not rendered yet (streams), or all (whole answers) */
    uint64_t text_chars;  /* characters of tokens rendered so far: offsets of completions */
    /* Tokens with log-probabilities that are not rendered yet. tops holds BH_LOG_TOP_MAX a token. */
    struct bh_answer_token *tokens;
    struct bh_answer_top *tops;
    uint32_t token_cnt;
    uint32_t token_cap;
};

/* bh_choice_new - prepare for a checked record. False: no memory. */
bool bh_choice_new(struct bh_choice *choice, const struct bh_record *record);
void bh_choice_delete(struct bh_choice *choice);

/* bh_choice_pull - look at request and log; take at most `tokens_max` more tokens into text. Returns
   how many tokens were taken. */
uint32_t bh_choice_pull(struct bh_choice *choice,
                        const struct bh_world *world,
                        const struct bh_vocab *vocab,
                        uint32_t tokens_max);

/* bh_choice_view - what is not rendered yet, for bh_event_text or bh_answer_body. */
struct bh_answer_choice bh_choice_view(const struct bh_choice *choice);
/* bh_choice_rendered - forget what bh_choice_view showed. */
void bh_choice_rendered(struct bh_choice *choice);

#endif
