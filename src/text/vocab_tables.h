/* The inside of a vocabulary, shared by the file that builds it and the file that answers for it. */
#ifndef BH_TEXT_VOCAB_TABLES_H
#define BH_TEXT_VOCAB_TABLES_H

#include "src/text/vocab.h"

struct bh_vocab_token {
    uint32_t offset; /* into arena */
    uint16_t len;
    uint8_t kind; /* enum bh_vocab_kind */
    bool eog;
};

struct bh_vocab_merge {
    uint64_t pair; /* left << 32 | right; BH_VOCAB_EMPTY_PAIR: unused */
    uint32_t rank;
    uint32_t joined;
};

#define BH_VOCAB_EMPTY_PAIR UINT64_MAX

struct bh_vocab {
    uint32_t cnt;
    struct bh_vocab_token *tokens;
    uint8_t *arena;
    uint32_t *by_bytes; /* open addressing over ordinary tokens, by what they print */
    uint32_t by_bytes_mask;
    struct bh_vocab_merge *merges; /* open addressing */
    uint32_t merge_mask;
    uint32_t *special; /* control and user-defined tokens in lexicographic order */
    uint32_t special_cnt;
    bool special_first[256]; /* does a special token begin with this byte? */
    uint32_t byte[256];
    uint32_t bos;
    uint32_t eos;
    uint32_t eot;
    uint32_t unk;
    uint32_t pad;
    bool add_bos;
    char pre[64];
    char *chat_template;
    size_t chat_template_len;
};

/* The slot of by_bytes that holds this text, or the empty slot (BH_VOCAB_NONE) where it belongs. */
uint32_t bh_vocab_bytes_slot(const struct bh_vocab *vocab, const uint8_t *bytes, size_t len);

/* The entry of merges that holds this pair, or the empty one where it belongs. */
struct bh_vocab_merge *bh_vocab_merge_slot(const struct bh_vocab *vocab, uint64_t pair);

#endif
