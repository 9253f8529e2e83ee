/* The encoder: special tokens, pre-tokenizer, merging with a heap over a linked list. */
#include "src/text/bpe.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "src/text/utf8.h"

#define TEXT_LIMIT ((size_t)1 << 30) /* offsets inside a text are 32 bits */
#define NOWHERE    UINT32_MAX

/* One symbol of a piece under merging: a doubly linked list, so that joining two is O(1). */
struct symbol {
    uint32_t id;
    uint32_t prev;
    uint32_t next;
};

/* A pair that may be joined. Outdated when the symbols at `at` are no longer left and right. */
struct candidate {
    uint32_t rank;
    uint32_t at; /* index of the left symbol */
    uint32_t left;
    uint32_t right;
};

#define WORK_PER_CALL 32768u /* units between two calls of `alive`: a few milliseconds */

struct pass {
    pcre2_code *code;
    bool jit;
};

struct bh_bpe {
    const struct bh_vocab *vocab;
    struct bh_marks marks;
    size_t text_max;
    bool ignore_merges;
    uint32_t pass_cnt;
    struct pass passes[4];
    pcre2_match_data *match;
    pcre2_match_context *context;
    uint8_t *clean;    /* the text without marks */
    uint8_t *marked;   /* one bit a byte of clean */
    uint32_t *ends[2]; /* ends of pieces, before and after a pass */
    struct symbol *symbols;
    struct candidate *heap;
    uint32_t heap_cnt;
    bh_bpe_alive_fn *alive; /* see bh_bpe_watch */
    void *alive_arg;
    uint32_t work;
    uint32_t *ids; /* where the caller wants them */
    size_t cap;
    size_t cnt;
};

struct pretok {
    const char *name;
    const char *patterns[4];
    bool ignore_merges;
};

static const struct pretok *
find_pretok(const char *name)
{
    static const struct pretok rows[] = {
#define PRETOK(name, passes, ignore_merges, add_bos) {name, passes, ignore_merges},
#include "src/text/pretok.def"
    };
    static_assert(PRETOK_PASS_MAX == BH_COUNT(rows[0].patterns), "a row must fit");
    for (size_t i = 0; i < BH_COUNT(rows); i++) {
        if (strcmp(rows[i].name, name) == 0) {
            return &rows[i];
        }
    }
    return NULL;
}

static enum bh_status
compile(struct bh_bpe *bpe, const struct pretok *row, bool jit, char error[BH_TEXT_ERROR_MAX])
{
    for (uint32_t i = 0; i < PRETOK_PASS_MAX && row->patterns[i] != NULL; i++) {
        int code = 0;
        PCRE2_SIZE where = 0;
        struct pass *pass = &bpe->passes[i];
        pass->code = pcre2_compile(
            (PCRE2_SPTR)row->patterns[i], PCRE2_ZERO_TERMINATED, PCRE2_UTF, &code, &where, NULL);
        if (pass->code == NULL) {
            (void)snprintf(error,
                           BH_TEXT_ERROR_MAX,
                           "pre-tokenizer %s, pattern %u: PCRE2 error %d at %zu",
                           row->name,
                           i,
                           code,
                           where);
            return BH_ESYS;
        }
        pass->jit = jit && pcre2_jit_compile(pass->code, PCRE2_JIT_COMPLETE) == 0;
        bpe->pass_cnt = i + 1;
    }
    return BH_OK;
}

/* Everything an encode needs, so that encoding allocates nothing. Large parts stay untouched until
   a text is long enough to need them. */
static bool
allocate(struct bh_bpe *bpe)
{
    size_t max = bpe->text_max;
    bpe->match = pcre2_match_data_create(1, NULL);
    bpe->context = pcre2_match_context_create(NULL);
    bpe->clean = malloc(max);
    bpe->marked = malloc((max + 7) / 8);
    bpe->ends[0] = malloc(max * sizeof(*bpe->ends[0]));
    bpe->ends[1] = malloc(max * sizeof(*bpe->ends[1]));
    bpe->symbols = malloc(max * sizeof(*bpe->symbols));
    bpe->heap = malloc(2 * max * sizeof(*bpe->heap));
    if (bpe->match == NULL || bpe->context == NULL || bpe->clean == NULL || bpe->marked == NULL ||
        bpe->ends[0] == NULL || bpe->ends[1] == NULL || bpe->symbols == NULL || bpe->heap == NULL) {
        return false;
    }
    /* A run of blanks is walked back once for each of two alternatives; the default of ten million
       steps would refuse long ones. Work stays linear in the text, which is bounded. */
    return pcre2_set_match_limit(bpe->context, UINT32_MAX) == 0;
}

