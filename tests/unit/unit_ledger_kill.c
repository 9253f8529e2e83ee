/* The ledger killed between any two of its stores, and workers killed at any moment, under a load that
   needs sharing, growth, preemption, a cancel, a refusal and a fault. Puppets do what correct workers
   do and remember which pages they may touch and what they wrote there. Asserted all along: no page
   that a worker may touch changes its life; no page is read that does not hold exactly the reader's
   tokens, in its namespace; terminal states absorb. At the end: every outcome is the right one, every
   slot is free and every page is home. */
#include <stdlib.h>

#include "shm/hook.h"
#include "tests/unit/ledger_rig.h"

#define POOL      17u
#define TURNS_MAX 3000u
#define LIVES     2u

/* What each slot asks in each of its lives, and how it has to end. */
static const struct plan {
    struct rig_ask ask;
    uint32_t tokens; /* of the answer */
    enum bh_finish finish;
    enum bh_request_state end;
    uint32_t cancel_turn; /* 0: never */
} plans[] = {
    {{.tenant = 0, .prompt_cnt = 100, .max_tokens = 60}, 60, BH_FINISH_LENGTH, BH_REQUEST_DONE, 0},
    {{.tenant = 0, .prompt_cnt = 100, .max_tokens = 60}, 50, BH_FINISH_STOP, BH_REQUEST_DONE, 0},
    {{.tenant = 1, .prompt_cnt = 90, .max_tokens = 60, .first_token = 7},
     60,
     BH_FINISH_LENGTH,
     BH_REQUEST_DONE,
     0},
    {{.tenant = 1, .prompt_cnt = 250, .max_tokens = 50}, 0, 0, BH_REQUEST_REJECTED, 0},
    {{.tenant = 2, .prompt_cnt = 40, .max_tokens = 90}, 90, 0, BH_REQUEST_CANCELLED, 30},
    {{.tenant = 2, .prompt_cnt = 20, .max_tokens = 9}, 9, 0, BH_REQUEST_FAILED, 0},
};
#define PLANS    BH_COUNT(plans)
#define FAULTING 5u

/* What a worker may touch for a slot, from claim to release. */
struct grip {
    bool on;
    bool joined;
    uint32_t seq;
    uint32_t gen;
    uint32_t cnt;
    struct bh_page pages[RIG_CTX / RIG_PAGE_TOKENS];
};

/* What really stands in a page. */
struct bytes {
    uint32_t gen;
    uint32_t filled;
    uint64_t name_space;
    uint32_t tokens[RIG_PAGE_TOKENS];
};

static struct rig rig;
static struct grip grips[2][RIG_SLOTS]; /* prefill, decode */
static struct bytes pool[POOL];
static uint32_t lives[RIG_SLOTS];
static uint64_t seen[RIG_SLOTS]; /* last request word, for "terminal absorbs" */
static uint32_t turn;
static uint64_t rng;

static uint32_t
dice(uint32_t sides)
{
    rng = rng * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(rng >> 33) % sides;
}

/* ---- the kill ---- */

/* A killed process leaves the words as they were at that moment. So at the moment all shared memory is
   kept aside, the ledger is let go on until its call returns, and then memory is put back. */
static uint8_t *kept[BH_ITEM_CNT];
static bool killed;
static uint32_t fuse; /* hooks until death; 0: lives on */
static uint32_t hooks;

static bool
hook_handler(const char *place)
{
    if (killed || strncmp(place, "ledger.", 7) != 0) {
        return false;
    }
    hooks++;
    if (fuse > 0 && --fuse == 0) {
        const struct bh_world *world = rig_world(&rig);
        for (uint32_t id = 0; id < BH_ITEM_CNT; id++) {
            if (world->maps[id] != NULL) {
                kept[id] = malloc(world->map_bytes[id]);
                cr_assert_not_null(kept[id]);
                memcpy(kept[id], world->maps[id], world->map_bytes[id]);
            }
        }
        killed = true;
    }
    return false;
}

