/* `bulkhead serve`: from flags to a running engine, the loop that watches it, and its end. */
#include "src/supervisor/supervisor.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "src/core/log.h"
#include "src/core/os.h"
#include "src/supervisor/control_socket.h"
#include "src/supervisor/descriptors.h"
#include "src/supervisor/drain.h"
#include "src/supervisor/fence.h"
#include "src/supervisor/host.h"
#include "src/supervisor/memory.h"
#include "src/supervisor/spawn.h"

#define EXIT_FAILED  1
#define EXIT_REFUSED 2
#define TICK_NS      (BH_TICK_MS * BH_NS_PER_MS)

/* Order of the descriptors that the loop waits for. */
enum { POLL_SIGNAL, POLL_CHILD, POLL_CONTROL = POLL_CHILD + BH_ROLE_CNT };
#define POLL_CNT (POLL_CONTROL + BH_CONTROL_POLL_CNT)

/* A refused argument ends with 2, a refusing system with 1. */
static int
exit_of(enum bh_status status)
{
    return status == BH_ESYS ? EXIT_FAILED : EXIT_REFUSED;
}

static enum bh_status
make_plan(struct bh_engine *engine)
{
    struct bh_host host;
    if (bh_host_read(&host) != BH_OK) {
        bh_log("/proc/meminfo cannot be read: is /proc mounted?");
        return BH_ESYS;
    }
    const struct bh_model_dims *dims = &engine->model.dims;
    struct bh_plan_input input = {
        .ctx_model = dims->ctx_train,
        .ctx_asked = engine->config.ctx,
        .pool_asked = engine->config.pool_tokens,
        .threads_asked = engine->config.threads,
        .cpu_cnt = host.cpu_cnt,
        .chunk = engine->config.chunk,
        .tenant_cnt = engine->tenant_cnt,
        .vocab = dims->vocab,
        .kv = {.layers = dims->layers,
               .kv_heads = dims->kv_heads,
               .head_dim = dims->head_dim,
               .page_tokens = BH_PAGE_TOKENS,
               .elem_bytes = 2},
        .weights_bytes = engine->model.packed_bytes,
        .memory_bytes = host.memory_bytes,
        .available_bytes = host.available_bytes,
    };
    char error[BH_PLAN_ERROR_MAX];
    enum bh_status status = bh_plan_make(&input, error, &engine->plan);
    if (status != BH_OK) {
        bh_log("%s", error);
        return status;
    }
    if (!bh_limits_ok(&engine->plan.limits)) {
        bh_log("model %s: its shape is outside the limits of shared memory: layers=%u kv_heads=%u "
               "head_dim=%u vocab=%u ctx=%u",
               engine->config.model,
               dims->layers,
               dims->kv_heads,
               dims->head_dim,
               dims->vocab,
               engine->plan.limits.ctx);
        return BH_ELIMIT;
    }
    return BH_OK;
}

/* Everything that can be refused without making anything: flags, model, keys, plan, address. */
static enum bh_status
decide(struct bh_engine *engine, int argc, char **argv)
{
    char error[BH_MODEL_FILE_ERROR_MAX];
    static_assert(BH_CONFIG_ERROR_MAX <= BH_MODEL_FILE_ERROR_MAX, "one buffer for both");
    enum bh_status status = bh_config_parse(argc, argv, error, &engine->config);
    if (status != BH_OK) {
        bh_log("%s", error);
        return status;
    }
    status = bh_model_file_open(engine->config.model, error, &engine->model);
    if (status != BH_OK) {
        bh_log("%s", error);
        /* A path that cannot be opened is a wrong argument as well. */
        return status == BH_ESYS ? BH_EINVAL : status;
    }
    bh_model_file_name(engine->config.model, engine->model_name, sizeof(engine->model_name));
    status = bh_descriptors_keys(engine);
    if (status != BH_OK) {
        return BH_EINVAL;
    }
    status = make_plan(engine);
    if (status != BH_OK) {
        return status;
    }
    return bh_listener_bind(engine);
}

