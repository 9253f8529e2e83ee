/* Watching and fencing. Nothing here believes a role about anything but its own beat: what a role
   wrote can at worst get that role killed. */
#include "src/supervisor/fence.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "src/core/log.h"
#include "src/core/role.h"
#include "src/supervisor/descriptors.h"
#include "src/supervisor/spawn.h"

/* How soon to look again for a sweep that is under way: the ledger has no bell to ring here. */
#define SWEEP_LOOK_NS (5 * BH_NS_PER_MS)

static void
note_death(struct bh_engine *engine, uint32_t role, uint64_t now_ns)
{
    struct bh_child *child = &engine->children[role];
    bool hopeless = bh_deaths_note(&child->deaths, now_ns, now_ns - child->spawned_ns);
    child->respawn_ns = now_ns + child->deaths.pause_ms * BH_NS_PER_MS;
    if (hopeless) {
        bh_log("role=%s died %u times within a minute: the engine stops",
               bh_role_name(role),
               (unsigned)BH_RESTARTS_MAX);
        engine->failed = true;
    } else if (!engine->ready && child->deaths.cnt >= BH_FIRST_DEATHS_MAX) {
        bh_log("role=%s died %u times before it had ever started: the engine stops; its own last "
               "line above says why",
               bh_role_name(role),
               child->deaths.cnt);
        engine->failed = true;
    }
}

/* Whatever touched memory as this incarnation is gone for ever: say so, and wake everybody, because
   the dead may have been killed between a fact and the bell that belonged to it. */
static void
conclude_death(struct bh_engine *engine, uint32_t role, uint64_t now_ns)
{
    struct bh_child *child = &engine->children[role];
    child->phase = BH_CHILD_REAPED;
    bh_role_reaped_store(&engine->view.control, role, child->epoch);
    struct bh_word *fences = &engine->view.control.block->fences;
    /* Relaxed: it says "look again"; what there is to see is in `reaped`, and the bell comes after. */
    bh_word_store_relaxed(fences, bh_word_load_relaxed(fences) + 1);
    bh_flight_note(&engine->view.status[BH_ROLE_SUPERVISOR], now_ns, "reaped", role, child->epoch);
    bh_descriptors_ring_all(engine);
    note_death(engine, role, now_ns);
}

static void
respawn(struct bh_engine *engine, uint32_t role, uint64_t now_ns)
{
    if (bh_spawn(engine, role, now_ns) != BH_OK) {
        /* The epoch that was stored never lived, so it is over at once. */
        conclude_death(engine, role, now_ns);
    }
}

bool
bh_fence_start(struct bh_engine *engine, uint64_t now_ns)
{
    /* Readers before those who tell them something; the tokenizer, which lets clients in, last. */
    static const uint32_t order[] = {
        BH_ROLE_LEDGER, BH_ROLE_EGRESS, BH_ROLE_DECODE, BH_ROLE_PREFILL, BH_ROLE_TOKENIZER};
    for (size_t i = 0; i < BH_COUNT(order); i++) {
        if (bh_spawn(engine, order[i], now_ns) != BH_OK) {
            return false;
        }
    }
    return true;
}

static void
watch(struct bh_engine *engine, uint32_t role, uint64_t now_ns, bool counted)
{
    struct bh_child *child = &engine->children[role];
    uint64_t beat = bh_word_load_relaxed(&engine->view.status[role].block->beat);
    if (child->phase == BH_CHILD_STARTING) {
        child->start_ticks += counted ? 1 : 0;
        if (bh_role_started(&engine->view.status[role], child->epoch)) {
            child->phase = BH_CHILD_UP;
            child->pulse = (struct bh_pulse){.beat = beat};
            child->moved_ns = now_ns;
            if (engine->ready) {
                bh_log("role=%s epoch=%u pid=%d up start_ms=%llu",
                       bh_role_name(role),
                       child->epoch,
                       (int)child->pid,
                       (unsigned long long)((now_ns - child->spawned_ns) / BH_NS_PER_MS));
            }
        } else if (child->start_ticks >= BH_START_MS / BH_TICK_MS) {
            bh_spawn_kill(engine, role, "not started in time");
        }
    } else if (child->phase == BH_CHILD_UP) {
        if (beat != child->pulse.beat) {
            child->moved_ns = now_ns;
        }
        if (bh_pulse_dead(&child->pulse, beat, counted)) {
            bh_spawn_kill(engine, role, "no heartbeat");
        }
    }
}

