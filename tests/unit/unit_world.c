/* Joining, telling and verifying the world. */
#include "src/core/world.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include "src/core/os.h"
#include "tests/unit/core_engine.h"

Test(world, local_worlds_share_everything)
{
    struct bh_world worlds[BH_ROLE_CNT];
    struct bh_limits limits = core_limits();
    cr_assert_eq(bh_world_new_local(&limits, worlds), BH_OK);
    for (uint32_t role = 0; role < BH_ROLE_CNT; ++role) {
        cr_expect_eq(worlds[role].self, role);
        cr_expect_eq(worlds[role].epoch, 1);
        cr_expect_eq(bh_role_epoch(&worlds[role].control, role), 1);
        cr_expect(bh_role_up(&worlds[0].control, role));
        cr_expect_eq(worlds[role].limits.ctx, limits.ctx);
        cr_expect_null(worlds[role].vocab);
        cr_expect_null(worlds[role].weights);
        cr_expect_eq(worlds[role].listener_fd, -1);
    }
    bh_sub_store(&worlds[BH_ROLE_TOKENIZER].submit, 3, 9);
    cr_expect_eq(bh_sub_load(&worlds[BH_ROLE_LEDGER].submit, 3), 9);
    /* Two logs of one kind are two objects. */
    bh_log_store(&worlds[BH_ROLE_DECODE].tokenlog, 0, (struct bh_log_view){.gen = 5});
    cr_expect_eq(bh_log_load(&worlds[BH_ROLE_EGRESS].promptlog, 0).gen, 0);
    cr_expect_eq(bh_log_load(&worlds[BH_ROLE_EGRESS].tokenlog, 0).gen, 5);
    cr_expect_not_null(worlds[BH_ROLE_LEDGER].tx[BH_ROLE_DECODE].shared);
    cr_expect_not_null(worlds[BH_ROLE_DECODE].rx[BH_ROLE_LEDGER].shared);
    cr_expect_null(worlds[BH_ROLE_PREFILL].tx[BH_ROLE_DECODE].shared);
    int bell = worlds[0].bell_fds[BH_ROLE_EGRESS];
    cr_expect_eq(bell, worlds[BH_ROLE_DECODE].bell_fds[BH_ROLE_EGRESS]);
    bh_world_delete_local(worlds);
    cr_expect_eq(fcntl(bell, F_GETFD), -1);
    cr_expect_null(worlds[0].maps[BH_ITEM_pool]);
}

Test(world, local_refuses_wrong_limits)
{
    struct bh_world worlds[BH_ROLE_CNT];
    struct bh_limits limits = core_limits();
    limits.slots = 0;
    cr_expect_eq(bh_world_new_local(&limits, worlds), BH_EINVAL);
}

Test(world, telling_rings_only_who_sleeps)
{
    struct bh_world worlds[BH_ROLE_CNT];
    struct bh_limits limits = core_limits();
    cr_assert_eq(bh_world_new_local(&limits, worlds), BH_OK);
    struct bh_world *ledger = &worlds[BH_ROLE_LEDGER];
    struct bh_world *decode = &worlds[BH_ROLE_DECODE];
    int bell = decode->bell_fds[BH_ROLE_DECODE];
    struct bh_hint hint;

    bh_world_tell(ledger, BH_ROLE_DECODE, bh_hint_make(BH_HINT_ORDER, 2, 7));
    cr_expect_not(bh_os_event_wait(bell, 0), "nobody sleeps, nobody is woken");
    bh_bell_doze(&decode->bells, BH_ROLE_DECODE);
    bh_world_tell(ledger, BH_ROLE_DECODE, bh_hint_make(BH_HINT_DIRTY, 4, 8));
    cr_expect(bh_os_event_wait(bell, 0));
    bh_world_tell(ledger, BH_ROLE_DECODE, bh_hint_make(BH_HINT_LIST, 4, 8));
    cr_expect_not(bh_os_event_wait(bell, 0), "one wake a sleep");

    cr_assert_eq(bh_ring_peek(&decode->rx[BH_ROLE_LEDGER], &hint), BH_OK);
    cr_expect_eq(hint.bits, bh_hint_make(BH_HINT_ORDER, 2, 7).bits);
    bh_ring_consume(&decode->rx[BH_ROLE_LEDGER]);
    cr_assert_eq(bh_ring_peek(&decode->rx[BH_ROLE_LEDGER], &hint), BH_OK);
    cr_expect_eq(bh_hint_kind(hint), BH_HINT_DIRTY);
    bh_world_delete_local(worlds);
}

