/* The JSON bodies of the POST routes, read into one struct: every field checked, every default
   applied, and what this server cannot do refused instead of ignored. jansson does the parsing. */
#ifndef BH_API_PARAMS_H
#define BH_API_PARAMS_H

#include "shm/record.h"
#include "src/api/errors.h"
#include "src/api/http.h"

#define BH_JSON_DEPTH_MAX     64u         /* nesting of objects and lists in a body */
#define BH_MAX_TOKENS_MAX     0x7fffffffu /* largest number taken for max_tokens and top_k */
#define BH_MAX_TOKENS_DEFAULT 16u         /* of /v1/completions, as OpenAI's */
#define BH_TEMPERATURE_MIN    1e-3f /* what is lower is greedy: dividing by it could overflow */
#define BH_TEMPERATURE_MAX    100.0f
#define BH_LOGPROBS_MAX       20

/* One prompt of /v1/completions, or `content` of /tokenize, or `tokens` of /detokenize. Text is
   NUL-terminated and holds no other NUL; ids is NULL for text and text is NULL for ids. */
struct bh_prompt {
    char *text;
    size_t text_len;
    uint32_t *ids;
    uint32_t id_cnt; /* at least 1 with ids, except that /detokenize may have 0 */
};

struct bh_params {
    enum bh_route route;
    char model[BH_MODEL_NAME_MAX]; /* "": the client named none */

    char *messages; /* chat, apply-template: JSON list, every content a string; NUL-terminated */
    char *tools;    /* JSON list for the template, or NULL */
    char *template_kwargs; /* JSON object, or NULL */
    bool add_generation_prompt;

    struct bh_prompt *prompts;
    uint32_t prompt_cnt;

    uint32_t n; /* choices for each prompt; n * prompt_cnt <= BH_CHOICES_MAX */
    bool
        has_max_tokens; /* the client named one: if it does not fit, 400. Else clamp to what fits */
    uint32_t max_tokens; /* when has_max_tokens, or the default of completions */
    float temperature;
    float top_p;
    float min_p;
    uint32_t top_k;
    bool has_seed;
    uint64_t seed;
    int32_t logprobs; /* as in bh_record */
    bool ignore_eos;
    bool stream;
    bool include_usage;
    bool echo;
    uint32_t stop_cnt;
    uint32_t stop_id_cnt;
    uint32_t stop_ids[BH_STOP_IDS_MAX];
    uint16_t stop_end[BH_STOP_MAX];
    char stop_bytes[BH_STOP_BYTES_MAX];

    bool add_special;   /* tokenize; default false */
    bool parse_special; /* tokenize; default true */
    bool with_pieces;   /* tokenize */
};

/* What the server can do, as far as bodies depend on it. */
struct bh_params_rules {
    const char *const *models; /* names the model answers to */
    uint32_t model_cnt;        /* 0: any name is taken */
    uint32_t vocab;            /* token ids are below it */
};

/* bh_params_prepare - let jansson fetch the seed of its hash tables from the system. Call it once,
   before the process enters its sandbox, where the device it opens is out of reach. */
void bh_params_prepare(void);

/* bh_params_parse - read the body of a request to `route` (CHAT, COMPLETIONS, TOKENIZE, DETOKENIZE
   or APPLY_TEMPLATE). *params is written in every case and must be released with bh_params_free.
   BH_OK      every field is inside its range
   BH_EINVAL  *fault says what is wrong, with the field in `param`
   BH_ESYS    no memory; *fault is INTERNAL */
BH_MUST_USE enum bh_status bh_params_parse(enum bh_route route,
                                           const char *body,
                                           size_t body_len,
                                           const struct bh_params_rules *rules,
                                           struct bh_params *params,
                                           struct bh_fault *fault);

/* bh_params_free - release what bh_params_parse allocated. */
void bh_params_free(struct bh_params *params);

/* bh_params_record - copy the sampling fields into a record: flags CHAT, STREAM, USAGE, ECHO,
   IGNORE_EOS and PROMPT_LOGPROBS (others are kept), logprobs, top_k, temperature, top_p, min_p,
   the stops, and seed. sample_idx (below n) is the number of the choice among those of its prompt:
   the seed is params->seed + sample_idx, so that choices differ and a prompt's answers do not
   depend on its neighbours. random_seed takes the place of params->seed if the client gave none.
   max_tokens is not written: it depends on the prompt's length. */
void bh_params_record(const struct bh_params *params,
                      uint32_t sample_idx,
                      uint64_t random_seed,
                      struct bh_record *record);

#endif
