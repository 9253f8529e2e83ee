/* Token ids back to text, a token at a time: bh_detok cuts the byte stream into whole characters, so
   that nobody is sent half of one, and bh_stopper watches the text for stop strings and holds back
   what could be the beginning of one. Both are plain structs without pointers: a function of the
   tokens given so far, whatever the moments, so that an egress that was restarted and is fed the
   same token log sends the same bytes. Pure. */
#ifndef BH_TEXT_DETOK_H
#define BH_TEXT_DETOK_H

#include "shm/record.h"
#include "src/text/vocab.h"

struct bh_detok {
    uint8_t held[4]; /* the unfinished character */
    uint32_t held_len;
};

/* Room that one push or finish can need for `len` bytes of input: each may become U+FFFD. */
#define BH_DETOK_OUT(len)  (3 * ((size_t)(len) + 3))
#define BH_DETOK_TOKEN_OUT BH_DETOK_OUT(BH_VOCAB_BYTES_MAX)

/* bh_detok_init - nothing seen yet. */
void bh_detok_init(struct bh_detok *detok);

/* bh_detok_push - add bytes; writes the characters that are now decided to out (room for
   BH_DETOK_OUT(len)), broken parts as U+FFFD, and returns their length. Always valid UTF-8. */
size_t bh_detok_push(struct bh_detok *detok, const uint8_t *bytes, size_t len, uint8_t *out);

/* bh_detok_token - push what token `id` prints; control tokens print nothing unless show_control.
   out has BH_DETOK_TOKEN_OUT bytes. An id that is no token prints nothing. */
size_t bh_detok_token(struct bh_detok *detok,
                      const struct bh_vocab *vocab,
                      uint32_t id,
                      bool show_control,
                      uint8_t *out);

/* bh_detok_finish - the answer is over: an unfinished character becomes one U+FFFD. */
size_t bh_detok_finish(struct bh_detok *detok, uint8_t out[4]);

/* Stop strings of one request. Bytes in, bytes that may be sent out. */
struct bh_stopper {
    uint32_t cnt;
    uint16_t start[BH_STOP_MAX];
    uint16_t len[BH_STOP_MAX];
    uint16_t state[BH_STOP_MAX];          /* how much of string i the newest text is */
    uint16_t fallback[BH_STOP_BYTES_MAX]; /* Knuth-Morris-Pratt, per string */
    uint8_t bytes[BH_STOP_BYTES_MAX];
    uint8_t held[BH_STOP_BYTES_MAX]; /* text that could still turn into a stop string */
    uint32_t held_len;
    uint64_t seen; /* bytes given */
    int32_t hit;   /* index of the string that was met, -1 none */
};

/* bh_stopper_init - from the layout of a request record: string i is
   bytes[end[i-1]..end[i]). cnt 0 is fine and holds nothing back.
   BH_OK      ready
   BH_EINVAL  cnt above BH_STOP_MAX, an end that goes down or beyond the array, an empty string */
BH_MUST_USE enum bh_status bh_stopper_init(struct bh_stopper *stopper,
                                           uint32_t cnt,
                                           const uint16_t end[BH_STOP_MAX],
                                           const char bytes[BH_STOP_BYTES_MAX]);

/* bh_stopper_push - add text; copies what may be sent to out (room for len + BH_STOP_BYTES_MAX) and
   returns its length. The answer ends at the stop string that is complete first, in bytes; among
   those complete at the same byte the one that begins first. Then stopper->hit is its index, the
   text before it has been returned, and later pushes return nothing. */
size_t bh_stopper_push(struct bh_stopper *stopper, const uint8_t *text, size_t len, uint8_t *out);

/* bh_stopper_finish - the answer ended otherwise: what was held back, unless a stop string was met.
   out has BH_STOP_BYTES_MAX bytes. */
size_t bh_stopper_finish(struct bh_stopper *stopper, uint8_t *out);

#endif