static void
killed_restart(void)
{
    if (!killed) {
        return;
    }
    const struct bh_world *world = rig_world(&rig);
    for (uint32_t id = 0; id < BH_ITEM_CNT; id++) {
        if (kept[id] != NULL) {
            memcpy(world->maps[id], kept[id], world->map_bytes[id]);
            free(kept[id]);
            kept[id] = NULL;
        }
    }
    killed = false;
    rig_restart(&rig);
}

static void
ledger_turn(void)
{
    rig.now_ns += 1000000u;
    (void)bh_role_ledger.step(rig.ledger, rig.now_ns);
    killed_restart();
    if (turn % 3 == 0) {
        bh_role_ledger.tend(rig.ledger, rig.now_ns);
        killed_restart();
    }
}

/* ---- what must be true all along ---- */

static void
watch(void)
{
    struct bh_world *world = rig_world(&rig);
    for (uint32_t w = 0; w < 2; w++) {
        for (uint32_t slot = 0; slot < RIG_SLOTS; slot++) {
            const struct grip *grip = &grips[w][slot];
            for (uint32_t i = 0; grip->on && i < grip->cnt; i++) {
                cr_assert(bh_page_current(&world->pagetable, grip->pages[i], slot),
                          "turn %u: worker %u may touch page %u of slot %u, but its life is over",
                          turn,
                          w,
                          i,
                          slot);
            }
        }
    }
    for (uint32_t slot = 0; slot < RIG_SLOTS; slot++) {
        struct bh_request_view now = rig_request(&rig, slot);
        struct bh_request_view was = bh_request_unpack(seen[slot]);
        if (bh_request_terminal(was.state) && now.gen == was.gen) {
            cr_assert_eq(now.state, was.state, "slot %u left a terminal state", slot);
        }
        seen[slot] = bh_request_pack(now);
    }
}

/* ---- workers ---- */

static uint32_t
token_at(uint32_t slot, uint32_t pos)
{
    uint32_t prompt_cnt = rig_world(&rig)->requests.records[slot].prompt_cnt;
    return pos < prompt_cnt ? bh_submit_prompt(&rig_world(&rig)->submit, slot)[pos]
                            : *bh_log_token(&rig_world(&rig)->tokenlog, slot, pos - prompt_cnt);
}

static void
take_list(struct grip *grip, uint32_t slot)
{
    struct bh_list list = rig_list(&rig, slot);
    for (; grip->cnt < list.cnt; grip->cnt++) {
        grip->pages[grip->cnt] = bh_list_page(&rig_world(&rig)->requests, slot, grip->cnt);
    }
}

static bool
page_holds(const struct grip *grip, uint32_t slot, uint32_t ord, uint32_t tokens)
{
    const struct bytes *bytes = &pool[bh_page_idx(grip->pages[ord])];
    uint32_t from = ord * RIG_PAGE_TOKENS;
    uint32_t filled = tokens - from < RIG_PAGE_TOKENS ? tokens - from : RIG_PAGE_TOKENS;
    bool same = bytes->gen == bh_page_gen(grip->pages[ord]) && bytes->filled >= filled &&
                bytes->name_space == rig_world(&rig)->requests.records[slot].name_space;
    for (uint32_t i = 0; same && i < filled; i++) {
        same = bytes->tokens[i] == token_at(slot, from + i);
    }
    return same;
}

static void
write_token(const struct grip *grip, uint32_t slot, uint32_t pos)
{
    struct bh_page page = grip->pages[pos / RIG_PAGE_TOKENS];
    struct bytes *bytes = &pool[bh_page_idx(page)];
    cr_assert(bh_page_writable(&rig_world(&rig)->pagetable, page, slot));
    if (bytes->gen != bh_page_gen(page)) {
        *bytes = (struct bytes){.gen = bh_page_gen(page),
                                .name_space = rig_world(&rig)->requests.records[slot].name_space};
    }
    bytes->tokens[pos % RIG_PAGE_TOKENS] = token_at(slot, pos);
    bytes->filled = pos % RIG_PAGE_TOKENS + 1;
}

