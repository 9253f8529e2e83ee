/* The one thing of base.h that is not inline: how a process stops on its own bug. */
#include "shm/base.h"

#include <stdio.h>
#include <stdlib.h>

_Noreturn void
bh_die(const char *file, int line, const char *message)
{
    fprintf(stderr, "bulkhead: fatal at=%s:%d %s\n", file, line, message);
    fflush(stderr);
    abort();
}
