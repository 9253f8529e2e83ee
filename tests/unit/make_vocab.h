/* Small GGUF files with a tokenizer, made in memory: for tests that need a vocabulary of their own.
   Plain static functions, so that any test program can use it; too small a buffer aborts. */
#ifndef BH_UNIT_MAKE_VOCAB_H
#define BH_UNIT_MAKE_VOCAB_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/text/vocab.h"

struct make_vocab {
    uint8_t bytes[1 << 16];
    size_t len;
};

static inline void
make_put(struct make_vocab *make, const void *bytes, size_t len)
{
    BH_CHECK(len <= sizeof(make->bytes) - make->len);
    memcpy(make->bytes + make->len, bytes, len);
    make->len += len;
}

static inline void
make_u32(struct make_vocab *make, uint32_t value)
{
    make_put(make, &value, sizeof(value));
}

static inline void
make_u64(struct make_vocab *make, uint64_t value)
{
    make_put(make, &value, sizeof(value));
}

static inline void
make_text(struct make_vocab *make, const char *text)
{
    make_u64(make, strlen(text));
    make_put(make, text, strlen(text));
}

/* An empty file: version 3, no tensors, no keys yet. */
static inline void
make_begin(struct make_vocab *make)
{
    make->len = 0;
    make_put(make, "GGUF", 4);
    make_u32(make, 3);
    make_u64(make, 0);
    make_u64(make, 0);
}

/* Start a key: its name and its type, counted in the file's header. */
static inline void
make_key(struct make_vocab *make, const char *key, uint32_t type)
{
    uint64_t cnt = 0;
    memcpy(&cnt, make->bytes + 16, sizeof(cnt));
    cnt++;
    memcpy(make->bytes + 16, &cnt, sizeof(cnt));
    make_text(make, key);
    make_u32(make, type);
}

static inline void
make_key_text(struct make_vocab *make, const char *key, const char *text)
{
    make_key(make, key, 8);
    make_text(make, text);
}

static inline void
make_key_u32(struct make_vocab *make, const char *key, uint32_t value)
{
    make_key(make, key, 4);
    make_u32(make, value);
}

static inline void
make_key_bool(struct make_vocab *make, const char *key, bool value)
{
    uint8_t byte = value ? 1 : 0;
    make_key(make, key, 7);
    make_put(make, &byte, 1);
}

static inline void
make_key_texts(struct make_vocab *make, const char *key, const char *const *texts, size_t cnt)
{
    make_key(make, key, 9);
    make_u32(make, 8);
    make_u64(make, cnt);
    for (size_t i = 0; i < cnt; i++) {
        make_text(make, texts[i]);
    }
}

static inline void
make_key_ints(struct make_vocab *make, const char *key, const int32_t *values, size_t cnt)
{
    make_key(make, key, 9);
    make_u32(make, 5);
    make_u64(make, cnt);
    make_put(make, values, cnt * sizeof(*values));
}

/* Open what was made, filled up with zeros to the alignment of the (missing) tensor data. */
static inline enum bh_status
make_open(struct make_vocab *make, char error[BH_TEXT_ERROR_MAX], struct bh_vocab **vocab)
{
    struct bh_gguf *gguf = NULL;
    static const uint8_t zeros[32];
    make_put(make, zeros, (32 - make->len % 32) % 32);
    enum bh_status status = bh_gguf_open(make->bytes, make->len, make->len, error, &gguf);
    BH_CHECK(status == BH_OK);
    status = bh_vocab_open(gguf, error, vocab);
    bh_gguf_close(gguf);
    return status;
}

/* The 256 bytes as tokens 0 to 255, in GPT-2's alphabet, then `more`. */
static inline void
make_byte_tokens(const char **tokens, const char *const *more, size_t more_cnt)
{
    static char texts[256][3];
    uint32_t other = 0x100;
    for (uint32_t byte = 0; byte < 256; byte++) {
        bool printable =
            (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
        uint32_t code = printable ? byte : other++;
        if (code < 0x80) {
            texts[byte][0] = (char)code;
        } else {
            texts[byte][0] = (char)(0xc0 | code >> 6);
            texts[byte][1] = (char)(0x80 | (code & 0x3f));
        }
        tokens[byte] = texts[byte];
    }
    for (size_t i = 0; i < more_cnt; i++) {
        tokens[256 + i] = more[i];
    }
}

#endif
