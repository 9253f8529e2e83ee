/* The C half of the templates: starts CPython, counts its memory and steps, and carries bytes in and
   out; chat.py is the other half. This is the only file that includes Python.h, whose first line
   must come before every other header. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "src/text/template.h"

#include <malloc.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "chat_py.h"
#include "src/text/utf8.h"

#define MEMORY_DEFAULT       ((size_t)32 << 20)
#define MEMORY_PER_BYTE      64u
#define STEPS_DEFAULT        4000000u
#define STEPS_PER_BYTE       64u
#define STEPS_BETWEEN_CLOCKS 256u /* a power of two */

/* Blocks from this size on are refused at the limit itself. Smaller ones go on to HARD_FACTOR times
   the limit, since the next step stops the render anyway: CPython meets a failing large block in
   well-trodden code only. */
#define LARGE_BLOCK ((size_t)64 << 10)
#define HARD_FACTOR 2

struct bh_template {
    const struct bh_vocab *vocab;
    struct bh_marks marks;
    struct bh_template_limits limits;
    PyObject *compiled;
};

/* CPython is one per process, so is this. `limit` is 0 while no template runs. */
static struct {
    bool started;
    PyObject *module;
    PyObject *stop;
    const struct bh_template *current; /* whose marks mark_string uses */
    int64_t live;                      /* bytes that CPython has */
    int64_t limit;
    uint64_t steps;
    uint64_t steps_max;
    bool stopped;
    bool (*expired)(void *arg);
    void *expired_arg;
    PyObjectArenaAllocator arenas;
} engine;

static bool
may_take(size_t bytes)
{
    if (engine.limit == 0) {
        return true;
    }
    int64_t limit = bytes >= LARGE_BLOCK ? engine.limit : HARD_FACTOR * engine.limit;
    if (bytes > (size_t)INT64_MAX / 4 || engine.live + (int64_t)bytes > limit) {
        engine.stopped = true;
        return false;
    }
    return true;
}

static void *
counted(void *block)
{
    engine.live += (int64_t)malloc_usable_size(block); /* 0 for NULL */
    return block;
}

static void *
raw_malloc(void *context, size_t bytes)
{
    (void)context;
    return may_take(bytes) ? counted(malloc(bytes == 0 ? 1 : bytes)) : NULL;
}

static void *
raw_calloc(void *context, size_t cnt, size_t bytes)
{
    (void)context;
    if (cnt == 0 || bytes == 0) {
        cnt = 1;
        bytes = 1;
    }
    return bytes <= SIZE_MAX / cnt && may_take(cnt * bytes) ? counted(calloc(cnt, bytes)) : NULL;
}

static void
raw_free(void *context, void *block)
{
    (void)context;
    engine.live -= (int64_t)malloc_usable_size(block);
    free(block);
}

static void *
raw_realloc(void *context, void *block, size_t bytes)
{
    (void)context;
    size_t old = malloc_usable_size(block);
    if (bytes > old && !may_take(bytes - old)) {
        return NULL;
    }
    void *moved = realloc(block, bytes == 0 ? 1 : bytes);
    if (moved != NULL) {
        engine.live += (int64_t)malloc_usable_size(moved) - (int64_t)old;
    }
    return moved;
}

/* Arenas come from malloc, not mmap, so that leak checkers see what hangs on them. */
static void *
arena_alloc(void *context, size_t bytes)
{
    return raw_malloc(context, bytes);
}

static void
arena_free(void *context, void *block, size_t bytes)
{
    (void)bytes;
    raw_free(context, block);
}

/* Called by CPython for every line and call of Python code while a template is compiled or run. */
static int
count_step(PyObject *self, PyFrameObject *frame, int what, PyObject *arg)
{
    (void)self;
    (void)frame;
    (void)arg;
    if (what != PyTrace_LINE && what != PyTrace_CALL) {
        return 0;
    }
    engine.steps++;
    bool late = engine.steps % STEPS_BETWEEN_CLOCKS == 0 && engine.expired != NULL &&
                engine.expired(engine.expired_arg);
    if (late || engine.steps > engine.steps_max || engine.live > engine.limit) {
        engine.stopped = true;
    }
    if (!engine.stopped) {
        return 0;
    }
    PyErr_SetString(engine.stop, "template limit reached");
    return -1;
}

static void
arm(const struct bh_template_limits *limits, size_t input_len)
{
    engine.stopped = false;
    engine.steps = 0;
    engine.steps_max = limits->steps + STEPS_PER_BYTE * (uint64_t)input_len;
    engine.limit = engine.live + (int64_t)(limits->memory_bytes + MEMORY_PER_BYTE * input_len);
    PyEval_SetTrace(count_step, NULL);
}