static void
say(uint32_t role, uint32_t slot, enum bh_report_phase phase, uint32_t arg)
{
    struct bh_world *world = &rig.worlds[role];
    struct grip *grip = &grips[role - BH_ROLE_PREFILL][slot];
    struct bh_reports *reports =
        role == BH_ROLE_PREFILL ? &world->prefill_reports : &world->decode_reports;
    bh_report_store(reports,
                    slot,
                    (struct bh_report){.seq = grip->seq,
                                       .phase = phase,
                                       .cause = phase == BH_REPORT_FAULT ? 1 : 0,
                                       .arg = arg});
    grip->on = !bh_report_released(phase);
    bh_world_tell(world, BH_ROLE_LEDGER, bh_hint_make(BH_HINT_REPORT, slot, grip->gen));
}

/* Claim, or release what is over. True: go on with the grip. */
static bool
hold(uint32_t role, uint32_t slot)
{
    struct bh_world *world = &rig.worlds[role];
    struct grip *grip = &grips[role - BH_ROLE_PREFILL][slot];
    uint32_t epoch = bh_role_epoch(&world->control, role);
    struct bh_order order = rig_order(&rig, slot);
    const struct bh_reports *reports =
        role == BH_ROLE_PREFILL ? &world->prefill_reports : &world->decode_reports;
    struct bh_report report = bh_report_load(reports, slot);
    if (!bh_role_up(&world->control, role) || order.verb == BH_ORDER_NONE || order.role != role ||
        order.epoch != epoch || (report.seq == order.seq && bh_report_released(report.phase))) {
        return false;
    }
    struct bh_live live;
    bool runs = bh_request_claim(&world->requests, slot, role, epoch, &live) == BH_OK;
    if (!grip->on) {
        *grip = (struct grip){.on = runs, .seq = order.seq, .gen = rig_request(&rig, slot).gen};
    }
    if (!runs) {
        say(role, slot, BH_REPORT_STOPPED, 0);
        return false;
    }
    take_list(grip, slot);
    return true;
}

/* One step of prefill for a slot: claim, then everything at once a turn later. */
static void
prefill_turn(uint32_t slot)
{
    struct grip *grip = &grips[0][slot];
    bool began = grip->on;
    if (!hold(BH_ROLE_PREFILL, slot) || !began) {
        return;
    }
    if (slot == FAULTING) {
        say(BH_ROLE_PREFILL, slot, BH_REPORT_FAULT, 0);
        return;
    }
    uint32_t covered = (uint32_t)rig_world(&rig)->requests.rows[slot].tokens;
    for (uint32_t pos = 0; pos < covered; pos += RIG_PAGE_TOKENS) {
        uint32_t ord = pos / RIG_PAGE_TOKENS;
        if (page_holds(grip, slot, ord, covered)) {
            continue; /* shared, or an earlier attempt wrote it */
        }
        cr_assert_geq(ord, rig_list(&rig, slot).shared, "a shared page holds something else");
        for (uint32_t i = pos; i < covered && i < pos + RIG_PAGE_TOKENS; i++) {
            write_token(grip, slot, i);
        }
    }
    say(BH_ROLE_PREFILL, slot, BH_REPORT_OK, covered);
}

static void
decode_join(uint32_t slot)
{
    struct grip *grip = &grips[1][slot];
    struct bh_log_view log = bh_log_load(&rig_world(&rig)->tokenlog, slot);
    uint32_t log_cnt = log.gen == grip->gen ? log.cnt : 0;
    uint32_t covered = plans[slot].ask.prompt_cnt + log_cnt - 1;
    cr_assert_eq(rig_world(&rig)->requests.rows[slot].tokens, covered);
    for (uint32_t ord = 0; ord * RIG_PAGE_TOKENS < covered; ord++) {
        cr_assert(page_holds(grip, slot, ord, covered), "slot %u would read a wrong page", slot);
    }
    grip->joined = true;
    say(BH_ROLE_DECODE, slot, BH_REPORT_JOINED, grip->cnt);
}