Test(world, full_ring_drops_and_counts)
{
    struct bh_world worlds[BH_ROLE_CNT];
    struct bh_limits limits = core_limits();
    cr_assert_eq(bh_world_new_local(&limits, worlds), BH_OK);
    struct bh_world *egress = &worlds[BH_ROLE_EGRESS];
    for (uint32_t i = 0; i < BH_RING_DEPTH + 4; ++i) {
        bh_world_tell(egress, BH_ROLE_LEDGER, bh_hint_make(BH_HINT_EDGE, i, 1));
    }
    /* One place of a ring is always empty. */
    cr_expect_eq(bh_metric_get(&egress->status[BH_ROLE_EGRESS], BH_METRIC_hints_dropped), 5);
    cr_expect(bh_ring_lost(&worlds[BH_ROLE_LEDGER].rx[BH_ROLE_EGRESS]));
    bh_world_delete_local(worlds);
}

struct verdicts {
    uint32_t cnt;
    char failed[64];
};

static void
note(void *arg, const char *name, enum bh_status status)
{
    struct verdicts *verdicts = arg;
    ++verdicts->cnt;
    if (status != BH_OK) {
        snprintf(verdicts->failed, sizeof(verdicts->failed), "%s", name);
    }
}

/* Takes even indices, refuses odd ones. */
static bool
take_even(void *role, uint32_t producer, struct bh_hint hint)
{
    uint32_t *sum = role;
    cr_expect_eq(producer, BH_ROLE_EGRESS);
    *sum += bh_hint_idx(hint);
    return bh_hint_idx(hint) % 2 == 0;
}

Test(world, hints_are_taken_once_refused_ones_counted)
{
    struct bh_world worlds[BH_ROLE_CNT];
    struct bh_limits limits = core_limits();
    cr_assert_eq(bh_world_new_local(&limits, worlds), BH_OK);
    struct bh_world *egress = &worlds[BH_ROLE_EGRESS];
    struct bh_world *ledger = &worlds[BH_ROLE_LEDGER];
    struct bh_statusboard *board = &ledger->status[BH_ROLE_LEDGER];
    uint32_t sum = 0;
    bool scan = false;
    for (uint32_t i = 1; i <= 4; i++) {
        bh_world_tell(egress, BH_ROLE_LEDGER, bh_hint_make(BH_HINT_EDGE, i, 1));
    }
    cr_expect_eq(bh_world_hints(ledger, BH_ROLE_EGRESS, 3, take_even, &sum, &scan), 3);
    cr_expect_eq(sum, 1 + 2 + 3);
    cr_expect_eq(bh_metric_get(board, BH_METRIC_hints_refused), 2);
    cr_expect_eq(bh_world_hints(ledger, BH_ROLE_EGRESS, 3, take_even, &sum, &scan), 1);
    cr_expect_eq(bh_world_hints(ledger, BH_ROLE_EGRESS, 3, take_even, &sum, &scan), 0);
    cr_expect_not(scan, "nothing was lost");

    for (uint32_t i = 0; i < BH_RING_DEPTH + 4; i++) {
        bh_world_tell(egress, BH_ROLE_LEDGER, bh_hint_make(BH_HINT_EDGE, 0, 1));
    }
    cr_expect_eq(bh_world_hints(ledger, BH_ROLE_EGRESS, 3, take_even, &sum, &scan), 3);
    cr_expect(scan, "hints were lost and nobody was told to look");
    struct bh_hint hint;
    cr_expect_eq(bh_ring_peek(&ledger->rx[BH_ROLE_EGRESS], &hint), BH_EMPTY);
    bh_world_delete_local(worlds);
}

Test(world, verify_names_what_is_spoiled)
{
    struct bh_world worlds[BH_ROLE_CNT];
    struct bh_limits limits = core_limits();
    struct verdicts verdicts = {0};
    cr_assert_eq(bh_world_new_local(&limits, worlds), BH_OK);
    cr_expect_eq(bh_world_verify(&worlds[BH_ROLE_DECODE], note, &verdicts), 0);
    cr_expect_str_eq(verdicts.failed, "");
    uint32_t objects = 0;
    for (uint32_t id = 0; id < BH_ITEM_CNT; ++id) {
        const struct bh_item *item = bh_topology_item((enum bh_item_id)id);
        objects += item->object != NULL && strcmp(item->object, "bytes") != 0;
    }
    cr_expect_eq(verdicts.cnt, objects);

    static const enum bh_item_id spoiled[] = {
        BH_ITEM_pool, BH_ITEM_promptlog, BH_ITEM_status_PREFILL, BH_ITEM_ring_LEDGER_DECODE};
    for (size_t i = 0; i < BH_COUNT(spoiled); ++i) {
        struct bh_object_head *head = worlds[0].maps[spoiled[i]];
        head->bytes ^= 1;
        cr_expect_eq(bh_world_verify(&worlds[0], note, &verdicts), 1);
        cr_expect_str_eq(verdicts.failed, bh_topology_item(spoiled[i])->name);
        head->bytes ^= 1;
    }
    bh_world_delete_local(worlds);
}

/* What a child found out about the world it joined. */
enum verdict { VERDICT_OK = 0, VERDICT_JOIN = 50, VERDICT_RIGHT, VERDICT_CONTENT };

