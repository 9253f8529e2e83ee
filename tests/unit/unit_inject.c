/* Fault injection of test builds: what the text means, and that it happens then and only then. */
#include "src/core/inject.h"

#include <criterion/criterion.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shm/hook.h"
#include "src/core/os.h"

static enum bh_status
install(const char *text, uint32_t epoch, const char **item)
{
    setenv("BH_INJECT", text, 1);
    return bh_inject_install(epoch, item);
}

/* Which of eight visits to `place` are faulty, as 0s and 1s. */
static const char *
visits(const char *place)
{
    static char seen[9];
    for (uint32_t i = 0; i < 8; ++i) {
        seen[i] = BH_FAULT(place) ? '1' : '0';
    }
    return seen;
}

Test(inject, faults_at_the_right_visit)
{
    static const struct {
        const char *text;
        const char *place;
        const char *visits;
    } cases[] = {
        {"pool.stamp:before_word", "pool.stamp:before_word", "11111111"},
        {"pool.stamp:before_word", "pool.stamp:before", "00000000"},
        {"pool.stamp", "pool.stamp:before_word", "00000000"},
        {"pool.stamp:before_word:3", "pool.stamp:before_word", "00100000"},
        {"pool.stamp:before_word:3=fault", "pool.stamp:before_word", "00100000"},
        {"a:1,a:2,b:4", "a", "11000000"},
        {"a:1,a:2,b:4", "b", "00010000"},
        {"a@2", "a", "11111111"},
        {"a@1", "a", "00000000"},
        {"a:2@2=fault", "a", "01000000"},
        {"", "a", "00000000"},
    };
    for (size_t i = 0; i < BH_COUNT(cases); ++i) {
        const char *item = NULL;
        cr_assert_eq(install(cases[i].text, 2, &item), BH_OK, "%s", cases[i].text);
        const char *seen = visits(cases[i].place);
        cr_expect_str_eq(seen, cases[i].visits, "%s at %s", cases[i].text, cases[i].place);
    }
    unsetenv("BH_INJECT");
    const char *item = NULL;
    cr_expect_eq(bh_inject_install(1, &item), BH_OK);
    cr_expect_null(bh_hook_handler);
}

Test(inject, malformed_items_are_named)
{
    static const char *const texts[] = {
        "=kill",
        "a=",
        "a=kil",
        "a=killer",
        "a=pause_",
        "a=pause_x",
        "a=pause_600001",
        "a:0",
        "a@0=kill",
        "a@x",
        ":3",
        ",",
    };
    for (size_t i = 0; i < BH_COUNT(texts); ++i) {
        char text[64];
        const char *item = NULL;
        snprintf(text, sizeof(text), "ok,%s", texts[i]);
        cr_expect_eq(install(text, 1, &item), BH_EINVAL, "%s", text);
        cr_expect_str_eq(item, texts[i]);
    }
    const char *item = NULL;
    cr_expect_eq(install("a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a", 1, &item), BH_OK);
    cr_expect_eq(install("a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,last", 1, &item), BH_ELIMIT);
    cr_expect_str_eq(item, "last");
}

/* Waits with WUNTRACED, so that a stop is an end too. */
static int
child_with(const char *text)
{
    pid_t pid = fork();
    if (pid == 0) {
        const char *item = NULL;
        if (install(text, 1, &item) != BH_OK) {
            _exit(99);
        }
        BH_HOOK("here");
        _exit(0);
    }
    int status = 0;
    cr_assert_eq(waitpid(pid, &status, WUNTRACED), pid);
    if (WIFSTOPPED(status)) {
        kill(pid, SIGCONT);
        int end = 0;
        cr_assert_eq(waitpid(pid, &end, 0), pid);
        cr_expect(WIFEXITED(end) && WEXITSTATUS(end) == 0);
        return 2000 + WSTOPSIG(status);
    }
    return WIFSIGNALED(status) ? 1000 + WTERMSIG(status) : WEXITSTATUS(status);
}

Test(inject, actions)
{
    cr_expect_eq(child_with("here=kill"), 1000 + SIGKILL);
    cr_expect_eq(child_with("here:2=kill"), 0);
    cr_expect_eq(child_with("here=stop"), 2000 + SIGSTOP);
    cr_expect_eq(child_with("here=exit"), 70);
    cr_expect_eq(child_with("here"), 0);
    uint64_t before_ns = bh_os_now_ns();
    cr_expect_eq(child_with("here=pause_30"), 0);
    cr_expect_geq(bh_os_now_ns() - before_ns, 30000000);
}
