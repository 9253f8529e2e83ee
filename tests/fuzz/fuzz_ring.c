/* Fuzz target: hostile peers. The input is a program of what the other processes of one role may do to
   the memory it maps: any hint in its rings, any bytes in the regions that others write, and requests
   that are sound but for one field. Whatever they do, the role goes on: no crash, no check of its own
   fails, no loop without end. The first byte chooses the role under test. */
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "src/core/role.h"
#include "src/decode/batch.h"
#include "src/egress/conn.h"
#include "src/ledger/ledger.h"
#include "src/tokenizer/conn.h"
#include "tests/unit/make_vocab.h"

#define SLOTS       4u
#define CONNS       3u
#define CTX         64u
#define PAGE_TOKENS 16u
#define PAGES       9u
#define VOCAB       257u
#define OPS_MAX     512u
#define STEPS_MAX   4u

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

static const struct bh_limits limits = {
    .slots = SLOTS,
    .conns = CONNS,
    .tenants = 2,
    .ctx = CTX,
    .page_cnt = PAGES,
    .list_max = CTX / PAGE_TOKENS,
    .rows_max = 2,
    .chunk_max = 32,
    .reply_bytes = 4096,
    .vocab = VOCAB,
    .kv = {.layers = 1, .kv_heads = 1, .head_dim = 8, .page_tokens = PAGE_TOKENS, .elem_bytes = 2},
};

/* The bytes of the program; past the end they are zero. */
struct input {
    const uint8_t *data;
    size_t len;
    size_t at;
};

static uint64_t
take(struct input *input, size_t bytes)
{
    uint64_t value = 0;
    for (size_t i = 0; i < bytes; i++) {
        uint64_t byte = input->at < input->len ? input->data[input->at] : 0;
        value |= byte << (8 * i);
        input->at++;
    }
    return value;
}

struct stage {
    struct bh_world worlds[BH_ROLE_CNT];
    struct bh_world *world; /* of the role under test */
    uint64_t now_ns;
    void *ledger;
    struct bh_decode decode;
    struct bh_sequence sequence; /* prefill's reading of one slot */
    struct bh_clients clients;
    struct bh_conns conns;
    int pair[2];      /* handover */
    int peers[CONNS]; /* clients' ends */
};

/* ---- the roles ----------------------------------------------------------------------------- */

static void
ledger_open(struct stage *stage)
{
    BH_CHECK(bh_role_ledger.open(stage->world, &stage->ledger) == BH_OK);
    BH_CHECK(bh_role_ledger.start(stage->ledger) == BH_OK);
}

static void
ledger_step(struct stage *stage)
{
    for (uint32_t i = 0; i < STEPS_MAX && bh_role_ledger.step(stage->ledger, stage->now_ns) > 0;
         i++) {
    }
    (void)bh_role_ledger.pending(stage->ledger);
}

static void
ledger_tend(struct stage *stage)
{
    bh_role_ledger.tend(stage->ledger, stage->now_ns);
}

static void
ledger_close(struct stage *stage)
{
    struct bh_ledger *ledger = stage->ledger;
    bh_queue_delete(&ledger->queue);
    bh_stock_delete(&ledger->stock);
    free(ledger->notes);
    free(ledger->hits);
    free(ledger);
}

static void
dirty_take(void *role, uint32_t page_idx)
{
    (void)role;
    BH_CHECK(page_idx > 0 && page_idx < PAGES);
}

/* Decode without a model: everything up to a step. */
static void
decode_open(struct stage *stage)
{
    struct bh_decode *decode = &stage->decode;
    *decode = (struct bh_decode){
        .worker = {.world = stage->world,
                   .reports = &stage->world->decode_reports,
                   .attend = calloc(SLOTS, sizeof(bool))},
        .rows = calloc(limits.rows_max, sizeof(*decode->rows)),
    };
    BH_CHECK(decode->worker.attend != NULL && decode->rows != NULL);
    for (uint32_t r = 0; r < limits.rows_max; r++) {
        BH_CHECK(bh_sequence_new(&decode->rows[r].sequence, &limits));
    }
}

