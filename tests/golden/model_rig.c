/* See model_rig.h. */
#include "tests/golden/model_rig.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static void
need(bool condition, const char *what)
{
    if (!condition) {
        fprintf(stderr, "model rig: %s\n", what);
        exit(1);
    }
}

void
rig_file_open(struct rig_file *file, const char *path, uint32_t threads)
{
    char error[BH_GGUF_ERROR_MAX] = "";
    struct stat status;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    need(fd >= 0 && fstat(fd, &status) == 0, "cannot open the model file");
    *file = (struct rig_file){.len = (size_t)status.st_size};
    file->bytes = mmap(NULL, file->len, PROT_READ, MAP_PRIVATE, fd, 0);
    need(file->bytes != MAP_FAILED, "cannot map the model file");
    (void)close(fd);
    need(bh_gguf_open(file->bytes, file->len, file->len, error, &file->gguf) == BH_OK, error);
    need(bh_model_dims_read(file->gguf, error, &file->dims) == BH_OK, error);
    file->packed_bytes = bh_model_pack_footprint(file->gguf, error);
    need(file->packed_bytes > 0, error);
    file->packed = aligned_alloc(64, file->packed_bytes);
    struct bh_team *team = bh_team_new(threads);
    need(file->packed != NULL && team != NULL, "no memory");
    need(bh_model_pack_new(
             file->gguf, file->bytes, team, file->packed, file->packed_bytes, error) == BH_OK,
         error);
    bh_team_delete(team);
}

void
rig_file_close(struct rig_file *file)
{
    bh_gguf_close(file->gguf);
    (void)munmap(file->bytes, file->len);
    free(file->packed);
}

/* What a role does after K and V are in a block: the whole line first, the word last. */
static void
stamp_block(void *role, uint32_t seq_idx, uint32_t page_ord, uint32_t layer, uint32_t end_pos)
{
    struct rig *rig = role;
    const struct bh_stamp_want *want = &rig->batch[seq_idx].pages[page_ord];
    struct bh_stamp *stamp =
        (struct bh_stamp *)(void *)bh_kv_block(&rig->kv, rig->pool, want->page_idx, layer);
    uint32_t filled = end_pos - page_ord * rig->kv.page_tokens;
    stamp->page_idx = want->page_idx;
    stamp->layer = (uint16_t)layer;
    stamp->kind = 0;
    stamp->ordinal = want->ordinal;
    stamp->writer_slot = want->writer_slot;
    stamp->writer_gen = want->writer_gen;
    stamp->name_space = want->name_space;
    stamp->chain = want->chain;
    bh_word_store(
        &stamp->word,
        bh_stamp_word(want->gen, filled, filled == rig->kv.page_tokens ? BH_STAMP_SEALED : 0));
    rig->stamp_calls++;
}

static void
kernels_new(struct rig *rig, const struct rig_file *file, const struct rig_options *options)
{
    enum bh_status status = bh_model_join(
        file->packed, file->packed_bytes, options->mode, options->variant, &rig->model);
    need(status == BH_OK, "cannot join the packed model");
    rig->forward = bh_forward_new(rig->model, &rig->kv, rig->team, rig->rows_max, rig->seqs_max);
    need(rig->forward != NULL, "no memory for the scratch of a step");
}

void
rig_new(struct rig *rig, const struct rig_file *file, const struct rig_options *options)
{
    *rig = (struct rig){.kv = {.layers = file->dims.layers,
                               .kv_heads = file->dims.kv_heads,
                               .head_dim = file->dims.head_dim,
                               .page_tokens = options->page_tokens,
                               .elem_bytes = options->elem_bytes},
                        .seqs_max = options->seqs_max,
                        .rows_max = options->rows_max};
    uint32_t pages = options->tokens_max / options->page_tokens + options->seqs_max;
    rig->page_cnt = pages + 1; /* page 0 is the null page */
    rig->team = bh_team_new(options->threads);
    need(rig->team != NULL, "no threads");
    kernels_new(rig, file, options);
    rig->pool = aligned_alloc(4096, bh_round_up(bh_kv_page_bytes(&rig->kv) * rig->page_cnt, 4096));
    rig->seqs = calloc(rig->seqs_max, sizeof(*rig->seqs));
    rig->batch = calloc(rig->seqs_max, sizeof(*rig->batch));
    rig->batch_seq = calloc(rig->seqs_max, sizeof(*rig->batch_seq));
    need(rig->pool != NULL && rig->seqs != NULL && rig->batch != NULL && rig->batch_seq != NULL,
         "no memory");
    /* Not zeros: whoever reads a block that was never written must not find something harmless. */
    memset(rig->pool, 0x7f, bh_kv_page_bytes(&rig->kv) * rig->page_cnt);
    for (uint32_t i = 0; i < rig->seqs_max; i++) {
        rig->seqs[i].wants = calloc(rig->page_cnt, sizeof(*rig->seqs[i].wants));
        need(rig->seqs[i].wants != NULL, "no memory");
    }
    rig_reset(rig);
}

