/* The text library against values made by other programs: Hugging Face's tokenizers and
   transformers (whose chat template set-up is Jinja2's), on the model SmolLM2-135M-Instruct. All
   rows are exact. Usage: BH_MODEL=FILE.gguf golden_text DATA_FOLDER; prints TAP; exits with 77 when
   the model is not there. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <jansson.h>

#include "src/text/bpe.h"
#include "src/text/detok.h"
#include "src/text/template.h"
#include "tests/unit/make_vocab.h"

#define TEXT_MAX        ((size_t)4 << 20)
#define IDS_MAX         ((size_t)1 << 20)
#define ROWS_BAD_SHOWN  10
#define PRETOK_TEXT_MAX ((size_t)4096)

static struct bh_vocab *vocab;
static struct bh_bpe *bpe;
static const char *folder;
static uint32_t *ids;
static char *text_buffer;
static unsigned tests;
static unsigned tests_failed;

static void
result(const char *name, unsigned rows, unsigned bad, unsigned rows_wanted)
{
    tests++;
    bool fine = bad == 0 && rows == rows_wanted;
    tests_failed += fine ? 0 : 1;
    printf("%sok %u - %s: %u of %u right, %u expected\n",
           fine ? "" : "not ",
           tests,
           name,
           rows - bad,
           rows,
           rows_wanted);
}

static FILE *
open_rows(const char *name)
{
    char path[4096];
    (void)snprintf(path, sizeof(path), "%s/%s", folder, name);
    FILE *file = fopen(path, "r");
    if (file == NULL) {
        perror(path);
        exit(1);
    }
    return file;
}

static json_t *
next_row(FILE *file)
{
    static char *line;
    static size_t cap;
    if (getline(&line, &cap, file) <= 0) {
        return NULL;
    }
    json_error_t error;
    json_t *row = json_loads(line, JSON_ALLOW_NUL, &error);
    if (row == NULL) {
        printf("# unreadable row: %s\n", error.text);
        exit(1);
    }
    return row;
}

static bool
encodes_to(const char *text, size_t len, enum bh_bpe_mode mode, const json_t *wanted)
{
    size_t cnt = 0;
    if (bh_bpe_encode(bpe, text, len, mode, ids, IDS_MAX, &cnt) != BH_OK ||
        cnt != json_array_size(wanted)) {
        return false;
    }
    for (size_t i = 0; i < cnt; i++) {
        if (json_integer_value(json_array_get(wanted, i)) != (json_int_t)ids[i]) {
            return false;
        }
    }
    return true;
}

static bool
check_tokenize(const json_t *row)
{
    const json_t *text = json_object_get(row, "text");
    const json_t *wanted = json_object_get(row, "ids");
    const json_t *plain = json_object_get(row, "ids_plain");
    const char *bytes = json_string_value(text);
    size_t len = json_string_length(text);
    return encodes_to(bytes, len, BH_BPE_SPECIAL, wanted) &&
           encodes_to(bytes, len, BH_BPE_PLAIN, plain != NULL ? plain : wanted);
}

/* Does sha256sum print this digest for these bytes? */
static bool
digest_is(const uint8_t *bytes, size_t len, const char *wanted)
{
    char path[] = "/tmp/golden_text.XXXXXX";
    char command[sizeof("sha256sum ") + sizeof(path)];
    char digest[65] = "";
    int fd = mkstemp(path);
    bool written = fd >= 0 && write(fd, bytes, len) == (ssize_t)len;
    (void)snprintf(command, sizeof(command), "sha256sum %s", path);
    FILE *sum = written ? popen(command, "r") : NULL;
    bool got = sum != NULL && fgets(digest, sizeof(digest), sum) != NULL;
    if (sum != NULL) {
        (void)pclose(sum);
    }
    if (fd >= 0) {
        (void)close(fd);
        (void)unlink(path);
    }
    return got && strcmp(digest, wanted) == 0;
}

