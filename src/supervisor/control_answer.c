/* Answers to control commands. Everything is read from the words that roles publish; each is copied
   once and checked before it is used as an index. */
#include "src/supervisor/control_answer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shm/stamp.h"
#include "src/supervisor/drain.h"
#include "src/supervisor/host.h"

static const char *const commands[] = {
    "status", "topo", "pages", "requests", "verify", "drain", "stop"};

static const char *const page_names[BH_PAGE_STATE_CNT] = {
    [BH_PAGE_FREE] = "free",
    [BH_PAGE_HELD] = "held",
    [BH_PAGE_CACHED] = "cached",
    [BH_PAGE_DIRTY] = "dirty",
    [BH_PAGE_QUARANTINED] = "quarantined",
    [BH_PAGE_RETIRED] = "retired",
};
static const char page_marks[BH_PAGE_STATE_CNT + 1] = ".#+~!x";

static const char *const request_names[BH_REQUEST_STATE_CNT] = {
    [BH_REQUEST_FREE] = "free",
    [BH_REQUEST_QUEUED] = "queued",
    [BH_REQUEST_PREFILL] = "prefill",
    [BH_REQUEST_DECODE] = "decode",
    [BH_REQUEST_DONE] = "done",
    [BH_REQUEST_REJECTED] = "rejected",
    [BH_REQUEST_CANCELLED] = "cancelled",
    [BH_REQUEST_FAILED] = "failed",
};

static const char *const cause_names[BH_CAUSE_CNT] = {
#define CAUSE(name, code, meaning) [BH_CAUSE_##name] = #name,
#include "shm/cause.def"
#undef CAUSE
};

static const char *const phase_names[] = {
    [BH_CHILD_ABSENT] = "absent",
    [BH_CHILD_STARTING] = "starting",
    [BH_CHILD_UP] = "up",
    [BH_CHILD_KILLED] = "killed",
    [BH_CHILD_REAPED] = "reaped",
    [BH_CHILD_BACKOFF] = "backoff",
};

static const char *const order_names[] = {"none", "run", "stop", "?"};
static const char *const drain_names[] = {"no", "refuse", "cancel"};

json_t *
bh_control_error(const char *text)
{
    return json_pack("{s:b, s:s}", "ok", 0, "error", text);
}

const char *
bh_control_command(const char *line, size_t len, const char **error)
{
    const char *found = NULL;
    json_t *request = json_loadb(line, len, JSON_REJECT_DUPLICATES, NULL);
    const json_t *command = json_object_get(request, "cmd");
    if (!json_is_object(request)) {
        *error = "expected one JSON object a line";
    } else if (!json_is_string(command) || json_object_size(request) != 1) {
        *error = "expected {\"cmd\": NAME} and nothing else";
    } else {
        *error = "unknown cmd: expected status, topo, pages, requests, verify, drain or stop";
        for (size_t i = 0; i < BH_COUNT(commands); i++) {
            if (strcmp(json_string_value(command), commands[i]) == 0) {
                found = commands[i];
            }
        }
    }
    json_decref(request);
    return found;
}

static uint64_t
sum_metric(const struct bh_engine *engine, enum bh_metric metric)
{
    uint64_t sum = 0;
    for (uint32_t role = 0; role < BH_ROLE_CNT; role++) {
        sum += bh_metric_get(&engine->view.status[role], metric);
    }
    return sum;
}

static uint64_t
sum_violations(const struct bh_engine *engine)
{
    uint64_t sum = 0;
    for (uint32_t kind = BH_VIOLATION_GENERATION; kind <= BH_VIOLATION_HANDLE; kind++) {
        sum += sum_metric(engine, bh_metric_violation((enum bh_violation)kind));
    }
    return sum;
}

