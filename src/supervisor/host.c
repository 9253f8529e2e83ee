/* Reading /proc and the control group of this process. */
#include "src/supervisor/host.h"

#include <ctype.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define FILE_BYTES_MAX 8192

/* A small file as a string; false if it cannot be read or is empty. */
static bool
read_text(const char *path, char text[FILE_BYTES_MAX])
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return false;
    }
    ssize_t got = read(fd, text, FILE_BYTES_MAX - 1);
    close(fd);
    text[got > 0 ? got : 0] = '\0';
    return got > 0;
}

bool
bh_host_meminfo(const char *text, const char *field, uint64_t *bytes)
{
    size_t len = strlen(field);
    for (const char *line = text; line != NULL && *line != '\0';) {
        if (strncmp(line, field, len) == 0 && line[len] == ':') {
            uint64_t kib = 0;
            if (sscanf(line + len + 1, "%" SCNu64, &kib) != 1) {
                return false;
            }
            *bytes = kib * 1024;
            return true;
        }
        const char *end = strchr(line, '\n');
        line = end != NULL ? end + 1 : NULL;
    }
    return false;
}

/* A number in a file of the control group; "max" and absence both mean no limit. */
static bool
read_number(const char *path, uint64_t *out)
{
    char text[FILE_BYTES_MAX];
    if (!read_text(path, text) || !isdigit((unsigned char)text[0])) {
        return false;
    }
    *out = strtoull(text, NULL, 10);
    return true;
}

/* File pages that the group could give back: they are counted as used, but the model file itself,
   read once, would then leave no room for its own weights. */
static uint64_t
reclaimable(const char *stat_path)
{
    char text[FILE_BYTES_MAX];
    uint64_t inactive = 0;
    uint64_t active = 0;
    if (!read_text(stat_path, text)) {
        return 0;
    }
    const char *at = strstr(text, "\ninactive_file ");
    if (at != NULL) {
        inactive = strtoull(at + strlen("\ninactive_file "), NULL, 10);
    }
    at = strstr(text, "\nactive_file ");
    if (at != NULL) {
        active = strtoull(at + strlen("\nactive_file "), NULL, 10);
    }
    return inactive + active;
}

/* Inside a container the limit is the container's; both generations of control groups show it at
   the root of their mount there. */
static void
apply_container(struct bh_host *host)
{
    static const char *const files[][3] = {
        {"/sys/fs/cgroup/memory.max",
         "/sys/fs/cgroup/memory.current",
         "/sys/fs/cgroup/memory.stat"},
        {"/sys/fs/cgroup/memory/memory.limit_in_bytes",
         "/sys/fs/cgroup/memory/memory.usage_in_bytes",
         "/sys/fs/cgroup/memory/memory.stat"},
    };
    for (size_t i = 0; i < BH_COUNT(files); i++) {
        uint64_t limit = 0;
        uint64_t used = 0;
        if (read_number(files[i][0], &limit) && read_number(files[i][1], &used)) {
            host->memory_bytes = bh_min_u64(host->memory_bytes, limit);
            uint64_t left = (limit > used ? limit - used : 0) + reclaimable(files[i][2]);
            host->available_bytes = bh_min_u64(host->available_bytes, bh_min_u64(left, limit));
        }
    }
}

enum bh_status
bh_host_read(struct bh_host *out)
{
    char text[FILE_BYTES_MAX];
    struct bh_host host = {0};
    if (!read_text("/proc/meminfo", text) ||
        !bh_host_meminfo(text, "MemTotal", &host.memory_bytes) ||
        !bh_host_meminfo(text, "MemAvailable", &host.available_bytes)) {
        return BH_ESYS;
    }
    apply_container(&host);
    cpu_set_t cpus;
    host.cpu_cnt = sched_getaffinity(0, sizeof(cpus), &cpus) == 0 ? (uint32_t)CPU_COUNT(&cpus) : 1;
    *out = host;
    return BH_OK;
}

void
bh_host_rss(int pid, uint64_t *rss_bytes, uint64_t *private_bytes)
{
    char path[64];
    char text[FILE_BYTES_MAX];
    uint64_t pages = 0;
    uint64_t shared = 0;
    *rss_bytes = 0;
    *private_bytes = 0;
    snprintf(path, sizeof(path), "/proc/%d/statm", pid);
    if (read_text(path, text) && sscanf(text, "%*u %" SCNu64 " %" SCNu64, &pages, &shared) == 2 &&
        shared <= pages) {
        uint64_t page_bytes = (uint64_t)sysconf(_SC_PAGESIZE);
        *rss_bytes = pages * page_bytes;
        *private_bytes = (pages - shared) * page_bytes;
    }
}
