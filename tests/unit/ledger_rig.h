/* A rig for tests of the ledger: local worlds, the real ledger role, and puppets that store what the
   tokenizer, the workers, egress and the supervisor would store. A puppet does one thing a call, so a
   test can stop the world between any two of them. */
#ifndef BH_UNIT_LEDGER_RIG_H
#define BH_UNIT_LEDGER_RIG_H

#include <criterion/criterion.h>
#include <string.h>

#include "src/core/role.h"

#define RIG_SLOTS       8u
#define RIG_PAGE_TOKENS 16u
#define RIG_CTX         256u
#define RIG_ROWS        4u

struct rig {
    struct bh_world worlds[BH_ROLE_CNT];
    void *ledger;
    uint64_t now_ns;
};

/* The ledger's view, which is everybody's memory here. */
static inline struct bh_world *
rig_world(struct rig *rig)
{
    return &rig->worlds[BH_ROLE_LEDGER];
}

/* A new ledger on the words as they are; what the old one knew is gone. */
static inline void
rig_restart(struct rig *rig)
{
    cr_assert_eq(bh_role_ledger.open(rig_world(rig), &rig->ledger), BH_OK);
    cr_assert_eq(bh_role_ledger.start(rig->ledger), BH_OK);
}

static inline void
rig_make(struct rig *rig, uint32_t page_cnt)
{
    struct bh_limits limits = {
        .slots = RIG_SLOTS,
        .conns = 4,
        .tenants = 4,
        .ctx = RIG_CTX,
        .page_cnt = page_cnt,
        .list_max = RIG_CTX / RIG_PAGE_TOKENS,
        .rows_max = RIG_ROWS,
        .chunk_max = 64,
        .reply_bytes = 4096,
        .vocab = 1000,
        .kv = {.layers = 1,
               .kv_heads = 1,
               .head_dim = 8,
               .page_tokens = RIG_PAGE_TOKENS,
               .elem_bytes = 2},
    };
    cr_assert_eq(bh_world_new_local(&limits, rig->worlds), BH_OK);
    struct bh_control_block *block = rig_world(rig)->control.block;
    block->hash_seed = 77;
    block->queue_max = 6;
    block->tenant_max = 6;
    rig->now_ns = 1000000000u;
}

static inline void
rig_open(struct rig *rig, uint32_t page_cnt)
{
    rig_make(rig, page_cnt);
    rig_restart(rig);
}

static inline void
rig_close(struct rig *rig)
{
    bh_world_delete_local(rig->worlds);
}

/* Let the ledger go on until it has nothing to do; `tend` also without hints. */
static inline void
rig_run(struct rig *rig)
{
    for (uint32_t i = 0; i < 100 && bh_role_ledger.step(rig->ledger, rig->now_ns) > 0; i++) {
    }
}

static inline void
rig_tend(struct rig *rig)
{
    rig->now_ns += 100000000u;
    bh_role_ledger.tend(rig->ledger, rig->now_ns);
    rig_run(rig);
}

static inline struct bh_request_view
rig_request(struct rig *rig, uint32_t slot)
{
    return bh_request_load(&rig_world(rig)->requests, slot);
}

static inline struct bh_order
rig_order(struct rig *rig, uint32_t slot)
{
    return bh_order_load(&rig_world(rig)->requests, slot);
}

static inline struct bh_list
rig_list(struct rig *rig, uint32_t slot)
{
    return bh_list_load(&rig_world(rig)->requests, slot);
}

static inline struct bh_page_view
rig_page(struct rig *rig, uint32_t slot, uint32_t ord)
{
    struct bh_page page = bh_list_page(&rig_world(rig)->requests, slot, ord);
    return bh_page_load(&rig_world(rig)->pagetable, bh_page_idx(page));
}

static inline uint32_t
rig_pages_in(struct rig *rig, enum bh_page_state state)
{
    uint32_t cnt = 0;
    for (uint32_t page = 0; page < rig_world(rig)->limits.page_cnt; page++) {
        cnt += bh_page_load(&rig_world(rig)->pagetable, page).state == state ? 1 : 0;
    }
    return cnt;
}

