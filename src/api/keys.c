/* Reading the key file and comparing tokens with its keys in constant time. */
#include "src/api/keys.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct key {
    char bytes[BH_KEY_BYTES_MAX]; /* zero beyond len */
    uint32_t len;
    uint32_t tenant;
};

struct bh_keys {
    uint32_t key_cnt;
    uint32_t tenant_cnt;
    char tenants[BH_TENANTS_MAX][BH_TENANT_NAME_MAX];
    struct key keys[];
};

/* A run of bytes in the file; not terminated. */
struct word {
    const char *text;
    size_t len;
};

static bool
is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\r';
}

/* Take the next word off the line. An empty word: the line is over. */
static struct word
next_word(struct word *line)
{
    while (line->len > 0 && is_blank(line->text[0])) {
        line->text++;
        line->len--;
    }
    struct word word = {.text = line->text};
    while (line->len > 0 && !is_blank(line->text[0])) {
        line->text++;
        line->len--;
        word.len++;
    }
    return word;
}

static bool
is_name_char(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-' || c == '.';
}

static bool
key_printable(struct word key)
{
    for (size_t i = 0; i < key.len; i++) {
        if (key.text[i] < 0x21 || key.text[i] > 0x7e) {
            return false;
        }
    }
    return true;
}

static bool
name_valid(struct word name)
{
    for (size_t i = 0; i < name.len; i++) {
        if (!is_name_char(name.text[i])) {
            return false;
        }
    }
    return name.len > 0 && name.len < BH_TENANT_NAME_MAX;
}

/* What is wrong with a line, or NULL. */
static const char *
line_fault(const struct bh_keys *keys, struct word key, struct word name, struct word rest)
{
    if (name.len == 0) {
        return "expected two words, \"KEY TENANT\"; the tenant is missing";
    }
    if (rest.len != 0) {
        return "expected two words, \"KEY TENANT\"; there are more";
    }
    if (key.len < BH_KEY_BYTES_MIN || key.len > BH_KEY_BYTES_MAX) {
        return "the key must have 8 to 128 characters";
    }
    if (!key_printable(key)) {
        return "the key must be printable ASCII";
    }
    if (!name_valid(name)) {
        return "the tenant must be 1 to 32 letters, digits, '_', '-' or '.'";
    }
    uint32_t tenant = 0;
    if (bh_keys_find(keys, key.text, key.len, &tenant) == BH_OK && keys->key_cnt > 0) {
        return "the same key stands on an earlier line";
    }
    return NULL;
}

/* The index of the tenant called `name`, added if new; BH_TENANTS_MAX: no room. */
static uint32_t
tenant_of(struct bh_keys *keys, struct word name)
{
    for (uint32_t i = 0; i < keys->tenant_cnt; i++) {
        if (strlen(keys->tenants[i]) == name.len &&
            memcmp(keys->tenants[i], name.text, name.len) == 0) {
            return i;
        }
    }
    if (keys->tenant_cnt == BH_TENANTS_MAX) {
        return BH_TENANTS_MAX;
    }
    memcpy(keys->tenants[keys->tenant_cnt], name.text, name.len);
    return keys->tenant_cnt++;
}

static enum bh_status
read_line(struct bh_keys *keys, struct word line, uint32_t line_no, char *error)
{
    struct word key = next_word(&line);
    if (key.len == 0 || key.text[0] == '#') {
        return BH_OK;
    }
    struct word name = next_word(&line);
    struct word rest = next_word(&line);
    const char *wrong = line_fault(keys, key, name, rest);
    if (wrong != NULL) {
        snprintf(error, BH_KEYS_ERROR_MAX, "key file line %u: %s", line_no, wrong);
        return BH_EINVAL;
    }
    if (keys->key_cnt == BH_KEYS_MAX) {
        snprintf(
            error, BH_KEYS_ERROR_MAX, "key file line %u: more than %u keys", line_no, BH_KEYS_MAX);
        return BH_ELIMIT;
    }
    uint32_t tenant = tenant_of(keys, name);
    if (tenant == BH_TENANTS_MAX) {
        snprintf(error,
                 BH_KEYS_ERROR_MAX,
                 "key file line %u: more than %u tenants",
                 line_no,
                 BH_TENANTS_MAX);
        return BH_ELIMIT;
    }
    struct key *slot = &keys->keys[keys->key_cnt++];
    memcpy(slot->bytes, key.text, key.len);
    slot->len = (uint32_t)key.len;
    slot->tenant = tenant;
    return BH_OK;
}