/* The row over the whole vocabulary: all tokens in order, by length and digest. */
static bool
check_range(const json_t *row)
{
    static uint8_t all[1 << 20];
    uint32_t end =
        (uint32_t)json_integer_value(json_array_get(json_object_get(row, "ids_range"), 1));
    size_t sum = 0;
    for (uint32_t id = 0; id < end; id++) {
        size_t len = 0;
        const uint8_t *bytes = bh_vocab_bytes(vocab, id, &len);
        if (bytes == NULL || sum + len > sizeof(all)) {
            return false;
        }
        memcpy(all + sum, bytes, len);
        sum += len;
    }
    return bh_vocab_cnt(vocab) == end &&
           (json_int_t)sum == json_integer_value(json_object_get(row, "bytes")) &&
           digest_is(all, sum, json_string_value(json_object_get(row, "sha256")));
}

static bool
hex_equal(const json_t *hex, const uint8_t *bytes, size_t len)
{
    const char *digits = json_string_value(hex);
    if (json_string_length(hex) != 2 * len) {
        return false;
    }
    for (size_t i = 0; i < len; i++) {
        char two[3];
        (void)snprintf(two, sizeof(two), "%02x", bytes[i]);
        if (memcmp(two, digits + 2 * i, 2) != 0) {
            return false;
        }
    }
    return true;
}

/* The raw bytes, the text with broken parts replaced, and what may be sent after each token. */
static bool
check_detokenize(const json_t *row)
{
    static uint8_t raw[1 << 20];
    static uint8_t skipped[1 << 20];
    static uint8_t shown[3 << 20];
    if (json_object_get(row, "ids_range") != NULL) {
        return check_range(row);
    }
    const json_t *list = json_object_get(row, "ids");
    const json_t *sendable = json_object_get(row, "sendable");
    const json_t *skip = json_object_get(row, "hex_skip_special");
    struct bh_detok detok;
    bh_detok_init(&detok);
    size_t raw_len = 0;
    size_t skipped_len = 0;
    size_t shown_len = 0;
    bool fine = true;
    for (size_t i = 0; i < json_array_size(list); i++) {
        uint32_t id = (uint32_t)json_integer_value(json_array_get(list, i));
        size_t len = 0;
        const uint8_t *bytes = bh_vocab_bytes(vocab, id, &len);
        memcpy(raw + raw_len, bytes, len);
        raw_len += len;
        if (!bh_vocab_is_control(vocab, id)) {
            memcpy(skipped + skipped_len, bytes, len);
            skipped_len += len;
        }
        shown_len += bh_detok_token(&detok, vocab, id, true, shown + shown_len);
        if (sendable != NULL) {
            fine = fine && (json_int_t)shown_len == json_integer_value(json_array_get(sendable, i));
        }
    }
    shown_len += bh_detok_finish(&detok, shown + shown_len);
    const json_t *text = json_object_get(row, "text");
    return fine && hex_equal(json_object_get(row, "hex"), raw, raw_len) &&
           (skip == NULL || hex_equal(skip, skipped, skipped_len)) &&
           shown_len == json_string_length(text) &&
           memcmp(shown, json_string_value(text), shown_len) == 0;
}

static void
check_rows(const char *file_name, bool (*check)(const json_t *row), unsigned wanted)
{
    FILE *file = open_rows(file_name);
    unsigned rows = 0;
    unsigned bad = 0;
    for (json_t *row = next_row(file); row != NULL; row = next_row(file)) {
        rows++;
        if (!check(row)) {
            bad++;
            if (bad <= ROWS_BAD_SHOWN) {
                printf("# %s: row %lld is wrong\n",
                       file_name,
                       (long long)json_integer_value(json_object_get(row, "n")));
            }
        }
        json_decref(row);
    }
    (void)fclose(file);
    result(file_name, rows, bad, wanted);
}

