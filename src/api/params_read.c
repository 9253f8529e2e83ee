/* Single JSON fields: types, ranges, and the words that say what is wrong. */
#include "src/api/params_read.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

enum asks { ASKS_SET, ASKS_TRUE, ASKS_NOT_ZERO, ASKS_NOT_ONE, ASKS_FILLED };

struct refused {
    const char *field;
    enum asks asks;
    const char *why;
};

static const struct refused REFUSED_FIELDS[] = {
#define REFUSED(field_, asks_, why_) {.field = #field_, .asks = ASKS_##asks_, .why = (why_)},
#include "src/api/refused.def"
#undef REFUSED
};

static const char *
type_name(const json_t *value)
{
    switch (json_typeof(value)) {
    case JSON_OBJECT:
        return "an object";
    case JSON_ARRAY:
        return "a list";
    case JSON_STRING:
        return "a string";
    case JSON_INTEGER:
        return "a whole number";
    case JSON_REAL:
        return "a number with a fraction or exponent";
    case JSON_TRUE:
    case JSON_FALSE:
        return "a boolean";
    case JSON_NULL:
    default:
        return "null";
    }
}

enum bh_status
bh_read_wrong(const json_t *value, const char *param, const char *what, struct bh_fault *fault)
{
    bh_fault_say(fault,
                 BH_ERROR_INVALID_VALUE,
                 param,
                 "'%s' must be %s, not %s.",
                 param,
                 what,
                 value == NULL ? "absent" : type_name(value));
    return BH_EINVAL;
}

enum bh_status
bh_read_no_memory(struct bh_fault *fault)
{
    bh_fault_set(fault, BH_ERROR_INTERNAL, NULL);
    return BH_ESYS;
}

bool
bh_read_given(const json_t *value)
{
    return value != NULL && !json_is_null(value);
}

enum bh_status
bh_read_bool(const json_t *value, const char *param, bool *out, struct bh_fault *fault)
{
    if (!bh_read_given(value)) {
        return BH_OK;
    }
    if (!json_is_boolean(value)) {
        return bh_read_wrong(value, param, "true or false", fault);
    }
    *out = json_is_true(value);
    return BH_OK;
}

enum bh_status
bh_read_int(const json_t *value,
            const char *param,
            struct bh_read_range range,
            int64_t *out,
            struct bh_fault *fault)
{
    if (!bh_read_given(value)) {
        return BH_OK;
    }
    if (!json_is_integer(value)) {
        return bh_read_wrong(value, param, "a whole number", fault);
    }
    int64_t number = json_integer_value(value);
    if (number < range.min || number > range.max) {
        bh_fault_say(fault,
                     BH_ERROR_INVALID_VALUE,
                     param,
                     "'%s' must be from %" PRId64 " to %" PRId64 ", not %" PRId64 ".",
                     param,
                     range.min,
                     range.max,
                     number);
        return BH_EINVAL;
    }
    *out = number;
    return BH_OK;
}

enum bh_status
bh_read_float(const json_t *value, const char *param, float max, float *out, struct bh_fault *fault)
{
    if (!bh_read_given(value)) {
        return BH_OK;
    }
    if (!json_is_number(value)) {
        return bh_read_wrong(value, param, "a number", fault);
    }
    double number = json_number_value(value);
    if (!isfinite(number) || number < 0.0 || number > (double)max) {
        bh_fault_say(fault,
                     BH_ERROR_INVALID_VALUE,
                     param,
                     "'%s' must be from 0 to %g, not %g.",
                     param,
                     (double)max,
                     number);
        return BH_EINVAL;
    }
    *out = (float)number;
    return BH_OK;
}

enum bh_status
bh_read_ids(const json_t *value,
            const char *param,
            uint32_t vocab,
            uint32_t **ids,
            uint32_t *id_cnt,
            struct bh_fault *fault)
{
    size_t cnt = json_array_size(value);
    uint32_t *list = cnt == 0 ? NULL : malloc(cnt * sizeof(*list));
    if (cnt > 0 && list == NULL) {
        return bh_read_no_memory(fault);
    }
    struct bh_read_range range = {.min = 0, .max = (int64_t)vocab - 1};
    for (size_t i = 0; i < cnt; i++) {
        const json_t *item = json_array_get(value, i);
        int64_t id = 0;
        enum bh_status status = json_is_integer(item)
                                    ? bh_read_int(item, param, range, &id, fault)
                                    : bh_read_wrong(item, param, "a list of token ids", fault);
        if (status != BH_OK) {
            free(list);
            return status;
        }
        list[i] = (uint32_t)id;
    }
    *ids = list;
    *id_cnt = (uint32_t)cnt;
    return BH_OK;
}

/* Whether a value that is there asks for what its field does; BH_EINVAL if its type is wrong. */
static enum bh_status
asks_for(const struct refused *field, const json_t *value, bool *asks, struct bh_fault *fault)
{
    switch (field->asks) {
    case ASKS_TRUE:
        return bh_read_bool(value, field->field, asks, fault);
    case ASKS_NOT_ZERO:
    case ASKS_NOT_ONE:
        if (!json_is_number(value)) {
            return bh_read_wrong(value, field->field, "a number", fault);
        }
        *asks = json_number_value(value) != (field->asks == ASKS_NOT_ONE ? 1.0 : 0.0);
        return BH_OK;
    case ASKS_FILLED:
        *asks = !(json_is_object(value) && json_object_size(value) == 0) &&
                !(json_is_array(value) && json_array_size(value) == 0) &&
                !(json_is_string(value) && json_string_length(value) == 0);
        return BH_OK;
    case ASKS_SET:
    default:
        *asks = true;
        return BH_OK;
    }
}

enum bh_status
bh_read_refused(const json_t *root, struct bh_fault *fault)
{
    for (size_t i = 0; i < BH_COUNT(REFUSED_FIELDS); i++) {
        const struct refused *field = &REFUSED_FIELDS[i];
        const json_t *value = json_object_get(root, field->field);
        bool asks = false;
        if (!bh_read_given(value)) {
            continue;
        }
        enum bh_status status = asks_for(field, value, &asks, fault);
        if (status != BH_OK) {
            return status;
        }
        if (asks) {
            bh_fault_say(
                fault, BH_ERROR_UNSUPPORTED, field->field, "'%s': %s", field->field, field->why);
            return BH_EINVAL;
        }
    }
    return BH_OK;
}
