/* Reference quantizers for every tensor type the engine reads: straightforward rounding to the
   nearest level, block by block. Models made with them are random anyway, so the search for scales
   that a real quantizer does would buy nothing. */
#include "tools/mkmodel.h"

#include <math.h>
#include <string.h>

static uint32_t
f32_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

/* Round to nearest, ties to even. Subnormal halves are counts of 2^-24, which the float unit
   rounds; the others round in integers, where a carry into the exponent is right. */
static uint16_t
f16_from_f32(float value)
{
    uint32_t bits = f32_bits(value);
    uint16_t sign = (uint16_t)(bits >> 16 & 0x8000u);
    uint32_t magnitude = bits & 0x7fffffffu;
    if (magnitude >= 0x47800000u) { /* 65536 and more, infinity, NaN */
        return (uint16_t)(sign | (magnitude > 0x7f800000u ? 0x7e00u : 0x7c00u));
    }
    if (magnitude < 0x38800000u) { /* below 2^-14: a count of 2^-24 */
        float units = rintf(fabsf(value) * 0x1p24f);
        return (uint16_t)(sign | (uint32_t)units);
    }
    uint32_t odd = magnitude >> 13 & 1;
    uint32_t rounded = magnitude + 0xfffu + odd - (112u << 23);
    return (uint16_t)(sign | rounded >> 13);
}

static float
f32_from_f16(uint16_t half)
{
    uint32_t magnitude = half & 0x7fffu;
    float value;
    if (magnitude < 0x400u) {
        value = (float)magnitude * 0x1p-24f;
    } else {
        uint32_t bits = (magnitude << 13) + (112u << 23);
        memcpy(&value, &bits, sizeof(value));
    }
    return (half & 0x8000u) != 0 ? -value : value;
}

static uint16_t
bf16_from_f32(float value)
{
    uint32_t bits = f32_bits(value);
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}

/* Stores a scale as f16 and returns what a reader will see, so that levels are chosen for the scale
   that is in the file. */
static float
store_scale(uint8_t *out, float scale)
{
    uint16_t half = f16_from_f32(scale);
    memcpy(out, &half, sizeof(half));
    return f32_from_f16(half);
}

static uint8_t
level(float value, float step, float low, float high)
{
    if (step == 0.0f) {
        return (uint8_t)(low < 0.0f ? -low : 0.0f);
    }
    float nearest = fminf(fmaxf(rintf(value / step), low), high);
    return (uint8_t)(low < 0.0f ? nearest - low : nearest);
}

/* The value of largest magnitude, with its sign. */
static float
extreme(const float *values, size_t cnt)
{
    float found = 0.0f;
    for (size_t i = 0; i < cnt; i++) {
        if (fabsf(values[i]) > fabsf(found)) {
            found = values[i];
        }
    }
    return found;
}

static void
bounds(const float *values, size_t cnt, float *low, float *high)
{
    *low = values[0];
    *high = values[0];
    for (size_t i = 1; i < cnt; i++) {
        *low = fminf(*low, values[i]);
        *high = fmaxf(*high, values[i]);
    }
}

static void
quantize_q8_0(const float *values, uint8_t *out)
{
    float step = store_scale(out, fabsf(extreme(values, 32)) / 127.0f);
    for (size_t i = 0; i < 32; i++) {
        out[2 + i] = (uint8_t)(level(values[i], step, -127.0f, 127.0f) - 127);
    }
}

/* q4_0, q4_1, q5_0, q5_1 are one scheme: `bits` wide levels, low nibbles of elements 0..15 and
   16..31 side by side, fifth bits in a word of their own, with a stored minimum or centred on
   zero. */
static void
quantize_nibbles(const float *values, uint32_t bits, bool has_min, uint8_t *out)
{
    float levels = (float)(1u << bits);
    float low = 0.0f;
    float step;
    if (has_min) {
        float high;
        bounds(values, 32, &low, &high);
        step = store_scale(out, (high - low) / (levels - 1.0f));
        low = store_scale(out + 2, low);
    } else {
        step = store_scale(out, extreme(values, 32) / (-levels / 2.0f));
    }
    size_t at = has_min ? 4 : 2;
    uint8_t *nibbles = out + at + (bits == 5 ? 4 : 0);
    uint32_t fifth = 0;
    memset(nibbles, 0, 16);
    for (uint32_t i = 0; i < 32; i++) {
        uint32_t q = has_min ? level(values[i] - low, step, 0.0f, levels - 1.0f)
                             : level(values[i], step, -levels / 2.0f, levels / 2.0f - 1.0f);
        nibbles[i % 16] = (uint8_t)(nibbles[i % 16] | (q & 15u) << (i < 16 ? 0 : 4));
        fifth |= (q >> 4) << i;
    }
    if (bits == 5) {
        memcpy(out + at, &fifth, sizeof(fifth));
    }
}

/* Six-bit scales and minima of eight groups in twelve bytes: groups 0..3 whole in the low six bits,
   groups 4..7 as nibbles in the last four bytes with their top two bits above the first eight. */
