#!/usr/bin/python3
"""The self-test of tidy.py: a small tree that keeps every rule, and for every rule at least one change
to it that must be found, by that rule, in that file.

    tools/tidy_selftest.py             TAP: one test a change, and one that the tree itself is clean
    tools/tidy_selftest.py --spoiled   runs tidy.py over a spoiled tree and ends as it does: must fail
"""
import os
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import tidy  # noqa: E402

BOX_H = """\
/* The box.

   Purpose    Holds one word.
   Layout     head | word
   Writers    One.
   Ordering   edge box.word: the bytes before the word.
   Progress   Wait-free.
   Death      The last word stands.
   Cost       8 bytes. */
#ifndef BH_SHM_BELL_H
#define BH_SHM_BELL_H

#include "shm/atomic.h"

size_t bh_bell_footprint(void);

static inline uint64_t
bh_bell_get(struct bh_word *word)
{
    /* edge box.word: acquire; pairs with release in bh_bell_set. */
    return bh_word_load(word);
}

static inline void
bh_bell_set(struct bh_word *word)
{
    /* edge box.word: release; pairs with acquire in bh_bell_get. */
    bh_word_store(word, 1);
}

#endif
"""

BELL_C = """\
/* The box, elsewhere than in its header. */
#include "shm/bell.h"

#include <string.h>

#include "shm/hook.h"

size_t
bh_bell_footprint(void)
{
    BH_HOOK("bell.new:before");
    /* A comment may say strcpy(), volatile and goto; so may "text". */
    const char *text = "strcpy(a, b); volatile";
    if (strlen(text) == 0) {
        goto out;
    }
out:
    return strlen(text);
}
"""


def header(folder, name, body=""):
    guard = f"BH_{folder}_{name}_H".upper()
    return f"/* {name}. */\n#ifndef {guard}\n#define {guard}\n{body}\n#endif\n"


def good_tree():
    return {
        "README.md": "# A tree\n",
        "meson.build": "files('shm/bell.c', 'src/ledger/role.c', 'kernels/dispatch.c')\n",
        "shm/README.md": "# shm\n\n`base.h` `atomic.h` `hook.h` `bell.h` `bell.c` `cause.def`\n",
        "shm/base.h": header("shm", "base", "\n#include <stdint.h>\n\n#define BH_MUST_USE __attribute__((unused))\n"),
        "shm/atomic.h": header("shm", "atomic", '\n#include <stdatomic.h>\n\n#include "shm/base.h"\n'),
        "shm/hook.h": header("shm", "hook", '\n#include "shm/base.h"\n'),
        "shm/cause.def": "/* Causes; no guard. */\nCAUSE(NONE)\n",
        "shm/bell.h": BOX_H,
        "shm/bell.c": BELL_C,
        "src/ledger/README.md": "# ledger\n\n`role.c`\n",
        "src/ledger/role.c": '/* The role. */\n#include "shm/bell.h"\n\nint ledger_answer = 42;\n',
        "kernels/README.md": "# kernels\n\n`dispatch.c`\n",
        "kernels/dispatch.c": "/* Dispatch. */\n#include <cpuid.h>\n\nint kernel_cnt = 1;\n",
        "tools/README.md": "# tools\n\n`demo`\n",
        "tools/demo": "#!/bin/sh\n# Shows it.\necho shown\n",
    }


def replaced(path, old, new):
    def change(tree):
        if old not in tree[path]:
            raise ValueError(f"{path} does not hold {old!r}")
        tree[path] = tree[path].replace(old, new, 1)
    return change


def added(path, text):
    def change(tree):
        tree[path] = tree.get(path, "") + text
    return change


def removed(path):
    def change(tree):
        del tree[path]
    return change


def role_with(line):
    return replaced("src/ledger/role.c", "int ledger_answer = 42;\n", line)


def function_of(lines):
    return "\nint\nlong_one(void)\n{\n" + "    ledger_answer++;\n" * (lines - 5) + "    return 0;\n}\n"