static json_t *
roles_json(const struct bh_engine *engine, uint64_t now_ns)
{
    json_t *roles = json_array();
    for (uint32_t role = 0; role < BH_ROLE_CNT; role++) {
        const struct bh_child *child = &engine->children[role];
        bool self = role == BH_ROLE_SUPERVISOR;
        bool lives = self || child->pidfd >= 0;
        int pid = self ? (int)bh_word_load_relaxed(&engine->view.status[role].block->pid)
                       : (int)child->pid;
        uint64_t rss = 0;
        uint64_t private_bytes = 0;
        if (lives) {
            bh_host_rss(pid, &rss, &private_bytes);
        }
        json_array_append_new(
            roles,
            json_pack("{s:s, s:i, s:I, s:I, s:s, s:I, s:I, s:I}",
                      "name",
                      bh_role_name(role),
                      "pid",
                      lives ? pid : 0,
                      "epoch",
                      (json_int_t)(self ? 1 : child->epoch),
                      "restarts",
                      (json_int_t)child->deaths.cnt,
                      "state",
                      self ? "up" : phase_names[child->phase],
                      "beat_age_ms",
                      (json_int_t)(self ? 0 : (now_ns - child->moved_ns) / BH_NS_PER_MS),
                      "rss_bytes",
                      (json_int_t)rss,
                      "private_bytes",
                      (json_int_t)private_bytes));
    }
    return roles;
}

static json_t *
pool_json(const struct bh_engine *engine)
{
    const struct bh_pagetable *table = &engine->view.pagetable;
    uint64_t cnt[BH_PAGE_STATE_CNT] = {0};
    uint64_t unknown = 0;
    for (uint32_t page = 0; page < table->page_cnt; page++) {
        enum bh_page_state state = bh_page_load(table, page).state;
        if ((unsigned)state < BH_PAGE_STATE_CNT) {
            cnt[state] += 1;
        } else {
            unknown += 1;
        }
    }
    json_t *pages = json_object();
    for (uint32_t state = 0; state < BH_PAGE_STATE_CNT; state++) {
        json_object_set_new(pages, page_names[state], json_integer((json_int_t)cnt[state]));
    }
    json_object_set_new(pages, "unknown", json_integer((json_int_t)unknown));
    return json_pack("{s:I, s:I, s:I, s:I, s:o}",
                     "tokens",
                     (json_int_t)engine->plan.pool_tokens,
                     "page_tokens",
                     (json_int_t)engine->plan.limits.kv.page_tokens,
                     "page_cnt",
                     (json_int_t)table->page_cnt,
                     "bytes",
                     (json_int_t)engine->plan.pool_bytes,
                     "pages",
                     pages);
}

static json_t *
requests_count_json(const struct bh_engine *engine)
{
    const struct bh_requests *requests = &engine->view.requests;
    uint64_t cnt[BH_REQUEST_STATE_CNT] = {0};
    for (uint32_t slot = 0; slot < requests->slots; slot++) {
        enum bh_request_state state = bh_request_load(requests, slot).state;
        if ((unsigned)state < BH_REQUEST_STATE_CNT) {
            cnt[state] += 1;
        }
    }
    json_t *out = json_object();
    for (uint32_t state = 0; state < BH_REQUEST_STATE_CNT; state++) {
        json_object_set_new(out, request_names[state], json_integer((json_int_t)cnt[state]));
    }
    return out;
}

static json_t *
status_json(const struct bh_engine *engine, uint64_t now_ns)
{
    uint64_t drain = bh_word_load_relaxed(&engine->view.control.block->drain);
    return json_pack(
        "{s:b, s:s, s:s, s:b, s:s, s:I, s:I, s:I, s:I, s:o, s:o, s:{s:I, s:I}, s:I, s:I, s:o}",
        "ok",
        1,
        "model",
        engine->model_name,
        "url",
        engine->url,
        "ready",
        (int)engine->ready,
        "drain",
        drain_names[bh_min_u64(drain, 2)],
        "ctx",
        (json_int_t)engine->plan.limits.ctx,
        "threads",
        (json_int_t)engine->plan.threads,
        "uptime_ms",
        (json_int_t)((now_ns - engine->started_ns) / BH_NS_PER_MS),
        "fences",
        (json_int_t)bh_word_load_relaxed(&engine->view.control.block->fences),
        "pool",
        pool_json(engine),
        "requests",
        requests_count_json(engine),
        "tokens",
        "prompt",
        (json_int_t)sum_metric(engine, BH_METRIC_prompt_tokens),
        "generated",
        (json_int_t)sum_metric(engine, BH_METRIC_generation_tokens),
        "violations",
        (json_int_t)sum_violations(engine),
        "coverage_mismatches",
        (json_int_t)sum_metric(engine, BH_METRIC_coverage_mismatches),
        "roles",
        roles_json(engine, now_ns));
}

/* What one of the two printers of the topology writes, as a JSON string. */
static json_t *
printed(void (*print)(FILE *out))
{
    char *text = NULL;
    size_t len = 0;
    FILE *out = open_memstream(&text, &len);
    if (out == NULL) {
        return json_string("");
    }
    print(out);
    fclose(out);
    json_t *string = json_stringn(text, len);
    free(text);
    return string;
}

