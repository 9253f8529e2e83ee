/* The conversation of a chat request. Every content becomes one string, so that the template sees
   one shape; everything else in a message passes through as it came, because what a client keeps in
   its history must not make the conversation fail for ever. */
#include "src/api/params_read.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const ROLES[] = {"system", "user", "assistant", "tool", "developer"};

static bool
role_known(const char *role)
{
    for (size_t i = 0; i < BH_COUNT(ROLES); i++) {
        if (strcmp(ROLES[i], role) == 0) {
            return true;
        }
    }
    return false;
}

/* Join the text parts of a content list with line feeds. */
static enum bh_status
join_parts(const json_t *parts, const char *param, json_t **joined, struct bh_fault *fault)
{
    struct bh_bytes text;
    bh_bytes_init(&text, SIZE_MAX / 2);
    size_t cnt = json_array_size(parts);
    for (size_t i = 0; i < cnt; i++) {
        const json_t *part = json_array_get(parts, i);
        const char *type = json_string_value(json_object_get(part, "type"));
        const json_t *words = json_object_get(part, "text");
        if (type == NULL || strcmp(type, "text") != 0 || !json_is_string(words)) {
            bh_bytes_free(&text);
            bh_fault_say(
                fault,
                BH_ERROR_INVALID_VALUE,
                param,
                "Part %zu of '%s' must be {\"type\":\"text\",\"text\":string}: this model reads "
                "text only.",
                i,
                param);
            return BH_EINVAL;
        }
        bh_bytes_text(&text, i == 0 ? "" : "\n");
        bh_bytes_put(&text, json_string_value(words), json_string_length(words));
    }
    *joined = text.failed ? NULL : json_stringn(text.len == 0 ? "" : text.data, text.len);
    bh_bytes_free(&text);
    return *joined == NULL ? bh_read_no_memory(fault) : BH_OK;
}

/* Make the content of one message a string. */
static enum bh_status
flatten(json_t *message, size_t idx, bool may_lack, struct bh_fault *fault)
{
    char param[BH_FAULT_PARAM_MAX];
    snprintf(param, sizeof(param), "messages[%zu].content", idx);
    const json_t *content = json_object_get(message, "content");
    if (json_is_string(content)) {
        return BH_OK;
    }
    json_t *text = NULL;
    if (json_is_array(content)) {
        enum bh_status status = join_parts(content, param, &text, fault);
        if (status != BH_OK) {
            return status;
        }
    } else if (json_is_null(content) || (content == NULL && may_lack)) {
        text = json_string("");
    } else {
        return bh_read_wrong(content, param, "a string or a list of text parts", fault);
    }
    return json_object_set_new(message, "content", text) == 0 ? BH_OK : bh_read_no_memory(fault);
}

static enum bh_status
check_message(json_t *message, size_t idx, struct bh_fault *fault)
{
    char param[BH_FAULT_PARAM_MAX];
    if (!json_is_object(message)) {
        snprintf(param, sizeof(param), "messages[%zu]", idx);
        return bh_read_wrong(message, param, "an object", fault);
    }
    const json_t *role = json_object_get(message, "role");
    if (!json_is_string(role) || !role_known(json_string_value(role))) {
        snprintf(param, sizeof(param), "messages[%zu].role", idx);
        bh_fault_say(fault,
                     BH_ERROR_INVALID_VALUE,
                     param,
                     "'%s' must be \"system\", \"user\", \"assistant\", \"tool\" or \"developer\".",
                     param);
        return BH_EINVAL;
    }
    return flatten(message, idx, strcmp(json_string_value(role), "assistant") == 0, fault);
}

/* Serialise a part of the body for the template. */
static enum bh_status
dump(const json_t *value, char **text, struct bh_fault *fault)
{
    *text = json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY);
    return *text == NULL ? bh_read_no_memory(fault) : BH_OK;
}

/* tool_choice: whether the template is to see the tools. What would force a call is refused. */
static enum bh_status
read_tool_choice(const json_t *root, bool *show, struct bh_fault *fault)
{
    const json_t *choice = json_object_get(root, "tool_choice");
    *show = true;
    if (!bh_read_given(choice)) {
        return BH_OK;
    }
    const char *word = json_string_value(choice);
    if (word != NULL && (strcmp(word, "auto") == 0 || strcmp(word, "none") == 0)) {
        *show = strcmp(word, "auto") == 0;
        return BH_OK;
    }
    if (json_is_object(choice) || (word != NULL && strcmp(word, "required") == 0)) {
        bh_fault_say(fault,
                     BH_ERROR_UNSUPPORTED,
                     "tool_choice",
                     "'tool_choice': a tool call cannot be forced; send \"auto\" or \"none\".");
        return BH_EINVAL;
    }
    return bh_read_wrong(choice, "tool_choice", "\"auto\" or \"none\"", fault);
}

static enum bh_status
read_tools(const json_t *root, struct bh_params *params, struct bh_fault *fault)
{
    bool show = false;
    enum bh_status status = read_tool_choice(root, &show, fault);
    const json_t *tools = json_object_get(root, "tools");
    if (status != BH_OK || !bh_read_given(tools)) {
        return status;
    }
    if (!json_is_array(tools)) {
        return bh_read_wrong(tools, "tools", "a list of objects", fault);
    }
    size_t cnt = json_array_size(tools);
    for (size_t i = 0; i < cnt; i++) {
        const json_t *tool = json_array_get(tools, i);
        if (!json_is_object(tool)) {
            return bh_read_wrong(tool, "tools", "a list of objects", fault);
        }
    }
    return show && cnt > 0 ? dump(tools, &params->tools, fault) : BH_OK;
}

enum bh_status
bh_read_messages(json_t *root, struct bh_params *params, struct bh_fault *fault)
{
    json_t *messages = json_object_get(root, "messages");
    size_t cnt = json_array_size(messages);
    if (!json_is_array(messages)) {
        return bh_read_wrong(messages, "messages", "a list of messages", fault);
    }
    if (cnt == 0) {
        bh_fault_say(fault, BH_ERROR_INVALID_VALUE, "messages", "'messages' must not be empty.");
        return BH_EINVAL;
    }
    for (size_t i = 0; i < cnt; i++) {
        enum bh_status status = check_message(json_array_get(messages, i), i, fault);
        if (status != BH_OK) {
            return status;
        }
    }
    params->add_generation_prompt = true;
    enum bh_status status = bh_read_bool(json_object_get(root, "add_generation_prompt"),
                                         "add_generation_prompt",
                                         &params->add_generation_prompt,
                                         fault);
    if (status == BH_OK) {
        status = read_tools(root, params, fault);
    }
    const json_t *kwargs = json_object_get(root, "chat_template_kwargs");
    if (status == BH_OK && bh_read_given(kwargs)) {
        status = json_is_object(kwargs)
                     ? dump(kwargs, &params->template_kwargs, fault)
                     : bh_read_wrong(kwargs, "chat_template_kwargs", "an object", fault);
    }
    return status == BH_OK ? dump(messages, &params->messages, fault) : status;
}