static void
log_plan(const struct bh_engine *engine)
{
    const struct bh_limits *limits = &engine->plan.limits;
    bh_log("plan model=%s ctx=%u pool_tokens=%u pages=%u page_tokens=%u pool_mib=%llu "
           "weights_mib=%llu threads=%u slots=%u tenants=%u auth=%s",
           engine->model_name,
           limits->ctx,
           engine->plan.pool_tokens,
           limits->page_cnt,
           limits->kv.page_tokens,
           (unsigned long long)(engine->plan.pool_bytes >> 20),
           (unsigned long long)(engine->model.packed_bytes >> 20),
           engine->plan.threads,
           limits->slots,
           engine->tenant_cnt,
           engine->auth ? "keys" : "none");
}

static void
introduce(struct bh_engine *engine)
{
    struct bh_status_block *block = engine->view.status[BH_ROLE_SUPERVISOR].block;
    bh_word_store_relaxed(&block->pid, (uint64_t)getpid());
    bh_word_store_relaxed(&block->epoch, 1);
    bh_word_store_relaxed(&block->started, 1);
    bh_role_epoch_store(&engine->view.control, BH_ROLE_SUPERVISOR, 1);
}

static enum bh_status
build(struct bh_engine *engine, struct bh_control_socket *control)
{
    enum bh_status status = bh_control_socket_open(engine, control);
    if (status == BH_OK) {
        status = bh_descriptors_make(engine);
    }
    if (status == BH_OK) {
        log_plan(engine);
        status = bh_memory_make(engine);
    }
    if (status == BH_OK) {
        status = bh_memory_view(engine);
    }
    if (status == BH_OK) {
        introduce(engine);
        bh_model_file_close(&engine->model);
        status = bh_listener_open(engine);
    }
    return status;
}

/* Signals come as readable bytes, so that they are acted on between two turns of the loop only. */
static int
take_signals(void)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGHUP);
    signal(SIGPIPE, SIG_IGN);
    if (sigprocmask(SIG_BLOCK, &set, NULL) != 0) {
        return -1;
    }
    return bh_fd_raise(signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC));
}

static void
act_on_signals(struct bh_engine *engine, int fd, uint64_t now_ns)
{
    struct signalfd_siginfo info;
    while (read(fd, &info, sizeof(info)) == (ssize_t)sizeof(info)) {
        bh_log("signal=%u", info.ssi_signo);
        bh_drain_stop(engine, now_ns);
    }
}

static void
announce(const struct bh_engine *engine, uint64_t now_ns)
{
    printf("bulkhead: ready url=%s model=%s ctx=%u pool_tokens=%u threads=%u pid=%d ready_ms=%llu "
           "control=%s\n",
           engine->url,
           engine->model_name,
           engine->plan.limits.ctx,
           engine->plan.pool_tokens,
           engine->plan.threads,
           (int)getpid(),
           (unsigned long long)((now_ns - engine->started_ns) / BH_NS_PER_MS),
           engine->control_path);
    fflush(stdout);
}

static void
tick(struct bh_engine *engine, uint64_t now_ns, bool counted)
{
    struct bh_word *beat = &engine->view.status[BH_ROLE_SUPERVISOR].block->beat;
    bh_word_store_relaxed(beat, bh_word_load_relaxed(beat) + 1);
    bool was_ready = engine->ready;
    bh_fence_tick(engine, now_ns, counted);
    if (engine->ready && !was_ready) {
        announce(engine, now_ns);
    }
    bh_drain_tick(engine, now_ns);
}

