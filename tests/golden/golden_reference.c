/* See golden_reference.h. */
#include "tests/golden/golden_reference.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct reference_prompt prompts[REFERENCE_PROMPTS_MAX];
static struct reference_greedy greedy[REFERENCE_PROMPTS_MAX];

static void
need(bool condition, const char *what)
{
    if (!condition) {
        fprintf(stderr, "golden reference: %s\n", what);
        exit(1);
    }
}

static void *
array_new(size_t cnt, size_t bytes)
{
    void *array = calloc(cnt > 0 ? cnt : 1, bytes);
    need(array != NULL, "no memory");
    return array;
}

static uint32_t
read_ids(const json_t *array, uint32_t **out)
{
    need(json_is_array(array), "ids are not an array");
    size_t cnt = json_array_size(array);
    *out = array_new(cnt, sizeof(**out));
    for (size_t i = 0; i < cnt; i++) {
        const json_t *id = json_array_get(array, i);
        need(json_is_integer(id) && json_integer_value(id) >= 0, "an id is not a number");
        (*out)[i] = (uint32_t)json_integer_value(id);
    }
    return (uint32_t)cnt;
}

static void
read_name(const json_t *row, char out[64])
{
    const char *name = json_string_value(json_object_get(row, "name"));
    need(name != NULL && strlen(name) < 64, "a row has no name");
    memcpy(out, name, strlen(name) + 1);
}

static void
read_prompt(const json_t *row, struct reference_prompt *out)
{
    read_name(row, out->name);
    out->id_cnt = read_ids(json_object_get(row, "ids"), &out->ids);
    uint32_t *positions = NULL;
    out->position_cnt = read_ids(json_object_get(row, "positions"), &positions);
    out->positions = array_new(out->position_cnt, sizeof(*out->positions));
    for (uint32_t i = 0; i < out->position_cnt; i++) {
        struct reference_position *position = &out->positions[i];
        const json_t *logprobs = json_array_get(json_object_get(row, "top_logprobs"), i);
        uint32_t *ids = NULL;
        position->position = positions[i];
        need(read_ids(json_array_get(json_object_get(row, "top_ids"), i), &ids) == REFERENCE_TOP &&
                 json_array_size(logprobs) == REFERENCE_TOP && positions[i] < out->id_cnt,
             "a position has not 20 ids");
        memcpy(position->ids, ids, sizeof(position->ids));
        free(ids);
        for (size_t k = 0; k < REFERENCE_TOP; k++) {
            position->logprobs[k] = json_number_value(json_array_get(logprobs, k));
        }
    }
    free(positions);
}

static void
read_greedy(const json_t *row, struct reference_greedy *out)
{
    read_name(row, out->name);
    out->id_cnt = read_ids(json_object_get(row, "ids"), &out->ids);
    uint32_t *continuation = NULL;
    const json_t *margins = json_object_get(row, "margins");
    need(read_ids(json_object_get(row, "continuation"), &continuation) == REFERENCE_STEPS &&
             json_array_size(margins) == REFERENCE_STEPS,
         "a run has not 64 steps");
    memcpy(out->continuation, continuation, sizeof(out->continuation));
    free(continuation);
    for (size_t i = 0; i < REFERENCE_STEPS; i++) {
        out->margins[i] = json_number_value(json_array_get(margins, i));
    }
}

static FILE *
open_file(const char *folder, const char *name)
{
    char path[4096];
    need(snprintf(path, sizeof(path), "%s/%s", folder, name) < (int)sizeof(path),
         "the folder's name is too long");
    FILE *file = fopen(path, "r");
    need(file != NULL, path);
    return file;
}

/* Rows of a file, one JSON object a line, each given to `read`. */
static uint32_t
read_rows(const char *folder, const char *name, void (*read)(const json_t *row, uint32_t idx))
{
    FILE *file = open_file(folder, name);
    char *line = NULL;
    size_t room = 0;
    uint32_t cnt = 0;
    while (getline(&line, &room, file) > 0) {
        json_error_t error;
        json_t *row = json_loads(line, 0, &error);
        need(row != NULL && cnt < REFERENCE_PROMPTS_MAX,
             "a line is not JSON, or there are too many");
        read(row, cnt++);
        json_decref(row);
    }
    free(line);
    (void)fclose(file);
    need(cnt > 0, "an empty file");
    return cnt;
}

static void
prompt_row(const json_t *row, uint32_t idx)
{
    read_prompt(row, &prompts[idx]);
}

static void
greedy_row(const json_t *row, uint32_t idx)
{
    read_greedy(row, &greedy[idx]);
}

uint32_t
reference_prompts(const char *folder, const struct reference_prompt **out)
{
    *out = prompts;
    return read_rows(folder, "logits.jsonl", prompt_row);
}

uint32_t
reference_greedy(const char *folder, const struct reference_greedy **out)
{
    *out = greedy;
    return read_rows(folder, "greedy.jsonl", greedy_row);
}

void
reference_perplexity(const char *folder, struct reference_perplexity *out)
{
    FILE *file = open_file(folder, "perplexity.json");
    json_error_t error;
    json_t *row = json_loadf(file, 0, &error);
    (void)fclose(file);
    need(row != NULL, "perplexity.json is not JSON");
    out->id_cnt = read_ids(json_object_get(row, "ids"), &out->ids);
    out->window = (uint32_t)json_integer_value(json_object_get(row, "window"));
    out->mean_nll = json_number_value(json_object_get(row, "mean_nll"));
    out->mean_nll_second_half = json_number_value(json_object_get(row, "mean_nll_second_half"));
    need(out->window > 1 && out->id_cnt > 0 && out->id_cnt % out->window == 0,
         "perplexity.json: odd windows");
    json_decref(row);
}
