/* Pages between threads. First: a prover that looks while the writer is at work reads only bytes
   whose stamp says they were written. Second: whole lives of pages through ledger, prefill,
   decode and scrubber, with the words of the protocol and nothing else between the threads;
   pages that prefill skips while it reports success must be refused, and no others. */
#include "shm/pool.h"

#include "shm/pagetable.h"
#include "shm/report.h"
#include "shm/request.h"
#include "tests/race/race.h"

#define PAGE_TOKENS 16u
#define LIST_CNT    2u
#define LIFE_CNT    250u
#define GROW_CNT    20u
#define SLOT        1u

static struct bh_pool pool;
static struct bh_pagetable table;
static struct bh_requests requests;
static struct bh_reports prefill_reports;
static struct bh_reports decode_reports;
static struct bh_word stopped; /* 1: the lives are over */
static struct bh_word grown;   /* rounds of the first test that its writer has finished */
static uint64_t start_seed;

/* What the f16 of one token must be: a function of page, life and place. */
static uint16_t
element(uint32_t page_idx, uint32_t gen, uint32_t layer, uint32_t at, uint32_t token)
{
    return (uint16_t)(page_idx * 8191u + gen * 131u + layer * 29u + at * 17u + token * 3u);
}

/* Visits all elements of tokens [from, to): writes them, or says whether they are as they must
   be. */
static bool
visit(uint32_t page_idx, uint32_t gen, uint32_t layer, uint32_t from, uint32_t to, bool writing)
{
    uint8_t *block = bh_kv_block(&pool.kv, pool.pages, page_idx, layer);
    bool good = true;
    for (uint32_t head = 0; head < pool.kv.kv_heads; head++) {
        uint16_t *k = (uint16_t *)(void *)bh_kv_k(&pool.kv, block, head);
        uint16_t *v = (uint16_t *)(void *)bh_kv_v(&pool.kv, block, head);
        for (uint32_t dim = 0; dim < pool.kv.head_dim; dim++) {
            for (uint32_t token = from; token < to; token++) {
                uint16_t right = element(page_idx, gen, layer, head * 64 + dim, token);
                uint16_t *places[2] = {&k[dim * PAGE_TOKENS + token],
                                       &v[token * pool.kv.head_dim + dim]};
                for (int i = 0; i < 2; i++) {
                    if (writing) {
                        *places[i] = right;
                    }
                    good = good && *places[i] == right;
                }
            }
        }
    }
    return good;
}

static struct bh_stamp_want
want_of(struct bh_page page, uint32_t ordinal, uint32_t writer_gen)
{
    return (struct bh_stamp_want){.gen = bh_page_gen(page),
                                  .page_idx = bh_page_idx(page),
                                  .ordinal = ordinal,
                                  .writer_slot = SLOT,
                                  .writer_gen = writer_gen,
                                  .name_space = 77};
}

/* ---- a prover beside the writer ---- */

static void *
grow(void *arg)
{
    uint32_t gen = *(const uint32_t *)arg;
    uint64_t random = start_seed + gen;
    for (uint32_t page_idx = 1; page_idx < pool.page_cnt; page_idx++) {
        struct bh_stamp_want want = want_of(bh_page_make(0, page_idx, gen), page_idx - 1, 3);
        uint32_t filled = 0;
        while (filled < PAGE_TOKENS) {
            uint32_t more = 1 + (uint32_t)(race_random(&random) % 3);
            uint32_t next = filled + more > PAGE_TOKENS ? PAGE_TOKENS : filled + more;
            for (uint32_t layer = 0; layer < pool.kv.layers; layer++) {
                (void)visit(page_idx, gen, layer, filled, next, true);
                bh_pool_stamp(&pool, &want, layer, next, 1000 + page_idx);
            }
            filled = next;
            sched_yield();
        }
    }
    /* edge race.grown: release; pairs with acquire in prover_beside_writer. */
    bh_word_store(&grown, gen);
    return NULL;
}

/* One round: looks at random pages until the writer has filled all of them. True if every look was
   right. */
static bool
prove_while_growing(uint32_t gen, uint64_t *random, uint64_t *proved, uint64_t *refused)
{
    bool good = true;
    /* edge race.grown: acquire; pairs with release in grow. */
    while (bh_word_load(&grown) != gen && race_wait()) {
        uint32_t page_idx = 1 + (uint32_t)(race_random(random) % (pool.page_cnt - 1));
        uint32_t filled = 1 + (uint32_t)(race_random(random) % PAGE_TOKENS);
        struct bh_stamp_want want = want_of(bh_page_make(0, page_idx, gen), page_idx - 1, 3);
        uint32_t layer;
        if (bh_pool_prove(&pool, &want, filled, &layer) != BH_VIOLATION_NONE) {
            *refused += 1;
            continue;
        }
        *proved += 1;
        for (layer = 0; layer < pool.kv.layers; layer++) {
            good = good && visit(page_idx, gen, layer, 0, filled, false);
        }
    }
    return good;
}

