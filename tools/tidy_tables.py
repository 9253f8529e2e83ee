"""The tables of tidy.py: layers, system calls, libraries, banned calls. A new row is a decision that
a reviewer sees; each exception says why it is one."""

SKIPPED_NAMES = {".git", ".venv", "__pycache__", "subprojects"}
SKIPPED_FOLDERS = {"models", "tests/fuzz/corpus"}

# Made while building: included by name, in no folder of the tree.
GENERATED = {"chat_py.h"}

# Folders without a README: the root's own files, and the subfolders that a README above describes.
README_EXEMPT = {"", ".ci"}
README_ABOVE = ("tests/unit", "tests/race", "tests/fuzz", "tests/proc", "tests/client", "tests/golden")

LONG_FILES = set()
# tidy.py itself spells the reminders it looks for, and the self-test writes them.
REMINDERS_NAMED = {"tools/tidy.py", "tools/tidy_selftest.py"}

# ---- Layers ----------------------------------------------------------------------------------------
# What each folder, or single file, may include: folders or files. The longest matching row counts.
BASE_TYPES = ("shm/base.h", "shm/atomic.h", "shm/hook.h", "shm/object.h", "shm/handle.h", "shm/kv.h",
              "shm/stamp.h", "shm/record.h")
OBJECTS = ("bell", "control", "edge", "pagetable", "pool", "region", "report", "request", "ring", "status",
           "submit", "tokenlog", "turn")
PURE_TYPES = ("shm/base.h", "shm/kv.h", "shm/stamp.h", "shm/record.h")
LIFE = ("shm", "src/core")

MAY_INCLUDE = {
    "shm": BASE_TYPES,
    "shm/base.h": (),
    "shm/base.c": ("shm/base.h",),
    "shm/atomic.h": ("shm/base.h",),
    "shm/hook.h": ("shm/base.h",),
    "shm/ck_ring_calls.c": ("shm/ck_ring_calls.h", "shm/ring.h"),
    "shm/metrics.c": ("shm/metrics.def", "shm/status.h"),
    "kernels": ("kernels", "shm/base.h", "shm/kv.h", "shm/stamp.h"),
    # A vocabulary is read from the model file's metadata.
    "src/text": ("src/text", "src/model/gguf.h") + PURE_TYPES,
    "src/api": ("src/api", "src/text/utf8.h") + PURE_TYPES,
    # The team shares work out over one counter, which is why atomics are here.
    "src/model": ("src/model", "kernels", "src/core/team.h", "shm/atomic.h") + PURE_TYPES,
    "src/core": LIFE,
    "src/worker": LIFE + ("src/worker", "src/model", "kernels"),
    "src/ledger": LIFE + ("src/ledger",),
    "src/prefill": LIFE + ("src/prefill", "src/worker", "src/model"),
    "src/decode": LIFE + ("src/decode", "src/worker", "src/model"),
    "src/tokenizer": LIFE + ("src/tokenizer", "src/api", "src/text"),
    "src/egress": LIFE + ("src/egress", "src/api", "src/text"),
    "src/supervisor": LIFE + ("src/supervisor", "src/model", "src/api", "src/text"),
    "src/main.c": ("src/core", "src/supervisor/supervisor.h"),
    "tools": ("tools", "shm", "src/core", "src/model", "src/text", "kernels"),
    # The rig that drives a whole model is shared with the goldens.
    "bench": ("bench", "tests/golden/model_rig.h", "shm", "src/core", "src/model", "src/text", "src/api", "kernels"),
    "tests": ("tests", "shm", "kernels", "src", "tools"),
}
# An object includes base types and itself; what two share is a base type.
for _object in OBJECTS:
    MAY_INCLUDE[f"shm/{_object}.c"] = BASE_TYPES + (f"shm/{_object}.h", "shm/metrics.def", "shm/cause.def",
                                                    "shm/ck_ring_calls.h")
    MAY_INCLUDE[f"shm/{_object}.h"] = BASE_TYPES + ("shm/metrics.def", "shm/cause.def")

# ---- The system ------------------------------------------------------------------------------------
# Headers without a clock, a file or a process behind them. <time.h> and <signal.h> are not among them.
ISO_HEADERS = {
    "assert.h", "ctype.h", "errno.h", "float.h", "inttypes.h", "limits.h", "math.h", "stdalign.h", "stdarg.h",
    "stdbool.h", "stddef.h", "stdint.h", "stdio.h", "stdlib.h", "string.h", "strings.h",
}

