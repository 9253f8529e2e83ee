/* Bodies about the server and the tokenizer, and Prometheus text. */
#include "src/api/answer_info.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "src/api/json_text.h"
#include "src/text/utf8.h"

static void
put_model(struct bh_bytes *out, const struct bh_model_info *info, const char *name)
{
    bh_bytes_text(out, "{\"id\":");
    bh_json_string(out, name, strlen(name));
    bh_bytes_format(out,
                    ",\"object\":\"model\",\"created\":%" PRIu64
                    ",\"owned_by\":\"bulkhead\",\"max_model_len\":%" PRIu64 ",\"meta\":{",
                    info->created_s,
                    info->ctx);
    bh_bytes_format(out,
                    "\"n_ctx\":%" PRIu64 ",\"n_ctx_train\":%" PRIu64 ",\"n_kv_tokens\":%" PRIu64
                    ",\"n_params\":%" PRIu64 ",",
                    info->ctx,
                    info->ctx_train,
                    info->kv_tokens,
                    info->params);
    bh_bytes_format(out,
                    "\"n_vocab\":%" PRIu64 ",\"n_embd\":%" PRIu64 ",\"size\":%" PRIu64 "}}",
                    info->vocab,
                    info->width,
                    info->file_bytes);
}

void
bh_body_models(struct bh_bytes *out, const struct bh_model_info *info)
{
    bh_bytes_text(out, "{\"object\":\"list\",\"data\":[");
    for (uint32_t i = 0; i < info->name_cnt; i++) {
        bh_bytes_text(out, i == 0 ? "" : ",");
        put_model(out, info, info->names[i]);
    }
    bh_bytes_text(out, "]}");
}

void
bh_body_health(struct bh_bytes *out)
{
    bh_bytes_text(out, "{\"status\":\"ok\"}");
}

void
bh_body_loading(struct bh_bytes *out)
{
    bh_bytes_text(
        out,
        "{\"error\":{\"code\":503,\"message\":\"Loading model\",\"type\":\"unavailable_error\"}}");
}

void
bh_body_tokens(struct bh_bytes *out, const uint32_t *ids, uint32_t id_cnt)
{
    bh_bytes_text(out, "{\"tokens\":[");
    for (uint32_t i = 0; i < id_cnt; i++) {
        bh_bytes_format(out, "%s%u", i == 0 ? "" : ",", ids[i]);
    }
    bh_bytes_text(out, "]}");
}

void
bh_body_pieces(struct bh_bytes *out, const struct bh_body_piece *pieces, uint32_t piece_cnt)
{
    bh_bytes_text(out, "{\"tokens\":[");
    for (uint32_t i = 0; i < piece_cnt; i++) {
        const struct bh_body_piece *piece = &pieces[i];
        bh_bytes_format(out, "%s{\"id\":%u,\"piece\":", i == 0 ? "" : ",", piece->token);
        if (bh_utf8_valid((const uint8_t *)piece->text, piece->text_len) == piece->text_len) {
            bh_json_string(out, piece->text, piece->text_len);
        } else {
            for (size_t b = 0; b < piece->text_len; b++) {
                unsigned byte = (unsigned char)piece->text[b];
                bh_bytes_format(out, "%s%u", b == 0 ? "[" : ",", byte);
            }
            bh_bytes_text(out, "]");
        }
        bh_bytes_text(out, "}");
    }
    bh_bytes_text(out, "]}");
}

void
bh_body_content(struct bh_bytes *out, const char *text, size_t len)
{
    bh_bytes_text(out, "{\"content\":");
    bh_json_string(out, text, len);
    bh_bytes_text(out, "}");
}

void
bh_body_prompt(
    struct bh_bytes *out, const char *text, size_t len, const uint32_t *ids, uint32_t id_cnt)
{
    bh_bytes_text(out, "{\"prompt\":");
    bh_json_string(out, text, len);
    bh_bytes_text(out, ",\"tokens\":[");
    for (uint32_t i = 0; i < id_cnt; i++) {
        bh_bytes_format(out, i > 0 ? ",%u" : "%u", ids[i]);
    }
    bh_bytes_text(out, "]}");
}

