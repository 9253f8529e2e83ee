/* The flags of `bulkhead serve`: one table, one parser, one help text, all from config.def. Pure:
   reads argv, writes a struct. A flag that is unknown, doubled, empty or out of its range is refused
   with a text that names it, because a server that guesses what was meant serves something else. */
#include "src/core/config.h"

#include <stdio.h>
#include <string.h>

enum flag_kind { KIND_STRING, KIND_U32 };

struct flag {
    const char *name;
    enum flag_kind kind;
    size_t offset;
    const char *placeholder;
    const char *standard;
    const char *help;
};

static const struct flag flags[] = {
#define FLAG(name, kind, placeholder, standard, help)                                              \
    {#name, KIND_##kind, offsetof(struct bh_config, name), placeholder, standard, help},
#define LIMIT(name, value, unit, why)
#include "src/core/config.def"
#undef FLAG
#undef LIMIT
};

/* What a number may be. `unset` says that 0 means "choose for me" although it is below the range. */
struct range {
    const char *name;
    uint32_t min;
    uint32_t max;
    bool unset;
};

static const struct range ranges[] = {
    {"port", 0, 65535, false},
    {"ctx", 2, (1u << 24) - 1, true},
    {"pool_tokens", 2, UINT32_MAX, true},
    {"threads", 1, 64, true},
    {"chunk", 16, 4096, false},
    {"deadline", 0, 86400, false},
};

/* "--pool-tokens" and "--pool_tokens" are one flag. `len` leaves out a "=value". */
static bool
same_name(const char *given, size_t len, const char *name)
{
    if (strlen(name) != len) {
        return false;
    }
    for (size_t i = 0; i < len; i++) {
        char c = given[i] == '-' ? '_' : given[i];
        if (c != name[i]) {
            return false;
        }
    }
    return true;
}

static bool
find_flag(const char *given, size_t len, size_t *idx)
{
    for (size_t i = 0; i < BH_COUNT(flags); i++) {
        if (same_name(given, len, flags[i].name)) {
            *idx = i;
            return true;
        }
    }
    return false;
}

/* Decimal digits only: no sign, no space, no suffix. */
static bool
parse_u32(const char *text, uint32_t *out)
{
    uint64_t value = 0;
    if (*text == '\0') {
        return false;
    }
    for (; *text != '\0'; text++) {
        if (*text < '0' || *text > '9') {
            return false;
        }
        value = value * 10 + (uint64_t)(*text - '0');
        if (value > UINT32_MAX) {
            return false;
        }
    }
    *out = (uint32_t)value;
    return true;
}

/* The name as a user types it. */
static void
spell(const struct flag *flag, char out[32])
{
    size_t len = strlen(flag->name);
    BH_CHECK(len < 32);
    for (size_t i = 0; i <= len; i++) {
        out[i] = flag->name[i] == '_' ? '-' : flag->name[i];
    }
}

static enum bh_status
store_u32(const struct flag *flag, const char *value, char *error, struct bh_config *config)
{
    const struct range *range = NULL;
    for (size_t i = 0; i < BH_COUNT(ranges); i++) {
        if (strcmp(ranges[i].name, flag->name) == 0) {
            range = &ranges[i];
        }
    }
    BH_CHECK(range != NULL);
    uint32_t number = 0;
    bool ok = parse_u32(value, &number) && number <= range->max &&
              (number >= range->min || (range->unset && number == 0));
    if (!ok) {
        char name[32];
        spell(flag, name);
        snprintf(error,
                 BH_CONFIG_ERROR_MAX,
                 "--%s '%.40s': expected a number from %u to %u%s",
                 name,
                 value,
                 range->min,
                 range->max,
                 range->unset ? ", or 0 for the default" : "");
        return BH_EINVAL;
    }
    memcpy((char *)config + flag->offset, &number, sizeof(number));
    return BH_OK;
}

static enum bh_status
store(const struct flag *flag, const char *value, char *error, struct bh_config *config)
{
    if (flag->kind == KIND_U32) {
        return store_u32(flag, value, error, config);
    }
    memcpy((char *)config + flag->offset, &value, sizeof(value));
    return BH_OK;
}

static void
store_defaults(struct bh_config *config)
{
    char unused[BH_CONFIG_ERROR_MAX];
    for (size_t i = 0; i < BH_COUNT(flags); i++) {
        /* A default that its own range refuses is a bug in the table. */
        BH_CHECK(store(&flags[i], flags[i].standard, unused, config) == BH_OK);
    }
}

/* One argument at argv[*at], and the next one where its value is there. */
static enum bh_status
take(int argc, char **argv, int *at, uint64_t *seen, char *error, struct bh_config *config)
{
    const char *given = argv[*at];
    if (strncmp(given, "--", 2) != 0 || given[2] == '\0') {
        snprintf(error,
                 BH_CONFIG_ERROR_MAX,
                 "'%.40s' is no flag: flags begin with --, see bulkhead serve --help",
                 given);
        return BH_EINVAL;
    }
    const char *equals = strchr(given, '=');
    size_t len = equals != NULL ? (size_t)(equals - given) - 2 : strlen(given) - 2;
    size_t idx = 0;
    if (!find_flag(given + 2, len, &idx)) {
        snprintf(
            error, BH_CONFIG_ERROR_MAX, "unknown flag '%.40s', see bulkhead serve --help", given);
        return BH_EINVAL;
    }
    if ((*seen >> idx & 1u) != 0) {
        snprintf(error, BH_CONFIG_ERROR_MAX, "'%.40s' is given twice", given);
        return BH_EINVAL;
    }
    *seen |= UINT64_C(1) << idx;
    const char *value = equals != NULL ? equals + 1 : NULL;
    if (value == NULL && *at + 1 < argc) {
        *at += 1;
        value = argv[*at];
    }
    if (value == NULL || *value == '\0') {
        snprintf(
            error, BH_CONFIG_ERROR_MAX, "'%.40s' needs a value: %s", given, flags[idx].placeholder);
        return BH_EINVAL;
    }
    return store(&flags[idx], value, error, config);
}

enum bh_status
bh_config_parse(int argc, char **argv, char error[BH_CONFIG_ERROR_MAX], struct bh_config *out)
{
    static_assert(BH_COUNT(flags) <= 64, "one bit of `seen` a flag");
    struct bh_config config;
    memset(&config, 0, sizeof(config));
    store_defaults(&config);
    uint64_t seen = 0;
    for (int at = 1; at < argc; at++) {
        enum bh_status status = take(argc, argv, &at, &seen, error, &config);
        if (status != BH_OK) {
            return status;
        }
    }
    if (config.model[0] == '\0') {
        snprintf(error, BH_CONFIG_ERROR_MAX, "--model FILE is required: a GGUF model file");
        return BH_EINVAL;
    }
    *out = config;
    return BH_OK;
}

void
bh_config_help(FILE *out)
{
    for (size_t i = 0; i < BH_COUNT(flags); i++) {
        char name[32];
        spell(&flags[i], name);
        char head[48];
        snprintf(head, sizeof(head), "--%s %s", name, flags[i].placeholder);
        bool says = flags[i].standard[0] != '\0' && strcmp(flags[i].standard, "0") != 0;
        fprintf(out, "  %-22s %s", head, flags[i].help);
        if (says) {
            fprintf(out, " (default %s)", flags[i].standard);
        }
        fprintf(out, "\n");
    }
}