static void
disarm(void)
{
    PyEval_SetTrace(NULL, NULL);
    engine.limit = 0;
    engine.expired = NULL;
}

static void set_error(struct bh_template_error *error,
                      enum bh_template_fault fault,
                      const char *kind,
                      const char *format,
                      ...) BH_PRINTF(4, 5);

static void
set_error(struct bh_template_error *error,
          enum bh_template_fault fault,
          const char *kind,
          const char *format,
          ...)
{
    error->fault = fault;
    (void)snprintf(error->kind, sizeof(error->kind), "%s", kind);
    va_list args;
    va_start(args, format);
    (void)vsnprintf(error->message, sizeof(error->message), format, args);
    va_end(args);
    /* A cut may have left half a character. */
    size_t len = strlen(error->message);
    error->message[bh_utf8_valid((const uint8_t *)error->message, len)] = 0;
}

static bool
is_a(PyObject *type, const char *module_name)
{
    PyObject *wanted = PyObject_GetAttrString(engine.module, module_name);
    bool is = wanted != NULL && PyErr_GivenExceptionMatches(type, wanted);
    Py_XDECREF(wanted);
    PyErr_Clear();
    return is;
}

/* Take the exception that CPython holds and sort it. `marks` may be NULL. */
static enum bh_status
take_error(struct bh_template_error *error, const struct bh_marks *marks)
{
    PyObject *type = NULL;
    PyObject *value = NULL;
    PyObject *trace = NULL;
    PyErr_Fetch(&type, &value, &trace);
    const char *dotted = type != NULL ? ((PyTypeObject *)type)->tp_name : "nothing";
    const char *dot = strrchr(dotted, '.');
    const char *kind = dot != NULL ? dot + 1 : dotted;
    PyObject *text = value != NULL ? PyObject_Str(value) : NULL;
    const char *said = text != NULL ? PyUnicode_AsUTF8(text) : NULL;
    PyErr_Clear();
    enum bh_template_fault fault = BH_TEMPLATE_FAILED;
    enum bh_status status = BH_ECORRUPT;
    if (engine.stopped || PyErr_GivenExceptionMatches(type, PyExc_MemoryError) ||
        PyErr_GivenExceptionMatches(type, PyExc_RecursionError)) {
        fault = BH_TEMPLATE_LIMIT;
        status = BH_ELIMIT;
        said = "the chat template went beyond its limits of memory, steps or time";
    } else if (is_a(type, "Input")) {
        fault = BH_TEMPLATE_INPUT;
        status = BH_EINVAL;
    } else if (is_a(type, "Raised")) {
        fault = BH_TEMPLATE_RAISED;
        status = BH_EINVAL;
    }
    set_error(error, fault, kind, "%s", said != NULL ? said : "");
    if (marks != NULL) {
        size_t len = strlen(error->message);
        uint8_t *message = (uint8_t *)error->message;
        error->message[bh_marks_remove(marks, message, len, message, NULL)] = 0;
    }
    Py_XDECREF(text);
    Py_XDECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(trace);
    return status;
}

/* mark(text, every) for chat.py. */
static PyObject *
mark_string(PyObject *self, PyObject *args)
{
    (void)self;
    PyObject *string = NULL;
    int every = 0;
    if (!PyArg_ParseTuple(args, "Up", &string, &every)) {
        return NULL;
    }
    Py_ssize_t len = 0;
    const char *text = PyUnicode_AsUTF8AndSize(string, &len);
    if (text == NULL) {
        return NULL;
    }
    uint8_t *out = PyMem_RawMalloc(3 * (size_t)len + 1);
    if (out == NULL) {
        return PyErr_NoMemory();
    }
    size_t out_len = bh_marks_apply(&engine.current->marks,
                                    engine.current->vocab,
                                    every != 0 ? BH_MARKS_ALL : BH_MARKS_TOKENS,
                                    (const uint8_t *)text,
                                    (size_t)len,
                                    out);
    PyObject *made = PyUnicode_DecodeUTF8((const char *)out, (Py_ssize_t)out_len, "strict");
    PyMem_RawFree(out);
    return made;
}

/* Start CPython as /usr/bin/python3 would start in isolated mode, without `site` (which would run
   whatever lies in the package folders), signal handlers, environment variables or bytecode files. */
