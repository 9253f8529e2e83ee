/* Elementary functions that give the same bits on every machine: only the four basic operations on
   doubles and moves of bits, no C library (whose results differ between versions and instruction
   sets). Errors stay within a few units in the last place of a double. */
#ifndef BH_MODEL_EXACT_H
#define BH_MODEL_EXACT_H

#include "shm/base.h"

/* bh_exact_exp - e^x; 0 below -708, +infinity above 709; NaN for NaN. */
double bh_exact_exp(double x);
/* bh_exact_log - natural logarithm of a positive, normal, finite number. */
double bh_exact_log(double x);
/* bh_exact_sincos - of |x| up to 2^25. */
void bh_exact_sincos(double x, double *sine, double *cosine);

#endif
