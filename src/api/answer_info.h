/* JSON bodies and text of the routes that answer about the server or the tokenizer rather than
   from the model. Bodies only: bh_answer_json and bh_answer_text put the heads before them. */
#ifndef BH_API_ANSWER_INFO_H
#define BH_API_ANSWER_INFO_H

#include "src/api/bytes.h"

/* What /v1/models says of the one model served. */
struct bh_model_info {
    const char *const *names; /* the id and its aliases: one entry each */
    uint32_t name_cnt;
    uint64_t created_s;
    uint64_t ctx;       /* max_model_len: the limit that requests are held to */
    uint64_t ctx_train; /* meta.n_ctx_train: what the model file says */
    uint64_t kv_tokens; /* meta.n_kv_tokens: tokens the smallest pool on the path holds */
    uint64_t params;
    uint64_t vocab;
    uint64_t width;
    uint64_t file_bytes;
};
void bh_body_models(struct bh_bytes *out, const struct bh_model_info *info);

/* bh_body_health - {"status":"ok"}, for /live and a ready /health. bh_body_loading - llama-server's
   body for a model that is still loading, to be sent with status 503: its code is a number. */
void bh_body_health(struct bh_bytes *out);
void bh_body_loading(struct bh_bytes *out);

/* One token of /tokenize with_pieces. */
struct bh_body_piece {
    uint32_t token;
    const char *text;
    size_t text_len;
};

/* bh_body_tokens - {"tokens":[ids]}. bh_body_pieces - {"tokens":[{"id","piece"}]}, a piece that is
   not UTF-8 as a list of byte values. bh_body_content - {"content":text} of /detokenize.
   bh_body_prompt - {"prompt":text,"tokens":[ids]} of /apply-template. */
void bh_body_tokens(struct bh_bytes *out, const uint32_t *ids, uint32_t id_cnt);
void bh_body_pieces(struct bh_bytes *out, const struct bh_body_piece *pieces, uint32_t piece_cnt);
void bh_body_content(struct bh_bytes *out, const char *text, size_t len);
void bh_body_prompt(
    struct bh_bytes *out, const char *text, size_t len, const uint32_t *ids, uint32_t id_cnt);

/* ---- Prometheus text ---------------------------------------------------------------------- */

struct bh_label {
    const char *name;
    const char *value; /* any text; escaped */
};

/* bh_prom_family - the HELP and TYPE lines that come once before the samples of a name. `type` is
   "counter", "gauge" or "histogram". */
void bh_prom_family(struct bh_bytes *out, const char *name, const char *type, const char *help);

/* Names may hold labels of their own, as in `name{kind="x"}`; family leaves them out, samples
   put the given labels behind them. bh_prom_count, bh_prom_value - one sample. NaN and
   infinities are written as Prometheus does. */
void bh_prom_count(struct bh_bytes *out,
                   const char *name,
                   const struct bh_label *labels,
                   uint32_t label_cnt,
                   uint64_t value);
void bh_prom_value(struct bh_bytes *out,
                   const char *name,
                   const struct bh_label *labels,
                   uint32_t label_cnt,
                   double value);

/* bh_prom_histogram - the _bucket, _sum and _count lines. counts[i] are the observations in
   (bounds[i-1], bounds[i]], not yet added up; counts[bound_cnt] those above the last bound. */
struct bh_prom_histogram {
    const double *bounds;
    const uint64_t *counts; /* bound_cnt + 1 */
    uint32_t bound_cnt;
    double sum;
};
void bh_prom_histogram(struct bh_bytes *out,
                       const char *name,
                       const struct bh_label *labels,
                       uint32_t label_cnt,
                       const struct bh_prom_histogram *histogram);

#endif
