/* The door to the system, and the log, which goes through it. */
#include "src/core/os.h"

#include <criterion/criterion.h>
#include <pthread.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "src/core/log.h"

#define MS UINT64_C(1000000)

Test(os, clocks)
{
    uint64_t before = bh_os_now_ns();
    uint64_t after = bh_os_now_ns();
    cr_expect_leq(before, after);
    cr_expect_gt(before, 0);
    uint64_t unix_s = bh_os_unix_s();
    cr_expect(unix_s <= (uint64_t)time(NULL) && (uint64_t)time(NULL) - unix_s < 5);
}

Test(os, random_fills_all_of_it)
{
    uint8_t bytes[4096];
    uint32_t zeros = 0;
    memset(bytes, 0, sizeof(bytes));
    bh_os_random(bytes, sizeof(bytes) - 64);
    for (size_t i = 0; i < sizeof(bytes) - 64; ++i) {
        zeros += bytes[i] == 0;
    }
    cr_expect_lt(zeros, 100, "16 are expected by chance, %u are there", zeros);
    for (size_t i = sizeof(bytes) - 64; i < sizeof(bytes); ++i) {
        cr_expect_eq(bytes[i], 0);
    }
    bh_os_random(bytes, 0);
}

Test(os, event_is_cleared_by_the_wait_that_saw_it)
{
    int fds[] = {eventfd(0, EFD_NONBLOCK), eventfd(0, 0)};
    for (size_t i = 0; i < BH_COUNT(fds); ++i) {
        cr_expect_not(bh_os_event_wait(fds[i], 0));
        bh_os_event_signal(fds[i]);
        bh_os_event_signal(fds[i]);
        cr_expect(bh_os_event_wait(fds[i], 60000 * MS));
        uint64_t before = bh_os_now_ns();
        cr_expect_not(bh_os_event_wait(fds[i], 20 * MS));
        cr_expect_geq(bh_os_now_ns() - before, 20 * MS);
        close(fds[i]);
    }
    cr_expect_not(bh_os_event_wait(-1, 0));
}

/* A signal to a full counter neither blocks nor is lost. */
Test(os, event_that_is_full, .timeout = 10)
{
    int fd = eventfd(0, EFD_NONBLOCK);
    uint64_t most = UINT64_MAX - 1;
    cr_assert_eq(write(fd, &most, sizeof(most)), (ssize_t)sizeof(most));
    bh_os_event_signal(fd);
    cr_expect(bh_os_event_wait(fd, 0));
}

static void *
wake_later(void *arg)
{
    struct bh_swap *word = arg;
    struct timespec pause = {.tv_nsec = (long)(5 * MS)};
    nanosleep(&pause, NULL);
    bh_swap_store(word, 1);
    bh_os_futex_wake(word, 1);
    return NULL;
}

Test(os, futex)
{
    struct bh_swap word;
    bh_swap_store(&word, 7);
    uint64_t before = bh_os_now_ns();
    bh_os_futex_wait(&word, 8, 60000 * MS); /* not what it is: no wait */
    bh_os_futex_wait(&word, 7, 10 * MS);
    cr_expect_geq(bh_os_now_ns() - before, 10 * MS);
    bh_swap_store(&word, 0);
    pthread_t thread;
    cr_assert_eq(pthread_create(&thread, NULL, wake_later, &word), 0);
    for (uint32_t i = 0; i < 1000 && bh_swap_load(&word) == 0; ++i) {
        bh_os_futex_wait(&word, 0, 60000 * MS);
    }
    cr_expect_eq(bh_swap_load(&word), 1);
    cr_expect_lt(bh_os_now_ns() - before, 30000 * MS);
    pthread_join(thread, NULL);
}

/* Runs with stderr in a pipe; returns what arrived. */
static char *
logged(void (*write_lines)(void))
{
    static char text[8192];
    int pipe_fds[2];
    cr_assert_eq(pipe(pipe_fds), 0);
    int saved = dup(STDERR_FILENO);
    dup2(pipe_fds[1], STDERR_FILENO);
    close(pipe_fds[1]);
    write_lines();
    dup2(saved, STDERR_FILENO);
    close(saved);
    ssize_t got = read(pipe_fds[0], text, sizeof(text) - 1);
    close(pipe_fds[0]);
    text[got < 0 ? 0 : got] = '\0';
    return text;
}

static void
log_plain(void)
{
    bh_log("event=first n=%d", 1);
    bh_log_role("ledger");
    bh_log("path=%s", "a\nb\x1b[2J");
}

Test(log, one_line_an_event)
{
    cr_expect_str_eq(logged(log_plain),
                     "bulkhead main: event=first n=1\nbulkhead ledger: path=a?b?[2J\n");
}

static void
log_long(void)
{
    char text[3000];
    memset(text, 'x', sizeof(text) - 1);
    text[sizeof(text) - 1] = '\0';
    bh_log("%s", text);
}

Test(log, long_lines_are_cut)
{
    const char *text = logged(log_long);
    cr_expect_eq(strlen(text), 1000);
    cr_expect_eq(text[999], '\n');
    cr_expect_eq(text[998], 'x');
}

static void
log_often(void)
{
    static struct bh_log_site site;
    for (uint64_t i = 0; i < 1000; ++i) {
        bh_log_limited(&site, 5 + i * MS, "n=%u", (unsigned)i);
    }
    bh_log_limited(&site, 5 + 1000 * MS, "n=1000");
    bh_log_limited(&site, 5 + 2000 * MS, "n=2000");
}

Test(log, limited_to_one_a_second)
{
    cr_expect_str_eq(logged(log_often),
                     "bulkhead main: n=0\nbulkhead main: n=1000 left_out=999\n"
                     "bulkhead main: n=2000\n");
}
