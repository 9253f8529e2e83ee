/* One panel of 16 rows from the blocks of a GGUF tensor. Numbers keep their values; scales and minima
   that the file stores as products of two factors become f32, in which those products are exact. */
#include <string.h>

#include "kernels/canon.h"
#include "src/model/packed.h"

/* 32 inputs of one row, whatever type they came from. */
struct block {
    uint8_t number[BH_BLOCK_COLS]; /* as stored in the panel: u4, or i8 plus 128 */
    uint16_t scale16;
    uint16_t min16;
    float scale32;
    float min32;
    int8_t factor[2];
};

enum bh_weight_kind
bh_pack_kind(enum bh_gguf_type type)
{
    switch (type) {
    case BH_GGUF_F16:
        return BH_WEIGHT_F16;
    case BH_GGUF_BF16:
        return BH_WEIGHT_BF16;
    case BH_GGUF_Q4_0:
        return BH_WEIGHT_Q4;
    case BH_GGUF_Q4_1:
        return BH_WEIGHT_Q4M;
    case BH_GGUF_Q5_0:
    case BH_GGUF_Q8_0:
        return BH_WEIGHT_Q8;
    case BH_GGUF_Q5_1:
        return BH_WEIGHT_Q8M;
    case BH_GGUF_Q4_K:
        return BH_WEIGHT_Q4K;
    case BH_GGUF_Q5_K:
        return BH_WEIGHT_Q8K;
    case BH_GGUF_Q6_K:
        return BH_WEIGHT_Q6K;
    case BH_GGUF_F32:
        break;
    }
    return BH_WEIGHT_F32;
}

static uint32_t
load_u32(const uint8_t *from)
{
    return (uint32_t)bh_load_i32(from);
}

static uint8_t
nibble(const uint8_t *pairs, uint32_t i)
{
    return i < 16 ? pairs[i] & 15u : pairs[i - 16] >> 4;
}

/* Types of 32: Q4_0, Q4_1, Q5_0, Q5_1, Q8_0. */
static void
read_small(enum bh_gguf_type type, const uint8_t *from, struct block *out)
{
    bool has_min = type == BH_GGUF_Q4_1 || type == BH_GGUF_Q5_1;
    bool five = type == BH_GGUF_Q5_0 || type == BH_GGUF_Q5_1;
    const uint8_t *at = from + (has_min ? 4 : 2);
    uint32_t fifth = five ? load_u32(at) : 0;
    const uint8_t *pairs = five ? at + 4 : at;
    out->scale16 = bh_load_u16(from);
    out->min16 = has_min ? bh_load_u16(from + 2) : 0;
    for (uint32_t i = 0; i < BH_BLOCK_COLS; i++) {
        if (type == BH_GGUF_Q8_0) {
            out->number[i] = (uint8_t)(at[i] + 128u);
        } else if (five) {
            uint32_t number = nibble(pairs, i) + 16u * ((fifth >> i) & 1u);
            out->number[i] = (uint8_t)(number + 128u - (type == BH_GGUF_Q5_0 ? 16u : 0u));
        } else {
            out->number[i] = nibble(pairs, i);
        }
    }
}

/* The six-bit scale and minimum of group j (0..7) of Q4_K and Q5_K. */
static void
read_six_bits(const uint8_t *s, uint32_t j, uint32_t *scale, uint32_t *min)
{
    if (j < 4) {
        *scale = s[j] & 63u;
        *min = s[j + 4] & 63u;
    } else {
        *scale = (s[j + 4] & 15u) | (uint32_t)(s[j - 4] >> 6) << 4;
        *min = (uint32_t)(s[j + 4] >> 4) | (uint32_t)(s[j] >> 6) << 4;
    }
}

/* Group j of 32 inputs of a super-block of 256: Q4_K, Q5_K. */
static void
read_k(enum bh_gguf_type type, const uint8_t *from, uint32_t j, struct block *out)
{
    uint32_t scale = 0;
    uint32_t min = 0;
    const uint8_t *high = from + 16;
    const uint8_t *pairs = from + (type == BH_GGUF_Q5_K ? 48 : 16) + (size_t)32 * (j / 2);
    read_six_bits(from + 4, j, &scale, &min);
    out->scale32 = bh_f16_to_f32(bh_load_u16(from)) * (float)scale;
    out->min32 = -(bh_f16_to_f32(bh_load_u16(from + 2)) * (float)min);
    for (uint32_t i = 0; i < BH_BLOCK_COLS; i++) {
        uint32_t number = (uint32_t)(pairs[i] >> (4 * (j & 1))) & 15u;
        if (type == BH_GGUF_Q5_K) {
            number += 16u * ((uint32_t)(high[i] >> j) & 1u) + 128u;
        }
        out->number[i] = (uint8_t)number;
    }
}

static void
read_q6_k(const uint8_t *from, uint32_t j, struct block *out)
{
    uint32_t n = j / 4;
    uint32_t g = j % 4;
    const uint8_t *low = from + 64 * n + 32 * (g & 1);
    const uint8_t *high = from + 128 + 32 * n;
    const uint8_t *factors = from + 192 + 8 * n + 2 * g;
    out->scale16 = bh_load_u16(from + 208);
    for (uint32_t i = 0; i < BH_BLOCK_COLS; i++) {
        uint32_t number = ((uint32_t)(low[i] >> (4 * (g >> 1))) & 15u) +
                          16u * ((uint32_t)(high[i] >> (2 * g)) & 3u);
        out->number[i] = (uint8_t)(number + 128u - 32u);
    }
    out->factor[0] = (int8_t)factors[0];
    out->factor[1] = (int8_t)factors[1];
}

