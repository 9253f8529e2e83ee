/* The process map: that the table which is shipped is sane, that its check refuses tables which are
   not, and that rights and numbers are those that the design promises. */
#include "src/core/topology.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "shm/edge.h"
#include "shm/status.h"
#include "shm/tokenlog.h"
#include "shm/turn.h"
#include "tests/unit/core_engine.h"

Test(topology, shipped_table_is_sane)
{
    const char *wrong = bh_topology_check();
    cr_assert_null(wrong, "%s", wrong == NULL ? "" : wrong);
}

/* Written by hand from the promises: who must not be able to touch what. */
Test(topology, rights_are_the_promised_ones)
{
    static const struct {
        enum bh_item_id id;
        const char *rights; /* STLPDE */
    } promises[] = {
        {BH_ITEM_control, "wrrrrr"},
        {BH_ITEM_pool, "r..ww."},      /* who parses HTTP cannot read KV */
        {BH_ITEM_weights, "r..rr."},   /* neither weights */
        {BH_ITEM_pagetable, "r.wrr."}, /* the ledger alone moves a page */
        {BH_ITEM_requests, "rrwrrr"},
        {BH_ITEM_status_DECODE, "r...wr"},
        {BH_ITEM_ring_LEDGER_PREFILL, "r.ww.."},
        {BH_ITEM_fd_listener, "ww...."},
        {BH_ITEM_fd_handover_rx, "w....w"},
        {BH_ITEM_fd_keys, "ww...."},
    };
    for (size_t i = 0; i < BH_COUNT(promises); ++i) {
        const struct bh_item *item = bh_topology_item(promises[i].id);
        for (uint32_t role = 0; role < BH_ROLE_CNT; ++role) {
            char have = ".rw"[item->rights[role]];
            cr_expect_eq(have, promises[i].rights[role], "%s of role %u", item->name, role);
        }
    }
}

Test(topology, numbers_are_dense_and_ordered)
{
    for (uint32_t role = BH_ROLE_TOKENIZER; role < BH_ROLE_CNT; ++role) {
        int next = BH_FD_FIRST;
        cr_expect_eq(bh_topology_fd(role, BH_ITEM_control), 3);
        for (uint32_t id = 0; id < BH_ITEM_CNT; ++id) {
            bool has = bh_topology_item((enum bh_item_id)id)->rights[role] != BH_RIGHT_NONE;
            cr_expect_eq(bh_topology_fd(role, (enum bh_item_id)id), has ? next : -1);
            next += has;
        }
        cr_expect_eq(bh_topology_fd_end(role), next);
    }
    cr_expect_eq(bh_topology_fd(BH_ROLE_TOKENIZER, BH_ITEM_pool), -1);
    cr_expect_eq(bh_topology_fd(BH_ROLE_PREFILL, BH_ITEM_fd_listener), -1);
    cr_expect_eq(bh_topology_fd(BH_ROLE_SUPERVISOR, BH_ITEM_control), -1);
    cr_expect_eq(bh_topology_fd_end(BH_ROLE_SUPERVISOR), BH_FD_FIRST);
}

static void
expect_refused(const struct bh_item table[BH_ITEM_CNT], const char *word)
{
    const char *wrong = bh_topology_check_table(table);
    cr_assert_not_null(wrong, "not refused: %s", word);
    cr_expect_not_null(strstr(wrong, word), "'%s' does not say '%s'", wrong, word);
}

Test(topology, check_refuses_each_kind_of_mistake)
{
    struct bh_item sane[BH_ITEM_CNT];
    struct bh_item table[BH_ITEM_CNT];
    for (uint32_t id = 0; id < BH_ITEM_CNT; ++id) {
        sane[id] = *bh_topology_item((enum bh_item_id)id);
    }
    cr_assert_null(bh_topology_check_table(sane));
#define SPOILED(word, ...)                                                                         \
    do {                                                                                           \
        memcpy(table, sane, sizeof(table));                                                        \
        __VA_ARGS__;                                                                               \
        expect_refused(table, word);                                                               \
    } while (0)
    SPOILED("more than one writer", table[BH_ITEM_pagetable].rights[3] = BH_RIGHT_WRITE);
    SPOILED("has no writer", table[BH_ITEM_edge].rights[5] = BH_RIGHT_READ);
    SPOILED("raw bytes", table[BH_ITEM_weights].rights[4] = BH_RIGHT_WRITE);
    SPOILED("nobody to share", memset(table[BH_ITEM_vocab].rights, 0, sizeof(table[0].rights)));
    SPOILED("its own role",
            table[BH_ITEM_status_LEDGER].rights[2] = BH_RIGHT_READ,
            table[BH_ITEM_status_LEDGER].rights[5] = BH_RIGHT_WRITE);
    SPOILED("two different roles", table[BH_ITEM_ring_LEDGER_DECODE].consumer = BH_ROLE_LEDGER);
    SPOILED("two different roles", table[BH_ITEM_ring_LEDGER_DECODE].producer = BH_ROLE_CNT);
    SPOILED("same direction",
            table[BH_ITEM_ring_EGRESS_TOKENIZER] = table[BH_ITEM_ring_EGRESS_LEDGER]);
    SPOILED("exactly its two ends", table[BH_ITEM_ring_LEDGER_DECODE].rights[5] = BH_RIGHT_WRITE);
    SPOILED("exactly its two ends", table[BH_ITEM_ring_LEDGER_DECODE].rights[2] = BH_RIGHT_READ);
    SPOILED("consumer's bell", table[BH_ITEM_fd_bell_decode].rights[2] = BH_RIGHT_NONE);
    SPOILED("no ring leads",
            table[BH_ITEM_ring_LEDGER_PREFILL] = (struct bh_item){.kind = BH_ITEM_DESCRIPTOR});
    SPOILED("read control", table[BH_ITEM_control].rights[3] = BH_RIGHT_NONE);
    SPOILED("announce its sleep", table[BH_ITEM_bells].rights[3] = BH_RIGHT_READ);
    SPOILED("lacks the role's bell", table[BH_ITEM_fd_bell_egress].rights[0] = BH_RIGHT_NONE);
#undef SPOILED
}