static int
child_joins(const struct core_engine *engine, uint32_t role, enum bh_item_id expected_bad)
{
    static struct bh_world world;
    enum bh_item_id bad = BH_ITEM_CNT;
    core_engine_place(engine, role);
    enum bh_status status = bh_world_join(role, &world, &bad);
    if (expected_bad != BH_ITEM_CNT) {
        return status != BH_OK && bad == expected_bad ? VERDICT_OK : VERDICT_JOIN;
    }
    if (status != BH_OK) {
        return VERDICT_JOIN;
    }
    if (world.self != role || world.epoch != 1 || world.limits.ctx != 64) {
        return VERDICT_CONTENT;
    }
    for (uint32_t id = 0; id < BH_ITEM_CNT; ++id) {
        const struct bh_item *item = bh_topology_item((enum bh_item_id)id);
        bool mapped = world.maps[id] != NULL;
        if (mapped != (item->kind != BH_ITEM_DESCRIPTOR && item->rights[role] != BH_RIGHT_NONE)) {
            return VERDICT_RIGHT;
        }
        /* Only the kernel knows what a map may become. */
        bool may_write = mapped && mprotect(world.maps[id], 4096, PROT_READ | PROT_WRITE) == 0;
        if (mapped && may_write != (item->rights[role] == BH_RIGHT_WRITE)) {
            return VERDICT_RIGHT;
        }
    }
    bool tokenizer = role == BH_ROLE_TOKENIZER;
    bool egress = role == BH_ROLE_EGRESS;
    bool content = (world.listener_fd >= 0) == tokenizer && (world.keys_fd >= 0) == tokenizer &&
                   (world.handover_rx_fd >= 0) == egress && world.bell_fds[role] >= 0 &&
                   world.bell_fds[BH_ROLE_SUPERVISOR] == -1 &&
                   (world.tx[BH_ROLE_LEDGER].shared != NULL) == (role != BH_ROLE_LEDGER);
    return content ? VERDICT_OK : VERDICT_CONTENT;
}

static int
join_in_child(const struct core_engine *engine, uint32_t role, enum bh_item_id expected_bad)
{
    pid_t pid = fork();
    if (pid == 0) {
        _exit(child_joins(engine, role, expected_bad));
    }
    int status = 0;
    cr_assert_eq(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

Test(world, each_role_gets_its_row_and_no_more)
{
    struct core_engine engine;
    core_engine_make(&engine);
    for (uint32_t role = BH_ROLE_TOKENIZER; role < BH_ROLE_CNT; ++role) {
        cr_expect_eq(join_in_child(&engine, role, BH_ITEM_CNT), VERDICT_OK, "role %u", role);
    }
}

Test(world, join_names_the_item_that_is_wrong)
{
    struct core_engine engine;
    core_engine_make(&engine);
    /* Magic, layout, and raw bytes that are shorter than control says. */
    struct bh_object_head *head = engine.maps[BH_ITEM_edge];
    head->layout ^= 1;
    cr_expect_eq(join_in_child(&engine, BH_ROLE_LEDGER, BH_ITEM_edge), VERDICT_OK);
    cr_expect_eq(join_in_child(&engine, BH_ROLE_PREFILL, BH_ITEM_CNT), VERDICT_OK);
    head->layout ^= 1;
    head = engine.maps[BH_ITEM_control];
    bh_word_store(&head->magic, 0);
    cr_expect_eq(join_in_child(&engine, BH_ROLE_LEDGER, BH_ITEM_control), VERDICT_OK);
    bh_word_store(&head->magic, BH_OBJECT_MAGIC);
    engine.control.block->vocab_bytes = RAW_BYTES + 1;
    cr_expect_eq(join_in_child(&engine, BH_ROLE_EGRESS, BH_ITEM_vocab), VERDICT_OK);
    engine.control.block->vocab_bytes = RAW_BYTES;
    cr_expect_eq(join_in_child(&engine, BH_ROLE_EGRESS, BH_ITEM_CNT), VERDICT_OK);
    /* A descriptor that is not there, and one that is read-only where the row says writable. */
    int saved = engine.fds[BH_ITEM_pool];
    engine.fds[BH_ITEM_pool] = engine.readonly_fds[BH_ITEM_pool];
    cr_expect_eq(join_in_child(&engine, BH_ROLE_DECODE, BH_ITEM_pool), VERDICT_OK);
    engine.fds[BH_ITEM_pool] = -1;
    cr_expect_eq(join_in_child(&engine, BH_ROLE_DECODE, BH_ITEM_pool), VERDICT_OK);
    engine.fds[BH_ITEM_pool] = saved;
    struct bh_world world;
    enum bh_item_id bad;
    cr_expect_eq(bh_world_join(BH_ROLE_SUPERVISOR, &world, &bad), BH_EINVAL);
    cr_expect_eq(bh_world_join(BH_ROLE_CNT, &world, &bad), BH_EINVAL);
}
