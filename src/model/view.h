/* The private view that a process has of packed weights: pointers into them, and the chosen kernels. */
#ifndef BH_MODEL_VIEW_H
#define BH_MODEL_VIEW_H

#include "kernels/kernels.h"
#include "src/model/model.h"

struct bh_layer_view {
    const float *attn_norm;
    struct bh_panels q;
    struct bh_panels k;
    struct bh_panels v;
    struct bh_panels attn_output;
    const float *ffn_norm;
    struct bh_panels gate;
    struct bh_panels up;
    struct bh_panels down;
};

struct bh_model {
    struct bh_model_dims dims;
    const struct bh_kernels *kernels;
    enum bh_model_mode mode;
    struct bh_panels token_embd;
    struct bh_panels output;
    const float *output_norm;
    double *frequency; /* [head_dim / 2] angle of one position */
    struct bh_layer_view *layers;
};

#endif