static bool
start_python(struct bh_template_error *error)
{
    PyMemAllocatorEx raw = {NULL, raw_malloc, raw_calloc, raw_realloc, raw_free};
    PyMem_SetAllocator(PYMEM_DOMAIN_RAW, &raw);
    engine.arenas = (PyObjectArenaAllocator){NULL, arena_alloc, arena_free};
    PyPreConfig pre;
    PyPreConfig_InitIsolatedConfig(&pre);
    pre.utf8_mode = 1;
    PyStatus status = Py_PreInitialize(&pre);
    if (!PyStatus_Exception(status)) {
        PyObject_SetArenaAllocator(&engine.arenas);
        PyConfig config;
        PyConfig_InitIsolatedConfig(&config);
        config.site_import = 0;
        config.write_bytecode = 0;
        config.install_signal_handlers = 0;
        config.pathconfig_warnings = 0;
        status = PyConfig_SetString(&config, &config.program_name, L"/usr/bin/python3");
        if (!PyStatus_Exception(status)) {
            status = Py_InitializeFromConfig(&config);
        }
        PyConfig_Clear(&config);
    }
    if (PyStatus_Exception(status)) {
        set_error(error,
                  BH_TEMPLATE_FAILED,
                  "PyStatus",
                  "CPython did not start: %s; install python3 and libpython3.11",
                  status.err_msg != NULL ? status.err_msg : "no reason given");
        return false;
    }
    return true;
}

/* Run chat.py as a module of its own. */
static bool
load_module(const char *python_path)
{
    static PyMethodDef mark_def = {"mark", mark_string, METH_VARARGS, NULL};
    const char *path = python_path != NULL ? python_path : "/usr/lib/python3/dist-packages";
    PyObject *code = Py_CompileString(CHAT_PY, "chat.py", Py_file_input);
    PyObject *module = PyModule_New("bulkhead_chat");
    PyObject *globals = module != NULL ? PyModule_GetDict(module) : NULL;
    PyObject *mark = PyCFunction_New(&mark_def, NULL);
    PyObject *folder = PyUnicode_DecodeFSDefault(path);
    PyObject *done = NULL;
    if (code != NULL && globals != NULL && mark != NULL && folder != NULL &&
        PyDict_SetItemString(globals, "__builtins__", PyEval_GetBuiltins()) == 0 &&
        PyDict_SetItemString(globals, "mark", mark) == 0 &&
        PyDict_SetItemString(globals, "PYTHON_PATH", folder) == 0) {
        done = PyEval_EvalCode(code, globals, globals);
    }
    bool fine = done != NULL;
    Py_XDECREF(done);
    Py_XDECREF(folder);
    Py_XDECREF(mark);
    Py_XDECREF(code);
    engine.module = module;
    engine.stop = fine ? PyObject_GetAttrString(module, "Stop") : NULL;
    return engine.stop != NULL;
}

static enum bh_status
start_engine(const char *python_path, struct bh_template_error *error)
{
    if (engine.started) {
        return BH_OK;
    }
    if (!Py_IsInitialized() && !start_python(error)) {
        return BH_ESYS;
    }
    if (!load_module(python_path)) {
        struct bh_template_error cause;
        (void)take_error(&cause, NULL);
        set_error(error,
                  BH_TEMPLATE_FAILED,
                  cause.kind,
                  "jinja2 could not be loaded (%.300s); install python3-jinja2",
                  cause.message);
        return BH_ESYS;
    }
    engine.started = true;
    return BH_OK;
}

/* {"bos_token": b"...", ...} of the ids that the vocabulary has. */
static PyObject *
token_texts(const struct bh_vocab *vocab)
{
    const struct {
        const char *name;
        uint32_t id;
    } rows[] = {
        {"bos_token", bh_vocab_bos(vocab)},
        {"eos_token", bh_vocab_eos(vocab)},
        {"unk_token", bh_vocab_unk(vocab)},
        {"pad_token", bh_vocab_pad(vocab)},
    };
    PyObject *dict = PyDict_New();
    for (size_t i = 0; dict != NULL && i < BH_COUNT(rows); i++) {
        size_t len = 0;
        const uint8_t *bytes = bh_vocab_bytes(vocab, rows[i].id, &len);
        if (bytes == NULL) {
            continue;
        }
        PyObject *text = PyBytes_FromStringAndSize((const char *)bytes, (Py_ssize_t)len);
        if (text == NULL || PyDict_SetItemString(dict, rows[i].name, text) != 0) {
            Py_CLEAR(dict);
        }
        Py_XDECREF(text);
    }
    return dict;
}

