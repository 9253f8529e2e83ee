/* Loops of constant length in the kernels must be unrolled completely, or accumulators land in
   memory; gcc and clang spell that wish differently. */
#ifndef BH_KERNELS_UNROLL_H
#define BH_KERNELS_UNROLL_H

#ifdef __clang__
#define BH_UNROLL _Pragma("clang loop unroll(full)")
#else
#define BH_UNROLL _Pragma("GCC unroll 32")
#endif

#define BH_INLINE static inline __attribute__((always_inline))

#endif
