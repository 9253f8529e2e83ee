/* Chat templates: messages to prompt text, by the real Jinja2 in an embedded CPython, set up as the
   models' authors run it (immutable sandbox, trim_blocks, lstrip_blocks, loop controls, the
   `generation` tag, tojson without HTML escapes, raise_exception, strftime_now). CPython is one per
   process and single-threaded: the first open starts it and imports everything, after which it asks
   the system for nothing but memory, so that the caller may then enter its sandbox.

   A render is bounded in memory, in steps and, by the caller's clock, in time. One operation inside
   CPython cannot be interrupted; what is known to run long there is refused beforehand, and the last
   resort against a hostile model file is that the process stops beating and is killed. */
#ifndef BH_TEXT_TEMPLATE_H
#define BH_TEXT_TEMPLATE_H

#include "src/text/bpe.h"

struct bh_template;

enum bh_template_fault {
    BH_TEMPLATE_FINE = 0,
    BH_TEMPLATE_INPUT,  /* the messages, tools or kwargs are wrong: the client's error (400) */
    BH_TEMPLATE_RAISED, /* the template called raise_exception: the client's error, `message` is the
                           template's own words (400) */
    BH_TEMPLATE_FAILED, /* the template broke on these messages (400), or does not compile (open) */
    BH_TEMPLATE_LIMIT,  /* memory, steps, time or output beyond the limits */
};

#define BH_TEMPLATE_MESSAGE_MAX 512

struct bh_template_error {
    enum bh_template_fault fault;
    char kind[64];                         /* the exception's name, e.g. "UndefinedError" */
    char message[BH_TEMPLATE_MESSAGE_MAX]; /* valid UTF-8, NUL-terminated, cut if long */
};

/* Zero in a member means its default. */
struct bh_template_limits {
    size_t memory_bytes; /* a render may take beyond the start state, and 64 bytes for every byte of
                            its input on top; default 32 MiB */
    uint64_t steps;      /* lines and calls of Python; default 4 million, and 64 for every byte of
                            input on top */
};

struct bh_template_request {
    const char *messages; /* a JSON array */
    size_t messages_len;
    const char *tools; /* a JSON array, or NULL: the template sees none */
    size_t tools_len;
    const char *kwargs; /* a JSON object whose members become variables, or NULL */
    size_t kwargs_len;
    bool add_generation_prompt;
    bool flatten;  /* content that is an array of text parts becomes their texts joined with "\n",
                       null content ""; any other part type is BH_TEMPLATE_INPUT */
    int64_t now_s; /* Unix time for strftime_now, shown in UTC */
    bool (*expired)(
        void *arg); /* asked every few hundred steps; true stops the render. NULL: never */
    void *expired_arg;
};

/* bh_template_open - compile a template for `vocab` (which gives bos_token, eos_token, unk_token and
   pad_token, and what must be marked; it must outlive the template). source NULL: the vocabulary's
   own. python_path names the folder that has jinja2, NULL for Debian's.
   BH_OK        *out; free it with bh_template_close
   BH_EINVAL    no source and the vocabulary has none
   BH_ECORRUPT  it does not compile
   BH_ELIMIT    compiling went beyond the limits, or bh_marks_init refused
   BH_ESYS      CPython or jinja2 could not be started; error->message says what to install */
BH_MUST_USE enum bh_status bh_template_open(const struct bh_vocab *vocab,
                                            const char *source,
                                            size_t source_len,
                                            const struct bh_template_limits *limits,
                                            const char *python_path,
                                            struct bh_template_error *error,
                                            struct bh_template **out);
void bh_template_close(struct bh_template *tpl);

/* bh_template_render - the prompt text, with marks (marks.h): encode it with BH_BPE_MARKED, show it
   after bh_marks_remove. Every render parses its own copy of the messages.
   BH_OK        text[0..*len), UTF-8, no NUL added; error->fault is BH_TEMPLATE_FINE
   BH_EINVAL    fault is BH_TEMPLATE_INPUT or BH_TEMPLATE_RAISED
   BH_ECORRUPT  fault is BH_TEMPLATE_FAILED
   BH_ELIMIT    fault is BH_TEMPLATE_LIMIT, also when the text is longer than `cap`
   Milliseconds; blocks on nothing. */
BH_MUST_USE enum bh_status bh_template_render(struct bh_template *tpl,
                                              const struct bh_template_request *request,
                                              char *text,
                                              size_t cap,
                                              size_t *len,
                                              struct bh_template_error *error);

const struct bh_marks *bh_template_marks(const struct bh_template *tpl);

#endif