Test(topology, role_names)
{
    uint32_t role = 99;
    cr_expect(bh_role_by_name("decode", &role));
    cr_expect_eq(role, BH_ROLE_DECODE);
    cr_expect_not(bh_role_by_name("Decode", &role));
    cr_expect_not(bh_role_by_name("", &role));
    cr_expect_eq(role, BH_ROLE_DECODE);
    cr_expect_str_eq(bh_role_name(BH_ROLE_SUPERVISOR), "supervisor");
    cr_expect_str_eq(bh_role_name(BH_ROLE_CNT), "?");
    cr_expect_str_eq(bh_role_mission(BH_ROLE_CNT), "?");
}

Test(topology, footprints_and_formatting)
{
    struct bh_limits limits = core_limits();
    cr_expect_eq(bh_topology_footprint(BH_ITEM_weights, &limits), 0);
    cr_expect_eq(bh_topology_footprint(BH_ITEM_fd_listener, &limits), 0);
    cr_expect_eq(bh_topology_footprint(BH_ITEM_turn, &limits), bh_turn_footprint(&limits));
    cr_expect_eq(bh_topology_footprint(BH_ITEM_promptlog, &limits), bh_tokenlog_footprint(&limits));
    cr_expect_eq(bh_topology_footprint(BH_ITEM_status_EGRESS, &limits),
                 bh_statusboard_footprint(&limits));
    size_t bytes = bh_topology_footprint(BH_ITEM_edge, &limits);
    void *mem = aligned_alloc(BH_CACHE_LINE, bytes);
    cr_assert_not_null(mem);
    struct bh_edge edge;
    memset(mem, 0, bytes);
    cr_expect_eq(bh_edge_join(mem, bytes, &limits, &edge), BH_ECORRUPT);
    cr_expect_eq(bh_topology_new(BH_ITEM_edge, mem, &limits), BH_OK);
    cr_expect_eq(bh_edge_join(mem, bytes, &limits, &edge), BH_OK);
    free(mem);
    cr_expect_eq(bh_topology_new(BH_ITEM_vocab, NULL, &limits), BH_OK);
    cr_expect_eq(bh_topology_new(BH_ITEM_fd_keys, NULL, &limits), BH_EINVAL);
    limits.slots = 0;
    cr_expect_eq(bh_topology_footprint(BH_ITEM_submit, &limits), 0);
}

static char *
printed(void (*print)(FILE *out))
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    cr_assert_not_null(out);
    print(out);
    fclose(out);
    return text;
}

Test(topology, picture_has_every_row)
{
    char *table = printed(bh_topology_print);
    char *dot = printed(bh_topology_print_dot);
    cr_expect_not_null(strstr(table, "pool                    r  .  .  w  w  .   KV pages"));
    cr_expect_not_null(strstr(table, "listener                x  x  .  .  .  ."));
    cr_expect_not_null(
        strstr(table, "ring_ledger_decode      r  .  w  .  w  .   ORDER LIST DIRTY"));
    cr_expect_not_null(strstr(table, "    ledger --> decode     ORDER LIST DIRTY"));
    cr_expect_eq(strncmp(dot, "digraph bulkhead {", 18), 0);
    cr_expect_not_null(strstr(dot, "prefill -> \"pool\" [style=bold];"));
    cr_expect_not_null(strstr(dot, "\"requests\" -> egress [style=dashed];"));
    cr_expect_null(strstr(dot, "tokenizer -> \"pool\""));
    cr_expect_null(strstr(dot, "\"pool\" -> tokenizer"));
    for (uint32_t id = 0; id < BH_ITEM_CNT; ++id) {
        cr_expect_not_null(strcasestr(table, bh_topology_item((enum bh_item_id)id)->name));
    }
    free(table);
    free(dot);
}