static bool
block_finite(const struct block *block, enum bh_weight_kind kind)
{
    if (kind == BH_WEIGHT_Q4K || kind == BH_WEIGHT_Q8K) {
        return (bh_f32_bits(block->scale32) & BH_F32_INF_BITS) != BH_F32_INF_BITS &&
               (bh_f32_bits(block->min32) & BH_F32_INF_BITS) != BH_F32_INF_BITS;
    }
    return (block->scale16 & 0x7c00u) != 0x7c00u && (block->min16 & 0x7c00u) != 0x7c00u;
}

/* Lane `lane` of one block of the panel. */
static void
put_block(const struct block *block, enum bh_weight_kind kind, uint32_t lane, uint8_t *out)
{
    bool u4 = kind <= BH_WEIGHT_Q4K;
    bool wide = kind == BH_WEIGHT_Q4K || kind == BH_WEIGHT_Q8K;
    uint8_t *scales = out + (u4 ? 256 : 512);
    for (uint32_t i = 0; i < (u4 ? 16u : BH_BLOCK_COLS); i++) {
        uint32_t stored = block->number[i];
        stored |= u4 ? (uint32_t)block->number[i + 16] << 4 : 0u;
        out[(i / 4 * BH_PANEL_ROWS + lane) * 4 + i % 4] = (uint8_t)stored;
    }
    if (wide) {
        memcpy(scales + lane * 4, &block->scale32, 4);
        memcpy(scales + 64 + lane * 4, &block->min32, 4);
        return;
    }
    memcpy(scales + lane * 2, &block->scale16, 2);
    if (kind == BH_WEIGHT_Q4M || kind == BH_WEIGHT_Q8M) {
        memcpy(scales + 32 + lane * 2, &block->min16, 2);
    } else if (kind == BH_WEIGHT_Q6K) {
        scales[32 + lane] = (uint8_t)block->factor[0];
        scales[32 + BH_PANEL_ROWS + lane] = (uint8_t)block->factor[1];
    }
}

static bool
pack_row_quantized(const struct bh_gguf_tensor *tensor,
                   const uint8_t *row,
                   enum bh_weight_kind kind,
                   uint32_t lane,
                   uint8_t *out)
{
    uint32_t elems = bh_gguf_type_elems(tensor->type);
    uint32_t bytes = bh_gguf_type_bytes(tensor->type);
    size_t step_bytes = bh_panel_step_bytes(kind);
    for (uint32_t b = 0; b < tensor->dims[0] / BH_BLOCK_COLS; b++) {
        struct block block = {0};
        const uint8_t *from = row + (size_t)(b * BH_BLOCK_COLS / elems) * bytes;
        uint32_t j = b % (elems / BH_BLOCK_COLS);
        if (elems == BH_BLOCK_COLS) {
            read_small(tensor->type, from, &block);
        } else if (tensor->type == BH_GGUF_Q6_K) {
            read_q6_k(from, j, &block);
        } else {
            read_k(tensor->type, from, j, &block);
        }
        if (!block_finite(&block, kind)) {
            return false;
        }
        put_block(&block, kind, lane, out + b * step_bytes);
    }
    return true;
}

static bool
pack_row_float(
    const uint8_t *row, uint32_t cols, enum bh_weight_kind kind, uint32_t lane, uint8_t *out)
{
    uint32_t bytes = kind == BH_WEIGHT_F32 ? 4 : 2;
    bool finite = true;
    for (size_t col = 0; col < cols; col++) {
        const uint8_t *from = row + col * bytes;
        memcpy(out + (col * BH_PANEL_ROWS + lane) * bytes, from, bytes);
        uint32_t exponent = kind == BH_WEIGHT_F16    ? 0x7c00u
                            : kind == BH_WEIGHT_BF16 ? 0x7f80u
                                                     : BH_F32_INF_BITS;
        uint32_t bits = bytes == 4 ? load_u32(from) : bh_load_u16(from);
        finite = finite && (bits & exponent) != exponent;
    }
    return finite;
}

/* Rows past the last have the number 0 and the scale 0; i8 stores 0 as 128, but with a zero scale any
   number will do. */
bool
bh_pack_panel(const struct bh_gguf_tensor *tensor,
              const uint8_t *data,
              enum bh_weight_kind kind,
              uint32_t panel,
              uint8_t *out)
{
    uint32_t cols = (uint32_t)tensor->dims[0];
    uint32_t rows = (uint32_t)tensor->dims[1];
    size_t row_bytes =
        (size_t)cols / bh_gguf_type_elems(tensor->type) * bh_gguf_type_bytes(tensor->type);
    memset(out, 0, bh_panel_bytes(kind, cols));
    for (uint32_t lane = 0; lane < BH_PANEL_ROWS && panel * BH_PANEL_ROWS + lane < rows; lane++) {
        const uint8_t *row = data + (size_t)(panel * BH_PANEL_ROWS + lane) * row_bytes;
        bool finite = bh_weight_quantized(kind) ? pack_row_quantized(tensor, row, kind, lane, out)
                                                : pack_row_float(row, cols, kind, lane, out);
        if (!finite) {
            return false;
        }
    }
    return true;
}
