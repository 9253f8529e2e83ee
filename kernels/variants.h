/* The operations of each variant, for the tables at the end of their last files. */
#ifndef BH_KERNELS_VARIANTS_H
#define BH_KERNELS_VARIANTS_H

#include "kernels/kernels.h"

#define BH_KERNEL_DECLARE(isa)                                                                     \
    void bh_##isa##_quantize(const float *x,                                                       \
                             size_t x_stride,                                                      \
                             uint32_t row_from,                                                    \
                             uint32_t row_to,                                                      \
                             const struct bh_act *out);                                            \
    void bh_##isa##_matmul(const struct bh_matmul *call, const struct bh_act *x);                  \
    void bh_##isa##_matmul_float(const struct bh_matmul *call, const float *x, size_t x_stride);   \
    void bh_##isa##_norm(                                                                          \
        const float *x, const float *weight, float eps, uint32_t cols, float *out);                \
    void bh_##isa##_swiglu(const float *gate, const float *up, uint32_t cnt, float *out);          \
    void bh_##isa##_halve(const float *x, uint32_t cnt, uint16_t *out);                            \
    void bh_##isa##_scores(const struct bh_queries *queries,                                       \
                           const struct bh_page_part *k,                                           \
                           float *scores,                                                          \
                           size_t stride);                                                         \
    void bh_##isa##_softmax(float *scores, uint32_t tok_cnt, float *max, float *sum);              \
    void bh_##isa##_values(const float *probs,                                                     \
                           size_t stride,                                                          \
                           uint32_t q_cnt,                                                         \
                           uint32_t head_dim,                                                      \
                           const struct bh_page_part *v,                                           \
                           float *out);                                                            \
    extern const struct bh_kernels bh_kernels_##isa;

BH_KERNEL_DECLARE(ref)
BH_KERNEL_DECLARE(avx2)
BH_KERNEL_DECLARE(avx512)

#endif