static void
prover_beside_writer(void)
{
    uint64_t random = start_seed ^ 7;
    uint64_t proved = 0;
    uint64_t refused = 0;
    bool good = true;
    for (uint32_t gen = 1; gen <= GROW_CNT; gen++) {
        pthread_t writer;
        race_start(&writer, grow, &gen);
        good = prove_while_growing(gen, &random, &proved, &refused) && good;
        race_join(writer);
        for (uint32_t page_idx = 1; page_idx < pool.page_cnt; page_idx++) {
            good = good && bh_pool_digest_ok(&pool, page_idx);
            bh_pool_scrub(&pool, page_idx);
        }
    }
    printf("# proved %llu refused %llu\n", (unsigned long long)proved, (unsigned long long)refused);
    race_report(good, "what is proved was written, and digests hold");
    race_report(proved > 0 && refused > 0, "both answers occurred");
}

/* ---- whole lives ---- */

/* Does prefill skip a page in this life, and which? LIST_CNT: none. A function of the seed, so
   that the ledger's thread knows what decode must say. */
static uint32_t
skipped(uint32_t writer_gen)
{
    uint64_t state = start_seed * 1000 + writer_gen;
    return (uint32_t)(race_random(&state) % (LIST_CNT * 2 + 1));
}

/* Work that is ordered to (role, epoch 1) and not answered yet. */
static bool
claim(uint32_t role, const struct bh_reports *reports, struct bh_live *live)
{
    return bh_request_claim(&requests, SLOT, role, 1, live) == BH_OK &&
           bh_report_load(reports, SLOT).seq != live->order.seq;
}

static void *
prefill(void *arg)
{
    (void)arg;
    struct bh_live live;
    while (bh_word_load(&stopped) == 0 && race_wait()) {
        if (!claim(BH_ROLE_PREFILL, &prefill_reports, &live)) {
            continue;
        }
        struct bh_list list = bh_list_load(&requests, SLOT);
        for (uint32_t ord = 0; ord < list.cnt; ord++) {
            struct bh_page page = bh_list_page(&requests, SLOT, ord);
            if (ord == skipped(live.req.gen) || !bh_page_writable(&table, page, SLOT)) {
                continue;
            }
            struct bh_stamp_want want = want_of(page, ord, live.req.gen);
            for (uint32_t layer = 0; layer < pool.kv.layers; layer++) {
                (void)visit(want.page_idx, want.gen, layer, 0, PAGE_TOKENS, true);
                bh_pool_stamp(&pool, &want, layer, PAGE_TOKENS, 5);
            }
        }
        /* It claims all tokens whatever it did: only the proof can tell. */
        bh_report_store(&prefill_reports,
                        SLOT,
                        (struct bh_report){.seq = live.order.seq,
                                           .phase = BH_REPORT_OK,
                                           .arg = LIST_CNT * PAGE_TOKENS});
    }
    return NULL;
}

static bool decode_good = true;

static struct bh_report
decode_once(const struct bh_live *live)
{
    struct bh_report report = {.seq = live->order.seq, .phase = BH_REPORT_OK};
    struct bh_list list = bh_list_load(&requests, SLOT);
    for (uint32_t ord = 0; ord < list.cnt; ord++) {
        struct bh_page page = bh_list_page(&requests, SLOT, ord);
        struct bh_stamp_want want = want_of(page, ord, live->req.gen);
        uint32_t layer;
        enum bh_violation violation = bh_pool_prove(&pool, &want, PAGE_TOKENS, &layer);
        if (violation != BH_VIOLATION_NONE) {
            report.phase = BH_REPORT_FAULT;
            report.cause = (uint32_t)violation;
            report.arg = ord;
            return report;
        }
        for (layer = 0; layer < pool.kv.layers; layer++) {
            decode_good =
                decode_good && visit(want.page_idx, want.gen, layer, 0, PAGE_TOKENS, false);
        }
        decode_good = decode_good && bh_page_current(&table, page, SLOT) &&
                      bh_pool_digest_ok(&pool, want.page_idx);
    }
    return report;
}

static void *
decode(void *arg)
{
    (void)arg;
    struct bh_live live;
    while (bh_word_load(&stopped) == 0 && race_wait()) {
        if (claim(BH_ROLE_DECODE, &decode_reports, &live)) {
            bh_report_store(&decode_reports, SLOT, decode_once(&live));
        }
        for (uint32_t page_idx = 1; page_idx < table.page_cnt; page_idx++) {
            struct bh_page_view view = bh_page_load(&table, page_idx);
            if (view.state == BH_PAGE_DIRTY &&
                bh_scrubbed_load(&decode_reports, page_idx) != view.gen) {
                bh_pool_scrub(&pool, page_idx);
                bh_scrubbed_store(&decode_reports, page_idx, view.gen);
            }
        }
    }
    return NULL;
}