/* An encoder with the pre-tokenizer `pre` over a vocabulary of bytes; only bh_bpe_split matters. */
static struct bh_bpe *
open_pretok(const char *pre, struct bh_vocab **bytes_vocab)
{
    static struct make_vocab make;
    const char *tokens[256];
    char error[BH_TEXT_ERROR_MAX];
    struct bh_bpe *made = NULL;
    make_byte_tokens(tokens, NULL, 0);
    make_begin(&make);
    make_key_text(&make, "tokenizer.ggml.model", "gpt2");
    make_key_text(&make, "tokenizer.ggml.pre", pre);
    make_key_texts(&make, "tokenizer.ggml.tokens", tokens, 256);
    make_key_texts(&make, "tokenizer.ggml.merges", NULL, 0);
    if (make_open(&make, error, bytes_vocab) != BH_OK ||
        bh_bpe_open(*bytes_vocab, PRETOK_TEXT_MAX, false, error, &made) != BH_OK) {
        printf("Bail out! %s: %s\n", pre, error);
        exit(1);
    }
    return made;
}

static bool
check_pretok(const json_t *row)
{
    struct bh_vocab *bytes_vocab = NULL;
    struct bh_bpe *split =
        open_pretok(json_string_value(json_object_get(row, "pre")), &bytes_vocab);
    const json_t *text = json_object_get(row, "text");
    const json_t *wanted = json_object_get(row, "ends");
    size_t cnt = 0;
    bool fine = bh_bpe_split(
                    split, json_string_value(text), json_string_length(text), ids, IDS_MAX, &cnt) ==
                    BH_OK &&
                cnt == json_array_size(wanted);
    for (size_t i = 0; fine && i < cnt; i++) {
        fine = json_integer_value(json_array_get(wanted, i)) == (json_int_t)ids[i];
    }
    bh_bpe_close(split);
    bh_vocab_close(bytes_vocab);
    return fine;
}

/* All rows have the clock 2026-12-01T09:05:07. */
#define CLOCK_S 1796115907

static bool
error_matches(const json_t *wanted, const struct bh_template_error *error)
{
    const char *kind = json_string_value(json_object_get(wanted, "error"));
    if (error->fault == BH_TEMPLATE_INPUT) {
        return strcmp(kind, "TypeError") ==
               0; /* content of another type never reaches the template */
    }
    if (strcmp(kind, "raise_exception") != 0) {
        return error->fault == BH_TEMPLATE_FAILED && strcmp(kind, error->kind) == 0;
    }
    return error->fault == BH_TEMPLATE_RAISED &&
           strcmp(json_string_value(json_object_get(wanted, "message")), error->message) == 0;
}

/* Render one row one way and compare text or error; on success the marked text is in text_buffer. */
static bool
renders_to(
    struct bh_template *tpl, const json_t *row, bool generate, const json_t *wanted, size_t *len)
{
    static uint8_t clean[TEXT_MAX];
    const json_t *variables = json_object_get(row, "variables");
    char *messages = json_dumps(json_object_get(row, "messages"), JSON_COMPACT);
    char *kwargs = variables != NULL ? json_dumps(variables, JSON_COMPACT) : NULL;
    struct bh_template_request request = {
        .messages = messages,
        .messages_len = strlen(messages),
        .kwargs = kwargs,
        .kwargs_len = kwargs != NULL ? strlen(kwargs) : 0,
        .add_generation_prompt = generate,
        .flatten = variables == NULL,
        .now_s = CLOCK_S,
    };
    struct bh_template_error error;
    enum bh_status status = bh_template_render(tpl, &request, text_buffer, TEXT_MAX, len, &error);
    free(messages);
    free(kwargs);
    if (json_is_object(wanted)) {
        return status != BH_OK && error_matches(wanted, &error);
    }
    if (status != BH_OK) {
        printf("# %s: %s\n", error.kind, error.message);
        return false;
    }
    size_t clean_len =
        bh_marks_remove(bh_template_marks(tpl), (const uint8_t *)text_buffer, *len, clean, NULL);
    bool fine = clean_len == json_string_length(wanted) &&
                memcmp(clean, json_string_value(wanted), clean_len) == 0;
    if (!fine) {
        printf("# got %.*s\n", (int)(clean_len < 300 ? clean_len : 300), (const char *)clean);
    }
    return fine;
}

static unsigned id_lists;
static unsigned id_lists_safe;

