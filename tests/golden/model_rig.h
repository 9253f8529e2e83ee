/* A model file with one team of threads, and sequences of tokens fed through it without any of the
   engine's processes: what golden tests, unit tests of the model and its bench run on. A rig plays the
   part of the roles: it owns a pool of pages, hands them out in a scattered order, and stamps. */
#ifndef BH_GOLDEN_MODEL_RIG_H
#define BH_GOLDEN_MODEL_RIG_H

#include "src/model/model.h"

struct rig_file {
    uint8_t *bytes;
    size_t len;
    struct bh_gguf *gguf;
    uint8_t *packed;
    size_t packed_bytes;
    struct bh_model_dims dims;
};

/* rig_file_open - map, index and pack the GGUF file at `path`; on failure prints why and exits with 1. */
void rig_file_open(struct rig_file *file, const char *path, uint32_t threads);
void rig_file_close(struct rig_file *file);

struct rig_options {
    enum bh_model_mode mode;
    const char *variant;
    uint32_t threads;
    uint32_t elem_bytes;
    uint32_t page_tokens;
    uint32_t tokens_max; /* of all sequences together, in whole pages a sequence */
    uint32_t rows_max;
    uint32_t seqs_max;
};

struct rig_seq {
    struct bh_stamp_want *wants;
    uint32_t page_cnt;
    uint32_t tokens; /* fed so far */
};

struct rig {
    struct bh_team *team;
    struct bh_model *model;
    struct bh_forward *forward;
    struct bh_kv_shape kv;
    uint8_t *pool;
    uint32_t page_cnt;
    uint32_t next_page;
    struct rig_seq *seqs; /* [seqs_max] */
    struct bh_seq *batch; /* [seqs_max] */
    uint32_t *batch_seq;  /* [seqs_max] which sequence each of the batch is */
    uint32_t seqs_max;
    uint32_t rows_max;
    uint32_t stamp_calls;
};

/* Exits with 1 and a message when something cannot be had. */
void rig_new(struct rig *rig, const struct rig_file *file, const struct rig_options *options);
void rig_delete(struct rig *rig);

/* All sequences start afresh; their pages are of a new life. */
void rig_reset(struct rig *rig);

/* rig_begin - put the next `cnt` tokens of sequence `seq` into batch place `place`; rig_step then runs all
   layers of a batch of `place_cnt` places. */
void rig_place(struct rig *rig,
               uint32_t place,
               uint32_t seq,
               const uint32_t *tokens,
               uint32_t cnt,
               bool outputs);
void rig_step(struct rig *rig, uint32_t place_cnt);

/* rig_feed - one sequence alone, in chunks of `chunk` tokens; after each chunk `seen` (may be NULL) may ask
   for logits: first_pos is the position of the chunk's row 0. */
typedef void rig_seen_fn(struct rig *rig, uint32_t first_pos, uint32_t cnt, void *arg);
void rig_feed(struct rig *rig,
              uint32_t seq,
              const uint32_t *tokens,
              uint32_t cnt,
              uint32_t chunk,
              rig_seen_fn *seen,
              void *arg);

/* The stamp of a sequence's page at a layer, for tests that spoil it. */
struct bh_stamp *rig_stamp_at(struct rig *rig, uint32_t seq, uint32_t page_ord, uint32_t layer);

#endif
