/* Pieces of JSON that whole answers and the events of a stream share. For this folder only. */
#ifndef BH_API_ANSWER_BODY_H
#define BH_API_ANSWER_BODY_H

#include "src/api/answer.h"

/* bh_put_start - {"id":...,"object":object,"created":...,"model":... without the closing brace. */
void bh_put_start(struct bh_bytes *out, const struct bh_answer *answer, const char *object);

/* bh_put_usage - the usage object. */
void bh_put_usage(struct bh_bytes *out, const struct bh_answer_usage *usage);

/* bh_put_finish - "stop", "length" or null. */
void bh_put_finish(struct bh_bytes *out, enum bh_finish finish);

/* bh_put_logprobs - the value of "logprobs" in the shape of chat or of completions; null if the
   choice carries none. */
void bh_put_logprobs(struct bh_bytes *out, bool chat, const struct bh_answer_choice *choice);

#endif