/* Orders slot SLOT to `role` and waits until it released the order. */
static struct bh_report
order_and_wait(uint32_t seq, uint32_t role, const struct bh_reports *reports)
{
    bh_order_store(&requests,
                   SLOT,
                   (struct bh_order){.seq = seq, .verb = BH_ORDER_RUN, .role = role, .epoch = 1});
    struct bh_report report = bh_report_load(reports, SLOT);
    while ((report.seq != seq || !bh_report_released(report.phase)) && race_wait()) {
        report = bh_report_load(reports, SLOT);
    }
    return report;
}

static void
grant(const uint32_t *pages)
{
    for (uint32_t ord = 0; ord < LIST_CNT; ord++) {
        struct bh_page_view view = bh_page_load(&table, pages[ord]);
        view.state = BH_PAGE_HELD;
        view.owner = SLOT;
        bh_page_store(&table, pages[ord], view);
        bh_list_page_store(&requests, SLOT, ord, bh_page_make(0, pages[ord], view.gen));
    }
    bh_list_store(&requests, SLOT, (struct bh_list){.cnt = LIST_CNT});
}

/* The way back: list 0, each page's end, order NONE, then the wipe. */
static void
give_back(uint32_t seq, const uint32_t *pages)
{
    bh_list_store(&requests, SLOT, (struct bh_list){0});
    for (uint32_t ord = 0; ord < LIST_CNT; ord++) {
        struct bh_page_view view = bh_page_load(&table, pages[ord]);
        bh_page_store(
            &table, pages[ord], (struct bh_page_view){.gen = view.gen + 1, .state = BH_PAGE_DIRTY});
    }
    bh_order_store(&requests, SLOT, (struct bh_order){.seq = seq});
    for (uint32_t ord = 0; ord < LIST_CNT; ord++) {
        struct bh_page_view view = bh_page_load(&table, pages[ord]);
        while (bh_scrubbed_load(&decode_reports, pages[ord]) != view.gen && race_wait()) {
        }
        view.state = BH_PAGE_FREE;
        bh_page_store(&table, pages[ord], view);
    }
}

/* One life of the slot; true if decode said what it must. */
static bool
live_once(uint32_t gen, uint64_t *random)
{
    uint32_t first = 1 + (uint32_t)(race_random(random) % (table.page_cnt - 1));
    uint32_t second = first == table.page_cnt - 1 ? 1 : first + 1;
    const uint32_t pages[LIST_CNT] = {first, second};
    grant(pages);
    bh_request_store(&requests, SLOT, (struct bh_request_view){gen, BH_REQUEST_PREFILL, 0});
    struct bh_report filled = order_and_wait(2 * gen, BH_ROLE_PREFILL, &prefill_reports);
    bh_request_store(&requests, SLOT, (struct bh_request_view){gen, BH_REQUEST_DECODE, 0});
    struct bh_report read = order_and_wait(2 * gen + 1, BH_ROLE_DECODE, &decode_reports);
    bool refused = read.phase == BH_REPORT_FAULT;
    bool expected = skipped(gen) < LIST_CNT;
    enum bh_request_state end = refused ? BH_REQUEST_FAILED : BH_REQUEST_DONE;
    bh_request_store(&requests, SLOT, (struct bh_request_view){gen, end, 0});
    give_back(2 * gen + 1, pages);
    bh_request_store(&requests, SLOT, (struct bh_request_view){gen + 1, BH_REQUEST_FREE, 0});
    return filled.phase == BH_REPORT_OK && refused == expected &&
           (!refused || (read.arg == skipped(gen) && read.cause == BH_VIOLATION_GENERATION));
}

static void
whole_lives(void)
{
    RACE_MAKE(pagetable, &table);
    RACE_MAKE(requests, &requests);
    RACE_MAKE(reports, &prefill_reports);
    RACE_MAKE(reports, &decode_reports);
    pthread_t workers[2];
    race_start(&workers[0], prefill, NULL);
    race_start(&workers[1], decode, NULL);
    uint64_t random = start_seed ^ 11;
    uint32_t skip_cnt = 0;
    bool right = true;
    for (uint32_t gen = 1; gen <= LIFE_CNT; gen++) {
        right = live_once(gen, &random) && right;
        skip_cnt += skipped(gen) < LIST_CNT ? 1 : 0;
    }
    bh_word_store(&stopped, 1);
    race_join(workers[0]);
    race_join(workers[1]);
    printf("# lives %u skipped %u\n", LIFE_CNT, skip_cnt);
    race_report(right, "skipped pages are refused with their ordinal, and no others");
    race_report(decode_good, "no byte of another life or page is read");
    race_report(skip_cnt > 0 && skip_cnt < LIFE_CNT, "both kinds of life occurred");
    race_report(bh_pool_verify(&pool) == BH_OK && bh_pagetable_verify(&table) == BH_OK &&
                    bh_requests_verify(&requests) == BH_OK &&
                    bh_reports_verify(&decode_reports) == BH_OK,
                "everything verifies at rest");
}

int
main(int argc, char **argv)
{
    start_seed = race_begin(argc, argv, 6);
    RACE_MAKE(pool, &pool);
    prover_beside_writer();
    whole_lives();
    return race_finish();
}