static void
wait_for_events(const struct bh_engine *engine,
                const struct bh_control_socket *control,
                int signal_fd,
                uint64_t sleep_ns,
                struct pollfd polls[POLL_CNT])
{
    polls[POLL_SIGNAL] = (struct pollfd){.fd = signal_fd, .events = POLLIN};
    for (uint32_t role = 0; role < BH_ROLE_CNT; role++) {
        polls[POLL_CHILD + role] =
            (struct pollfd){.fd = engine->children[role].pidfd, .events = POLLIN};
    }
    bh_control_socket_poll(control, polls + POLL_CONTROL);
    struct timespec timeout = {.tv_sec = (time_t)(sleep_ns / 1000000000),
                               .tv_nsec = (long)(sleep_ns % 1000000000)};
    if (ppoll(polls, POLL_CNT, &timeout, NULL) < 0) {
        for (size_t i = 0; i < POLL_CNT; i++) {
            polls[i].revents = 0;
        }
    }
}

static void
run(struct bh_engine *engine, struct bh_control_socket *control, int signal_fd)
{
    uint64_t now_ns = bh_os_now_ns();
    uint64_t tick_ns = now_ns + TICK_NS;
    while (engine->stop != BH_STOP_NOW && !engine->failed) {
        uint64_t sleep_ns = bh_fence_advance(engine, now_ns);
        sleep_ns = bh_min_u64(sleep_ns, tick_ns > now_ns ? tick_ns - now_ns : 0);
        struct pollfd polls[POLL_CNT];
        wait_for_events(engine, control, signal_fd, sleep_ns, polls);
        now_ns = bh_os_now_ns();
        if (polls[POLL_SIGNAL].revents != 0) {
            act_on_signals(engine, signal_fd, now_ns);
        }
        for (uint32_t role = BH_ROLE_TOKENIZER; role < BH_ROLE_CNT; role++) {
            if (polls[POLL_CHILD + role].revents != 0) {
                bh_fence_reap(engine, role, now_ns);
            }
        }
        bh_control_socket_step(engine, control, polls + POLL_CONTROL, now_ns);
        if (now_ns >= tick_ns) {
            /* A whole tick late: this machine, or this process, was paused or starved, and so may
               the roles have been. Their silence proves nothing then. */
            tick(engine, now_ns, now_ns - tick_ns < TICK_NS);
            tick_ns = now_ns + TICK_NS;
        }
    }
}

static int
serve(struct bh_engine *engine, struct bh_control_socket *control, int signal_fd)
{
    enum bh_status status = build(engine, control);
    if (status != BH_OK) {
        return exit_of(status);
    }
    bool started = bh_fence_start(engine, bh_os_now_ns());
    if (started) {
        run(engine, control, signal_fd);
    }
    bh_spawn_kill_all(engine);
    bool clean = started && !engine->failed;
    bh_log("stopped exit_status=%d", clean ? 0 : EXIT_FAILED);
    return clean ? 0 : EXIT_FAILED;
}

static bool
wants_help(int argc, char **argv)
{
    return argc == 2 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0);
}

int
bh_serve_main(int argc, char **argv)
{
    static struct bh_engine engine;
    static struct bh_control_socket control;
    if (wants_help(argc, argv)) {
        printf("usage: bulkhead serve --model FILE [flags]\n");
        bh_config_help(stdout);
        return 0;
    }
    bh_log_role("supervisor");
    engine.started_ns = bh_os_now_ns();
    bh_descriptors_init(&engine);
    bh_control_socket_init(&control);
    /* Roles have up to two descriptors a connection; they lower this again for themselves. */
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
        files.rlim_cur = files.rlim_max;
        setrlimit(RLIMIT_NOFILE, &files);
    }
    enum bh_status status = decide(&engine, argc, argv);
    if (status != BH_OK) {
        return exit_of(status);
    }
    int signal_fd = take_signals();
    if (signal_fd < 0) {
        bh_log("signalfd: %s", strerror(errno));
        return EXIT_FAILED;
    }
    int code = serve(&engine, &control, signal_fd);
    bh_control_socket_close(&engine, &control);
    return code;
}
