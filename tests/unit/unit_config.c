/* Flags of `bulkhead serve`: what is accepted, and that every refusal names the flag. */
#include "src/core/config.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#define ARGS_MAX 24

/* Parse a command line that is split at spaces. */
static enum bh_status
parse(const char *line, char error[BH_CONFIG_ERROR_MAX], struct bh_config *out)
{
    static char bytes[1024];
    static char program[] = "serve";
    char *argv[ARGS_MAX] = {program};
    int argc = 1;
    snprintf(bytes, sizeof(bytes), "%s", line);
    char *save = NULL;
    for (char *at = strtok_r(bytes, " ", &save); at != NULL; at = strtok_r(NULL, " ", &save)) {
        cr_assert_lt(argc, ARGS_MAX);
        argv[argc] = at;
        argc += 1;
    }
    return bh_config_parse(argc, argv, error, out);
}

static void
expect_refused(const char *line, const char *named)
{
    char error[BH_CONFIG_ERROR_MAX] = "";
    struct bh_config config = {.port = 7};
    cr_expect_eq(parse(line, error, &config), BH_EINVAL, "%s", line);
    cr_expect(strstr(error, named) != NULL, "'%s' does not name %s", error, named);
    cr_expect_eq(config.port, 7, "out is untouched");
}

Test(config, defaults)
{
    char error[BH_CONFIG_ERROR_MAX] = "";
    struct bh_config config;
    cr_assert_eq(parse("--model m.gguf", error, &config), BH_OK, "%s", error);
    cr_expect_str_eq(config.model, "m.gguf");
    cr_expect_str_eq(config.host, "127.0.0.1");
    cr_expect_eq(config.port, 8080);
    cr_expect_eq(config.ctx, 0);
    cr_expect_eq(config.pool_tokens, 0);
    cr_expect_eq(config.threads, 0);
    cr_expect_str_eq(config.api_key_file, "");
    cr_expect_str_eq(config.control, "");
    cr_expect_eq(config.chunk, 256);
    cr_expect_eq(config.deadline, 30);
}

Test(config, every_spelling)
{
    char error[BH_CONFIG_ERROR_MAX] = "";
    struct bh_config config;
    cr_assert_eq(parse("--pool-tokens 64 --api_key_file=k --model=a=b --port 0", error, &config),
                 BH_OK,
                 "%s",
                 error);
    cr_expect_eq(config.pool_tokens, 64);
    cr_expect_str_eq(config.api_key_file, "k");
    cr_expect_str_eq(config.model, "a=b");
    cr_expect_eq(config.port, 0);
    cr_assert_eq(parse("--pool_tokens=65 --model m", error, &config), BH_OK);
    cr_expect_eq(config.pool_tokens, 65);
}

Test(config, ranges)
{
    char error[BH_CONFIG_ERROR_MAX] = "";
    struct bh_config config;
    cr_expect_eq(parse("--model m --port 65535 --ctx 16777215 --threads 64 --chunk 4096 "
                       "--pool-tokens 4294967295 --deadline 86400",
                       error,
                       &config),
                 BH_OK,
                 "%s",
                 error);
    cr_expect_eq(config.pool_tokens, UINT32_MAX);
    cr_expect_eq(parse("--model m --ctx 2 --chunk 16 --threads 1", error, &config), BH_OK);
    expect_refused("--model m --port 65536", "--port '65536'");
    expect_refused("--model m --ctx 1", "--ctx");
    expect_refused("--model m --ctx 16777216", "16777215");
    expect_refused("--model m --threads 65", "--threads");
    expect_refused("--model m --chunk 15", "from 16 to 4096");
    expect_refused("--model m --pool-tokens 4294967296", "--pool-tokens");
    expect_refused("--model m --pool-tokens 99999999999999999999999999", "--pool-tokens");
    expect_refused("--model m --deadline 86401", "--deadline");
}

Test(config, malformed_numbers)
{
    expect_refused("--model m --port -1", "--port");
    expect_refused("--model m --port +1", "--port");
    expect_refused("--model m --port 0x50", "--port");
    expect_refused("--model m --port 80k", "--port");
    expect_refused("--model m --port=", "needs a value");
}

Test(config, refused)
{
    expect_refused("", "--model");
    expect_refused("--ctx 8", "--model");
    expect_refused("--model", "needs a value");
    expect_refused("--model m --modle n", "unknown flag '--modle'");
    expect_refused("--model m --ctxx 8", "--ctxx");
    expect_refused("--model m --ct 8", "--ct");
    expect_refused("m.gguf", "'m.gguf' is no flag");
    expect_refused("--model m --", "'--' is no flag");
    expect_refused("--model m --port 1 --port 2", "'--port' is given twice");
    expect_refused("--model m --pool-tokens 64 --pool_tokens 65", "given twice");
}

Test(config, help_names_every_flag)
{
    char *text = NULL;
    size_t len = 0;
    FILE *out = open_memstream(&text, &len);
    cr_assert_not_null(out);
    bh_config_help(out);
    fclose(out);
    static const char *const names[] = {"--model FILE",
                                        "--host ADDR",
                                        "--port N",
                                        "--ctx N",
                                        "--pool-tokens N",
                                        "--threads N",
                                        "--api-key-file FILE",
                                        "--control PATH",
                                        "--chunk N",
                                        "--deadline S",
                                        "(default 8080)"};
    for (size_t i = 0; i < BH_COUNT(names); i++) {
        cr_expect(strstr(text, names[i]) != NULL, "%s", names[i]);
    }
    free(text);
}
