/* The one program. `serve` is for people; `role` is how the supervisor starts its processes. */
#include <stdio.h>
#include <string.h>

#include "src/core/config.h"
#include "src/core/role.h"
#include "src/core/topology.h"
#include "src/supervisor/supervisor.h"

#define EXIT_USAGE 2

static const struct bh_role *const role_table[BH_ROLE_CNT] = {
    [BH_ROLE_TOKENIZER] = &bh_role_tokenizer,
    [BH_ROLE_LEDGER] = &bh_role_ledger,
    [BH_ROLE_PREFILL] = &bh_role_prefill,
    [BH_ROLE_DECODE] = &bh_role_decode,
    [BH_ROLE_EGRESS] = &bh_role_egress,
};

static void
help_print(FILE *out)
{
    fputs("usage: bulkhead serve --model FILE [flags]   serve a model; flags below\n"
          "       bulkhead topo [--dot]                 print processes, memory and rights\n"
          "       bulkhead --version | --help\n"
          "       bulkhead role NAME                    started by `serve`, with its descriptors\n"
          "\nflags of serve:\n",
          out);
    bh_config_help(out);
}

static int
usage_error(const char *what, const char *which)
{
    fprintf(stderr, "bulkhead: %s%s; see `bulkhead --help`\n", what, which);
    return EXIT_USAGE;
}

static int
topo_main(int argc, char **argv)
{
    if (argc > 2 || (argc == 2 && strcmp(argv[1], "--dot") != 0)) {
        return usage_error("topo takes only --dot, not ", argv[argc - 1]);
    }
    const char *wrong = bh_topology_check();
    if (wrong != NULL) {
        fprintf(stderr, "bulkhead: topology.def: %s\n", wrong);
        return 1;
    }
    if (argc == 2) {
        bh_topology_print_dot(stdout);
    } else {
        bh_topology_print(stdout);
    }
    return 0;
}

static int
role_main(int argc, char **argv)
{
    uint32_t role = BH_ROLE_CNT;
    if (argc != 2) {
        return usage_error("role takes one name", "");
    }
    if (!bh_role_by_name(argv[1], &role) || role_table[role] == NULL) {
        return usage_error("no process has the name ", argv[1]);
    }
    return bh_role_main(role_table[role]);
}

int
main(int argc, char **argv)
{
    const char *verb = argc > 1 ? argv[1] : "";
    if (strcmp(verb, "serve") == 0) {
        return bh_serve_main(argc - 1, argv + 1);
    }
    if (strcmp(verb, "topo") == 0) {
        return topo_main(argc - 1, argv + 1);
    }
    if (strcmp(verb, "role") == 0) {
        return role_main(argc - 1, argv + 1);
    }
    if (strcmp(verb, "--version") == 0) {
        puts("bulkhead " BH_VERSION);
        return 0;
    }
    if (strcmp(verb, "--help") == 0 || strcmp(verb, "-h") == 0) {
        help_print(stdout);
        return 0;
    }
    if (argc > 1) {
        return usage_error("unknown verb ", verb);
    }
    help_print(stderr);
    return EXIT_USAGE;
}