enum bh_status
bh_template_open(const struct bh_vocab *vocab,
                 const char *source,
                 size_t source_len,
                 const struct bh_template_limits *limits,
                 const char *python_path,
                 struct bh_template_error *error,
                 struct bh_template **out)
{
    *error = (struct bh_template_error){.fault = BH_TEMPLATE_FINE};
    if (source == NULL) {
        source = bh_vocab_chat_template(vocab, &source_len);
    }
    if (source == NULL) {
        set_error(error, BH_TEMPLATE_FAILED, "", "the model file has no tokenizer.chat_template");
        return BH_EINVAL;
    }
    struct bh_template *tpl = calloc(1, sizeof(*tpl));
    if (tpl == NULL) {
        set_error(error, BH_TEMPLATE_FAILED, "", "no memory for the template");
        return BH_ESYS;
    }
    tpl->vocab = vocab;
    tpl->limits = limits != NULL ? *limits : (struct bh_template_limits){.steps = 0};
    tpl->limits.steps = tpl->limits.steps != 0 ? tpl->limits.steps : STEPS_DEFAULT;
    if (tpl->limits.memory_bytes == 0) {
        tpl->limits.memory_bytes = MEMORY_DEFAULT;
    }
    char reason[BH_TEXT_ERROR_MAX] = "";
    enum bh_status status = bh_marks_init(vocab, reason, &tpl->marks);
    if (status != BH_OK) {
        set_error(error, BH_TEMPLATE_FAILED, "", "%s", reason);
    } else {
        status = start_engine(python_path, error);
    }
    if (status == BH_OK) {
        PyObject *tokens = token_texts(vocab);
        arm(&tpl->limits, source_len);
        tpl->compiled = tokens == NULL ? NULL
                                       : PyObject_CallMethod(engine.module,
                                                             "compile_template",
                                                             "y#O",
                                                             source,
                                                             (Py_ssize_t)source_len,
                                                             tokens);
        disarm();
        status = tpl->compiled == NULL ? take_error(error, NULL) : BH_OK;
        Py_XDECREF(tokens);
    }
    if (status != BH_OK) {
        bh_template_close(tpl);
        return status == BH_EINVAL ? BH_ECORRUPT : status;
    }
    *out = tpl;
    return BH_OK;
}

void
bh_template_close(struct bh_template *tpl)
{
    if (tpl == NULL) {
        return;
    }
    Py_XDECREF(tpl->compiled);
    free(tpl);
}

/* Choose between the two renderings (marks.h) and copy. */
static enum bh_status
deliver(const struct bh_template *tpl,
        PyObject *pair,
        char *text,
        size_t cap,
        size_t *len,
        struct bh_template_error *error)
{
    PyObject *chosen = PyTuple_GetItem(pair, 0);
    PyObject *every = PyTuple_GetItem(pair, 1);
    if (every != Py_None && !bh_marks_same_control(tpl->vocab,
                                                   (const uint8_t *)PyBytes_AS_STRING(chosen),
                                                   (size_t)PyBytes_GET_SIZE(chosen),
                                                   (const uint8_t *)PyBytes_AS_STRING(every),
                                                   (size_t)PyBytes_GET_SIZE(every))) {
        chosen = every;
    }
    size_t chosen_len = (size_t)PyBytes_GET_SIZE(chosen);
    if (chosen_len > cap) {
        set_error(error,
                  BH_TEMPLATE_LIMIT,
                  "",
                  "the rendered prompt has %zu bytes, the limit is %zu",
                  chosen_len,
                  cap);
        return BH_ELIMIT;
    }
    memcpy(text, PyBytes_AS_STRING(chosen), chosen_len);
    *len = chosen_len;
    return BH_OK;
}

enum bh_status
bh_template_render(struct bh_template *tpl,
                   const struct bh_template_request *request,
                   char *text,
                   size_t cap,
                   size_t *len,
                   struct bh_template_error *error)
{
    *error = (struct bh_template_error){.fault = BH_TEMPLATE_FINE};
    engine.current = tpl;
    engine.expired = request->expired;
    engine.expired_arg = request->expired_arg;
    arm(&tpl->limits, request->messages_len + request->tools_len + request->kwargs_len);
    PyObject *pair = PyObject_CallMethod(engine.module,
                                         "render",
                                         "Oy#y#y#OOL",
                                         tpl->compiled,
                                         request->messages,
                                         (Py_ssize_t)request->messages_len,
                                         request->tools,
                                         (Py_ssize_t)request->tools_len,
                                         request->kwargs,
                                         (Py_ssize_t)request->kwargs_len,
                                         request->add_generation_prompt ? Py_True : Py_False,
                                         request->flatten ? Py_True : Py_False,
                                         (long long)request->now_s);
    disarm();
    if (pair == NULL) {
        return take_error(error, &tpl->marks);
    }
    enum bh_status status = deliver(tpl, pair, text, cap, len, error);
    Py_DECREF(pair);
    return status;
}

const struct bh_marks *
bh_template_marks(const struct bh_template *tpl)
{
    return &tpl->marks;
}