void
rig_delete(struct rig *rig)
{
    for (uint32_t i = 0; i < rig->seqs_max; i++) {
        free(rig->seqs[i].wants);
    }
    free(rig->seqs);
    free(rig->batch);
    free(rig->batch_seq);
    free(rig->pool);
    bh_forward_delete(rig->forward);
    bh_model_leave(rig->model);
    bh_team_delete(rig->team);
}

void
rig_reset(struct rig *rig)
{
    rig->next_page = 0;
    for (uint32_t i = 0; i < rig->seqs_max; i++) {
        rig->seqs[i].page_cnt = 0;
        rig->seqs[i].tokens = 0;
    }
}

/* Pages 1.. of the pool in an order that jumps about: the step is odd and prime to most counts. */
static uint32_t
take_page(struct rig *rig)
{
    uint32_t usable = rig->page_cnt - 1;
    need(rig->next_page < usable, "the pool of the rig is full");
    uint32_t step = usable % 7 == 0 ? 1 : 7;
    return 1 + (uint32_t)((uint64_t)rig->next_page++ * step % usable);
}

static void
grow(struct rig *rig, uint32_t seq_idx, uint32_t tokens)
{
    static uint32_t life = 100;
    struct rig_seq *seq = &rig->seqs[seq_idx];
    while (seq->page_cnt * rig->kv.page_tokens < tokens) {
        seq->wants[seq->page_cnt] = (struct bh_stamp_want){.gen = life++,
                                                           .page_idx = take_page(rig),
                                                           .ordinal = seq->page_cnt,
                                                           .writer_slot = seq_idx + 1,
                                                           .writer_gen = 1 + seq_idx * 3,
                                                           .name_space = 77};
        seq->page_cnt++;
    }
}

void
rig_place(struct rig *rig,
          uint32_t place,
          uint32_t seq_idx,
          const uint32_t *tokens,
          uint32_t cnt,
          bool outputs)
{
    struct rig_seq *seq = &rig->seqs[seq_idx];
    grow(rig, seq_idx, seq->tokens + cnt);
    rig->batch_seq[place] = seq_idx;
    rig->batch[place] = (struct bh_seq){.pages = seq->wants,
                                        .page_cnt = seq->page_cnt,
                                        .first_pos = seq->tokens,
                                        .token_cnt = cnt,
                                        .outputs = outputs,
                                        .tokens = tokens};
}

void
rig_step(struct rig *rig, uint32_t place_cnt)
{
    enum bh_status status =
        bh_forward_begin(rig->forward, rig->pool, rig->batch, place_cnt, stamp_block, rig);
    need(status == BH_OK, "a step was refused");
    while (bh_forward_layer(rig->forward) == BH_AGAIN) {
    }
    for (uint32_t i = 0; i < place_cnt; i++) {
        rig->seqs[rig->batch_seq[i]].tokens += rig->batch[i].token_cnt;
    }
}

void
rig_feed(struct rig *rig,
         uint32_t seq,
         const uint32_t *tokens,
         uint32_t cnt,
         uint32_t chunk,
         rig_seen_fn *seen,
         void *arg)
{
    for (uint32_t at = 0; at < cnt; at += chunk) {
        uint32_t now = (uint32_t)bh_min_u64(chunk, cnt - at);
        uint32_t first_pos = rig->seqs[seq].tokens;
        rig_place(rig, 0, seq, tokens + at, now, seen != NULL);
        rig_step(rig, 1);
        need(rig->batch[0].violation == BH_VIOLATION_NONE, "a page was refused");
        if (seen != NULL) {
            seen(rig, first_pos, now, arg);
        }
    }
}

struct bh_stamp *
rig_stamp_at(struct rig *rig, uint32_t seq, uint32_t page_ord, uint32_t layer)
{
    uint32_t page_idx = rig->seqs[seq].wants[page_ord].page_idx;
    return (struct bh_stamp *)(void *)bh_kv_block(&rig->kv, rig->pool, page_idx, layer);
}