/* One step of decode for a slot: join, want a page, or one token. */
static void
decode_turn(uint32_t slot)
{
    struct grip *grip = &grips[1][slot];
    if (!hold(BH_ROLE_DECODE, slot)) {
        return;
    }
    if (!grip->joined) {
        decode_join(slot);
        return;
    }
    const struct plan *plan = &plans[slot];
    struct bh_log_view log = bh_log_load(&rig_world(&rig)->tokenlog, slot);
    uint32_t log_cnt = log.gen == grip->gen ? log.cnt : 0;
    if (log.gen == grip->gen && log.finish != BH_FINISH_NONE) {
        say(BH_ROLE_DECODE, slot, BH_REPORT_OK, log_cnt);
        return;
    }
    uint32_t pos = plan->ask.prompt_cnt + log_cnt - 1;
    if (pos / RIG_PAGE_TOKENS >= grip->cnt) {
        say(BH_ROLE_DECODE, slot, BH_REPORT_WANT, pos / RIG_PAGE_TOKENS + 1);
        return;
    }
    write_token(grip, slot, pos);
    for (uint32_t ord = 0; ord < grip->cnt && ord * RIG_PAGE_TOKENS <= pos; ord++) {
        cr_assert(page_holds(grip, slot, ord, pos + 1), "slot %u read a wrong page", slot);
    }
    rig_log(&rig, slot, 1, log_cnt + 1 == plan->tokens ? plan->finish : BH_FINISH_NONE);
}

static void
scrub_turn(void)
{
    struct bh_world *world = &rig.worlds[BH_ROLE_DECODE];
    for (uint32_t page = 1; page < POOL && bh_role_up(&world->control, BH_ROLE_DECODE); page++) {
        struct bh_page_view view = bh_page_load(&world->pagetable, page);
        if (view.state == BH_PAGE_DIRTY &&
            bh_scrubbed_load(&world->decode_reports, page) != view.gen) {
            pool[page] = (struct bytes){0};
            bh_scrubbed_store(&world->decode_reports, page, view.gen);
            bh_world_tell(world, BH_ROLE_LEDGER, bh_hint_make(BH_HINT_SCRUBBED, page, view.gen));
            return;
        }
    }
}

/* ---- the rest of the world ---- */

/* Submit what is due, cancel, and let go of what is over. Returns how many slots are not through. */
static uint32_t
clients_turn(void)
{
    uint32_t left = 0;
    for (uint32_t slot = 0; slot < PLANS; slot++) {
        const struct plan *plan = &plans[slot];
        struct bh_request_view view = rig_request(&rig, slot);
        if (view.state == BH_REQUEST_FREE) {
            bool waits = bh_sub_load(&rig_world(&rig)->submit, slot) == view.gen;
            if (!waits && lives[slot] < LIVES && turn >= 3 * slot) {
                lives[slot]++;
                rig_submit_quietly(&rig, slot, plan->ask);
                waits = true;
            }
            left += waits || lives[slot] < LIVES ? 1 : 0;
            continue;
        }
        left++;
        struct bh_edge_view edge = {.gen = view.gen};
        if (plan->cancel_turn != 0 && turn >= plan->cancel_turn) {
            edge.flags = BH_EDGE_GONE;
        }
        if (bh_request_terminal(view.state)) {
            cr_assert_eq(view.state, plan->end, "slot %u ended with cause %d", slot, view.cause);
            if (view.state == BH_REQUEST_DONE) {
                cr_assert_eq(bh_log_load(&rig_world(&rig)->tokenlog, slot).cnt, plan->tokens);
            }
            edge.flags |= BH_EDGE_CLOSED;
        }
        bh_edge_store(&rig.worlds[BH_ROLE_EGRESS].edge, slot, edge);
    }
    return left;
}