# rule, file in which it must be found, what was done, how. A path of None: must *not* be found.
CHANGES = [
    ("include_direction", "kernels/dispatch.c", "a kernel includes an object",
     added("kernels/dispatch.c", '#include "shm/bell.h"\n')),
    ("include_direction", "shm/bell.c", "shm includes a role",
     replaced("shm/bell.c", '#include "shm/hook.h"', '#include "src/ledger/role.c"')),
    ("include_direction", "src/ledger/role.c", "an include that is not from the root",
     replaced("src/ledger/role.c", '"shm/bell.h"', '"bell.h"')),
    ("include_direction", "src/prefill/role.c", "one process includes another",
     added("src/prefill/role.c", '/* Role. */\n#include "src/ledger/role.c"\n')),
    ("include_direction", None, "a role includes core", lambda tree: (
        added("src/core/os.h", header("core", "os"))(tree), added("src/core/README.md", "# core\n\n`os.h`\n")(tree),
        added("src/ledger/role.c", '#include "src/core/os.h"\n')(tree))),
    ("include_cycle", "shm/ring.h", "two headers include each other", lambda tree: (
        added("shm/ring.h", header("shm", "ring", '\n#include "shm/bell.h"\n'))(tree),
        replaced("shm/bell.h", '#include "shm/atomic.h"', '#include "shm/atomic.h"\n#include "shm/ring.h"')(tree))),
    ("include_order", "shm/bell.c", "own header is not first",
     replaced("shm/bell.c", '#include "shm/bell.h"\n\n#include <string.h>', '#include <string.h>\n\n#include "shm/bell.h"')),
    ("include_order", "shm/bell.c", "a system header after our own",
     replaced("shm/bell.c", '#include "shm/hook.h"\n', '#include "shm/hook.h"\n#include <stdlib.h>\n')),
    ("guard", "shm/bell.h", "guard of another name",
     lambda tree: tree.update({"shm/bell.h": BOX_H.replace("BH_SHM_BELL_H", "BELL_H")})),
    ("guard", "shm/cause.def", "a .def file with a guard",
     added("shm/cause.def", "#ifndef BH_SHM_CAUSE_DEF\n#define BH_SHM_CAUSE_DEF\n#endif\n")),
    ("system_header", "src/ledger/role.c", "a role sees the system",
     replaced("src/ledger/role.c", "/* The role. */\n", "/* The role. */\n#include <unistd.h>\n\n")),
    ("system_header", "src/ledger/role.c", "a role reads the clock",
     replaced("src/ledger/role.c", "/* The role. */\n", "/* The role. */\n#include <time.h>\n\n")),
    ("system_header", "shm/bell.c", "atomics beside the door",
     replaced("shm/bell.c", "#include <string.h>", "#include <stdatomic.h>\n#include <string.h>")),
    ("system_header", "src/ledger/role.c", "CPU features outside dispatch.c",
     replaced("src/ledger/role.c", "/* The role. */\n", "/* The role. */\n#include <cpuid.h>\n\n")),
    ("banned_call", "src/ledger/role.c", "strcpy", role_with("void f(char *a) { strcpy(a, a); }\n")),
    ("banned_call", "src/ledger/role.c", "printf with blanks", role_with("void f(void) { printf  (0); }\n")),
    ("banned_call", "src/ledger/role.c", "fork", role_with("int f(void) { return fork(); }\n")),
    ("banned_call", None, "a longer name, a member", role_with("int f(void) { return my_time() + a.time(0) + p->time(0); }\n")),
    ("banned_call", None, "a printer in tools", lambda tree: (
        added("tools/ctl.c", '/* Ctl. */\nint f(void) { return puts(""); }\n')(tree))),
    ("banned_word", "src/ledger/role.c", "volatile", role_with("volatile int x;\n")),
    ("banned_word", "src/ledger/role.c", "a raw atomic", role_with("_Atomic int x;\n")),
    ("banned_word", "src/ledger/role.c", "an attribute", role_with("int x __attribute__((unused));\n")),
    ("banned_word", "src/ledger/role.c", "a typedef of a struct", role_with("typedef struct bh_x x;\n")),
    ("banned_word", None, "an attribute in a kernel", added("kernels/dispatch.c", "int x __attribute__((unused));\n")),
    ("goto_backwards", "shm/bell.c", "a loop made of goto",
     replaced("shm/bell.c", "    return strlen", "    goto out;\n    return strlen")),
    ("edge", "shm/bell.h", "the acquire half is not named",
     replaced("shm/bell.h", "edge box.word: acquire; pairs with release in bh_bell_set.", "as always.")),
    ("edge", "shm/bell.h", "the release half is not named",
     replaced("shm/bell.h", "edge box.word: release; pairs with acquire in bh_bell_get.", "as always.")),
    ("edge", "shm/bell.h", "the other half is in no function",
     replaced("shm/bell.h", "pairs with release in bh_bell_set", "pairs with release in bh_bell_put")),
    ("edge", "shm/bell.c", "a comment names an edge that is nowhere",
     replaced("shm/bell.c", "/* A comment may", "/* See edge box.lid. A comment may")),
    ("atomic_comment", "src/ledger/role.c", "a store without a reason",
     added("src/ledger/role.c", "\nvoid\nset(struct bh_word *word)\n{\n    bh_word_store(word, 1);\n}\n")),
    ("atomic_comment", None, "relaxed counters say nothing",
     added("src/ledger/role.c", "\nvoid\nset(struct bh_word *word)\n{\n    bh_word_store_relaxed(word, 1);\n}\n")),
    ("card", "shm/bell.h", "no Death", replaced("shm/bell.h", "   Death      The last word stands.\n", "")),
    ("card", "shm/bell.h", "headings out of order",
     replaced("shm/bell.h", "   Purpose    Holds one word.\n   Layout     head | word\n",
              "   Layout     head | word\n   Purpose    Holds one word.\n")),
    ("card", None, "no object, no card", added("shm/kv.h", header("shm", "kv"))),
    ("readme", "src/ledger/README.md", "no README", removed("src/ledger/README.md")),
    ("readme", "shm/README.md", "a file that it does not name",
     added("shm/kv.h", header("shm", "kv"))),
    ("readme", None, "a group of files named with a star", lambda tree: (
        added("shm/kv_one.h", header("shm", "kv_one"))(tree), added("shm/README.md", "`kv_*.h`\n")(tree))),
    ("readme", "shm/README.md", "it names a file that is gone", added("shm/README.md", "`pool.c`\n")),
    ("unlisted", "src/ledger/queue.c", "a file that nobody builds", added("src/ledger/queue.c", "/* Queue. */\nint q;\n")),
    ("unlisted", None, "a test in its table", lambda tree: (
        added("tests/unit/unit_bell.c", "/* Test. */\nint t;\n")(tree), added("meson.build", "t = {'bell': {}}\n")(tree))),
    ("length", "src/ledger/role.c", "a function of 71 lines", added("src/ledger/role.c", function_of(71))),
    ("length", None, "a function of 70 lines", added("src/ledger/role.c", function_of(70))),
    ("length", "src/ledger/role.c", "a file of 801 lines", added("src/ledger/role.c", "int x;\n" * 797)),
    ("length", None, "a file of 800 lines", added("src/ledger/role.c", "int x;\n" * 796)),
    ("opening", "src/ledger/role.c", "a file that begins with an include",
     replaced("src/ledger/role.c", "/* The role. */\n", "")),
    ("opening", "tools/demo", "a script that says nothing", replaced("tools/demo", "# Shows it.\n", "")),
    ("text", "src/ledger/role.c", "a tab", added("src/ledger/role.c", "\tint x;\n")),
    ("text", "src/ledger/role.c", "a blank at the end", added("src/ledger/role.c", "int x; \n")),
    ("text", "src/ledger/role.c", "no last newline", added("src/ledger/role.c", "int x;")),
    ("text", "src/ledger/role.c", "a reminder", added("src/ledger/role.c", "/* TODO: all of it. */\n")),
    ("hook_name", "shm/bell.c", "a hook without a place", replaced("shm/bell.c", "bell.new:before", "bell.new")),
]


