/* Marks: how a client's text is kept from forging a control token. Before rendering, punctuation in
   the client's strings is replaced by private noncharacters, each of which stands for one character:
   for every control token at least one of its characters can be replaced so ("<|im_start|>": the
   bar). One character becomes one character, so whatever a template does to a string (trim, slice,
   join, tojson, length), the marks stay where the client's characters are. The encoder turns marks
   back, and never makes a control token of a span that holds one.

   Marking every such character is safe but visible to a template that looks for one of them in a
   message. So a conversation is rendered twice, if need be: once with only whole control tokens
   marked, once with every character marked, and the first is used only if both hold the same control
   tokens (bh_marks_same_control). Pure. */
#ifndef BH_TEXT_MARKS_H
#define BH_TEXT_MARKS_H

#include "src/text/vocab.h"

/* Noncharacters U+FDD0..U+FDEF: reserved by Unicode for a program's own use, never in interchange.
   In a client's message they are replaced by U+FFFD before marking. */
#define BH_MARK_FIRST 0xFDD0u
#define BH_MARK_MAX   32u

struct bh_marks {
    uint32_t cnt;
    uint32_t plain[BH_MARK_MAX]; /* mark BH_MARK_FIRST + i stands for code point plain[i] */
};

/* bh_marks_init - choose the characters to mark for this vocabulary.
   BH_OK      every control token holds at least one character of `marks`
   BH_ELIMIT  more than BH_MARK_MAX different characters would be needed, or a control token holds
              only characters of four UTF-8 bytes; `error` names it */
BH_MUST_USE enum bh_status
bh_marks_init(const struct bh_vocab *vocab, char error[BH_TEXT_ERROR_MAX], struct bh_marks *marks);

enum bh_marks_reach {
    BH_MARKS_TOKENS, /* mark inside the control tokens that stand whole in the text */
    BH_MARKS_ALL,    /* mark every character that has a mark */
};

/* bh_marks_apply - mark valid UTF-8. out has room for 3 * len bytes and is not `text`. Returns the
   output's length. */
size_t bh_marks_apply(const struct bh_marks *marks,
                      const struct bh_vocab *vocab,
                      enum bh_marks_reach reach,
                      const uint8_t *text,
                      size_t len,
                      uint8_t *out);

/* bh_marks_same_control - do two marked texts hold the same control tokens in the same order? */
bool bh_marks_same_control(
    const struct bh_vocab *vocab, const uint8_t *a, size_t a_len, const uint8_t *b, size_t b_len);

/* bh_marks_remove - turn marks back into what they stand for; valid UTF-8 in, valid UTF-8 out.
   `out` has room for len bytes and may be `text`. marked, when not NULL, has (len + 7) / 8 bytes
   and gets a bit for every byte of the output that belongs to a marked character. Returns the
   output's length, at most len. */
size_t bh_marks_remove(
    const struct bh_marks *marks, const uint8_t *text, size_t len, uint8_t *out, uint8_t *marked);

#endif