static bool
check_template(const json_t *row)
{
    const char *source = json_string_value(json_object_get(row, "template"));
    bool own = strcmp(source, "model") == 0;
    struct bh_template *tpl = NULL;
    struct bh_template_error error;
    enum bh_status status = bh_template_open(
        vocab, own ? NULL : source, own ? 0 : strlen(source), NULL, NULL, &error, &tpl);
    if (json_object_get(row, "error") != NULL) {
        return status == BH_ECORRUPT && error_matches(row, &error);
    }
    if (status != BH_OK) {
        printf("# open: %s: %s\n", error.kind, error.message);
        return false;
    }
    bool fine = true;
    for (int generate = 0; generate < 2; generate++) {
        const char *key = generate != 0 ? "generate" : "plain";
        char ids_key[32];
        (void)snprintf(ids_key, sizeof(ids_key), "%s_ids_safe", key);
        size_t len = 0;
        fine = renders_to(tpl, row, generate != 0, json_object_get(row, key), &len) && fine;
        const json_t *wanted = json_object_get(row, ids_key);
        id_lists_safe += wanted != NULL ? 1 : 0;
        if (wanted == NULL) {
            (void)snprintf(ids_key, sizeof(ids_key), "%s_ids", key);
            wanted = json_object_get(row, ids_key);
        }
        if (fine && wanted != NULL) {
            id_lists++;
            fine = encodes_to(text_buffer, len, BH_BPE_MARKED, wanted);
        }
    }
    bh_template_close(tpl);
    return fine;
}

static void
skip(const char *reason)
{
    printf("1..0 # SKIP %s\n", reason);
    exit(77);
}

static void
open_model(void)
{
    const char *path = getenv("BH_MODEL");
    if (path == NULL) {
        skip("BH_MODEL does not name SmolLM2-135M-Instruct.Q4_1.gguf");
    }
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    struct stat info;
    if (fd < 0 || fstat(fd, &info) != 0) {
        skip("the file that BH_MODEL names cannot be opened");
    }
    size_t len = (size_t)info.st_size;
    void *bytes = mmap(NULL, len, PROT_READ, MAP_PRIVATE, fd, 0);
    (void)close(fd);
    char error[BH_GGUF_ERROR_MAX] = "mmap";
    struct bh_gguf *gguf = NULL;
    if (bytes == MAP_FAILED || bh_gguf_open(bytes, len, len, error, &gguf) != BH_OK ||
        bh_vocab_open(gguf, error, &vocab) != BH_OK) {
        printf("Bail out! %s: %s\n", path, error);
        exit(1);
    }
    bh_gguf_close(gguf);
    (void)munmap(bytes, len);
}

int
main(int argc, char **argv)
{
    if (argc != 2) {
        (void)fprintf(stderr, "usage: golden_text DATA_FOLDER\n");
        return 1;
    }
    folder = argv[1];
    open_model();
    ids = calloc(IDS_MAX, sizeof(*ids));
    text_buffer = malloc(TEXT_MAX);
    char error[BH_TEXT_ERROR_MAX];
    for (int jit = 1; jit >= 0; jit--) {
        if (ids == NULL || text_buffer == NULL ||
            bh_bpe_open(vocab, TEXT_MAX, jit != 0, error, &bpe) != BH_OK) {
            printf("Bail out! %s\n", error);
            return 1;
        }
        printf("# patterns are %s\n", jit != 0 ? "compiled to machine code" : "interpreted");
        check_rows("tokenize.jsonl", check_tokenize, 1453);
        check_rows("tokenize_disputed.jsonl", check_tokenize, 4);
        if (jit != 0) {
            bh_bpe_close(bpe);
        }
    }
    check_rows("pretok.jsonl", check_pretok, 775);
    check_rows("detokenize.jsonl", check_detokenize, 350);
    check_rows("template.jsonl", check_template, 126);
    printf("# %u id lists of rendered conversations, %u of them with control tokens in messages\n",
           id_lists,
           id_lists_safe);
    bh_bpe_close(bpe);
    bh_vocab_close(vocab);
    free(ids);
    free(text_buffer);
    printf("1..%u\n", tests);
    return tests_failed != 0 ? 1 : 0;
}
