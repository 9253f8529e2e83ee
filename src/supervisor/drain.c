/* The way to the end of an engine. */
#include "src/supervisor/drain.h"

#include "src/core/log.h"
#include "src/supervisor/descriptors.h"

static void
set_drain(struct bh_engine *engine, enum bh_drain drain)
{
    /* Never back: a client that was told the server stops has gone elsewhere. */
    struct bh_word *word = &engine->view.control.block->drain;
    if (bh_word_load_relaxed(word) < (uint64_t)drain) {
        /* Relaxed: nothing is concluded from it but itself. */
        bh_word_store_relaxed(word, drain);
        bh_descriptors_ring_all(engine);
    }
}

void
bh_drain_refuse(struct bh_engine *engine)
{
    set_drain(engine, BH_DRAIN_REFUSE);
}

void
bh_drain_stop(struct bh_engine *engine, uint64_t now_ns)
{
    if (engine->stop != BH_STOP_NO) {
        bh_log("stopping at once");
        engine->stop = BH_STOP_NOW;
        return;
    }
    bh_log("stopping: new requests are refused, live ones have deadline_s=%u",
           engine->config.deadline);
    set_drain(engine, BH_DRAIN_REFUSE);
    engine->stop = BH_STOP_DRAIN;
    engine->stop_ns = now_ns + engine->config.deadline * 1000 * BH_NS_PER_MS;
    engine->idle_ticks = 0;
}

/* Nothing is in a slot, and nothing is on its way into one. */
static bool
all_free(const struct bh_engine *engine)
{
    const struct bh_view *view = &engine->view;
    for (uint32_t slot = 0; slot < view->requests.slots; slot++) {
        struct bh_request_view request = bh_request_load(&view->requests, slot);
        if (request.state != BH_REQUEST_FREE || bh_sub_load(&view->submit, slot) == request.gen) {
            return false;
        }
    }
    return true;
}

void
bh_drain_tick(struct bh_engine *engine, uint64_t now_ns)
{
    if (engine->stop == BH_STOP_NO || engine->stop == BH_STOP_NOW) {
        return;
    }
    /* Three ticks in a row: a tokenizer that saw no drain yet may be between two words, and the last
       frame of an answer may be on its way through the kernel. */
    engine->idle_ticks = all_free(engine) ? engine->idle_ticks + 1 : 0;
    if (engine->idle_ticks >= 3) {
        engine->stop = BH_STOP_NOW;
    } else if (now_ns >= engine->stop_ns && engine->stop == BH_STOP_DRAIN) {
        bh_log("deadline passed: live requests are cancelled");
        set_drain(engine, BH_DRAIN_CANCEL);
        engine->stop = BH_STOP_CANCEL;
        engine->stop_ns = now_ns + BH_CANCEL_MS * BH_NS_PER_MS;
    } else if (now_ns >= engine->stop_ns) {
        bh_log("live requests did not end in time: the roles are killed");
        engine->stop = BH_STOP_NOW;
    }
}