static void
pack_scales(const uint8_t scales[8], const uint8_t mins[8], uint8_t out[12])
{
    for (size_t j = 0; j < 4; j++) {
        out[j] = (uint8_t)(scales[j] | (scales[j + 4] >> 4) << 6);
        out[j + 4] = (uint8_t)(mins[j] | (mins[j + 4] >> 4) << 6);
        out[j + 8] = (uint8_t)((scales[j + 4] & 15) | (mins[j + 4] & 15) << 4);
    }
}

static void
quantize_k_min(const float *values, uint32_t bits, uint8_t *out)
{
    float levels_max = (float)((1u << bits) - 1);
    float steps[8];
    float lows[8];
    for (size_t j = 0; j < 8; j++) {
        float low;
        float high;
        bounds(values + 32 * j, 32, &low, &high);
        lows[j] = fmaxf(-low, 0.0f); /* the stored minimum is subtracted and never negative */
        steps[j] = fmaxf(high + lows[j], 0.0f) / levels_max;
    }
    float d = store_scale(out, extreme(steps, 8) / 63.0f);
    float dmin = store_scale(out + 2, extreme(lows, 8) / 63.0f);
    uint8_t scales[8];
    uint8_t mins[8];
    for (size_t j = 0; j < 8; j++) {
        scales[j] = level(steps[j], d, 0.0f, 63.0f);
        mins[j] = level(lows[j], dmin, 0.0f, 63.0f);
    }
    pack_scales(scales, mins, out + 4);
    uint8_t *fifth = out + 16;
    uint8_t *nibbles = bits == 5 ? out + 48 : out + 16;
    memset(out + 16, 0, bits == 5 ? 160 : 128);
    for (size_t i = 0; i < 256; i++) {
        size_t j = i / 32;
        float shifted = values[i] + dmin * (float)mins[j];
        uint32_t q = level(shifted, d * (float)scales[j], 0.0f, levels_max);
        uint8_t *nibble = &nibbles[32 * (i / 64) + i % 32];
        *nibble = (uint8_t)(*nibble | (q & 15u) << 4 * (j & 1));
        if (bits == 5) {
            fifth[i % 32] = (uint8_t)(fifth[i % 32] | (q >> 4) << j);
        }
    }
}

static void
quantize_q6_k(const float *values, uint8_t *out)
{
    uint8_t *low_bits = out;
    uint8_t *high_bits = out + 128;
    uint8_t *scales = out + 192;
    float steps[16];
    for (size_t j = 0; j < 16; j++) {
        steps[j] = extreme(values + 16 * j, 16) / -32.0f;
    }
    float d = store_scale(out + 208, fabsf(extreme(steps, 16)) / 127.0f);
    memset(out, 0, 192);
    for (size_t i = 0; i < 256; i++) {
        size_t j = i / 16;
        float scale = (float)level(steps[j], d, -127.0f, 127.0f) - 127.0f;
        scales[j] = (uint8_t)(int8_t)scale;
        uint32_t q = level(values[i], d * scale, -32.0f, 31.0f);
        size_t half = i / 128;
        size_t quarter = i % 128 / 32;
        uint8_t *low = &low_bits[64 * half + 32 * (quarter & 1) + i % 32];
        uint8_t *high = &high_bits[32 * half + i % 32];
        *low = (uint8_t)(*low | (q & 15u) << 4 * (quarter >> 1));
        *high = (uint8_t)(*high | (q >> 4) << 2 * quarter);
    }
}

static void
quantize_block(enum bh_gguf_type type, const float *values, uint8_t *out)
{
    uint16_t half;
    switch (type) {
    case BH_GGUF_F32:
        memcpy(out, values, sizeof(*values));
        break;
    case BH_GGUF_F16:
    case BH_GGUF_BF16:
        half = type == BH_GGUF_F16 ? f16_from_f32(*values) : bf16_from_f32(*values);
        memcpy(out, &half, sizeof(half));
        break;
    case BH_GGUF_Q4_0:
    case BH_GGUF_Q4_1:
        quantize_nibbles(values, 4, type == BH_GGUF_Q4_1, out);
        break;
    case BH_GGUF_Q5_0:
    case BH_GGUF_Q5_1:
        quantize_nibbles(values, 5, type == BH_GGUF_Q5_1, out);
        break;
    case BH_GGUF_Q8_0:
        quantize_q8_0(values, out);
        break;
    case BH_GGUF_Q4_K:
    case BH_GGUF_Q5_K:
        quantize_k_min(values, type == BH_GGUF_Q5_K ? 5 : 4, out);
        break;
    case BH_GGUF_Q6_K:
        quantize_q6_k(values, out);
        break;
    }
}

void
bh_mk_quantize(enum bh_gguf_type type, const float *values, size_t elem_cnt, uint8_t *out)
{
    uint32_t elems = bh_gguf_type_elems(type);
    uint32_t bytes = bh_gguf_type_bytes(type);
    BH_CHECK(elems != 0 && elem_cnt % elems == 0);
    for (size_t block = 0; block < elem_cnt / elems; block++) {
        quantize_block(type, values + block * elems, out + block * bytes);
    }
}
