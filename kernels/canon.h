/* The canonical scalar operations, written once: every variant either calls these or performs the
   same operations lane by lane. Nothing here depends on the compiler's contraction of a*b+c (it is
   off; fused operations are written as fmaf) or on the C library (sqrtf and fmaf are exactly defined
   by IEEE 754, the rest is not used). */
#ifndef BH_KERNELS_CANON_H
#define BH_KERNELS_CANON_H

#include <math.h>
#include <string.h>

#include "shm/base.h"

#define BH_LANES 16u /* partial sums of a reduction: element i belongs to lane i mod 16 */

/* exp(x) = 2^n * e^r, n = round(x / ln 2) found by adding 1.5 * 2^23, ln 2 in two parts, a polynomial
   of degree 7 (that of Cephes' expf: within 1 ulp on |r| <= 0.35). */
#define BH_EXP_LO    -87.0f
#define BH_EXP_HI    88.0f
#define BH_EXP_LOG2E 1.44269504f
#define BH_EXP_MAGIC 12582912.0f
#define BH_EXP_LN2HI 0.693359375f
#define BH_EXP_LN2LO -2.12194440e-4f
#define BH_EXP_C7    1.9875691500e-4f
#define BH_EXP_C6    1.3981999507e-3f
#define BH_EXP_C5    8.3334519073e-3f
#define BH_EXP_C4    4.1665795894e-2f
#define BH_EXP_C3    1.6666665459e-1f
#define BH_EXP_C2    5.0000001201e-1f

/* Blocks whose largest magnitude is below 2^-100 are quantized to zeros: 127 / amax stays finite. */
#define BH_QUANT_TINY_BITS 0x0d800000u
#define BH_F32_INF_BITS    0x7f800000u
#define BH_F32_NAN_BITS    0x7fc00000u

static inline uint32_t
bh_f32_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

static inline float
bh_f32_from_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

/* Comparisons are ordered as the instructions maxps and minps are: a NaN in `x` survives the clamp of
   bh_canon_exp, and is ignored by a running maximum (the exponential of that score is NaN anyway). */
static inline float
bh_canon_exp(float x)
{
    x = BH_EXP_LO > x ? BH_EXP_LO : x;
    x = BH_EXP_HI < x ? BH_EXP_HI : x;
    float t = fmaf(x, BH_EXP_LOG2E, BH_EXP_MAGIC);
    float n = t - BH_EXP_MAGIC;
    float r = fmaf(n, -BH_EXP_LN2HI, x);
    r = fmaf(n, -BH_EXP_LN2LO, r);
    float p = fmaf(BH_EXP_C7, r, BH_EXP_C6);
    p = fmaf(p, r, BH_EXP_C5);
    p = fmaf(p, r, BH_EXP_C4);
    p = fmaf(p, r, BH_EXP_C3);
    p = fmaf(p, r, BH_EXP_C2);
    p = fmaf(p, r, 1.0f);
    p = fmaf(p, r, 1.0f);
    return p * bh_f32_from_bits((bh_f32_bits(t) + 127u) << 23);
}

/* The tree over 16 partial sums: lanes 8 apart, then 4, 2, 1. Destroys lane[]. */
static inline float
bh_canon_tree(float lane[BH_LANES])
{
    for (uint32_t half = BH_LANES / 2; half > 0; half /= 2) {
        for (uint32_t j = 0; j < half; j++) {
            lane[j] = lane[j] + lane[j + half];
        }
    }
    return lane[0];
}

static inline float
bh_f16_to_f32(uint16_t half)
{
    uint32_t sign = (uint32_t)(half & 0x8000u) << 16;
    uint32_t exponent = (half >> 10) & 0x1fu;
    uint32_t mantissa = half & 0x3ffu;
    if (exponent == 0) { /* zero and subnormals: mantissa * 2^-24 is exact */
        float value = (float)mantissa * 0x1p-24f;
        return bh_f32_from_bits(sign | bh_f32_bits(value));
    }
    if (exponent == 31) { /* infinity; a NaN becomes quiet, as vcvtph2ps makes it */
        return bh_f32_from_bits(sign | BH_F32_INF_BITS | (mantissa << 13) |
                                (mantissa != 0 ? 0x400000u : 0u));
    }
    return bh_f32_from_bits(sign | ((exponent + 112u) << 23) | (mantissa << 13));
}

/* To nearest, ties to even, as vcvtps2ph does. */
static inline uint16_t
bh_f16_from_f32(float value)
{
    uint32_t bits = bh_f32_bits(value);
    uint32_t sign = (bits >> 16) & 0x8000u;
    uint32_t abs = bits & 0x7fffffffu;
    if (abs >= BH_F32_INF_BITS) {
        uint32_t nan = abs > BH_F32_INF_BITS ? 0x200u | ((abs >> 13) & 0x3ffu) : 0u;
        return (uint16_t)(sign | 0x7c00u | nan);
    }
    if (abs >= 0x47800000u) { /* 2^16 and above */
        return (uint16_t)(sign | 0x7c00u);
    }
    if (abs < 0x38800000u) { /* below 2^-14: adding 0.5 aligns the mantissa and rounds it */
        float aligned = bh_f32_from_bits(abs) + 0.5f;
        return (uint16_t)(sign | (bh_f32_bits(aligned) - 0x3f000000u));
    }
    uint32_t rounded = abs - 0x38000000u + 0xfffu + ((abs >> 13) & 1u);
    return (uint16_t)(sign | (rounded >> 13));
}

static inline float
bh_bf16_to_f32(uint16_t bits)
{
    return bh_f32_from_bits((uint32_t)bits << 16);
}

static inline uint16_t
bh_load_u16(const void *from)
{
    uint16_t value;
    memcpy(&value, from, sizeof(value));
    return value;
}

static inline int32_t
bh_load_i32(const void *from)
{
    int32_t value;
    memcpy(&value, from, sizeof(value));
    return value;
}

static inline float
bh_load_f32(const void *from)
{
    float value;
    memcpy(&value, from, sizeof(value));
    return value;
}

#endif
