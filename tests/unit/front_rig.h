/* What tests of the two roles with sockets share: local worlds with a vocabulary, the handover socket
   between the roles, and a client's end of a connection. The other roles are puppets: a test stores
   the words that they would store. */
#ifndef BH_UNIT_FRONT_RIG_H
#define BH_UNIT_FRONT_RIG_H

#include <criterion/criterion.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "src/core/role.h"
#include "tests/unit/make_vocab.h"

#define FRONT_SLOTS 8u
#define FRONT_CONNS 4u
#define FRONT_CTX   64u

/* Tokens behind the 256 bytes. */
enum { TOKEN_END = 256, TOKEN_START, TOKEN_HELLO, TOKEN_WORLD, TOKEN_CNT };

struct front {
    struct bh_world worlds[BH_ROLE_CNT];
    struct make_vocab vocab;
    const struct bh_role *role;
    void *state;
    uint64_t now_ns;
    int handover_tx;
    int handover_rx;
};

static inline struct bh_world *
front_world(struct front *front)
{
    return &front->worlds[front->role->id];
}

static inline void
front_vocab(struct make_vocab *make)
{
    static const char *const more[] = {"<|im_end|>", "<|im_start|>", "Hello", "\304\240world"};
    static_assert(BH_COUNT(more) == TOKEN_CNT - 256, "one text a token");
    const char *tokens[TOKEN_CNT];
    int32_t kinds[TOKEN_CNT];
    make_begin(make);
    make_key_text(make, "tokenizer.ggml.model", "gpt2");
    make_key_text(make, "tokenizer.ggml.pre", "smollm");
    make_byte_tokens(tokens, more, BH_COUNT(more));
    make_key_texts(make, "tokenizer.ggml.tokens", tokens, TOKEN_CNT);
    for (uint32_t i = 0; i < TOKEN_CNT; i++) {
        kinds[i] = i == TOKEN_END || i == TOKEN_START ? 3 : 1;
    }
    make_key_ints(make, "tokenizer.ggml.token_type", kinds, TOKEN_CNT);
    make_key_texts(make, "tokenizer.ggml.merges", NULL, 0);
    make_key_u32(make, "tokenizer.ggml.eos_token_id", TOKEN_END);
    make_key_text(make,
                  "tokenizer.chat_template",
                  "{% for m in messages %}<|im_start|>{{ m['content'] }}<|im_end|>{% endfor %}");
    static const uint8_t zeros[32];
    make_put(make, zeros, (32 - make->len % 32) % 32);
}

/* A new incarnation of the role on the words as they are; what the old one knew is gone. */
static inline void
front_restart(struct front *front)
{
    cr_assert_eq(front->role->open(front_world(front), &front->state), BH_OK);
    cr_assert_eq(front->role->start(front->state), BH_OK);
}

static inline void
front_make(struct front *front, const struct bh_role *role)
{
    const struct bh_limits limits = {
        .slots = FRONT_SLOTS,
        .conns = FRONT_CONNS,
        .tenants = 4,
        .ctx = FRONT_CTX,
        .page_cnt = 16,
        .list_max = 4,
        .rows_max = 4,
        .chunk_max = 64,
        .reply_bytes = 16384,
        .vocab = TOKEN_CNT,
        .kv = {.layers = 1, .kv_heads = 1, .head_dim = 8, .page_tokens = 16, .elem_bytes = 2},
    };
    front->role = role;
    front->now_ns = UINT64_C(1000000000000);
    cr_assert_eq(bh_world_new_local(&limits, front->worlds), BH_OK);
    front_vocab(&front->vocab);
    struct bh_control_block *block = front_world(front)->control.block;
    memcpy(block->model_name, "testmodel", 10);
    block->vocab_bytes = front->vocab.len;
    block->model_file_bytes = front->vocab.len;
    bh_word_store(&block->ready, 1);
    int pair[2];
    cr_assert_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
    front->handover_tx = pair[0];
    front->handover_rx = pair[1];
    for (uint32_t r = 0; r < BH_ROLE_CNT; r++) {
        front->worlds[r].vocab = front->vocab.bytes;
        front->worlds[r].handover_tx_fd = pair[0];
        front->worlds[r].handover_rx_fd = pair[1];
    }
}

/* Let the role go on until it has nothing to do for a while; the kernel may need a moment. */
static inline void
front_run(struct front *front)
{
    for (uint32_t idle = 0; idle < 3;) {
        idle = front->role->step(front->state, front->now_ns) > 0 ? 0 : idle + 1;
        front->role->sleep(front->state, 300000);
    }
}

/* Time passes, then the role tends and goes on. */
static inline void
front_pass(struct front *front, uint64_t ms)
{
    front->now_ns += ms * 1000000u;
    front->role->tend(front->state, front->now_ns);
    front_run(front);
}

static inline uint64_t
front_metric(struct front *front, enum bh_metric metric)
{
    return bh_metric_get(&front_world(front)->status[front->role->id], metric);
}

/* Everything that has arrived at a client, as text. `ended` says whether the other side ended. */
struct heard {
    char text[65536];
    size_t len;
    bool ended;
};

static inline void
hear(int client, struct heard *heard)
{
    for (;;) {
        ssize_t got = recv(
            client, heard->text + heard->len, sizeof(heard->text) - 1 - heard->len, MSG_DONTWAIT);
        if (got <= 0) {
            heard->ended = heard->ended || got == 0;
            heard->text[heard->len] = '\0';
            return;
        }
        heard->len += (size_t)got;
    }
}

static inline void
must_hear(const struct heard *heard, const char *part)
{
    cr_assert_not_null(strstr(heard->text, part), "'%s' is not in '%s'", part, heard->text);
}

static inline void
must_not_hear(const struct heard *heard, const char *part)
{
    cr_assert_null(strstr(heard->text, part), "'%s' is in '%s'", part, heard->text);
}

#endif
