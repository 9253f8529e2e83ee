/* The tokenizer role: from sockets to submitted requests. It reads client sockets and never writes
   them; it maps no page and no weight. conn.c has the connections, request.c what they ask for,
   submit.c how a request comes into being. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "src/core/config.h"
#include "src/core/log.h"
#include "src/core/role.h"
#include "src/tokenizer/request.h"

#define KEY_FILE_MAX (1u << 20)

static enum bh_status
open_keys(struct bh_front *front)
{
    char error[BH_KEYS_ERROR_MAX] = "";
    char *text = NULL;
    size_t len = 0;
    if (front->world->control.block->auth != 0) {
        text = malloc(KEY_FILE_MAX);
        ssize_t got = text != NULL ? pread(front->world->keys_fd, text, KEY_FILE_MAX, 0) : -1;
        if (got < 0 || got == KEY_FILE_MAX) {
            free(text);
            bh_log("api_keys=unreadable the key file must be readable and below 1 MiB");
            return BH_ESYS;
        }
        len = (size_t)got;
    }
    enum bh_status status = bh_keys_new(text, len, &front->keys, error);
    free(text);
    if (status != BH_OK) {
        bh_log("api_keys=refused %s", error);
    }
    return status;
}

static void
encode_alive(void *world)
{
    bh_role_beat(world);
}

static enum bh_status
open_text(struct bh_front *front)
{
    const struct bh_world *world = front->world;
    const struct bh_control_block *block = world->control.block;
    char error[BH_GGUF_ERROR_MAX] = "";
    static_assert(BH_GGUF_ERROR_MAX >= BH_TEXT_ERROR_MAX, "one buffer for both");
    struct bh_gguf *gguf;
    enum bh_status status =
        bh_gguf_open(world->vocab, block->vocab_bytes, block->model_file_bytes, error, &gguf);
    if (status == BH_OK) {
        status = bh_vocab_open(gguf, error, &front->vocab);
        bh_gguf_close(gguf);
    }
    front->text_max = BH_BODY_BYTES + (1u << 20);
    /* Room for several prompts, and for one to be counted that is too long by far. */
    front->ids_max = (size_t)world->limits.ctx * 4 + 1024;
    if (status == BH_OK) {
        /* Interpreted: a JIT leaves memory writable and executable in the one process that parses
           what strangers send, and 13 MB/s is far above what prefill can take. */
        status = bh_bpe_open(front->vocab, front->text_max, false, error, &front->bpe);
    }
    if (status != BH_OK) {
        bh_log("vocabulary=refused %s", error);
        return status;
    }
    front->text = malloc(front->text_max);
    front->ids = calloc(front->ids_max, sizeof(*front->ids));
    if (front->text == NULL || front->ids == NULL) {
        return BH_ESYS;
    }
    bh_bpe_watch(front->bpe, encode_alive, front->world);
    for (uint32_t id = 0; id < bh_vocab_cnt(front->vocab); id++) {
        size_t bytes;
        (void)bh_vocab_bytes(front->vocab, id, &bytes);
        front->token_bytes_max = (uint32_t)bh_max_u64(front->token_bytes_max, bytes);
        if (bh_vocab_is_eog(front->vocab, id) && front->eog_cnt < BH_EOG_MAX) {
            front->eog[front->eog_cnt++] = id;
        }
    }
    return BH_OK;
}

/* A model without a usable template still serves completions; chat requests are told why not. */
static enum bh_status
open_template(struct bh_front *front)
{
    struct bh_template_error error = {0};
    enum bh_status status =
        bh_template_open(front->vocab, NULL, 0, NULL, NULL, &error, &front->template);
    if (status == BH_ESYS) {
        bh_log("template=failed %s", error.message);
        return status;
    }
    if (status != BH_OK) {
        bh_log("template=unusable %s %s chat requests will be refused", error.kind, error.message);
        memcpy(front->template_error, error.message, sizeof(front->template_error));
        front->template = NULL;
    }
    return BH_OK;
}

static enum bh_status
tokenizer_open(struct bh_world *world, void **state)
{
    struct bh_front *front = calloc(1, sizeof(*front));
    if (front == NULL) {
        return BH_ESYS;
    }
    *state = front;
    front->world = world;
    bh_params_prepare();
    enum bh_status status = open_keys(front);
    if (status == BH_OK) {
        status = open_text(front);
    }
    if (status == BH_OK) {
        status = open_template(front);
    }
    if (status == BH_OK) {
        status = bh_conns_open(&front->conns, world, bh_front_head, bh_front_request, front);
    }
    return status;
}

static enum bh_status
tokenizer_start(void *state)
{
    struct bh_front *front = state;
    return bh_conns_start(&front->conns);
}

/* FREE hints say that a slot is free again. Slots are looked up in the table when they are needed, so
   there is nothing to do but to take the hint out of the ring. */
static bool
hint_free(void *role, uint32_t producer, struct bh_hint hint)
{
    const struct bh_front *front = role;
    (void)producer;
    return bh_hint_kind(hint) == BH_HINT_FREE && bh_hint_idx(hint) < front->world->limits.slots;
}

static uint32_t
take_free_hints(struct bh_front *front)
{
    bool scan = false;
    return bh_world_hints(front->world, BH_ROLE_LEDGER, BH_RING_DEPTH, hint_free, front, &scan);
}

static uint32_t
tokenizer_step(void *state, uint64_t now_ns)
{
    struct bh_front *front = state;
    return take_free_hints(front) + bh_conns_step(&front->conns, now_ns);
}

static void
tokenizer_tend(void *state, uint64_t now_ns)
{
    struct bh_front *front = state;
    bh_conns_tend(&front->conns, now_ns);
}

static void
tokenizer_sleep(void *state, uint64_t timeout_ns)
{
    struct bh_front *front = state;
    bh_conns_sleep(&front->conns, timeout_ns);
}

static bool
tokenizer_pending(void *state)
{
    struct bh_front *front = state;
    return bh_conns_pending(&front->conns);
}

const struct bh_role bh_role_tokenizer = {.id = BH_ROLE_TOKENIZER,
                                          .open = tokenizer_open,
                                          .start = tokenizer_start,
                                          .step = tokenizer_step,
                                          .tend = tokenizer_tend,
                                          .sleep = tokenizer_sleep,
                                          .pending = tokenizer_pending};
