/* UTF-8 as Unicode defines it: shortest forms only, no surrogates, up to U+10FFFF. Pure. */
#ifndef BH_TEXT_UTF8_H
#define BH_TEXT_UTF8_H

#include "shm/base.h"

/* What the bytes at the front of a span are. */
enum bh_utf8_part {
    BH_UTF8_CHAR,   /* a whole character */
    BH_UTF8_BROKEN, /* bytes that no continuation can make a character: the maximal broken part */
    BH_UTF8_SHORT,  /* the whole span is the beginning of a character; more bytes may finish it */
};

/* bh_utf8_next - classify the front of bytes[0..len), len > 0. *used is how many bytes the part has,
   1..4; *code is the code point of a BH_UTF8_CHAR, else U+FFFD. Broken parts are cut as Unicode
   recommends ("substitution of maximal subparts"). */
enum bh_utf8_part bh_utf8_next(const uint8_t *bytes, size_t len, size_t *used, uint32_t *code);

/* bh_utf8_valid - length of the longest prefix made of whole characters; len if all is valid. */
size_t bh_utf8_valid(const uint8_t *bytes, size_t len);

/* bh_utf8_put - write `code` (a scalar value), return its 1..4 bytes. */
size_t bh_utf8_put(uint32_t code, uint8_t out[4]);

#endif