/* Bytes of a metric's name before the labels that may be part of it. */
static size_t
bare_len(const char *name)
{
    return strcspn(name, "{");
}

void
bh_prom_family(struct bh_bytes *out, const char *name, const char *type, const char *help)
{
    int len = (int)bare_len(name);
    bh_bytes_format(out, "# HELP %.*s %s\n", len, name, help);
    bh_bytes_format(out, "# TYPE %.*s %s\n", len, name, type);
}

static void
put_label(struct bh_bytes *out, const char *name, const char *value)
{
    bh_bytes_format(out, "%s=\"", name);
    for (const char *c = value; *c != '\0'; c++) {
        if (*c == '\n') {
            bh_bytes_text(out, "\\n");
            continue;
        }
        if (*c == '"' || *c == '\\') {
            bh_bytes_text(out, "\\");
        }
        bh_bytes_put(out, c, 1);
    }
    bh_bytes_text(out, "\"");
}

/* One sample's name: bare name, suffix, then the labels inside the name, those given, and `le`. */
static void
put_sample(struct bh_bytes *out,
           const char *name,
           const char *suffix,
           const struct bh_label *labels,
           uint32_t label_cnt,
           const char *le)
{
    size_t bare = bare_len(name);
    bh_bytes_put(out, name, bare);
    bh_bytes_text(out, suffix);
    size_t inner = strlen(name + bare); /* "{...}" or nothing */
    bool any = inner > 2;
    if (!any && label_cnt == 0 && le == NULL) {
        bh_bytes_text(out, " ");
        return;
    }
    bh_bytes_text(out, "{");
    if (any) {
        bh_bytes_put(out, name + bare + 1, inner - 2);
    }
    for (uint32_t i = 0; i < label_cnt; i++) {
        bh_bytes_text(out, any ? "," : "");
        put_label(out, labels[i].name, labels[i].value);
        any = true;
    }
    if (le != NULL) {
        bh_bytes_text(out, any ? "," : "");
        put_label(out, "le", le);
    }
    bh_bytes_text(out, "} ");
}

static void
put_number(struct bh_bytes *out, double value)
{
    if (isnan(value)) {
        bh_bytes_text(out, "NaN");
    } else if (isinf(value)) {
        bh_bytes_text(out, value > 0 ? "+Inf" : "-Inf");
    } else {
        bh_bytes_format(out, "%.15g", value);
    }
}

void
bh_prom_count(struct bh_bytes *out,
              const char *name,
              const struct bh_label *labels,
              uint32_t label_cnt,
              uint64_t value)
{
    put_sample(out, name, "", labels, label_cnt, NULL);
    bh_bytes_format(out, "%" PRIu64 "\n", value);
}

void
bh_prom_value(struct bh_bytes *out,
              const char *name,
              const struct bh_label *labels,
              uint32_t label_cnt,
              double value)
{
    put_sample(out, name, "", labels, label_cnt, NULL);
    put_number(out, value);
    bh_bytes_text(out, "\n");
}

void
bh_prom_histogram(struct bh_bytes *out,
                  const char *name,
                  const struct bh_label *labels,
                  uint32_t label_cnt,
                  const struct bh_prom_histogram *histogram)
{
    uint64_t total = 0;
    for (uint32_t i = 0; i <= histogram->bound_cnt; i++) {
        char le[32] = "+Inf";
        if (i < histogram->bound_cnt) {
            snprintf(le, sizeof(le), "%.15g", histogram->bounds[i]);
        }
        total += histogram->counts[i];
        put_sample(out, name, "_bucket", labels, label_cnt, le);
        bh_bytes_format(out, "%" PRIu64 "\n", total);
    }
    put_sample(out, name, "_sum", labels, label_cnt, NULL);
    put_number(out, histogram->sum);
    bh_bytes_text(out, "\n");
    put_sample(out, name, "_count", labels, label_cnt, NULL);
    bh_bytes_format(out, "%" PRIu64 "\n", total);
}