static enum bh_status
read_lines(struct bh_keys *keys, const char *text, size_t len, char *error)
{
    uint32_t line_no = 0;
    size_t at = 0;
    while (at < len) {
        const char *end = memchr(text + at, '\n', len - at);
        size_t line_len = end == NULL ? len - at : (size_t)(end - (text + at));
        line_no++;
        struct word line = {.text = text + at, .len = line_len};
        enum bh_status status = read_line(keys, line, line_no, error);
        if (status != BH_OK) {
            return status;
        }
        at += line_len + 1;
    }
    if (keys->key_cnt == 0) {
        snprintf(error,
                 BH_KEYS_ERROR_MAX,
                 "key file: no keys in it; add a line \"KEY TENANT\" or start without a key file");
        return BH_EINVAL;
    }
    return BH_OK;
}

enum bh_status
bh_keys_new(const char *text, size_t len, struct bh_keys **keys, char *error)
{
    size_t key_max = text == NULL ? 0 : BH_KEYS_MAX;
    struct bh_keys *made = calloc(1, sizeof(*made) + key_max * sizeof(made->keys[0]));
    if (made == NULL) {
        snprintf(error, BH_KEYS_ERROR_MAX, "key file: no memory");
        return BH_ESYS;
    }
    if (text == NULL) {
        snprintf(made->tenants[0], BH_TENANT_NAME_MAX, "default");
        made->tenant_cnt = 1;
        *keys = made;
        return BH_OK;
    }
    enum bh_status status = read_lines(made, text, len, error);
    if (status != BH_OK) {
        bh_keys_delete(made);
        return status;
    }
    *keys = made;
    return BH_OK;
}

void
bh_keys_delete(struct bh_keys *keys)
{
    if (keys == NULL) {
        return;
    }
    explicit_bzero(keys->keys, keys->key_cnt * sizeof(keys->keys[0]));
    free(keys);
}

enum bh_status
bh_keys_find(const struct bh_keys *keys, const char *token, size_t token_len, uint32_t *tenant)
{
    if (keys->key_cnt == 0) {
        *tenant = 0;
        return BH_OK;
    }
    if (token == NULL || token_len == 0 || token_len > BH_KEY_BYTES_MAX) {
        return BH_EINVAL;
    }
    char padded[BH_KEY_BYTES_MAX] = {0};
    memcpy(padded, token, token_len);
    uint32_t found = 0; /* tenant + 1 of the match */
    for (uint32_t i = 0; i < keys->key_cnt; i++) {
        const struct key *key = &keys->keys[i];
        uint32_t differs = key->len ^ (uint32_t)token_len;
        for (uint32_t b = 0; b < BH_KEY_BYTES_MAX; b++) {
            differs |= (uint32_t)(unsigned char)(key->bytes[b] ^ padded[b]);
        }
        /* All ones when differs is 0, without a branch that a clock could see. */
        uint32_t same = (uint32_t)(((uint64_t)differs - 1) >> 32);
        found |= same & (key->tenant + 1);
    }
    explicit_bzero(padded, sizeof(padded));
    if (found == 0) {
        return BH_EINVAL;
    }
    *tenant = found - 1;
    return BH_OK;
}

uint32_t
bh_keys_tenant_cnt(const struct bh_keys *keys)
{
    return keys->tenant_cnt;
}

const char *
bh_keys_tenant_name(const struct bh_keys *keys, uint32_t tenant)
{
    return tenant < keys->tenant_cnt ? keys->tenants[tenant] : NULL;
}

bool
bh_keys_required(const struct bh_keys *keys)
{
    return keys->key_cnt > 0;
}