static inline uint64_t
rig_metric(struct rig *rig, enum bh_metric metric)
{
    return bh_metric_get(&rig_world(rig)->status[BH_ROLE_LEDGER], metric);
}

/* What a test says of a request; prompt token i is first_token + i. */
struct rig_ask {
    uint32_t tenant;
    uint32_t prompt_cnt;
    uint32_t max_tokens;
    uint32_t first_token;
    uint32_t flags;
    uint64_t deadline_ns;
    uint64_t name_space; /* 0: 5000 + tenant */
};

static inline void
rig_submit_quietly(struct rig *rig, uint32_t slot, struct rig_ask ask)
{
    struct bh_world *world = &rig->worlds[BH_ROLE_TOKENIZER];
    uint32_t gen = rig_request(rig, slot).gen;
    world->submit.records[slot] = (struct bh_record){
        .slot = slot,
        .gen = gen,
        .tenant = ask.tenant,
        .conn_gen = 1,
        .question = 1,
        .choice_cnt = 1,
        .next_slot = UINT32_MAX,
        .prompt_cnt = ask.prompt_cnt,
        .max_tokens = ask.max_tokens,
        .flags = ask.flags,
        .logprobs = -1,
        .temperature = 1.0f,
        .top_p = 1.0f,
        .name_space = ask.name_space != 0 ? ask.name_space : 5000 + ask.tenant,
        .accepted_ns = rig->now_ns,
        .deadline_ns = ask.deadline_ns,
    };
    for (uint32_t i = 0; i < ask.prompt_cnt && i < RIG_CTX; i++) {
        bh_submit_prompt(&world->submit, slot)[i] = (ask.first_token + i) % 1000;
    }
    bh_sub_store(&world->submit, slot, gen);
    bh_world_tell(world, BH_ROLE_LEDGER, bh_hint_make(BH_HINT_SUBMIT, slot, gen));
}

static inline void
rig_submit(struct rig *rig, uint32_t slot, struct rig_ask ask)
{
    rig_submit_quietly(rig, slot, ask);
    rig_run(rig);
}

/* A worker's report about its present order. */
static inline void
rig_report(struct rig *rig, uint32_t slot, enum bh_report_phase phase, uint32_t arg)
{
    struct bh_order order = rig_order(rig, slot);
    struct bh_world *world = &rig->worlds[order.role];
    struct bh_reports *reports =
        order.role == BH_ROLE_PREFILL ? &world->prefill_reports : &world->decode_reports;
    uint32_t cause = phase == BH_REPORT_FAULT ? (uint32_t)BH_VIOLATION_GENERATION : 0;
    bh_report_store(
        reports,
        slot,
        (struct bh_report){.seq = order.seq, .phase = phase, .cause = cause, .arg = arg});
    bh_world_tell(
        world, BH_ROLE_LEDGER, bh_hint_make(BH_HINT_REPORT, slot, rig_request(rig, slot).gen));
    rig_run(rig);
}

/* Decode appends `cnt` tokens, and perhaps the finish, in one store. Token i of the log is 500 + i. */
static inline void
rig_log(struct rig *rig, uint32_t slot, uint32_t cnt, enum bh_finish finish)
{
    struct bh_world *world = &rig->worlds[BH_ROLE_DECODE];
    uint32_t gen = rig_request(rig, slot).gen;
    struct bh_log_view log = bh_log_load(&world->tokenlog, slot);
    uint32_t from = log.gen == gen ? log.cnt : 0;
    for (uint32_t i = from; i < from + cnt && i < RIG_CTX; i++) {
        *bh_log_token(&world->tokenlog, slot, i) = 500 + i;
    }
    bh_log_store(&world->tokenlog,
                 slot,
                 (struct bh_log_view){.gen = gen, .finish = finish, .cnt = from + cnt});
}

static inline void
rig_edge(struct rig *rig, uint32_t slot, uint32_t gen, uint32_t flags)
{
    struct bh_world *world = &rig->worlds[BH_ROLE_EGRESS];
    bh_edge_store(&world->edge, slot, (struct bh_edge_view){.gen = gen, .flags = flags});
    bh_world_tell(world, BH_ROLE_LEDGER, bh_hint_make(BH_HINT_EDGE, slot, gen));
    rig_run(rig);
}

