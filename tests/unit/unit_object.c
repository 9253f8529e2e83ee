/* What all objects promise alike: bad limits, bad memory, wrong magic and wrong layouts are
   refused, and a new object verifies. Runs over objects.def, so that a new kind is tested by
   being listed. */
#include "shm/object.h"

#include <criterion/criterion.h>

#include "shm/bell.h"
#include "shm/control.h"
#include "shm/edge.h"
#include "shm/pagetable.h"
#include "shm/pool.h"
#include "shm/report.h"
#include "shm/request.h"
#include "shm/ring.h"
#include "shm/status.h"
#include "shm/submit.h"
#include "shm/tokenlog.h"
#include "shm/turn.h"
#include "tests/unit/shm_fixture.h"

struct kind {
    const char *name;
    size_t (*footprint)(const struct bh_limits *limits);
    enum bh_status (*new)(void *mem, const struct bh_limits *limits);
    enum bh_status (*join)(void *mem, size_t bytes, const struct bh_limits *limits);
    enum bh_status (*verify)(void *mem, size_t bytes, const struct bh_limits *limits);
};

#define OBJECT(object, type)                                                                       \
    static enum bh_status join_##object(void *mem, size_t bytes, const struct bh_limits *limits)   \
    {                                                                                              \
        type side;                                                                                 \
        memset(&side, 0x5a, sizeof(side));                                                         \
        enum bh_status status = bh_##object##_join(mem, bytes, limits, &side);                     \
        if (status == BH_OK) {                                                                     \
            cr_assert_eq((void *)side.head, mem);                                                  \
            bh_##object##_leave(&side);                                                            \
            cr_assert_null(side.head, "left");                                                     \
        } else {                                                                                   \
            type same;                                                                             \
            memset(&same, 0x5a, sizeof(same));                                                     \
            cr_assert_eq(memcmp(&side, &same, sizeof(side)), 0, "untouched unless BH_OK");         \
        }                                                                                          \
        return status;                                                                             \
    }                                                                                              \
    static enum bh_status verify_##object(void *mem, size_t bytes, const struct bh_limits *limits) \
    {                                                                                              \
        type side;                                                                                 \
        enum bh_status status = bh_##object##_join(mem, bytes, limits, &side);                     \
        return status == BH_OK ? bh_##object##_verify(&side) : status;                             \
    }
#include "shm/objects.def"
#undef OBJECT

static enum bh_status
join_control(void *mem, size_t bytes, const struct bh_limits *limits)
{
    (void)limits;
    struct bh_control side;
    return bh_control_join(mem, bytes, &side);
}

static enum bh_status
verify_control(void *mem, size_t bytes, const struct bh_limits *limits)
{
    (void)limits;
    struct bh_control side;
    enum bh_status status = bh_control_join(mem, bytes, &side);
    return status == BH_OK ? bh_control_verify(&side) : status;
}

static enum bh_status
join_ring(void *mem, size_t bytes, const struct bh_limits *limits)
{
    struct bh_ring_tx tx;
    struct bh_ring_rx rx;
    enum bh_status status = bh_ring_join_tx(mem, bytes, limits, &tx);
    cr_assert_eq(bh_ring_join_rx(mem, bytes, limits, &rx), status, "both sides alike");
    return status;
}

static enum bh_status
verify_ring(void *mem, size_t bytes, const struct bh_limits *limits)
{
    struct bh_ring_rx rx;
    enum bh_status status = bh_ring_join_rx(mem, bytes, limits, &rx);
    return status == BH_OK ? bh_ring_verify(&rx) : status;
}

