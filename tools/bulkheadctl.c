/* bulkheadctl: asks a running server's control socket and prints the answer for people, or as it came
   (--json). Exit status: 0 the server did it and all is well; 1 it refused, or verify found something;
   2 wrong usage, or no server answers. */
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "shm/base.h"

#define EXIT_SERVER 1
#define EXIT_USAGE  2

#define DEFAULT_PATH     "/tmp/bulkhead-8080.sock"
#define ANSWER_BYTES_MAX ((size_t)64 << 20)
#define MAP_WIDTH        64

struct options {
    const char *path;
    const char *command;
    bool json;
    bool dot;
};

static const char *const commands[][2] = {
    {"status", "model, limits, pool, requests, processes"},
    {"topo", "processes, memory and rights (--dot: for Graphviz)"},
    {"pages", "one mark a page"},
    {"requests", "every slot that is in use; never text"},
    {"verify", "every object in shared memory checks itself"},
    {"drain", "refuse new requests, let live ones end, keep running"},
    {"stop", "the same, then end the server (a second time: at once)"},
};

static int
usage(const char *what, const char *which)
{
    if (what != NULL) {
        fprintf(stderr, "bulkheadctl: %s%s\n", what, which);
    }
    FILE *out = what != NULL ? stderr : stdout;
    fprintf(out, "usage: bulkheadctl [--control PATH] [--json] COMMAND\n");
    for (size_t i = 0; i < BH_COUNT(commands); i++) {
        fprintf(out, "  %-9s %s\n", commands[i][0], commands[i][1]);
    }
    fprintf(out, "PATH is %s unless given\n", DEFAULT_PATH);
    return what != NULL ? EXIT_USAGE : 0;
}

static bool
is_command(const char *name)
{
    for (size_t i = 0; i < BH_COUNT(commands); i++) {
        if (strcmp(name, commands[i][0]) == 0) {
            return true;
        }
    }
    return false;
}

/* Returns -1 to go on, else the exit status. */
static int
parse(int argc, char **argv, struct options *out)
{
    *out = (struct options){.path = DEFAULT_PATH};
    for (int at = 1; at < argc; at++) {
        if (strcmp(argv[at], "--help") == 0 || strcmp(argv[at], "-h") == 0) {
            return usage(NULL, NULL);
        } else if (strcmp(argv[at], "--json") == 0) {
            out->json = true;
        } else if (strcmp(argv[at], "--dot") == 0) {
            out->dot = true;
        } else if (strcmp(argv[at], "--control") == 0 && at + 1 < argc) {
            at += 1;
            out->path = argv[at];
        } else if (argv[at][0] == '-') {
            return usage("unknown flag, or one without its value: ", argv[at]);
        } else if (out->command != NULL) {
            return usage("one command at a time, not also ", argv[at]);
        } else if (!is_command(argv[at])) {
            return usage("unknown command ", argv[at]);
        } else {
            out->command = argv[at];
        }
    }
    if (out->command == NULL) {
        return usage("no command given", "");
    }
    if (out->dot && strcmp(out->command, "topo") != 0) {
        return usage("--dot belongs to topo, not to ", out->command);
    }
    return -1;
}

/* The path is in a folder that everybody may write: what answers must be ours, or root's. */
static bool
peer_is_trusted(int fd)
{
    struct ucred peer;
    socklen_t len = sizeof(peer);
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &len) != 0) {
        return false;
    }
    return peer.uid == 0 || peer.uid == geteuid() || geteuid() == 0;
}

static int
dial(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    size_t len = strlen(path);
    if (len >= sizeof(address.sun_path)) {
        errno = ENAMETOOLONG;
        return -1;
    }
    memcpy(address.sun_path, path, len + 1);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) {
        return -1;
    }
    if (connect(fd, (struct sockaddr *)&address, sizeof(address)) != 0) {
        int saved = errno;
        close(fd);
        errno = saved;
        return -1;
    }
    if (!peer_is_trusted(fd)) {
        close(fd);
        errno = EPERM;
        return -1;
    }
    return fd;
}

static bool
send_command(int fd, const char *command)
{
    char line[64];
    int len = snprintf(line, sizeof(line), "{\"cmd\":\"%s\"}\n", command);
    return send(fd, line, (size_t)len, MSG_NOSIGNAL) == len;
}

