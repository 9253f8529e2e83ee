/* From bytes to one JSON object. jansson checks the grammar, UTF-8, duplicate keys and NUL; this
   file bounds depth and size beforehand, since a tree takes many times the memory of its text, and
   finds out which field a number that jansson cannot hold belongs to. */
#include "src/api/params_read.h"

#include <string.h>

#define ITEMS_MAX (2u << 20) /* commas: a list of a million token ids passes */
#define MEMBERS_MAX                                                                                \
    (1u << 17) /* colons and opening brackets: each costs a table or an entry of one */

/* What the bytes outside strings add up to. */
struct size {
    uint32_t depth;
    uint32_t items;
    uint32_t members;
};

static const char *
size_fault(const struct size *size)
{
    if (size->depth > BH_JSON_DEPTH_MAX) {
        return "is nested too deeply";
    }
    return size->items > ITEMS_MAX || size->members > MEMBERS_MAX ? "has too many values" : NULL;
}

/* Whether depth and number of values are within the limits. Strings are skipped; broken JSON may
   pass, the parser refuses it afterwards. */
static enum bh_status
check_size(const char *body, size_t len, struct bh_fault *fault)
{
    struct size size = {0};
    bool in_string = false;
    for (size_t i = 0; i < len; i++) {
        char c = body[i];
        if (in_string) {
            if (c == '\\') {
                i++;
            } else if (c == '"') {
                in_string = false;
            }
            continue;
        }
        in_string = c == '"';
        bool opens = c == '{' || c == '[';
        size.depth += opens;
        size.depth -= (c == '}' || c == ']') && size.depth > 0;
        size.items += c == ',';
        size.members += opens || c == ':';
        const char *why = size_fault(&size);
        if (why != NULL) {
            bh_fault_say(
                fault, BH_ERROR_INVALID_JSON, NULL, "The request body %s; send less.", why);
            return BH_EINVAL;
        }
    }
    return BH_OK;
}

static bool
is_space(char c)
{
    return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

/* The key whose value (a number, or a list of them) ends before body[at]; false if what stands
   there is something else. */
static bool
key_before(const char *body, size_t at, char key[BH_FAULT_PARAM_MAX])
{
    while (at > 0 &&
           (is_space(body[at - 1]) || strchr("0123456789+-.eE,[]", body[at - 1]) != NULL)) {
        at--;
    }
    if (at == 0 || body[at - 1] != ':') {
        return false;
    }
    at--;
    while (at > 0 && is_space(body[at - 1])) {
        at--;
    }
    if (at == 0 || body[at - 1] != '"') {
        return false;
    }
    size_t end = at - 1;
    size_t begin = end;
    while (begin > 0 && body[begin - 1] != '"') {
        begin--;
    }
    size_t len = end - begin;
    if (begin == 0 || len == 0 || len >= BH_FAULT_PARAM_MAX ||
        memchr(body + begin, '\\', len) != NULL) {
        return false;
    }
    memcpy(key, body + begin, len);
    key[len] = '\0';
    return true;
}

/* Where a literal NaN or Infinity begins that the parser stopped at; `len` if it is none. */
static size_t
find_nan(const char *body, size_t len, size_t stopped)
{
    size_t at = stopped < len ? stopped : len;
    while (at > 0 && (body[at - 1] == '-' || (body[at - 1] >= 'A' && body[at - 1] <= 'z'))) {
        at--;
    }
    size_t name = at < len && body[at] == '-' ? at + 1 : at;
    bool nan = len - name >= 3 && memcmp(body + name, "NaN", 3) == 0;
    bool infinity = len - name >= 8 && memcmp(body + name, "Infinity", 8) == 0;
    return nan || infinity ? at : len;
}

static enum bh_status
explain(const char *body, size_t len, const json_error_t *error, struct bh_fault *fault)
{
    char key[BH_FAULT_PARAM_MAX];
    size_t stopped = error->position > 0 ? (size_t)error->position : 0;
    enum json_error_code code = json_error_code(error);
    if (code == json_error_out_of_memory) {
        return bh_read_no_memory(fault);
    }
    size_t nan = code == json_error_invalid_syntax ? find_nan(body, len, stopped) : len;
    if (nan < len && key_before(body, nan, key)) {
        bh_fault_say(fault,
                     BH_ERROR_INVALID_VALUE,
                     key,
                     "'%s' must be a finite number; NaN and Infinity are not JSON.",
                     key);
        return BH_EINVAL;
    }
    if (code == json_error_numeric_overflow && stopped <= len && key_before(body, stopped, key)) {
        bh_fault_say(fault, BH_ERROR_INVALID_VALUE, key, "A number in '%s' is too large.", key);
        return BH_EINVAL;
    }
    bh_fault_say(fault,
                 BH_ERROR_INVALID_JSON,
                 NULL,
                 "The request body is not valid JSON: %s (line %d, column %d).",
                 error->text,
                 error->line,
                 error->column);
    return BH_EINVAL;
}

enum bh_status
bh_read_load(const char *body, size_t len, json_t **root, struct bh_fault *fault)
{
    if (len == 0) {
        bh_fault_say(
            fault, BH_ERROR_INVALID_JSON, NULL, "The request body is empty; send a JSON object.");
        return BH_EINVAL;
    }
    enum bh_status status = check_size(body, len, fault);
    if (status != BH_OK) {
        return status;
    }
    json_error_t error;
    json_t *value = json_loadb(body, len, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &error);
    if (value == NULL) {
        return explain(body, len, &error, fault);
    }
    if (!json_is_object(value)) {
        json_decref(value);
        bh_fault_say(fault, BH_ERROR_INVALID_JSON, NULL, "The request body must be a JSON object.");
        return BH_EINVAL;
    }
    *root = value;
    return BH_OK;
}