static const struct kind KINDS[] = {
#define OBJECT(object, type)                                                                       \
    {#object, bh_##object##_footprint, bh_##object##_new, join_##object, verify_##object},
#include "shm/objects.def"
#undef OBJECT
    {"control", bh_control_footprint, bh_control_new, join_control, verify_control},
    {"ring", bh_ring_footprint, bh_ring_new, join_ring, verify_ring},
};

/* A pool is promised zeroed memory; all others format what they later read. */
static void *
kind_memory(const struct kind *kind)
{
    size_t bytes = kind->footprint(&FIXTURE_LIMITS);
    cr_assert_gt(bytes, 0, "%s", kind->name);
    return fixture_memory(bytes, strcmp(kind->name, "pool") == 0 ? 0 : 0xa5);
}

Test(object, new_joins_and_verifies)
{
    for (size_t i = 0; i < BH_COUNT(KINDS); i++) {
        const struct kind *kind = &KINDS[i];
        size_t bytes = kind->footprint(&FIXTURE_LIMITS);
        cr_assert_eq(bytes % BH_CACHE_LINE, 0, "%s", kind->name);
        void *mem = kind_memory(kind);
        cr_assert_eq(kind->new (mem, &FIXTURE_LIMITS), BH_OK, "%s", kind->name);
        cr_assert_eq(kind->join(mem, bytes, &FIXTURE_LIMITS), BH_OK, "%s", kind->name);
        cr_assert_eq(kind->join(mem, bytes + 4096, &FIXTURE_LIMITS), BH_OK, "%s", kind->name);
        cr_assert_eq(kind->verify(mem, bytes, &FIXTURE_LIMITS), BH_OK, "%s", kind->name);
        free(mem);
    }
}

Test(object, bad_arguments_are_refused)
{
    struct bh_limits wrong = FIXTURE_LIMITS;
    wrong.slots = 0;
    for (size_t i = 0; i < BH_COUNT(KINDS); i++) {
        const struct kind *kind = &KINDS[i];
        size_t bytes = kind->footprint(&FIXTURE_LIMITS);
        uint8_t *mem = fixture_memory(bytes + BH_CACHE_LINE, 0);
        cr_assert_eq(kind->footprint(&wrong), 0, "%s", kind->name);
        cr_assert_eq(kind->footprint(NULL), 0, "%s", kind->name);
        cr_assert_eq(kind->new (NULL, &FIXTURE_LIMITS), BH_EINVAL, "%s", kind->name);
        cr_assert_eq(kind->new (mem + 8, &FIXTURE_LIMITS), BH_EINVAL, "%s", kind->name);
        cr_assert_eq(kind->new (mem, &wrong), BH_EINVAL, "%s", kind->name);
        cr_assert_eq(kind->new (mem, &FIXTURE_LIMITS), BH_OK, "%s", kind->name);
        cr_assert_eq(kind->join(NULL, bytes, &FIXTURE_LIMITS), BH_EINVAL, "%s", kind->name);
        cr_assert_eq(kind->join(mem + 8, bytes, &FIXTURE_LIMITS), BH_EINVAL, "%s", kind->name);
        cr_assert_eq(kind->join(mem, bytes - 1, &FIXTURE_LIMITS), BH_EINVAL, "%s", kind->name);
        free(mem);
    }
}

Test(object, spoiled_heads_are_refused)
{
    struct bh_limits other = FIXTURE_LIMITS;
    other.vocab++;
    for (size_t i = 0; i < BH_COUNT(KINDS); i++) {
        const struct kind *kind = &KINDS[i];
        size_t bytes = kind->footprint(&FIXTURE_LIMITS);
        void *mem = kind_memory(kind);
        struct bh_object_head *head = mem;
        cr_assert_eq(kind->join(mem, bytes, &FIXTURE_LIMITS), BH_ECORRUPT, "%s unmade", kind->name);
        cr_assert_eq(kind->new (mem, &FIXTURE_LIMITS), BH_OK);
        if (strcmp(kind->name, "control") != 0) {
            cr_assert_eq(kind->join(mem, bytes, &other), BH_ECORRUPT, "%s limits", kind->name);
        }
        head->layout ^= 1;
        cr_assert_eq(kind->join(mem, bytes, &FIXTURE_LIMITS), BH_ECORRUPT, "%s", kind->name);
        head->layout ^= 1;
        head->bytes += BH_CACHE_LINE;
        cr_assert_eq(kind->join(mem, bytes, &FIXTURE_LIMITS), BH_ECORRUPT, "%s", kind->name);
        head->bytes -= BH_CACHE_LINE;
        head->zero[4] = 1;
        cr_assert_eq(kind->verify(mem, bytes, &FIXTURE_LIMITS), BH_ECORRUPT, "%s", kind->name);
        head->zero[4] = 0;
        cr_assert_eq(kind->verify(mem, bytes, &FIXTURE_LIMITS), BH_OK, "%s", kind->name);
        bh_word_store(&head->magic, BH_OBJECT_MAGIC ^ 1);
        cr_assert_eq(kind->join(mem, bytes, &FIXTURE_LIMITS), BH_ECORRUPT, "%s", kind->name);
        free(mem);
    }
}

Test(object, kinds_do_not_join_each_other)
{
    for (size_t made = 0; made < BH_COUNT(KINDS); made++) {
        void *mem = fixture_memory(1 << 20, 0);
        cr_assert_eq(KINDS[made].new(mem, &FIXTURE_LIMITS), BH_OK);
        for (size_t asked = 0; asked < BH_COUNT(KINDS); asked++) {
            enum bh_status expected = made == asked ? BH_OK : BH_ECORRUPT;
            cr_assert_eq(KINDS[asked].join(mem, 1 << 20, &FIXTURE_LIMITS),
                         expected,
                         "%s as %s",
                         KINDS[made].name,
                         KINDS[asked].name);
        }
        free(mem);
    }
}

/* Each row: offset of a field, a value that is still allowed, and the next one, which is not. */
struct bound {
    const char *name;
    size_t offset;
    uint32_t good;
    uint32_t bad;
};
#define BOUND(field, good, bad)                                                                    \
    {                                                                                              \
#field, offsetof(struct bh_limits, field), good, bad                                       \
    }

Test(object, every_limit_is_checked)
{
    static const struct bound BOUNDS[] = {
        BOUND(slots, 1, 0),           BOUND(slots, 65536, 65537),
        BOUND(conns, 1, 0),           BOUND(conns, 65536, 65537),
        BOUND(tenants, 1, 0),         BOUND(tenants, 1024, 1025),
        BOUND(ctx, 49, 48),           BOUND(ctx, 64, 65),
        BOUND(page_cnt, 5, 4),        BOUND(page_cnt, 0xffffff, 0x1000000),
        BOUND(list_max, 4, 3),        BOUND(list_max, 4, 5),
        BOUND(rows_max, 1, 0),        BOUND(rows_max, 65536, 65537),
        BOUND(chunk_max, 1, 0),       BOUND(chunk_max, 0xffffff, 0x1000000),
        BOUND(reply_bytes, 1, 0),     BOUND(reply_bytes, 1u << 30, (1u << 30) + 1),
        BOUND(vocab, 1, 0),           BOUND(vocab, 0xffffff, 0x1000000),
        BOUND(kv.layers, 1, 0),       BOUND(kv.layers, 1024, 1025),
        BOUND(kv.kv_heads, 1, 0),     BOUND(kv.kv_heads, 1024, 1025),
        BOUND(kv.head_dim, 1, 0),     BOUND(kv.head_dim, 1024, 1025),
        BOUND(kv.page_tokens, 16, 8), BOUND(kv.page_tokens, 16, 17),
        BOUND(kv.elem_bytes, 4, 8),   BOUND(kv.elem_bytes, 2, 3),
    };
    for (size_t i = 0; i < BH_COUNT(BOUNDS); i++) {
        struct bh_limits limits = FIXTURE_LIMITS;
        uint32_t *field = (uint32_t *)(void *)((uint8_t *)&limits + BOUNDS[i].offset);
        *field = BOUNDS[i].good;
        cr_assert(bh_limits_ok(&limits), "%s %u", BOUNDS[i].name, BOUNDS[i].good);
        *field = BOUNDS[i].bad;
        cr_assert_not(bh_limits_ok(&limits), "%s %u", BOUNDS[i].name, BOUNDS[i].bad);
    }
}

Test(object, a_pool_that_overflows_is_refused)
{
    struct bh_limits limits = FIXTURE_LIMITS;
    limits.page_cnt = 0xffffff;
    limits.kv = (struct bh_kv_shape){
        .layers = 1024, .kv_heads = 1024, .head_dim = 1024, .page_tokens = 16, .elem_bytes = 4};
    cr_assert_not(bh_limits_ok(&limits));
    limits.page_cnt = 9;
    cr_assert(bh_limits_ok(&limits));
}

Test(object, the_fingerprint_covers_everything)
{
    uint64_t layout = bh_object_layout("pool", 1, &FIXTURE_LIMITS);
    cr_assert_eq(bh_object_layout("pool", 1, &FIXTURE_LIMITS), layout);
    cr_assert_neq(bh_object_layout("pool", 2, &FIXTURE_LIMITS), layout);
    cr_assert_neq(bh_object_layout("poo", 1, &FIXTURE_LIMITS), layout);
    for (size_t at = 0; at < sizeof(struct bh_limits); at += sizeof(uint32_t)) {
        struct bh_limits limits = FIXTURE_LIMITS;
        *(uint32_t *)(void *)((uint8_t *)&limits + at) += 1;
        cr_assert_neq(bh_object_layout("pool", 1, &limits), layout, "field at %zu", at);
    }
}

Test(object, sections_do_not_overlap)
{
    size_t end = 64;
    cr_assert_eq(bh_object_place(&end, 1), 64);
    cr_assert_eq(bh_object_place(&end, 64), 128);
    cr_assert_eq(bh_object_place(&end, 65), 192);
    cr_assert_eq(end, 320);
}
