/* Answers about a finished vocabulary. */
#include "src/text/vocab.h"

#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

#include "src/text/vocab_tables.h"

uint32_t
bh_vocab_bytes_slot(const struct bh_vocab *vocab, const uint8_t *bytes, size_t len)
{
    uint32_t slot = (uint32_t)XXH3_64bits(bytes, len) & vocab->by_bytes_mask;
    while (vocab->by_bytes[slot] != BH_VOCAB_NONE) {
        const struct bh_vocab_token *token = &vocab->tokens[vocab->by_bytes[slot]];
        if (token->len == len && memcmp(vocab->arena + token->offset, bytes, len) == 0) {
            break;
        }
        slot = (slot + 1) & vocab->by_bytes_mask;
    }
    return slot;
}

struct bh_vocab_merge *
bh_vocab_merge_slot(const struct bh_vocab *vocab, uint64_t pair)
{
    uint64_t mixed = pair * 0x9e3779b97f4a7c15u;
    uint32_t slot = (uint32_t)(mixed >> 32) & vocab->merge_mask;
    while (vocab->merges[slot].pair != BH_VOCAB_EMPTY_PAIR && vocab->merges[slot].pair != pair) {
        slot = (slot + 1) & vocab->merge_mask;
    }
    return &vocab->merges[slot];
}

void
bh_vocab_close(struct bh_vocab *vocab)
{
    if (vocab == NULL) {
        return;
    }
    free(vocab->tokens);
    free(vocab->arena);
    free(vocab->by_bytes);
    free(vocab->merges);
    free(vocab->special);
    free(vocab->chat_template);
    free(vocab);
}

uint32_t
bh_vocab_cnt(const struct bh_vocab *vocab)
{
    return vocab->cnt;
}

const uint8_t *
bh_vocab_bytes(const struct bh_vocab *vocab, uint32_t id, size_t *len)
{
    if (id >= vocab->cnt) {
        *len = 0;
        return NULL;
    }
    *len = vocab->tokens[id].len;
    return vocab->arena + vocab->tokens[id].offset;
}

enum bh_vocab_kind
bh_vocab_kind(const struct bh_vocab *vocab, uint32_t id)
{
    return id < vocab->cnt ? (enum bh_vocab_kind)vocab->tokens[id].kind : BH_VOCAB_UNUSED;
}

bool
bh_vocab_is_control(const struct bh_vocab *vocab, uint32_t id)
{
    enum bh_vocab_kind kind = bh_vocab_kind(vocab, id);
    return kind == BH_VOCAB_CONTROL || kind == BH_VOCAB_UNKNOWN;
}

bool
bh_vocab_is_eog(const struct bh_vocab *vocab, uint32_t id)
{
    return id < vocab->cnt && vocab->tokens[id].eog;
}

uint32_t
bh_vocab_bos(const struct bh_vocab *vocab)
{
    return vocab->bos;
}

uint32_t
bh_vocab_eos(const struct bh_vocab *vocab)
{
    return vocab->eos;
}

uint32_t
bh_vocab_eot(const struct bh_vocab *vocab)
{
    return vocab->eot;
}

uint32_t
bh_vocab_unk(const struct bh_vocab *vocab)
{
    return vocab->unk;
}

uint32_t
bh_vocab_pad(const struct bh_vocab *vocab)
{
    return vocab->pad;
}

bool
bh_vocab_add_bos(const struct bh_vocab *vocab)
{
    return vocab->add_bos;
}

const char *
bh_vocab_pre(const struct bh_vocab *vocab)
{
    return vocab->pre;
}

const char *
bh_vocab_chat_template(const struct bh_vocab *vocab, size_t *len)
{
    *len = vocab->chat_template_len;
    return vocab->chat_template;
}

uint32_t
bh_vocab_find(const struct bh_vocab *vocab, const uint8_t *bytes, size_t len)
{
    return len == 0 ? BH_VOCAB_NONE : vocab->by_bytes[bh_vocab_bytes_slot(vocab, bytes, len)];
}

uint32_t
bh_vocab_byte(const struct bh_vocab *vocab, uint8_t byte)
{
    return vocab->byte[byte];
}

bool
bh_vocab_merge(
    const struct bh_vocab *vocab, uint32_t left, uint32_t right, uint32_t *rank, uint32_t *joined)
{
    const struct bh_vocab_merge *merge = bh_vocab_merge_slot(vocab, (uint64_t)left << 32 | right);
    if (merge->pair == BH_VOCAB_EMPTY_PAIR) {
        return false;
    }
    *rank = merge->rank;
    *joined = merge->joined;
    return true;
}

uint32_t
bh_vocab_special_at(const struct bh_vocab *vocab, const uint8_t *bytes, size_t len, bool control)
{
    if (len == 0 || !vocab->special_first[bytes[0]]) {
        return BH_VOCAB_NONE;
    }
    /* [low, high) are the tokens that agree with the text so far; one of exactly this length is the
       first of them, since the order is lexicographic. */
    uint32_t low = 0;
    uint32_t high = vocab->special_cnt;
    uint32_t found = BH_VOCAB_NONE;
    for (size_t depth = 0; depth < len && low < high; depth++) {
        uint32_t bound[2];
        for (uint32_t side = 0; side < 2; side++) {
            uint32_t a = low;
            uint32_t b = high;
            while (a < b) {
                uint32_t mid = a + (b - a) / 2;
                const struct bh_vocab_token *token = &vocab->tokens[vocab->special[mid]];
                uint32_t here = token->len > depth ? vocab->arena[token->offset + depth] + 1u : 0u;
                if (here < bytes[depth] + 1u + side) {
                    a = mid + 1;
                } else {
                    b = mid;
                }
            }
            bound[side] = a;
        }
        low = bound[0];
        high = bound[1];
        if (low < high && vocab->tokens[vocab->special[low]].len == depth + 1 &&
            (control || !bh_vocab_is_control(vocab, vocab->special[low]))) {
            found = vocab->special[low];
        }
    }
    return found;
}