def write(tree, root):
    for path, text in tree.items():
        full = os.path.join(root, path)
        os.makedirs(os.path.dirname(full), exist_ok=True)
        with open(full, "w", encoding="utf-8", newline="") as file:
            file.write(text)


def findings_of(tree):
    with tempfile.TemporaryDirectory() as root:
        write(tree, root)
        return tidy.check(root)


def judge(rule, path, change):
    """None, or what is wrong."""
    tree = good_tree()
    change(tree)
    found = findings_of(tree)[rule]
    if path is None:
        return None if not found else f"found {found[0]}"
    if not found:
        return "not found"
    return None if all(where == path for where, _, _ in found) else f"found elsewhere: {found}"


def run_all():
    failed = 0
    clean = {rule: found for rule, found in findings_of(good_tree()).items() if found}
    missing = sorted(set(tidy.RULES) - {rule for rule, path, _, _ in CHANGES if path})
    results = [("the good tree is clean", clean or None),
               ("every rule is broken by some change", missing or None)]
    results += [(f"{rule}: {what}{'' if path else ' (is allowed)'}", judge(rule, path, change))
                for rule, path, what, change in CHANGES]
    print(f"1..{len(results)}")
    for number, (name, wrong) in enumerate(results, 1):
        print(f"{'not ok' if wrong else 'ok'} {number} - {name}")
        if wrong:
            print(f"# {wrong}")
            failed += 1
    return 1 if failed else 0


def run_spoiled():
    """tidy.py itself, from its command line, over a tree with one banned call."""
    tree = good_tree()
    role_with("void f(char *a) { strcpy(a, a); }\n")(tree)
    with tempfile.TemporaryDirectory() as root:
        write(tree, root)
        program = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tidy.py")
        return subprocess.run([sys.executable, program, root], check=False).returncode


if __name__ == "__main__":
    sys.exit(run_spoiled() if sys.argv[1:] == ["--spoiled"] else run_all())