static void
decode_step(struct stage *stage)
{
    struct bh_decode *decode = &stage->decode;
    (void)bh_worker_hints(&decode->worker, dirty_take, decode);
    bh_decode_attend(decode);
    for (uint32_t slot = 0; slot < SLOTS; slot++) {
        struct bh_live live;
        if (bh_decode_has_slot(decode, slot)) {
            continue;
        }
        switch (bh_worker_look(&decode->worker, slot, &live)) {
        case BH_CALL_RUN:
            (void)bh_decode_join(decode, &live);
            break;
        case BH_CALL_RELEASE:
            bh_worker_report(&decode->worker, &live, BH_REPORT_STOPPED, 0, 0);
            break;
        case BH_CALL_NOTHING:
        default:
            break;
        }
    }
    (void)bh_decode_runnable(decode);
}

static void
decode_tend(struct stage *stage)
{
    bh_worker_attend_all(&stage->decode.worker);
}

static void
decode_close(struct stage *stage)
{
    for (uint32_t r = 0; r < limits.rows_max; r++) {
        bh_sequence_delete(&stage->decode.rows[r].sequence);
    }
    free(stage->decode.rows);
    free(stage->decode.worker.attend);
}

/* What prefill does with an order before it computes. */
static void
prefill_open(struct stage *stage)
{
    decode_open(stage);
    stage->decode.worker.reports = &stage->world->prefill_reports;
    BH_CHECK(bh_sequence_new(&stage->sequence, &limits));
}

static void
prefill_step(struct stage *stage)
{
    struct bh_worker *worker = &stage->decode.worker;
    (void)bh_worker_hints(worker, NULL, NULL);
    for (uint32_t slot = 0; slot < SLOTS; slot++) {
        struct bh_live live;
        uint32_t ord = 0;
        if (bh_worker_look(worker, slot, &live) != BH_CALL_RUN) {
            continue;
        }
        struct bh_sequence *sequence = &stage->sequence;
        enum bh_violation violation = bh_sequence_open(sequence, stage->world, &live, &ord);
        if (violation != BH_VIOLATION_NONE) {
            bh_worker_fault(worker, &live, violation, ord);
            continue;
        }
        uint32_t tokens = (uint32_t)bh_min_u64(stage->world->requests.rows[slot].tokens,
                                               (uint64_t)sequence->page_cnt * PAGE_TOKENS);
        bh_sequence_chain(sequence, stage->world, tokens);
        (void)bh_sequence_current(sequence, stage->world, tokens, &ord);
        (void)bh_sequence_ordered(sequence, stage->world);
        (void)bh_sequence_grow(sequence, stage->world, &ord);
    }
}

static void
prefill_close(struct stage *stage)
{
    bh_sequence_delete(&stage->sequence);
    decode_close(stage);
}

static struct bh_vocab *
vocab_once(void)
{
    static struct bh_vocab *vocab;
    if (vocab == NULL) {
        static struct make_vocab make;
        static const char *const more[] = {"<|im_end|>"};
        const char *tokens[VOCAB];
        char error[BH_TEXT_ERROR_MAX];
        make_begin(&make);
        make_key_text(&make, "tokenizer.ggml.model", "gpt2");
        make_byte_tokens(tokens, more, 1);
        make_key_texts(&make, "tokenizer.ggml.tokens", tokens, VOCAB);
        make_key_texts(&make, "tokenizer.ggml.merges", NULL, 0);
        BH_CHECK(make_open(&make, error, &vocab) == BH_OK);
    }
    return vocab;
}