enum bh_status
bh_bpe_open(const struct bh_vocab *vocab,
            size_t text_max,
            bool jit,
            char error[BH_TEXT_ERROR_MAX],
            struct bh_bpe **out)
{
    if (text_max == 0 || text_max > TEXT_LIMIT) {
        (void)snprintf(
            error, BH_TEXT_ERROR_MAX, "text_max is %zu, allowed are 1 to 2^30", text_max);
        return BH_EINVAL;
    }
    const struct pretok *row = find_pretok(bh_vocab_pre(vocab));
    if (row == NULL) {
        (void)snprintf(error,
                       BH_TEXT_ERROR_MAX,
                       "tokenizer.ggml.pre is \"%s\", which has no row in src/text/pretok.def",
                       bh_vocab_pre(vocab));
        return BH_ELIMIT;
    }
    struct bh_bpe *bpe = calloc(1, sizeof(*bpe));
    if (bpe == NULL) {
        (void)snprintf(error, BH_TEXT_ERROR_MAX, "no memory for the encoder");
        return BH_ESYS;
    }
    bpe->vocab = vocab;
    bpe->text_max = text_max;
    bpe->ignore_merges = row->ignore_merges;
    enum bh_status status = bh_marks_init(vocab, error, &bpe->marks);
    if (status == BH_OK) {
        status = compile(bpe, row, jit, error);
    }
    if (status == BH_OK && !allocate(bpe)) {
        (void)snprintf(error, BH_TEXT_ERROR_MAX, "no memory for texts of %zu bytes", text_max);
        status = BH_ESYS;
    }
    if (status != BH_OK) {
        bh_bpe_close(bpe);
        return status;
    }
    *out = bpe;
    return BH_OK;
}

void
bh_bpe_close(struct bh_bpe *bpe)
{
    if (bpe == NULL) {
        return;
    }
    for (uint32_t i = 0; i < bpe->pass_cnt; i++) {
        pcre2_code_free(bpe->passes[i].code);
    }
    pcre2_match_data_free(bpe->match);
    pcre2_match_context_free(bpe->context);
    free(bpe->clean);
    free(bpe->marked);
    free(bpe->ends[0]);
    free(bpe->ends[1]);
    free(bpe->symbols);
    free(bpe->heap);
    free(bpe);
}

void
bh_bpe_watch(struct bh_bpe *bpe, bh_bpe_alive_fn *alive, void *arg)
{
    bpe->alive = alive;
    bpe->alive_arg = arg;
}

const struct bh_vocab *
bh_bpe_vocab(const struct bh_bpe *bpe)
{
    return bpe->vocab;
}

const struct bh_marks *
bh_bpe_marks(const struct bh_bpe *bpe)
{
    return &bpe->marks;
}

static void
emit(struct bh_bpe *bpe, uint32_t id)
{
    if (bpe->cnt < bpe->cap) {
        bpe->ids[bpe->cnt] = id;
    }
    bpe->cnt++;
}

/* Lowest rank first, leftmost first among equals. */
static bool
goes_before(const struct candidate *a, const struct candidate *b)
{
    return a->rank != b->rank ? a->rank < b->rank : a->at < b->at;
}

