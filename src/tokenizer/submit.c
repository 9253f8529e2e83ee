/* Records: from parameters and tokens to submitted requests. See request.h.

   Order of stores (edge conn.ask, edge sub.word): records and prompts, then the question, then sub of
   every choice: whoever answers knows a request before it can exist. */
#include <string.h>

#include "shm/hook.h"
#include "shm/region.h"
#include "src/core/os.h"
#include "src/tokenizer/request.h"

#define PROMPT_KEEP_TOKENS 16384u /* a prompt that was longer gives its memory back */

/* A slot is free when the ledger says so and nothing was submitted for this life of it. */
static bool
slot_free(const struct bh_front *front, uint32_t slot, uint32_t *gen)
{
    struct bh_request_view view = bh_request_load(&front->world->requests, slot);
    *gen = view.gen;
    return view.state == BH_REQUEST_FREE && view.gen != UINT32_MAX &&
           bh_sub_load(&front->world->submit, slot) != view.gen;
}

static bool
find_slots(struct bh_front *front, uint32_t cnt, struct bh_req *reqs)
{
    uint32_t slots = front->world->limits.slots;
    uint32_t found = 0;
    for (uint32_t i = 0; i < slots && found < cnt; i++) {
        uint32_t slot = (front->next_slot + i) % slots;
        uint32_t gen;
        if (slot_free(front, slot, &gen)) {
            reqs[found++] = (struct bh_req){.slot = slot, .gen = gen};
        }
    }
    if (found == cnt) {
        front->next_slot = (reqs[cnt - 1].slot + 1) % slots;
    }
    return found == cnt;
}

static bool
length_fits(const struct bh_front *front,
            const struct bh_params *params,
            size_t tokens,
            struct bh_fault *fault)
{
    uint64_t ctx = front->world->limits.ctx;
    bool chat = params->route == BH_ROUTE_CHAT;
    uint64_t least = params->has_max_tokens ? params->max_tokens : 1;
    if (tokens + least <= ctx) {
        return true;
    }
    struct bh_fault_numbers numbers = {.n_prompt_tokens = tokens,
                                       .n_max_tokens = tokens < ctx ? params->max_tokens : 0,
                                       .n_ctx = ctx};
    bh_fault_context(fault, &numbers, BH_FAULT_LIMIT_CONTEXT, chat);
    return false;
}

/* The tokens that end every answer share a list with the client's own. */
static bool
stop_ids_fit(const struct bh_front *front, const struct bh_params *params, struct bh_fault *fault)
{
    uint32_t room = BH_STOP_IDS_MAX - (params->ignore_eos ? 0 : front->eog_cnt);
    if (params->stop_id_cnt <= room) {
        return true;
    }
    bh_fault_say(
        fault,
        BH_ERROR_INVALID_VALUE,
        "stop_token_ids",
        "'stop_token_ids' may hold at most %u ids: this model has %u end tokens of its own.",
        room,
        BH_STOP_IDS_MAX - room);
    return false;
}

static void
record_fill(struct bh_front *front,
            uint32_t conn_idx,
            const struct bh_params *params,
            uint32_t tenant,
            uint32_t prompt_cnt,
            struct bh_record *record)
{
    const struct bh_world *world = front->world;
    const struct bh_http_request *http = bh_http_request(front->conns.list[conn_idx].http);
    record->tenant = tenant;
    record->conn_idx = conn_idx;
    record->conn_gen = front->conns.list[conn_idx].gen;
    record->question = front->conns.list[conn_idx].asked + 1;
    record->prompt_cnt = prompt_cnt;
    uint32_t room = world->limits.ctx - prompt_cnt;
    record->max_tokens = params->has_max_tokens || params->route == BH_ROUTE_COMPLETIONS
                             ? (uint32_t)bh_min_u64(params->max_tokens, room)
                             : room;
    record->name_space = bh_chain_start(world->control.block->hash_seed, (uint64_t)tenant + 1);
    record->flags |= http->keep_alive ? 0u : (uint32_t)BH_RECORD_CLOSE;
    record->flags |= http->http10 ? (uint32_t)BH_RECORD_HTTP10 : 0u;
    for (uint32_t i = 0; i < front->eog_cnt && !params->ignore_eos; i++) {
        BH_CHECK(record->stop_id_cnt < BH_STOP_IDS_MAX);
        record->stop_ids[record->stop_id_cnt++] = front->eog[i];
    }
}

static void
prompt_store(struct bh_front *front, uint32_t slot, const uint32_t *ids, uint32_t cnt)
{
    struct bh_submit *submit = &front->world->submit;
    uint32_t *prompt = bh_submit_prompt(submit, slot);
    if (submit->records[slot].prompt_cnt > PROMPT_KEEP_TOKENS) {
        bh_region_discard(prompt, (size_t)submit->ctx * sizeof(*prompt));
    }
    memcpy(prompt, ids, cnt * sizeof(*ids));
}

bool
bh_front_submit(struct bh_front *front,
                uint32_t conn_idx,
                const struct bh_params *params,
                uint32_t tenant,
                const size_t *prompt_end,
                uint32_t prompt_cnt,
                struct bh_fault *fault)
{
    struct bh_world *world = front->world;
    struct bh_req reqs[BH_CHOICES_MAX];
    uint32_t choices = params->n * prompt_cnt;
    for (uint32_t p = 0; p < prompt_cnt; p++) {
        if (!length_fits(front, params, prompt_end[p] - (p > 0 ? prompt_end[p - 1] : 0), fault)) {
            return false;
        }
    }
    if (!stop_ids_fit(front, params, fault)) {
        return false;
    }
    if (!find_slots(front, choices, reqs)) {
        bh_fault_set(fault, BH_ERROR_QUEUE_FULL, NULL);
        return false;
    }
    uint64_t random[3];
    bh_os_random(random, sizeof(random));
    for (uint32_t c = 0; c < choices; c++) {
        uint32_t p = c / params->n;
        size_t from = p > 0 ? prompt_end[p - 1] : 0;
        uint32_t cnt = (uint32_t)(prompt_end[p] - from);
        struct bh_record record = {.slot = reqs[c].slot,
                                   .gen = reqs[c].gen,
                                   .choice_idx = c,
                                   .choice_cnt = choices,
                                   .next_slot = c + 1 < choices ? reqs[c + 1].slot : UINT32_MAX,
                                   .next_gen = c + 1 < choices ? reqs[c + 1].gen : 0,
                                   .prompt_idx = p,
                                   .id = {random[0], random[1]},
                                   .created_s = bh_os_unix_s(),
                                   .accepted_ns = bh_os_now_ns()};
        bh_params_record(params, c % params->n, random[2], &record);
        record_fill(front, conn_idx, params, tenant, cnt, &record);
        prompt_store(front, reqs[c].slot, front->ids + from, cnt);
        world->submit.records[reqs[c].slot] = record;
    }
    bool close = !bh_http_request(front->conns.list[conn_idx].http)->keep_alive;
    bh_conn_ask(&front->conns,
                conn_idx,
                &(struct bh_question){.kind = BH_QUESTION_REQUEST,
                                      .slot = reqs[0].slot,
                                      .gen = reqs[0].gen,
                                      .close = close ? 1 : 0});
    for (uint32_t c = 0; c < choices; c++) {
        BH_HOOK("tokenizer.submit:before_word");
        bh_sub_store(&world->submit, reqs[c].slot, reqs[c].gen);
        bh_world_tell(
            world, BH_ROLE_LEDGER, bh_hint_make(BH_HINT_SUBMIT, reqs[c].slot, reqs[c].gen));
    }
    return true;
}