/* A connection as the tokenizer hands it over. */
static void
hand_over(struct stage *stage, uint32_t idx, uint32_t gen)
{
    int ends[2];
    if (stage->peers[idx % CONNS] >= 0 || socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0) {
        return;
    }
    uint32_t name[2] = {idx, gen};
    struct iovec part = {.iov_base = name, .iov_len = sizeof(name)};
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control = {0};
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = control.bytes,
                             .msg_controllen = sizeof(control.bytes)};
    struct cmsghdr *head = CMSG_FIRSTHDR(&message);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(head), &ends[1], sizeof(int));
    (void)sendmsg(stage->pair[0], &message, MSG_DONTWAIT);
    close(ends[1]);
    stage->peers[idx % CONNS] = ends[0];
}

static void
egress_open(struct stage *stage)
{
    BH_CHECK(bh_clients_open(&stage->clients, stage->world, vocab_once()) == BH_OK);
    BH_CHECK(bh_clients_start(&stage->clients) == BH_OK);
}

static void
egress_step(struct stage *stage)
{
    for (uint32_t i = 0; i < STEPS_MAX; i++) {
        (void)bh_clients_step(&stage->clients, stage->now_ns);
    }
    (void)bh_clients_pending(&stage->clients);
}

static void
egress_tend(struct stage *stage)
{
    bh_clients_tend(&stage->clients, stage->now_ns);
}

static void
egress_close(struct stage *stage)
{
    struct bh_clients *clients = &stage->clients;
    io_uring_queue_exit(&clients->uring.ring);
    for (uint32_t i = 0; i < CONNS; i++) {
        if (clients->list[i].fd >= 0) {
            close(clients->list[i].fd);
        }
        bh_bytes_free(&clients->list[i].out);
        bh_asked_close(&clients->list[i].asked);
    }
    free(clients->list);
    free(clients->slot_client);
}

static bool
head_admit(void *role, uint32_t conn_idx)
{
    (void)role;
    (void)conn_idx;
    return true;
}

static void
request_answer(void *role, uint32_t conn_idx)
{
    struct stage *stage = role;
    bh_conn_ask(&stage->conns, conn_idx, &(struct bh_question){.kind = BH_QUESTION_HEALTH});
}

static void
tokenizer_open(struct stage *stage)
{
    struct sockaddr_un any = {.sun_family = AF_UNIX}; /* the kernel chooses an abstract name */
    int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0);
    socklen_t len = sizeof(any);
    BH_CHECK(bind(listener, (const struct sockaddr *)&any, sizeof(any.sun_family)) == 0 &&
             listen(listener, 8) == 0 && getsockname(listener, (struct sockaddr *)&any, &len) == 0);
    stage->world->listener_fd = listener;
    BH_CHECK(bh_conns_open(&stage->conns, stage->world, head_admit, request_answer, stage) ==
             BH_OK);
    BH_CHECK(bh_conns_start(&stage->conns) == BH_OK);
    static const char text[] =
        "GET /health HTTP/1.1\r\nHost: x\r\n\r\nGET /live HTTP/1.1\r\nHost: x\r\n\r\n";
    for (uint32_t i = 0; i < CONNS - 1; i++) {
        stage->peers[i] = socket(AF_UNIX, SOCK_STREAM, 0);
        BH_CHECK(connect(stage->peers[i], (const struct sockaddr *)&any, len) == 0);
        BH_CHECK(write(stage->peers[i], text, sizeof(text) - 1) > 0);
    }
}

static void
tokenizer_step(struct stage *stage)
{
    for (uint32_t i = 0; i < STEPS_MAX; i++) {
        (void)bh_conns_step(&stage->conns, stage->now_ns);
    }
    (void)bh_conns_pending(&stage->conns);
}

static void
tokenizer_tend(struct stage *stage)
{
    bh_conns_tend(&stage->conns, stage->now_ns);
}

static void
tokenizer_close(struct stage *stage)
{
    io_uring_queue_exit(&stage->conns.uring.ring);
    char *buffers = stage->conns.list[0].buffer;
    for (uint32_t i = 0; i < CONNS; i++) {
        if (stage->conns.list[i].fd >= 0) {
            close(stage->conns.list[i].fd);
        }
        bh_http_delete(stage->conns.list[i].http);
    }
    free(stage->conns.list);
    free(buffers);
    close(stage->world->listener_fd);
}