static void
worker_kill(uint32_t role)
{
    struct bh_control *control = &rig.worlds[BH_ROLE_SUPERVISOR].control;
    if (!bh_role_up(control, role)) {
        return;
    }
    memset(grips[role - BH_ROLE_PREFILL], 0, sizeof(grips[0]));
    bh_role_reaped_store(control, role, bh_role_epoch(control, role));
    bh_word_store(&control->block->fences, bh_word_load(&control->block->fences) + 1);
}

static void
supervisor_turn(void)
{
    struct bh_control *control = &rig.worlds[BH_ROLE_SUPERVISOR].control;
    for (uint32_t role = BH_ROLE_PREFILL; role <= BH_ROLE_DECODE; role++) {
        uint32_t reaped = bh_role_reaped(control, role);
        if (bh_role_epoch(control, role) == reaped && rig_swept(&rig, role) == reaped) {
            bh_role_epoch_store(control, role, reaped + 1);
        }
    }
}

static void
world_turn(void)
{
    ledger_turn();
    watch();
    for (uint32_t slot = 0; slot < PLANS; slot++) {
        prefill_turn(slot);
        decode_turn(slot);
    }
    scrub_turn();
    supervisor_turn();
    watch();
    turn++;
}

/* Everything from the first submission to rest. kills: deaths of workers at times the seed chooses,
   and as many of the ledger. */
static void
run_world(uint64_t seed, uint32_t kills)
{
    rig_make(&rig, POOL);
    memset(grips, 0, sizeof(grips));
    memset(pool, 0, sizeof(pool));
    memset(lives, 0, sizeof(lives));
    memset(seen, 0, sizeof(seen));
    turn = 0;
    hooks = 0;
    rng = seed;
    bh_hook_handler = hook_handler;
    rig_restart(&rig);
    while (clients_turn() > 0) {
        cr_assert_lt(turn, TURNS_MAX, "seed %lu: no end", (unsigned long)seed);
        if (kills > 0 && dice(40) == 0) {
            worker_kill(BH_ROLE_PREFILL + dice(2));
            fuse = 1 + dice(12);
            kills--;
        }
        world_turn();
    }
    fuse = 0;
    /* Flagged pages come home when whoever might still have them is gone. */
    worker_kill(BH_ROLE_PREFILL);
    worker_kill(BH_ROLE_DECODE);
    for (uint32_t i = 0; i < 3 * POOL; i++) {
        world_turn();
    }
    rig_tend(&rig);
    cr_assert_eq(rig_pages_in(&rig, BH_PAGE_FREE) + rig_pages_in(&rig, BH_PAGE_CACHED), POOL - 1);
    cr_assert_eq(rig_pages_in(&rig, BH_PAGE_RETIRED), 1);
    for (uint32_t slot = 0; slot < RIG_SLOTS; slot++) {
        cr_assert_eq(rig_request(&rig, slot).state, BH_REQUEST_FREE);
        cr_assert_eq(rig_order(&rig, slot).verb, BH_ORDER_NONE);
        cr_assert_eq(rig_list(&rig, slot).cnt, 0);
    }
    cr_assert_eq(rig_metric(&rig, BH_METRIC_requests_running), 0);
    cr_assert_eq(rig_metric(&rig, BH_METRIC_requests_waiting), 0);
    rig_check(&rig);
    bh_hook_handler = NULL;
    rig_close(&rig);
}

Test(ledger_kill, the_load_needs_all_of_it)
{
    run_world(1, 0);
    cr_assert_gt(hooks, 300);
}

/* Dies once, at every place in turn. */
Test(ledger_kill, between_any_two_stores, .timeout = 100)
{
    for (uint32_t n = 1;; n++) {
        fuse = n;
        run_world(n, 0);
        if (hooks < n) {
            cr_assert_gt(n, 300);
            break;
        }
    }
}

/* Two deaths of workers and two of the ledger, at moments the seed chooses. */
Test(ledger_kill, with_workers_dying_too, .timeout = 100)
{
    for (uint64_t seed = 1; seed <= 200; seed++) {
        fuse = 0;
        run_world(seed * 7919, 2);
    }
}
