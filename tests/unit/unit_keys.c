/* The key file: who is let in as whom, every line that is refused, and the limits. */
#include "src/api/keys.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct bh_keys *
good(const char *text)
{
    struct bh_keys *keys = NULL;
    char error[BH_KEYS_ERROR_MAX] = "";
    cr_assert(
        bh_keys_new(text, text == NULL ? 0 : strlen(text), &keys, error) == BH_OK, "%s", error);
    return keys;
}

static void
bad(const char *text, enum bh_status want, const char *says)
{
    struct bh_keys *keys = NULL;
    char error[BH_KEYS_ERROR_MAX] = "";
    cr_expect(bh_keys_new(text, strlen(text), &keys, error) == want, "%s", text);
    cr_expect(keys == NULL);
    cr_expect(strstr(error, says) != NULL, "'%s' lacks '%s'", error, says);
}

static int
find(const struct bh_keys *keys, const char *token)
{
    uint32_t tenant = 77;
    enum bh_status status = bh_keys_find(keys, token, token == NULL ? 0 : strlen(token), &tenant);
    cr_expect(status == BH_OK || tenant == 77);
    return status == BH_OK ? (int)tenant : -1;
}

Test(keys, without_file)
{
    struct bh_keys *keys = good(NULL);
    cr_expect(!bh_keys_required(keys) && bh_keys_tenant_cnt(keys) == 1);
    cr_expect(strcmp(bh_keys_tenant_name(keys, 0), "default") == 0);
    cr_expect(bh_keys_tenant_name(keys, 1) == NULL);
    cr_expect(find(keys, NULL) == 0 && find(keys, "anything") == 0);
    bh_keys_delete(keys);
    bh_keys_delete(NULL);
}

Test(keys, file)
{
    struct bh_keys *keys = good("# keys\n\nsk-alpha-1 acme\r\n  sk-beta--2\tb_2.x-Y  \n"
                                "sk-alpha-3 acme\n# sk-none-4 x\nsk-gamma-5 acme2");
    cr_expect(bh_keys_required(keys) && bh_keys_tenant_cnt(keys) == 3);
    cr_expect(strcmp(bh_keys_tenant_name(keys, 0), "acme") == 0);
    cr_expect(strcmp(bh_keys_tenant_name(keys, 1), "b_2.x-Y") == 0);
    cr_expect(strcmp(bh_keys_tenant_name(keys, 2), "acme2") == 0);
    cr_expect(find(keys, "sk-alpha-1") == 0 && find(keys, "sk-beta--2") == 1);
    cr_expect(find(keys, "sk-alpha-3") == 0 && find(keys, "sk-gamma-5") == 2);
    cr_expect(find(keys, NULL) == -1 && find(keys, "") == -1);
    cr_expect(find(keys, "sk-alpha-") == -1 && find(keys, "sk-alpha-11") == -1);
    cr_expect(find(keys, "Sk-alpha-1") == -1 && find(keys, "sk-none-4") == -1);
    char longest[BH_KEY_BYTES_MAX + 2] = {0};
    memset(longest, 'x', BH_KEY_BYTES_MAX + 1);
    cr_expect(find(keys, longest) == -1);
    uint32_t tenant = 0;
    cr_expect(bh_keys_find(keys, "sk-alpha-1\0", 11, &tenant) == BH_EINVAL);
    bh_keys_delete(keys);
}

Test(keys, refused)
{
    bad("", BH_EINVAL, "no keys");
    bad("# only a comment\n", BH_EINVAL, "no keys");
    bad("sk-alpha-1\n", BH_EINVAL, "line 1");
    bad("sk-alpha-1 a b\n", BH_EINVAL, "line 1");
    bad("\n#\nshorty7 a\n", BH_EINVAL, "line 3");
    bad("sk-alpha-1 a\nsk-\xc3\xa9-alpha b\n", BH_EINVAL, "line 2");
    bad("sk-alpha-1 a/b\n", BH_EINVAL, "tenant");
    bad("sk-alpha-1 a\nsk-alpha-1 b\n", BH_EINVAL, "line 2: the same key");
    bad("sk-alpha-1 123456789012345678901234567890123\n", BH_EINVAL, "1 to 32");
    struct bh_keys *keys = good("12345678 12345678901234567890123456789012\n");
    cr_expect(find(keys, "12345678") == 0);
    bh_keys_delete(keys);
    char text[256];
    for (int over = 0; over < 2; over++) {
        char key[BH_KEY_BYTES_MAX + 2] = {0};
        memset(key, 'k', BH_KEY_BYTES_MAX + (size_t)over);
        snprintf(text, sizeof(text), "%s t\n", key);
        if (over == 1) {
            bad(text, BH_EINVAL, "8 to 128");
        } else {
            keys = good(text);
            cr_expect(find(keys, key) == 0);
            bh_keys_delete(keys);
        }
    }
    static const char NUL[] = "sk-al\0pha a\n";
    char error[BH_KEYS_ERROR_MAX];
    cr_expect(bh_keys_new(NUL, sizeof(NUL) - 1, &keys, error) == BH_EINVAL);
    cr_expect(strstr(error, "sk-al") == NULL);
}

/* cnt keys for tenants numbered modulo `tenants`. */
static char *
many(unsigned cnt, unsigned tenants)
{
    char *text = malloc(cnt * 32u + 1);
    size_t len = 0;
    for (unsigned i = 0; i < cnt; i++) {
        len += (size_t)sprintf(text + len, "key-%06u t%u\n", i, i % tenants);
    }
    return text;
}

Test(keys, limits)
{
    char *text = many(BH_KEYS_MAX, BH_TENANTS_MAX);
    struct bh_keys *keys = good(text);
    cr_expect(bh_keys_tenant_cnt(keys) == BH_TENANTS_MAX);
    cr_expect(find(keys, "key-001023") == 255 && find(keys, "key-000256") == 0);
    bh_keys_delete(keys);
    free(text);
    text = many(BH_KEYS_MAX + 1, 1);
    bad(text, BH_ELIMIT, "line 1025: more than 1024 keys");
    free(text);
    text = many(BH_TENANTS_MAX + 1, BH_TENANTS_MAX + 1);
    bad(text, BH_ELIMIT, "line 257: more than 256 tenants");
    free(text);
}