/* ---- what the peers of each role write ------------------------------------------------------ */

struct subject {
    uint32_t role;
    void (*open)(struct stage *stage);
    void (*step)(struct stage *stage);
    void (*tend)(struct stage *stage);
    void (*close)(struct stage *stage);
    uint32_t region_cnt;
    enum bh_item_id regions[8];
};

static const struct subject subjects[] = {
    {BH_ROLE_LEDGER,
     ledger_open,
     ledger_step,
     ledger_tend,
     ledger_close,
     5,
     {BH_ITEM_submit,
      BH_ITEM_edge,
      BH_ITEM_prefill_reports,
      BH_ITEM_decode_reports,
      BH_ITEM_tokenlog}},
    {BH_ROLE_EGRESS,
     egress_open,
     egress_step,
     egress_tend,
     egress_close,
     4,
     {BH_ITEM_requests, BH_ITEM_tokenlog, BH_ITEM_promptlog, BH_ITEM_submit}},
    {BH_ROLE_DECODE,
     decode_open,
     decode_step,
     decode_tend,
     decode_close,
     5,
     {BH_ITEM_requests, BH_ITEM_pagetable, BH_ITEM_pool, BH_ITEM_prefill_reports, BH_ITEM_submit}},
    {BH_ROLE_PREFILL,
     prefill_open,
     prefill_step,
     decode_tend,
     prefill_close,
     4,
     {BH_ITEM_requests, BH_ITEM_pagetable, BH_ITEM_tokenlog, BH_ITEM_submit}},
    {BH_ROLE_TOKENIZER,
     tokenizer_open,
     tokenizer_step,
     tokenizer_tend,
     tokenizer_close,
     2,
     {BH_ITEM_requests, BH_ITEM_edge}},
};

static bool
may_write(const struct subject *subject, enum bh_item_id region)
{
    for (uint32_t i = 0; i < subject->region_cnt; i++) {
        if (subject->regions[i] == region) {
            return true;
        }
    }
    return false;
}

/* Any word of a region or ring, but for the object's head, which is read once, when it is joined. */
static void
spoil(struct stage *stage, enum bh_item_id item, uint64_t place, uint64_t value)
{
    size_t words =
        (stage->worlds[0].map_bytes[item] - sizeof(struct bh_object_head)) / sizeof(uint64_t);
    uint8_t *base = (uint8_t *)stage->worlds[0].maps[item] + sizeof(struct bh_object_head);
    memcpy(base + place % words * sizeof(uint64_t), &value, sizeof(value));
}

static void
spoil_ring(struct stage *stage, uint64_t which, uint64_t place, uint64_t value)
{
    for (uint32_t id = 0; id < BH_ITEM_CNT; id++) {
        const struct bh_item *item = bh_topology_item((enum bh_item_id)id);
        if (item->kind == BH_ITEM_RING && item->consumer == stage->world->self && which-- == 0) {
            /* The cursors lie in the first lines; slots are as good as hints. */
            spoil(stage, (enum bh_item_id)id, place % 32, value);
            return;
        }
    }
}

static void
send_hint(struct stage *stage, uint64_t which, uint64_t bits)
{
    for (uint32_t producer = 0; producer < BH_ROLE_CNT; producer++) {
        struct bh_ring_tx *ring = &stage->worlds[producer].tx[stage->world->self];
        if (ring->shared != NULL && which-- == 0) {
            (void)bh_ring_publish(ring, (struct bh_hint){bits});
            return;
        }
    }
}

