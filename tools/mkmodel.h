/* Parts of mkmodel, the maker of small random models for tests and benches: a growing buffer of
   GGUF bytes, the tokenizer's metadata, and the quantizers. */
#ifndef BH_TOOLS_MKMODEL_H
#define BH_TOOLS_MKMODEL_H

#include "shm/base.h"
#include "src/model/gguf.h"

/* Bytes of a GGUF header under construction. Growth that fails ends the program: it is a tool. */
struct bh_mk_buffer {
    uint8_t *bytes;
    size_t len;
    size_t room;
    uint64_t key_cnt; /* entries that the bh_mk_key_ functions wrote */
};

void bh_mk_put(struct bh_mk_buffer *buffer, const void *bytes, size_t len);
void bh_mk_put_u32(struct bh_mk_buffer *buffer, uint32_t value);
void bh_mk_put_u64(struct bh_mk_buffer *buffer, uint64_t value);
void bh_mk_put_str(struct bh_mk_buffer *buffer, const char *text);

/* One metadata entry each. key_array writes the head; the caller puts elem_cnt elements after
   it. */
void bh_mk_key_u32(struct bh_mk_buffer *buffer, const char *key, uint32_t value);
void bh_mk_key_f32(struct bh_mk_buffer *buffer, const char *key, float value);
void bh_mk_key_bool(struct bh_mk_buffer *buffer, const char *key, bool value);
void bh_mk_key_str(struct bh_mk_buffer *buffer, const char *key, const char *value);
#define BH_MK_TYPE_I32 5u
#define BH_MK_TYPE_STR 8u
void bh_mk_key_array(struct bh_mk_buffer *buffer,
                     const char *key,
                     uint32_t elem_type,
                     uint64_t elem_cnt);

/* bh_mk_random - draw number `draw` of stream `stream`: 64 even bits, a pure function of both.
   SplitMix64, entered at any step. */
static inline uint64_t
bh_mk_random(uint64_t stream, uint64_t draw)
{
    uint64_t bits = stream + (draw + 1) * 0x9e3779b97f4a7c15u;
    bits = (bits ^ bits >> 30) * 0xbf58476d1ce4e5b9u;
    bits = (bits ^ bits >> 27) * 0x94d049bb133111ebu;
    return bits ^ bits >> 31;
}

/* Ids of the control tokens come first, then one token for each byte, then merged ones. */
#define BH_MK_CONTROL_CNT 3u
#define BH_MK_VOCAB_MIN   (BH_MK_CONTROL_CNT + 256u)

/* bh_mk_vocab_put - the tokenizer.* entries of a byte-level BPE with `vocab` tokens, at least
   BH_MK_VOCAB_MIN. Every token above that is the result of one merge of two earlier tokens. The
   chat template is ChatML unless another text is given; "" leaves the entry out. */
struct bh_mk_vocab {
    uint32_t tokens;
    const char *pre;
    const char *chat_template; /* NULL: ChatML */
    uint64_t seed;
};
void bh_mk_vocab_put(struct bh_mk_buffer *buffer, const struct bh_mk_vocab *options);

/* bh_mk_quantize - encode elem_cnt floats (a multiple of the type's block) as `type`.
   out has room for the blocks. Round to nearest, no search for better scales. */
void bh_mk_quantize(enum bh_gguf_type type, const float *values, size_t elem_cnt, uint8_t *out);

#endif
