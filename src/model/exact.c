/* Textbook reductions and series: exp over |r| <= ln 2 / 2, log over [sqrt(1/2), sqrt(2)), sine and
   cosine over |r| <= pi / 4 with pi / 2 in three parts (fdlibm's constants and polynomials). */
#include "src/model/exact.h"

#include <math.h>
#include <string.h>

#define LN2_HI 6.93147180369123816490e-01 /* its last 20 bits are zero: n * LN2_HI is exact */
#define LN2_LO 1.90821492927058770002e-10
#define LOG2E  1.44269504088896338700e+00
#define ROUND_MAGIC                                                                                \
    6755399441055744.0 /* 1.5 * 2^52: adding and subtracting it rounds to an integer */

static uint64_t
bits_of(double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

static double
from_bits(uint64_t bits)
{
    double value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

static const double inverse_factorial[14] = {1.0,
                                             1.0,
                                             1.0 / 2,
                                             1.0 / 6,
                                             1.0 / 24,
                                             1.0 / 120,
                                             1.0 / 720,
                                             1.0 / 5040,
                                             1.0 / 40320,
                                             1.0 / 362880,
                                             1.0 / 3628800,
                                             1.0 / 39916800,
                                             1.0 / 479001600,
                                             1.0 / 6227020800.0};

double
bh_exact_exp(double x)
{
    if (!(x >= -708.0)) {
        return x != x ? x : 0.0;
    }
    if (x > 709.0) {
        return (double)INFINITY;
    }
    double n = (x * LOG2E + ROUND_MAGIC) - ROUND_MAGIC;
    double r = (x - n * LN2_HI) - n * LN2_LO;
    double sum = inverse_factorial[13];
    for (int k = 12; k >= 0; k--) {
        sum = sum * r + inverse_factorial[k];
    }
    return sum * from_bits((uint64_t)(1023 + (int64_t)n) << 52);
}

double
bh_exact_log(double x)
{
    uint64_t bits = bits_of(x);
    int64_t exponent = (int64_t)(bits >> 52) - 1023;
    double m = from_bits((bits & 0xfffffffffffffu) | 0x3ff0000000000000u);
    if (m > 1.41421356237309514547) {
        m = m * 0.5;
        exponent++;
    }
    double s = (m - 1.0) / (m + 1.0);
    double square = s * s;
    double sum = 0.0;
    for (int k = 25; k >= 1; k -= 2) {
        sum = sum * square + 1.0 / (double)k;
    }
    return (double)exponent * LN2_HI + (2.0 * s * sum + (double)exponent * LN2_LO);
}

static double
sine_near(double r)
{
    double z = r * r;
    double p = 1.58969099521155010221e-10;
    p = p * z - 2.50507602534068634195e-08;
    p = p * z + 2.75573137070700676789e-06;
    p = p * z - 1.98412698298579493134e-04;
    p = p * z + 8.33333333332248946124e-03;
    p = p * z - 1.66666666666666324348e-01;
    return r + r * z * p;
}

static double
cosine_near(double r)
{
    double z = r * r;
    double p = -1.13596475577881948265e-11;
    p = p * z + 2.08757232129817482790e-09;
    p = p * z - 2.75573143513906633035e-07;
    p = p * z + 2.48015872894767294178e-05;
    p = p * z - 1.38888888888741095749e-03;
    p = p * z + 4.16666666666666019037e-02;
    return 1.0 - 0.5 * z + z * z * p;
}

void
bh_exact_sincos(double x, double *sine, double *cosine)
{
    double n = (x * 6.36619772367581382433e-01 + ROUND_MAGIC) - ROUND_MAGIC;
    double r = x - n * 1.57079632673412561417e+00;
    r = r - n * 6.07710050630396597660e-11;
    r = r - n * 2.02226624879595063154e-21;
    double s = sine_near(r);
    double c = cosine_near(r);
    uint64_t quadrant = (uint64_t)(int64_t)n & 3u;
    double first = (quadrant & 1u) != 0 ? c : s;
    double second = (quadrant & 1u) != 0 ? s : c;
    *sine = quadrant >= 2 ? -first : first;
    *cosine = quadrant == 1 || quadrant == 2 ? -second : second;
}