/* A request that nothing is wrong with, asked on connection `slot`. */
static void
sound_request(struct stage *stage, uint32_t slot, uint64_t shape)
{
    struct bh_submit *submit = &stage->worlds[BH_ROLE_TOKENIZER].submit;
    uint32_t gen = bh_request_load(&stage->world->requests, slot).gen;
    uint32_t conn = slot % CONNS;
    struct bh_ask ask = bh_ask_load(submit, conn);
    struct bh_record record = {.slot = slot,
                               .gen = gen,
                               .tenant = shape & 1u,
                               .conn_idx = conn,
                               .conn_gen = ask.gen,
                               .question = ask.cnt + 1,
                               .choice_cnt = 1,
                               .next_slot = UINT32_MAX,
                               .prompt_cnt = 1 + (uint32_t)(shape >> 1 & 31u),
                               .max_tokens = 1 + (uint32_t)(shape >> 6 & 31u),
                               .flags = (uint32_t)(shape >> 11 & 0xffu),
                               .logprobs = (int32_t)(shape >> 19 & 3u) - 1,
                               .top_p = 1.0f,
                               .name_space = 5,
                               .stop_cnt = (uint32_t)(shape >> 21 & 1u),
                               .stop_end = {2},
                               .stop_bytes = "ab"};
    submit->records[slot] = record;
    submit->conns[conn].question =
        (struct bh_question){.kind = BH_QUESTION_REQUEST, .slot = slot, .gen = gen};
    bh_ask_store(submit, conn, (struct bh_ask){.gen = ask.gen, .cnt = ask.cnt + 1});
    bh_sub_store(submit, slot, gen);
    stage->world->requests.records[slot] = record;
}

static void
sound_list(struct stage *stage, uint32_t slot, uint64_t shape)
{
    struct bh_world *ledger = &stage->worlds[BH_ROLE_LEDGER];
    uint32_t cnt = (uint32_t)(shape & 7u) % (limits.list_max + 1);
    for (uint32_t ord = 0; ord < cnt; ord++) {
        uint32_t idx = 1 + (uint32_t)(shape >> (3 * ord + 4) & 7u);
        struct bh_page_view view = bh_page_load(&ledger->pagetable, idx);
        bh_list_page_store(&ledger->requests, slot, ord, bh_page_make(0, idx, view.gen));
    }
    bh_list_store(&ledger->requests,
                  slot,
                  (struct bh_list){.cnt = cnt, .shared = (uint32_t)(shape >> 3 & 1u)});
    ledger->requests.rows[slot].tokens = shape >> 20 & 0x3fu;
}

static void
sound_word(struct stage *stage,
           const struct subject *subject,
           uint32_t what,
           uint32_t slot,
           uint64_t shape)
{
    struct bh_world *ledger = &stage->worlds[BH_ROLE_LEDGER];
    uint32_t gen = bh_request_load(&ledger->requests, slot).gen;
    if (what == 0 && may_write(subject, BH_ITEM_requests)) {
        bh_request_store(&ledger->requests,
                         slot,
                         (struct bh_request_view){.gen = gen + (uint32_t)(shape >> 16 & 1u),
                                                  .state = (enum bh_request_state)(shape & 7u),
                                                  .cause = (enum bh_cause)(shape >> 8 & 15u)});
    } else if (what == 1 && may_write(subject, BH_ITEM_requests)) {
        bh_order_store(&ledger->requests,
                       slot,
                       (struct bh_order){.seq = (uint32_t)(shape >> 8 & 3u),
                                         .verb = (enum bh_order_verb)(shape & 3u),
                                         .role = stage->world->self,
                                         .epoch = 1});
    } else if (what == 2 && may_write(subject, BH_ITEM_requests)) {
        sound_list(stage, slot, shape);
    } else if (what == 3 && may_write(subject, BH_ITEM_tokenlog)) {
        struct bh_log_view log = {.gen = gen,
                                  .finish = (enum bh_finish)(shape >> 8 & 3u),
                                  .cnt = (uint32_t)(shape & 0x7fu) % (CTX + 1)};
        for (uint32_t i = 0; i < log.cnt; i++) {
            *bh_log_token(&stage->world->tokenlog, slot, i) =
                (uint32_t)(shape >> (i % 8 * 8) & 0xffu);
        }
        bh_log_store(&stage->world->tokenlog, slot, log);
    } else if (what == 4 && subject->role == BH_ROLE_LEDGER) {
        struct bh_order order = bh_order_load(&ledger->requests, slot);
        struct bh_report report = {.seq = order.seq,
                                   .phase = (enum bh_report_phase)(shape & 7u),
                                   .cause = (uint32_t)(shape >> 4 & 15u),
                                   .arg = (uint32_t)(shape >> 8 & 0xffffffu)};
        bh_report_store(order.role == BH_ROLE_PREFILL ? &ledger->prefill_reports
                                                      : &ledger->decode_reports,
                        slot,
                        report);
    } else if (what == 5 && subject->role == BH_ROLE_LEDGER) {
        bh_edge_store(&ledger->edge,
                      slot,
                      (struct bh_edge_view){.gen = gen, .flags = (uint32_t)(shape & 7u)});
    } else if (what == 6 && subject->role == BH_ROLE_EGRESS) {
        struct bh_submit *submit = &stage->worlds[BH_ROLE_TOKENIZER].submit;
        uint32_t conn_gen = 1 + (uint32_t)(shape & 1u);
        bh_ask_store(submit, slot % CONNS, (struct bh_ask){.gen = conn_gen});
        bh_word_store(&submit->conns[slot % CONNS].epoch, 1);
        hand_over(stage, slot % CONNS, conn_gen);
    }
}