/* One line, without its end; NULL when the server closed before that, or it is too long. */
static char *
receive_line(int fd)
{
    size_t room = 65536;
    size_t len = 0;
    char *line = malloc(room);
    while (line != NULL) {
        ssize_t got = recv(fd, line + len, room - len - 1, 0);
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got <= 0) {
            break;
        }
        len += (size_t)got;
        if (line[len - 1] == '\n') {
            line[len - 1] = '\0';
            return line;
        }
        if (len + 1 == room) {
            room *= 2;
            char *more = room <= ANSWER_BYTES_MAX ? realloc(line, room) : NULL;
            if (more == NULL) {
                break;
            }
            line = more;
        }
    }
    free(line);
    return NULL;
}

static int64_t
number(const json_t *object, const char *key)
{
    return (int64_t)json_integer_value(json_object_get(object, key));
}

static const char *
text(const json_t *object, const char *key)
{
    const char *value = json_string_value(json_object_get(object, key));
    return value != NULL ? value : "?";
}

/* "free 12, held 3": the members that are not zero. */
static void
print_counts(const char *title, json_t *counts)
{
    printf("%-11s", title);
    const char *separator = "";
    const char *key = NULL;
    json_t *value = NULL;
    json_object_foreach(counts, key, value)
    {
        if (json_integer_value(value) != 0) {
            printf("%s%s %" PRId64, separator, key, (int64_t)json_integer_value(value));
            separator = ", ";
        }
    }
    printf("%s\n", separator[0] == '\0' ? "none" : "");
}

static void
print_roles(const json_t *roles)
{
    printf("\n%-11s %8s %6s %9s %-9s %9s %9s %9s\n",
           "process",
           "pid",
           "epoch",
           "restarts",
           "state",
           "beat ms",
           "rss MiB",
           "own MiB");
    for (size_t i = 0; i < json_array_size(roles); i++) {
        const json_t *role = json_array_get(roles, i);
        printf("%-11s %8" PRId64 " %6" PRId64 " %9" PRId64 " %-9s %9" PRId64 " %9.1f %9.1f\n",
               text(role, "name"),
               number(role, "pid"),
               number(role, "epoch"),
               number(role, "restarts"),
               text(role, "state"),
               number(role, "beat_age_ms"),
               (double)number(role, "rss_bytes") / 1048576.0,
               (double)number(role, "private_bytes") / 1048576.0);
    }
}

static void
print_status(const json_t *answer)
{
    const json_t *pool = json_object_get(answer, "pool");
    const json_t *tokens = json_object_get(answer, "tokens");
    bool ready = json_is_true(json_object_get(answer, "ready"));
    printf("%-11s%s at %s\n", "model", text(answer, "model"), text(answer, "url"));
    printf("%-11s%s, drain %s, up %.1f s, fences %" PRId64 ", threads %" PRId64 "\n",
           "state",
           ready ? "ready" : "starting",
           text(answer, "drain"),
           (double)number(answer, "uptime_ms") / 1000.0,
           number(answer, "fences"),
           number(answer, "threads"));
    printf("%-11s%" PRId64 " tokens\n", "context", number(answer, "ctx"));
    printf("%-11s%" PRId64 " tokens in %" PRId64 " pages of %" PRId64 ", %.1f MiB\n",
           "pool",
           number(pool, "tokens"),
           number(pool, "page_cnt"),
           number(pool, "page_tokens"),
           (double)number(pool, "bytes") / 1048576.0);
    print_counts("pages", json_object_get(pool, "pages"));
    print_counts("slots", json_object_get(answer, "requests"));
    printf("%-11s%" PRId64 " prompt, %" PRId64 " generated\n",
           "tokens",
           number(tokens, "prompt"),
           number(tokens, "generated"));
    printf("%-11s%" PRId64 " refused reads, %" PRId64 " coverage mismatches\n",
           "violations",
           number(answer, "violations"),
           number(answer, "coverage_mismatches"));
    print_roles(json_object_get(answer, "roles"));
}

static void
print_pages(const json_t *answer)
{
    const char *map = text(answer, "pages");
    size_t cnt = strlen(map);
    for (size_t at = 0; at < cnt; at += MAP_WIDTH) {
        printf("%8zu  %.*s\n", at, MAP_WIDTH, map + at);
    }
    printf("\n. free   # held   + cached   ~ dirty   ! quarantined   x retired\n");
}

