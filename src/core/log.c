/* The log on stderr. One write a line, so that lines of several processes do not mix. */
#include "src/core/log.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define LINE_MAX_BYTES 1000
#define SITE_PERIOD_NS UINT64_C(1000000000)

static const char *role_name = "main";

void
bh_log_role(const char *name)
{
    role_name = name;
}

static void
put(const char *suffix, const char *format, va_list args)
{
    char line[LINE_MAX_BYTES + 2];
    int cnt = snprintf(line, LINE_MAX_BYTES, "bulkhead %s: ", role_name);
    size_t used = bh_min_u64((uint64_t)(cnt < 0 ? 0 : cnt), LINE_MAX_BYTES - 1);
    cnt = vsnprintf(line + used, LINE_MAX_BYTES - used, format, args);
    used = bh_min_u64(used + (uint64_t)(cnt < 0 ? 0 : cnt), LINE_MAX_BYTES - 1);
    cnt = snprintf(line + used, LINE_MAX_BYTES - used, "%s", suffix);
    used = bh_min_u64(used + (uint64_t)(cnt < 0 ? 0 : cnt), LINE_MAX_BYTES - 1);
    /* One event is one line, whatever a file name or a library's message contains. */
    for (size_t i = 0; i < used; ++i) {
        if ((unsigned char)line[i] < 0x20 || line[i] == 0x7f) {
            line[i] = '?';
        }
    }
    line[used++] = '\n';
    ssize_t wrote = write(STDERR_FILENO, line, used);
    (void)wrote; /* a log that cannot be written is no reason to stop serving */
}

void
bh_log(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    put("", format, args);
    va_end(args);
}

void
bh_log_limited(struct bh_log_site *site, uint64_t now_ns, const char *format, ...)
{
    if (site->last_ns != 0 && now_ns - site->last_ns < SITE_PERIOD_NS) {
        ++site->left_out;
        return;
    }
    char suffix[48] = "";
    if (site->left_out > 0) {
        snprintf(suffix, sizeof(suffix), " left_out=%llu", (unsigned long long)site->left_out);
    }
    site->last_ns = bh_max_u64(now_ns, 1);
    site->left_out = 0;
    va_list args;
    va_start(args, format);
    put(suffix, format, args);
    va_end(args);
}