static inline void
rig_gone(struct rig *rig, uint32_t slot, uint32_t flags)
{
    rig_edge(rig, slot, rig_request(rig, slot).gen, flags);
}

/* The scrubber wipes everything that is DIRTY. */
static inline void
rig_scrub(struct rig *rig)
{
    struct bh_world *world = &rig->worlds[BH_ROLE_DECODE];
    for (uint32_t page = 1; page < world->limits.page_cnt; page++) {
        struct bh_page_view view = bh_page_load(&world->pagetable, page);
        if (view.state == BH_PAGE_DIRTY) {
            bh_scrubbed_store(&world->decode_reports, page, view.gen);
            bh_world_tell(world, BH_ROLE_LEDGER, bh_hint_make(BH_HINT_SCRUBBED, page, view.gen));
        }
    }
    rig_run(rig);
}

/* The supervisor has reaped the present incarnation of a role. */
static inline void
rig_reap(struct rig *rig, uint32_t role)
{
    struct bh_control *control = &rig->worlds[BH_ROLE_SUPERVISOR].control;
    bh_role_reaped_store(control, role, bh_role_epoch(control, role));
    bh_word_store(&control->block->fences, bh_word_load(&control->block->fences) + 1);
    rig_run(rig);
}

static inline uint32_t
rig_swept(struct rig *rig, uint32_t role)
{
    return (uint32_t)bh_word_load(&rig_world(rig)->requests.swept[role]);
}

/* The supervisor starts the next incarnation; it may only do so when the last one is swept. */
static inline void
rig_rise(struct rig *rig, uint32_t role)
{
    struct bh_control *control = &rig->worlds[BH_ROLE_SUPERVISOR].control;
    cr_assert_eq(
        rig_swept(rig, role), bh_role_reaped(control, role), "role %u was not swept", role);
    bh_role_epoch_store(control, role, bh_role_epoch(control, role) + 1);
    rig_run(rig);
}

/* From submission to the point where decode has joined. */
static inline void
rig_to_joined(struct rig *rig, uint32_t slot, struct rig_ask ask)
{
    rig_submit(rig, slot, ask);
    cr_assert_eq(rig_request(rig, slot).state, BH_REQUEST_PREFILL);
    rig_report(rig, slot, BH_REPORT_OK, (uint32_t)rig_world(rig)->requests.rows[slot].tokens);
    cr_assert_eq(rig_request(rig, slot).state, BH_REQUEST_DECODE);
    rig_report(rig, slot, BH_REPORT_JOINED, rig_list(rig, slot).cnt);
}

/* From there to a free slot. */
static inline void
rig_to_free(struct rig *rig, uint32_t slot)
{
    rig_log(rig, slot, 1, BH_FINISH_STOP);
    rig_report(rig, slot, BH_REPORT_OK, 1);
    cr_assert_eq(rig_request(rig, slot).state, BH_REQUEST_DONE);
    rig_gone(rig, slot, BH_EDGE_CLOSED);
    cr_assert_eq(rig_request(rig, slot).state, BH_REQUEST_FREE);
}

/* Every object that the ledger writes verifies, and its counts are what the words say. */
static inline void
rig_check(struct rig *rig)
{
    cr_assert_eq(bh_requests_verify(&rig_world(rig)->requests), BH_OK);
    cr_assert_eq(bh_pagetable_verify(&rig_world(rig)->pagetable), BH_OK);
    static const struct {
        enum bh_page_state state;
        enum bh_metric metric;
    } gauges[] = {{BH_PAGE_FREE, BH_METRIC_pages_free},
                  {BH_PAGE_HELD, BH_METRIC_pages_held},
                  {BH_PAGE_CACHED, BH_METRIC_pages_cached},
                  {BH_PAGE_DIRTY, BH_METRIC_pages_dirty},
                  {BH_PAGE_QUARANTINED, BH_METRIC_pages_quarantined}};
    for (size_t i = 0; i < BH_COUNT(gauges); i++) {
        cr_assert_eq(rig_metric(rig, gauges[i].metric), rig_pages_in(rig, gauges[i].state));
    }
}

#endif
