/* Configuration: limits as constants, flags of `bulkhead serve`, from the one table config.def. */
#ifndef BH_CORE_CONFIG_H
#define BH_CORE_CONFIG_H

#include <stdio.h>

#include "shm/base.h"

enum {
#define FLAG(name, kind, placeholder, standard, help)
#define LIMIT(name, value, unit, why) BH_##name = (value),
#include "src/core/config.def"
#undef FLAG
#undef LIMIT
};

struct bh_config {
#define STRING                                        const char *
#define U32                                           uint32_t
#define FLAG(name, kind, placeholder, standard, help) kind name;
#define LIMIT(name, value, unit, why)
#include "src/core/config.def"
#undef FLAG
#undef LIMIT
#undef STRING
#undef U32
};

#define BH_CONFIG_ERROR_MAX 256

/* bh_config_parse - flags (underscore or dash) into *out, defaults where absent; strings point into argv.
   BH_EINVAL an unknown flag, a missing or malformed value: `error` names it and says what is allowed */
BH_MUST_USE enum bh_status
bh_config_parse(int argc, char **argv, char error[BH_CONFIG_ERROR_MAX], struct bh_config *out);
/* bh_config_help - one line a flag. */
void bh_config_help(FILE *out);

#endif