static void
run(struct stage *stage, const struct subject *subject, struct input *input)
{
    for (uint32_t op = 0; op < OPS_MAX && input->at < input->len; op++) {
        uint64_t what = take(input, 1);
        uint32_t where = (uint32_t)take(input, 1);
        switch (what % 8) {
        case 0:
            send_hint(stage, where % 4, take(input, 8));
            break;
        case 1:
            spoil_ring(stage, where % 4, take(input, 1), take(input, 8));
            break;
        case 2:
            spoil(stage,
                  subject->regions[where % subject->region_cnt],
                  take(input, 2),
                  take(input, 8));
            break;
        case 3:
            if (may_write(subject, BH_ITEM_submit)) {
                sound_request(stage, where % SLOTS, take(input, 4));
            }
            break;
        case 4:
            sound_word(stage, subject, where / SLOTS % 7, where % SLOTS, take(input, 6));
            break;
        case 5:
            if (stage->peers[where % CONNS] >= 0) {
                close(stage->peers[where % CONNS]);
                stage->peers[where % CONNS] = -1;
            }
            break;
        case 6:
            stage->now_ns += (uint64_t)where * 100000000u;
            subject->tend(stage);
            break;
        case 7:
        default:
            subject->step(stage);
            break;
        }
    }
    subject->step(stage);
    stage->now_ns += 100000000u;
    subject->tend(stage);
    subject->step(stage);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
    struct input input = {.data = data, .len = len};
    const struct subject *subject = &subjects[take(&input, 1) % BH_COUNT(subjects)];
    struct stage stage = {.now_ns = UINT64_C(1000000000000), .peers = {-1, -1, -1}};
    BH_CHECK(bh_world_new_local(&limits, stage.worlds) == BH_OK);
    BH_CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, stage.pair) == 0);
    for (uint32_t role = 0; role < BH_ROLE_CNT; role++) {
        stage.worlds[role].handover_tx_fd = stage.pair[0];
        stage.worlds[role].handover_rx_fd = stage.pair[1];
    }
    stage.world = &stage.worlds[subject->role];
    memcpy(stage.world->control.block->model_name, "m", 2);
    stage.world->control.block->queue_max = SLOTS;
    subject->open(&stage);
    run(&stage, subject, &input);
    subject->close(&stage);
    for (uint32_t i = 0; i < CONNS; i++) {
        if (stage.peers[i] >= 0) {
            close(stage.peers[i]);
        }
    }
    close(stage.pair[0]);
    close(stage.pair[1]);
    bh_world_delete_local(stage.worlds);
    return 0;
}
