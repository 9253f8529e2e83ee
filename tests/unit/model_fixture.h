/* Tiny random models for the tests of the model: made by mkmodel, named by BULKHEAD_MKMODEL. */
#ifndef BH_UNIT_MODEL_FIXTURE_H
#define BH_UNIT_MODEL_FIXTURE_H

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/golden/model_rig.h"

/* A model with these flags of mkmodel, opened; the file is gone when this returns. */
static inline void
fixture_open(struct rig_file *file, const char *flags)
{
    const char *tool = getenv("BULKHEAD_MKMODEL");
    cr_assert(tool != NULL, "BULKHEAD_MKMODEL names the mkmodel program; run this with meson test");
    char path[64] = "/tmp/bh_unit_model_XXXXXX";
    char command[1024];
    int fd = mkstemp(path);
    cr_assert(fd >= 0);
    (void)close(fd);
    int len = snprintf(command, sizeof(command), "'%s' --out %s %s >/dev/null", tool, path, flags);
    cr_assert(len > 0 && len < (int)sizeof(command));
    int status = system(command);
    cr_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0, "mkmodel %s failed", flags);
    rig_file_open(file, path, 2);
    (void)unlink(path);
}

static inline struct rig_options
fixture_options(void)
{
    return (struct rig_options){.mode = BH_MODEL_SERVED,
                                .threads = 2,
                                .elem_bytes = 2,
                                .page_tokens = 16,
                                .tokens_max = 4096,
                                .rows_max = 512,
                                .seqs_max = 8};
}

/* Token `i` of the made-up text number `text`. */
static inline uint32_t
fixture_token(uint32_t text, uint32_t i)
{
    return (text * 7919u + i * 104729u + i * i * 31u) % 500u;
}

#endif
