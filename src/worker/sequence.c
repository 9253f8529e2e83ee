/* Sequences: from words and records to what a page must be. See sequence.h. */
#include "src/worker/sequence.h"

#include <stdlib.h>

#include "shm/hook.h"

bool
bh_sequence_new(struct bh_sequence *sequence, const struct bh_limits *limits)
{
    size_t pages = limits->list_max;
    *sequence = (struct bh_sequence){
        .pages = calloc(pages, sizeof(*sequence->pages)),
        .wants = calloc(pages, sizeof(*sequence->wants)),
        .chains = calloc(pages, sizeof(*sequence->chains)),
        .tokens = calloc(pages * limits->kv.page_tokens, sizeof(*sequence->tokens))};
    if (sequence->pages == NULL || sequence->wants == NULL || sequence->chains == NULL ||
        sequence->tokens == NULL) {
        bh_sequence_delete(sequence);
        return false;
    }
    return true;
}

void
bh_sequence_delete(struct bh_sequence *sequence)
{
    free(sequence->pages);
    free(sequence->wants);
    free(sequence->chains);
    free(sequence->tokens);
    *sequence = (struct bh_sequence){0};
}

enum bh_violation
bh_sequence_grow(struct bh_sequence *sequence, const struct bh_world *world, uint32_t *ord)
{
    const struct bh_requests *requests = &world->requests;
    struct bh_list list = bh_list_load(requests, sequence->live.req.slot);
    if (list.cnt > requests->list_max) {
        *ord = sequence->page_cnt;
        return BH_VIOLATION_HANDLE;
    }
    for (uint32_t j = sequence->page_cnt; j < list.cnt; j++) {
        struct bh_page page = bh_list_page(requests, sequence->live.req.slot, j);
        uint32_t idx = bh_page_idx(page);
        if (bh_page_pool(page) != 0 || idx == 0 || idx >= world->limits.page_cnt ||
            bh_page_gen(page) == 0) {
            *ord = j;
            return BH_VIOLATION_HANDLE;
        }
        sequence->pages[j] = page;
        sequence->wants[j] = (struct bh_stamp_want){.gen = bh_page_gen(page),
                                                    .page_idx = idx,
                                                    .ordinal = j,
                                                    .writer_slot = sequence->live.req.slot,
                                                    .writer_gen = sequence->live.req.gen,
                                                    .shared = j < sequence->shared ? 1 : 0,
                                                    .name_space = sequence->record.name_space};
        sequence->page_cnt = j + 1;
    }
    return BH_VIOLATION_NONE;
}

enum bh_violation
bh_sequence_open(struct bh_sequence *sequence,
                 const struct bh_world *world,
                 const struct bh_live *live,
                 uint32_t *ord)
{
    sequence->live = *live;
    sequence->record = world->requests.records[live->req.slot];
    sequence->page_cnt = 0;
    sequence->chained = 0;
    sequence->token_cnt = 0;
    sequence->shared = bh_list_load(&world->requests, live->req.slot).shared;
    if (!bh_record_check(&sequence->record, live->req, &world->limits)) {
        *ord = 0;
        return BH_VIOLATION_HANDLE;
    }
    enum bh_violation violation = bh_sequence_grow(sequence, world, ord);
    sequence->open = violation == BH_VIOLATION_NONE;
    return violation;
}

uint32_t
bh_sequence_token(struct bh_sequence *sequence, const struct bh_world *world, uint32_t pos)
{
    uint32_t slot = sequence->live.req.slot;
    uint32_t prompt_cnt = sequence->record.prompt_cnt;
    BH_CHECK(pos < world->limits.list_max * world->limits.kv.page_tokens);
    for (; sequence->token_cnt <= pos; sequence->token_cnt++) {
        uint32_t at = sequence->token_cnt;
        sequence->tokens[at] = at < prompt_cnt
                                   ? bh_submit_prompt(&world->submit, slot)[at]
                                   : *bh_log_token(&world->tokenlog, slot, at - prompt_cnt);
    }
    return sequence->tokens[pos];
}

void
bh_sequence_chain(struct bh_sequence *sequence, const struct bh_world *world, uint32_t tokens)
{
    uint32_t page_tokens = world->limits.kv.page_tokens;
    uint32_t full = (uint32_t)bh_min_u64(tokens / page_tokens, sequence->page_cnt);
    uint64_t chain = sequence->chained > 0 ? sequence->chains[sequence->chained - 1]
                                           : bh_chain_start(world->control.block->hash_seed,
                                                            sequence->record.name_space);
    for (uint32_t j = sequence->chained; j < full; j++) {
        (void)bh_sequence_token(sequence, world, (j + 1) * page_tokens - 1);
        chain = bh_chain_next(chain, sequence->tokens + (size_t)j * page_tokens, page_tokens);
        sequence->chains[j] = chain;
        sequence->wants[j].chain = chain;
        sequence->chained = j + 1;
    }
}

bool
bh_sequence_current(const struct bh_sequence *sequence,
                    const struct bh_world *world,
                    uint32_t tokens,
                    uint32_t *ord)
{
    uint32_t page_tokens = world->limits.kv.page_tokens;
    uint32_t cnt = (tokens + page_tokens - 1) / page_tokens;
    /* Orders the reads of page bytes before the loads of the page words below. */
    bh_fence_acquire();
    for (uint32_t j = 0; j < cnt; j++) {
        if (!bh_page_current(&world->pagetable, sequence->pages[j], sequence->live.req.slot)) {
            *ord = j;
            return false;
        }
    }
    return true;
}

bool
bh_sequence_ordered(const struct bh_sequence *sequence, const struct bh_world *world)
{
    struct bh_live now;
    return bh_request_claim(
               &world->requests, sequence->live.req.slot, world->self, world->epoch, &now) ==
               BH_OK &&
           now.req.gen == sequence->live.req.gen && now.order.seq == sequence->live.order.seq;
}