static void
print_requests(const json_t *answer)
{
    const json_t *list = json_object_get(answer, "requests");
    printf("%zu of %" PRId64 " slots in use\n", json_array_size(list), number(answer, "slots"));
    if (json_array_size(list) == 0) {
        return;
    }
    printf("\n%5s %6s %-9s %-12s %-17s %6s %7s %7s %6s %6s %6s %6s\n",
           "slot",
           "gen",
           "state",
           "cause",
           "order",
           "pages",
           "shared",
           "prompt",
           "done",
           "max",
           "tenant",
           "deaths");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *row = json_array_get(list, i);
        const json_t *order = json_object_get(row, "order");
        char activity[64];
        snprintf(activity,
                 sizeof(activity),
                 "%.8s %.16s/%" PRId64,
                 text(order, "verb"),
                 text(order, "role"),
                 number(order, "epoch"));
        bool idle = strcmp(text(order, "verb"), "none") == 0;
        printf("%5" PRId64 " %6" PRId64 " %-9s %-12s %-17s %6" PRId64 " %7" PRId64 " %7" PRId64
               " %6" PRId64 " %6" PRId64 " %6" PRId64 " %6" PRId64 "\n",
               number(row, "slot"),
               number(row, "gen"),
               text(row, "state"),
               text(row, "cause"),
               idle ? "none" : activity,
               number(row, "pages"),
               number(row, "shared"),
               number(row, "prompt_tokens"),
               number(row, "generated_tokens"),
               number(row, "max_tokens"),
               number(row, "tenant"),
               number(row, "deaths"));
    }
}

static void
print_verify(const json_t *answer)
{
    const json_t *objects = json_object_get(answer, "objects");
    for (size_t i = 0; i < json_array_size(objects); i++) {
        const json_t *object = json_array_get(objects, i);
        printf("%-26s %s\n", text(object, "name"), text(object, "status"));
    }
}

static void
print_answer(const struct options *options, const json_t *answer)
{
    const char *command = options->command;
    if (strcmp(command, "status") == 0) {
        print_status(answer);
    } else if (strcmp(command, "topo") == 0) {
        printf("%s", text(answer, options->dot ? "dot" : "table"));
    } else if (strcmp(command, "pages") == 0) {
        print_pages(answer);
    } else if (strcmp(command, "requests") == 0) {
        print_requests(answer);
    } else if (strcmp(command, "verify") == 0) {
        print_verify(answer);
    } else if (strcmp(command, "drain") == 0) {
        printf("new requests are refused\n");
    } else {
        printf("stopping; live requests have %" PRId64 " s\n", number(answer, "deadline_s"));
    }
}

/* Refusals go to stderr; what verify found is printed first. */
static int
conclude(const struct options *options, const char *line)
{
    json_t *answer = json_loads(line, JSON_REJECT_DUPLICATES, NULL);
    if (!json_is_object(answer)) {
        fprintf(stderr, "bulkheadctl: what answers at %s is no bulkhead\n", options->path);
        json_decref(answer);
        return EXIT_USAGE;
    }
    bool ok = json_is_true(json_object_get(answer, "ok"));
    if (options->json) {
        printf("%s\n", line);
    } else {
        if (ok || json_object_get(answer, "objects") != NULL) {
            print_answer(options, answer);
        }
        if (!ok) {
            fprintf(stderr, "bulkheadctl: %s\n", text(answer, "error"));
        }
    }
    json_decref(answer);
    return ok ? 0 : EXIT_SERVER;
}

int
main(int argc, char **argv)
{
    struct options options;
    int code = parse(argc, argv, &options);
    if (code >= 0) {
        return code;
    }
    int fd = dial(options.path);
    if (fd < 0) {
        fprintf(stderr,
                "bulkheadctl: %s: %s: is a server running, and is --control its path?\n",
                options.path,
                strerror(errno));
        return EXIT_USAGE;
    }
    char *line = send_command(fd, options.command) ? receive_line(fd) : NULL;
    close(fd);
    if (line == NULL) {
        fprintf(stderr, "bulkheadctl: %s: the server closed without an answer\n", options.path);
        return EXIT_USAGE;
    }
    code = conclude(&options, line);
    free(line);
    return code;
}