# Who may see the system: file or folder, and why. Everything else goes through src/core/os.h.
SYSTEM_FILES = {
    "shm/region.c": "makes and maps memory files",
    "src/core/os.c": "clock, randomness, eventfd, futex",
    "src/core/uring.c": "io_uring",
    "src/core/world.c": "maps what the supervisor passed",
    "src/core/team.c": "threads and their futex",
    "src/core/privileges.c": "gives privileges up",
    "src/core/sandbox.c": "names system calls and their arguments",
    "src/core/log.c": "writes lines",
    "src/core/role_loop.c": "the life of a process",
    "src/core/inject.c": "kills and stops itself on demand, in test builds",
    "src/tokenizer/conn.c": "accepts, hands over and closes sockets",
    "src/tokenizer/role.c": "reads the key file that it was started with",
    "src/egress/conn.c": "takes, polls and closes sockets",
    "src/supervisor": "the process that starts, watches and ends the others",
    "tools": "programs for people",
    "tests": "tests start processes and read clocks",
    "bench": "benches read clocks",
}

# Header (regular expression) and the folders or files that may include it.
LIBRARIES = {
    r"stdatomic\.h": ("shm/atomic.h",),
    r"ck_\w+\.h": ("shm/ck_ring_calls.h", "shm/ck_ring_calls.c"),
    r"liburing\.h": ("src/core/uring.h",),
    r"seccomp\.h": ("src/core/sandbox.c", "tests/unit"),
    r"malloc\.h": ("src/text/template.c",),
    r"sys/capability\.h": ("src/core/privileges.c", "tests/unit"),
    r"xxhash\.h": ("shm", "src/model", "src/text", "src/supervisor", "tools", "tests", "bench"),
    r"pcre2\.h": ("src/text",),
    r"utf8proc\.h": ("src/text",),
    r"Python\.h": ("src/text/template.c",),
    r"llhttp\.h": ("src/api",),
    r"jansson\.h": ("src/api", "src/supervisor", "tools", "tests", "bench"),
    r"(immintrin|x86intrin)\.h": ("kernels", "bench"),
    r"cpuid\.h": ("kernels/dispatch.c",),
    r"cu\w*\.h|cuda/\S+": ("kernels",),
    r"sanitizer/\S+\.h": ("shm/ring.c", "tests"),
    r"criterion/\S+\.h": ("tests/unit",),
}

# ---- Calls and words -------------------------------------------------------------------------------
# Call (regular expression): what to do instead, and where it may stand all the same.
PRINTERS = ("shm/base.c", "src/core/log.c", "src/core/config.c", "src/core/topology_print.c", "src/core/sandbox.c",
            "src/main.c", "src/supervisor", "tools", "tests", "bench")
BANNED_CALLS = {
    r"gets|strcpy|stpcpy|strcat|strncat": ("copy with memcpy and a length that was checked", ("tests",)),
    r"strncpy": ("it leaves text without an end: memcpy and a checked length", ()),
    r"v?sprintf": ("snprintf, and look at what it returns", ("tests",)),
    r"atoi|atol|atoll|atof": ("strtoull or strtod with every error looked at", ()),
    r"strtok|strtok_r": ("it writes into its argument: strcspn and spans", ("tests",)),
    r"alloca|setjmp|longjmp|sigsetjmp": ("not used here: sizes are computed before start", ()),
    r"rand|srand|random|srandom|drand48|rand_r": ("randomness is bh_os_random, or a function of seed and position", ()),
    r"time|gettimeofday|clock": ("bh_os_now_ns or bh_os_unix_s", ("tests",)),
    r"sleep|usleep|nanosleep": ("wait on a condition with a deadline", ("src/core/inject.c", "tests", "bench")),
    r"system|popen|execlp|execvp": ("no shell and no PATH: execve with what was decided before", ("tests",)),
    r"fork|vfork|clone": ("only the supervisor makes processes", ("src/supervisor", "tests", "bench")),
    r"assert": ("BH_CHECK, which is on in production", ("tests",)),
    r"abort": ("BH_CHECK or bh_die, which say where", ("shm/base.c", "tests")),
    r"printf|fprintf|puts|fputs|putchar|perror|vfprintf|fopen|fdopen": (
        "bh_log, and only at changes of state", PRINTERS),
    r"mktemp|tmpnam|tempnam": ("mkstemp or memfd_create", ()),
    r"signal": ("sigaction", ("src/supervisor", "src/core/role_loop.c", "tests")),
}

GNU = ("shm/base.h", "kernels", "tests")
BANNED_WORDS = {
    r"\bvolatile\b": ("it is no atomic: shm/atomic.h", ("tests",)),
    r"\b_Atomic\b|\batomic_\w+|\bmemory_order_\w+": ("only shm/atomic.h has atomics", ("shm/atomic.h", "tests")),
    r"\b__(?:sync|atomic)_\w+": ("only shm/atomic.h has atomics", ("shm/atomic.h",)),
    r"\b(?:__)?asm(?:__)?\b": ("no assembly", ("kernels", "tests")),
    r"\b__attribute__\b|\b__builtin_\w+|\b__typeof(?:__)?\b|\btypeof\b|\b__extension__\b|\b__int128\b":
        ("GNU extensions are in shm/base.h and kernels/ only: give it a name there", GNU),
    r"\(\{": ("a statement expression: write a function", GNU),
    r"\btypedef\s+(?:struct|union|enum)\b": ("structs keep their tag: write `struct bh_...`", ()),
}