static void
heap_push(struct bh_bpe *bpe, struct candidate item)
{
    size_t at = bpe->heap_cnt;
    bpe->heap_cnt++;
    while (at > 0 && goes_before(&item, &bpe->heap[(at - 1) / 2])) {
        bpe->heap[at] = bpe->heap[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    bpe->heap[at] = item;
}

static struct candidate
heap_pop(struct bh_bpe *bpe)
{
    struct candidate top = bpe->heap[0];
    bpe->heap_cnt--;
    struct candidate item = bpe->heap[bpe->heap_cnt];
    size_t at = 0;
    for (;;) {
        size_t child = 2 * at + 1;
        if (child >= bpe->heap_cnt) {
            break;
        }
        if (child + 1 < bpe->heap_cnt && goes_before(&bpe->heap[child + 1], &bpe->heap[child])) {
            child++;
        }
        if (!goes_before(&bpe->heap[child], &item)) {
            break;
        }
        bpe->heap[at] = bpe->heap[child];
        at = child;
    }
    bpe->heap[at] = item;
    return top;
}

static void
offer(struct bh_bpe *bpe, uint32_t at)
{
    const struct symbol *left = &bpe->symbols[at];
    if (left->next == NOWHERE) {
        return;
    }
    struct candidate item = {.at = at, .left = left->id, .right = bpe->symbols[left->next].id};
    uint32_t joined = 0;
    if (bh_vocab_merge(bpe->vocab, item.left, item.right, &item.rank, &joined)) {
        heap_push(bpe, item);
    }
}

/* Join the symbol at item->at with its right neighbour, unless one of them has changed since. The
   heap holds at most one candidate per symbol to begin with and gains two for each join, which
   takes one out and removes a symbol: never more than twice the bytes. */
static void
join(struct bh_bpe *bpe, const struct candidate *item)
{
    struct symbol *left = &bpe->symbols[item->at];
    if (left->id != item->left || left->next == NOWHERE ||
        bpe->symbols[left->next].id != item->right) {
        return;
    }
    uint32_t rank = 0;
    BH_CHECK(bh_vocab_merge(bpe->vocab, item->left, item->right, &rank, &left->id));
    struct symbol *right = &bpe->symbols[left->next];
    right->id = BH_VOCAB_NONE; /* candidates that begin there are outdated */
    left->next = right->next;
    if (left->next != NOWHERE) {
        bpe->symbols[left->next].prev = item->at;
    }
    if (left->prev != NOWHERE) {
        offer(bpe, left->prev);
    }
    offer(bpe, item->at);
}

/* One unit of work: a byte looked up, a pair taken from the heap, a piece split off. */
static void
tick(struct bh_bpe *bpe)
{
    bpe->work++;
    if (bpe->work % WORK_PER_CALL == 0 && bpe->alive != NULL) {
        bpe->alive(bpe->alive_arg);
    }
}

/* Merge one piece and emit its tokens. */
static void
encode_piece(struct bh_bpe *bpe, const uint8_t *piece, size_t len)
{
    if (bpe->ignore_merges) {
        uint32_t whole = bh_vocab_find(bpe->vocab, piece, len);
        if (whole != BH_VOCAB_NONE) {
            emit(bpe, whole);
            return;
        }
    }
    uint32_t cnt = 0;
    for (size_t i = 0; i < len; i++) {
        uint32_t id = bh_vocab_byte(bpe->vocab, piece[i]);
        if (id == BH_VOCAB_NONE) {
            continue; /* no token has this byte; it goes before merging, as in the published one */
        }
        bpe->symbols[cnt] = (struct symbol){.id = id, .prev = cnt - 1, .next = cnt + 1};
        cnt++;
    }
    if (cnt == 0) {
        return;
    }
    bpe->symbols[0].prev = NOWHERE;
    bpe->symbols[cnt - 1].next = NOWHERE;
    bpe->heap_cnt = 0;
    for (uint32_t i = 0; i < cnt; i++) {
        offer(bpe, i);
        tick(bpe);
    }
    while (bpe->heap_cnt != 0) {
        tick(bpe);
        struct candidate item = heap_pop(bpe);
        join(bpe, &item);
    }
    for (uint32_t i = 0; i != NOWHERE; i = bpe->symbols[i].next) {
        emit(bpe, bpe->symbols[i].id);
    }
}

/* Cut one piece by one pattern: appends the ends of its parts to out. */
static enum bh_status
split_piece(struct bh_bpe *bpe,
            const struct pass *pass,
            const uint8_t *text,
            uint32_t start,
            uint32_t end,
            uint32_t *out,
            uint32_t *out_cnt)
{
    PCRE2_SPTR subject = text + start;
    size_t len = end - start;
    size_t at = 0;
    while (at < len) {
        tick(bpe);
        int found =
            pass->jit
                ? pcre2_jit_match(
                      pass->code, subject, len, at, PCRE2_NO_UTF_CHECK, bpe->match, bpe->context)
                : pcre2_match(
                      pass->code, subject, len, at, PCRE2_NO_UTF_CHECK, bpe->match, bpe->context);
        if (found == PCRE2_ERROR_NOMATCH) {
            break;
        }
        if (found < 0) {
            return BH_ELIMIT;
        }
        const PCRE2_SIZE *span = pcre2_get_ovector_pointer(bpe->match);
        BH_CHECK(span[1] > span[0]);
        if (span[0] > at) {
            out[*out_cnt] = start + (uint32_t)span[0];
            (*out_cnt)++;
        }
        out[*out_cnt] = start + (uint32_t)span[1];
        (*out_cnt)++;
        at = span[1];
    }
    if (at < len) {
        out[*out_cnt] = end;
        (*out_cnt)++;
    }
    return BH_OK;
}

/* Cut text that holds no special token: every pass cuts every piece that the one before left. The
   ends of the pieces are *ends[0..*cnt). */
static enum bh_status
split_stretch(
    struct bh_bpe *bpe, const uint8_t *text, size_t len, const uint32_t **ends, uint32_t *cnt)
{
    uint32_t *now = bpe->ends[0];
    uint32_t *next = bpe->ends[1];
    uint32_t now_cnt = 1;
    now[0] = (uint32_t)len;
    for (uint32_t i = 0; i < bpe->pass_cnt; i++) {
        uint32_t next_cnt = 0;
        uint32_t start = 0;
        for (uint32_t k = 0; k < now_cnt; k++) {
            enum bh_status status =
                split_piece(bpe, &bpe->passes[i], text, start, now[k], next, &next_cnt);
            if (status != BH_OK) {
                return status;
            }
            start = now[k];
        }
        uint32_t *swap = now;
        now = next;
        next = swap;
        now_cnt = next_cnt;
    }
    *ends = now;
    *cnt = now_cnt;
    return BH_OK;
}

static enum bh_status
encode_stretch(struct bh_bpe *bpe, const uint8_t *text, size_t len)
{
    if (len == 0) {
        return BH_OK;
    }
    const uint32_t *ends = NULL;
    uint32_t cnt = 0;
    enum bh_status status = split_stretch(bpe, text, len, &ends, &cnt);
    uint32_t start = 0;
    for (uint32_t k = 0; status == BH_OK && k < cnt; k++) {
        encode_piece(bpe, text + start, ends[k] - start);
        start = ends[k];
    }
    return status;
}

static bool
any_marked(const struct bh_bpe *bpe, size_t start, size_t len)
{
    for (size_t i = start; i < start + len; i++) {
        if ((bpe->marked[i / 8] >> i % 8 & 1) != 0) {
            return true;
        }
    }
    return false;
}

/* Cut the special tokens out and encode what is between them. A control token that holds a mark is
   ordinary text of its own, so that what is around it reads as if the token stood there. */
static enum bh_status
encode_all(struct bh_bpe *bpe, const uint8_t *text, size_t len, enum bh_bpe_mode mode)
{
    enum bh_status status = BH_OK;
    size_t start = 0;
    size_t at = 0;
    while (at < len && status == BH_OK) {
        uint32_t id = bh_vocab_special_at(bpe->vocab, text + at, len - at, mode != BH_BPE_PLAIN);
        if (id == BH_VOCAB_NONE) {
            at++;
            continue;
        }
        size_t id_len = 0;
        (void)bh_vocab_bytes(bpe->vocab, id, &id_len);
        status = encode_stretch(bpe, text + start, at - start);
        if (mode == BH_BPE_MARKED && bh_vocab_is_control(bpe->vocab, id) &&
            any_marked(bpe, at, id_len)) {
            status = status == BH_OK ? encode_stretch(bpe, text + at, id_len) : status;
        } else {
            emit(bpe, id);
        }
        at += id_len;
        start = at;
    }
    return status == BH_OK ? encode_stretch(bpe, text + start, len - start) : status;
}

enum bh_status
bh_bpe_encode(struct bh_bpe *bpe,
              const char *text,
              size_t len,
              enum bh_bpe_mode mode,
              uint32_t *ids,
              size_t cap,
              size_t *cnt)
{
    if (len > bpe->text_max) {
        return BH_ELIMIT;
    }
    const uint8_t *bytes = (const uint8_t *)text;
    if (bh_utf8_valid(bytes, len) != len) {
        return BH_ECORRUPT;
    }
    if (mode == BH_BPE_MARKED) {
        len = bh_marks_remove(&bpe->marks, bytes, len, bpe->clean, bpe->marked);
        bytes = bpe->clean;
    }
    bpe->ids = ids;
    bpe->cap = cap;
    bpe->cnt = 0;
    enum bh_status status = encode_all(bpe, bytes, len, mode);
    if (status != BH_OK) {
        return status;
    }
    *cnt = bpe->cnt;
    return bpe->cnt > cap ? BH_FULL : BH_OK;
}

enum bh_status
bh_bpe_split(
    struct bh_bpe *bpe, const char *text, size_t len, uint32_t *ends, size_t cap, size_t *cnt)
{
    if (len == 0 || len > bpe->text_max) {
        return BH_ELIMIT;
    }
    const uint8_t *bytes = (const uint8_t *)text;
    if (bh_utf8_valid(bytes, len) != len) {
        return BH_ECORRUPT;
    }
    const uint32_t *found = NULL;
    uint32_t found_cnt = 0;
    enum bh_status status = split_stretch(bpe, bytes, len, &found, &found_cnt);
    if (status != BH_OK) {
        return status;
    }
    if (found_cnt > cap) {
        return BH_FULL;
    }
    memcpy(ends, found, found_cnt * sizeof(*ends));
    *cnt = found_cnt;
    return BH_OK;
}