static void
renew(struct bh_engine *engine, uint64_t now_ns)
{
    struct bh_renewal_view view = {
        .quarantined =
            bh_metric_get(&engine->view.status[BH_ROLE_LEDGER], BH_METRIC_pages_quarantined),
        .page_cnt = engine->plan.limits.page_cnt,
        .list_max = engine->plan.limits.list_max,
        .workers_up = engine->children[BH_ROLE_PREFILL].phase == BH_CHILD_UP &&
                      engine->children[BH_ROLE_DECODE].phase == BH_CHILD_UP,
    };
    uint32_t role = bh_renewal_next(&engine->renewal, view, now_ns);
    if (role != BH_ROLE_SUPERVISOR) {
        bh_spawn_kill(engine, role, "too many pages in quarantine");
    }
}

void
bh_fence_tick(struct bh_engine *engine, uint64_t now_ns, bool counted)
{
    bool all_up = true;
    for (uint32_t role = BH_ROLE_TOKENIZER; role < BH_ROLE_CNT; role++) {
        watch(engine, role, now_ns, counted);
        all_up &= engine->children[role].phase == BH_CHILD_UP;
    }
    renew(engine, now_ns);
    if (all_up && !engine->ready) {
        engine->ready = true;
        /* Relaxed: nothing is concluded from it but itself. */
        bh_word_store_relaxed(&engine->view.control.block->ready, 1);
        bh_descriptors_ring_all(engine);
    }
}

void
bh_fence_reap(struct bh_engine *engine, uint32_t role, uint64_t now_ns)
{
    struct bh_child *child = &engine->children[role];
    siginfo_t info = {0};
    int waited = waitid(P_PID, (id_t)child->pid, &info, WEXITED | WNOHANG);
    if (waited != 0 || info.si_pid != child->pid) {
        return; /* not gone yet: nothing is concluded, however long it takes */
    }
    close(child->pidfd);
    child->pidfd = -1;
    bool exited = info.si_code == CLD_EXITED;
    bh_log("role=%s epoch=%u pid=%d died %s=%d lived_ms=%llu",
           bh_role_name(role),
           child->epoch,
           (int)child->pid,
           exited ? "exit_status" : "signal",
           info.si_status,
           (unsigned long long)((now_ns - child->spawned_ns) / BH_NS_PER_MS));
    conclude_death(engine, role, now_ns);
}

static bool
is_swept(const struct bh_engine *engine, uint32_t role)
{
    /* Nobody sweeps for the ledger: its successor reads the words. */
    if (role == BH_ROLE_LEDGER) {
        return true;
    }
    /* edge role.swept: acquire; pairs with release in the ledger's sweep. */
    return bh_word_load(&engine->view.requests.swept[role]) >= engine->children[role].epoch;
}

uint64_t
bh_fence_advance(struct bh_engine *engine, uint64_t now_ns)
{
    uint64_t sleep_ns = BH_TICK_MS * BH_NS_PER_MS;
    if (engine->failed) {
        return 0;
    }
    for (uint32_t role = BH_ROLE_TOKENIZER; role < BH_ROLE_CNT; role++) {
        struct bh_child *child = &engine->children[role];
        if (child->phase == BH_CHILD_REAPED) {
            if (is_swept(engine, role)) {
                child->phase = BH_CHILD_BACKOFF;
            } else {
                sleep_ns = bh_min_u64(sleep_ns, SWEEP_LOOK_NS);
            }
        }
        if (child->phase == BH_CHILD_BACKOFF) {
            if (now_ns >= child->respawn_ns) {
                respawn(engine, role, now_ns);
            } else {
                sleep_ns = bh_min_u64(sleep_ns, child->respawn_ns - now_ns);
            }
        }
    }
    return sleep_ns;
}