static json_t *
topo_json(void)
{
    return json_pack("{s:b, s:o, s:o}",
                     "ok",
                     1,
                     "table",
                     printed(bh_topology_print),
                     "dot",
                     printed(bh_topology_print_dot));
}

static json_t *
pages_json(const struct bh_engine *engine)
{
    const struct bh_pagetable *table = &engine->view.pagetable;
    char *map = malloc(table->page_cnt);
    if (map == NULL) {
        return bh_control_error("no memory for the map of pages");
    }
    for (uint32_t page = 0; page < table->page_cnt; page++) {
        enum bh_page_state state = bh_page_load(table, page).state;
        map[page] = (unsigned)state < BH_PAGE_STATE_CNT ? page_marks[state] : '?';
    }
    json_t *out = json_pack("{s:b, s:I, s:s%}",
                            "ok",
                            1,
                            "page_tokens",
                            (json_int_t)engine->plan.limits.kv.page_tokens,
                            "pages",
                            map,
                            (size_t)table->page_cnt);
    free(map);
    return out;
}

static json_t *
request_json(const struct bh_engine *engine, uint32_t slot, struct bh_request_view request)
{
    const struct bh_view *view = &engine->view;
    struct bh_order order = bh_order_load(&view->requests, slot);
    struct bh_list list = bh_list_load(&view->requests, slot);
    struct bh_log_view log = bh_log_load(&view->tokenlog, slot);
    const struct bh_request_row *row = &view->requests.rows[slot];
    const struct bh_record *record = &view->requests.records[slot];
    bool known = (unsigned)request.state < BH_REQUEST_STATE_CNT;
    return json_pack(
        "{s:I, s:I, s:s, s:s, s:{s:s, s:s, s:I, s:I}, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}",
        "slot",
        (json_int_t)slot,
        "gen",
        (json_int_t)request.gen,
        "state",
        known ? request_names[request.state] : "?",
        "cause",
        (unsigned)request.cause < BH_CAUSE_CNT ? cause_names[request.cause] : "?",
        "order",
        "verb",
        order_names[order.verb & 3u],
        "role",
        order.verb == BH_ORDER_NONE ? "none" : bh_role_name(order.role),
        "epoch",
        (json_int_t)order.epoch,
        "seq",
        (json_int_t)order.seq,
        "pages",
        (json_int_t)list.cnt,
        "shared",
        (json_int_t)list.shared,
        "prompt_tokens",
        (json_int_t)record->prompt_cnt,
        "generated_tokens",
        (json_int_t)(log.gen == request.gen ? log.cnt : 0),
        "max_tokens",
        (json_int_t)record->max_tokens,
        "tenant",
        (json_int_t)record->tenant,
        "ticket",
        (json_int_t)row->ticket,
        "deaths",
        (json_int_t)row->deaths);
}

static json_t *
requests_json(const struct bh_engine *engine)
{
    json_t *list = json_array();
    for (uint32_t slot = 0; slot < engine->view.requests.slots; slot++) {
        struct bh_request_view request = bh_request_load(&engine->view.requests, slot);
        if (request.state != BH_REQUEST_FREE) {
            json_array_append_new(list, request_json(engine, slot, request));
        }
    }
    return json_pack("{s:b, s:I, s:o}",
                     "ok",
                     1,
                     "slots",
                     (json_int_t)engine->view.requests.slots,
                     "requests",
                     list);
}

json_t *
bh_control_answer(struct bh_engine *engine, const char *command, uint64_t now_ns)
{
    if (strcmp(command, "status") == 0) {
        return status_json(engine, now_ns);
    }
    if (strcmp(command, "topo") == 0) {
        return topo_json();
    }
    if (strcmp(command, "pages") == 0) {
        return pages_json(engine);
    }
    if (strcmp(command, "requests") == 0) {
        return requests_json(engine);
    }
    if (strcmp(command, "drain") == 0) {
        bh_drain_refuse(engine);
        return json_pack("{s:b, s:s}", "ok", 1, "drain", "refuse");
    }
    BH_CHECK(strcmp(command, "stop") == 0);
    bh_drain_stop(engine, now_ns);
    return json_pack("{s:b, s:I}", "ok", 1, "deadline_s", (json_int_t)engine->config.deadline);
}
