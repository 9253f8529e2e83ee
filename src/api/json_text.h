/* Single JSON values written as text. Reading JSON is jansson's work; writing needs no tree, and
   answers are written once a token. */
#ifndef BH_API_JSON_TEXT_H
#define BH_API_JSON_TEXT_H

#include "src/api/bytes.h"

/* The value written for a log-probability that JSON cannot carry (-inf, NaN) or that is lower
   still: the same stand-in that other engines use. */
#define BH_LOGPROB_MIN (-9999.0f)

/* bh_json_string - text[0..len) as a quoted JSON string. Escapes only what JSON demands: quote,
   backslash and bytes below 0x20. Other valid UTF-8 passes unchanged; each
   part that is not becomes one U+FFFD, so that the output is always valid. */
void bh_json_string(struct bh_bytes *out, const char *text, size_t len);

/* bh_json_logprob - a finite number in the form of %.9g (a float comes back exactly), never below
   BH_LOGPROB_MIN; NaN is written as BH_LOGPROB_MIN. */
void bh_json_logprob(struct bh_bytes *out, float logprob);

#endif
