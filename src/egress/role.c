/* The egress role: from token logs to sockets. It writes every byte that clients get and reads none
   of theirs; it maps no page and no weight. conn.c has the sockets, question.c the answers, choice.c
   the text, info.c what the server says about itself. */
#include <stdlib.h>

#include "src/core/log.h"
#include "src/core/role.h"
#include "src/egress/conn.h"

static enum bh_status
egress_open(struct bh_world *world, void **state)
{
    const struct bh_control_block *block = world->control.block;
    struct bh_clients *clients = calloc(1, sizeof(*clients));
    if (clients == NULL) {
        return BH_ESYS;
    }
    *state = clients;
    char error[BH_GGUF_ERROR_MAX] = "";
    static_assert(BH_GGUF_ERROR_MAX >= BH_TEXT_ERROR_MAX, "one buffer for both");
    struct bh_gguf *gguf;
    struct bh_vocab *vocab = NULL;
    enum bh_status status =
        bh_gguf_open(world->vocab, block->vocab_bytes, block->model_file_bytes, error, &gguf);
    if (status == BH_OK) {
        status = bh_vocab_open(gguf, error, &vocab);
        bh_gguf_close(gguf);
    }
    if (status != BH_OK) {
        bh_log("vocabulary=refused %s", error);
        return status;
    }
    return bh_clients_open(clients, world, vocab);
}

static enum bh_status
egress_start(void *state)
{
    struct bh_clients *clients = state;
    return bh_clients_start(clients);
}

static uint32_t
egress_step(void *state, uint64_t now_ns)
{
    struct bh_clients *clients = state;
    return bh_clients_step(clients, now_ns);
}

static void
egress_tend(void *state, uint64_t now_ns)
{
    struct bh_clients *clients = state;
    bh_clients_tend(clients, now_ns);
}

static void
egress_sleep(void *state, uint64_t timeout_ns)
{
    struct bh_clients *clients = state;
    bh_clients_sleep(clients, timeout_ns);
}

static bool
egress_pending(void *state)
{
    struct bh_clients *clients = state;
    return bh_clients_pending(clients);
}

const struct bh_role bh_role_egress = {.id = BH_ROLE_EGRESS,
                                       .open = egress_open,
                                       .start = egress_start,
                                       .step = egress_step,
                                       .tend = egress_tend,
                                       .sleep = egress_sleep,
                                       .pending = egress_pending};
