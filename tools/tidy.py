#!/usr/bin/python3
"""The house rules that a program can check, each as one function over the whole tree.

    tools/tidy.py [--tap] [--rules] [ROOT]

prints `file:line: rule: what is wrong and what to do`, and exits with 1 if it found anything. With
--tap each rule is one test. The tables (who may include whom, which files may make system calls,
which calls are banned and what to use instead) are in tidy_tables.py; tidy_selftest.py breaks every
rule on purpose and sees that it is found.
"""
import fnmatch
import os
import re
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import tidy_tables as tables  # noqa: E402

C_ENDS = (".c", ".h", ".cu", ".def")
SOURCE_ENDS = C_ENDS + (".py", ".sh")
FUNCTION_LINES_MAX = 70
FILE_LINES_MAX = 800
CARD_HEADINGS = ("Purpose", "Layout", "Writers", "Ordering", "Progress", "Death", "Cost")


class Source:
    """One file: its text, its lines, and the text without comments and literals."""

    def __init__(self, root, path):
        self.path = path
        self.folder = os.path.dirname(path)
        self.name = os.path.basename(path)
        with open(os.path.join(root, path), encoding="utf-8", errors="replace", newline="") as file:
            self.text = file.read()
        self.lines = self.text.split("\n")
        self.is_c = path.endswith(C_ENDS)
        self.code = without_comments(self.text) if self.is_c else self.text
        self.code_lines = self.code.split("\n")

    def line_of(self, offset):
        return self.text.count("\n", 0, offset) + 1


def without_comments(text):
    """C text with comments and the insides of literals blanked; every line keeps its number."""
    def blank(match):
        token = match.group(0)
        if token[0] in "\"'":
            return token[0] + " " * (len(token) - 2) + token[-1]
        return re.sub(r"[^\n]", " ", token)
    pattern = r"/\*.*?\*/|//[^\n]*|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])+'"
    keep = re.sub(r'(?m)^(\s*#\s*include\s*)"([^"\n]*)"', r"\1<<\2>>", text)
    blanked = re.sub(pattern, blank, keep, flags=re.S)
    return re.sub(r'(?m)^(\s*#\s*include\s*)<<([^>\n]*)>>', r'\1"\2"', blanked)


def load(root):
    """Every text file of the tree that the rules know, by path from the root."""
    sources = {}
    for folder, folders, names in os.walk(root):
        relative = os.path.relpath(folder, root).replace(os.sep, "/")
        folders[:] = sorted(name for name in folders if not skipped(relative, name))
        for name in sorted(names):
            path = name if relative == "." else f"{relative}/{name}"
            if name.endswith(SOURCE_ENDS) or name in ("README.md", "meson.build") or is_script(root, path):
                sources[path] = Source(root, path)
    return sources


def skipped(parent, name):
    path = name if parent == "." else f"{parent}/{name}"
    return (path in tables.SKIPPED_FOLDERS or name in tables.SKIPPED_NAMES
            or (parent == "." and name.startswith("build")))


def is_script(root, path):
    """Scripts without an extension: tools/demo and the like."""
    if "." in os.path.basename(path) or not path.startswith(("tools/", ".ci/", "bench/", "tests/")):
        return False
    with open(os.path.join(root, path), "rb") as file:
        return file.read(2) == b"#!"


def includes(source):
    """(line number, name, is system) of each #include."""
    for number, line in enumerate(source.code_lines, 1):
        match = re.match(r'\s*#\s*include\s*([<"])([^>"]+)[>"]', line)
        if match:
            yield number, match.group(2), match.group(1) == "<"


def functions(source):
    """(first line, last line) of each function body, signature included: braces in column 0."""
    start = None
    for number, line in enumerate(source.code_lines, 1):
        if line == "{":
            start = number
            while start > 1 and source.code_lines[start - 2].strip() and \
                    not source.code_lines[start - 2].startswith(("}", "#")):
                start -= 1
        elif line.startswith("}") and start is not None:
            yield start, number
            start = None


def in_folder(path, folder):
    return path == folder or path.startswith(folder + "/")


def best_row(path, rows):
    """The row whose folder or file is the longest prefix of path, or None."""
    fitting = [row for row in rows if in_folder(path, row)]
    return max(fitting, key=len) if fitting else None


# ---- rules: each yields (path, line, message) -----------------------------------------------------

def rule_include_direction(sources):
    """Who may include whom: the table of tidy_tables.py, the first match wins."""
    for source in sources.values():
        if not source.is_c:
            continue
        row = best_row(source.path, tables.MAY_INCLUDE)
        for line, name, is_system in includes(source):
            if is_system or name in tables.GENERATED:
                continue
            if name not in sources:
                yield source.path, line, f'"{name}" is no file of this tree: write it as folder/file.h from the root'
            elif row is None:
                yield source.path, line, f"{source.folder} has no row in MAY_INCLUDE"
            elif best_row(name, tables.MAY_INCLUDE[row]) is None:
                yield source.path, line, f"{row} must not include {name}"


def rule_include_cycle(sources):
    """No header reaches itself."""
    graph = {path: [name for _, name, is_system in includes(source) if not is_system and name in sources]
             for path, source in sources.items() if path.endswith(".h")}
    done = set()
    for root in sorted(graph):
        stack = [(root, iter(graph[root]))]
        path = [root]
        while stack:
            node, rest = stack[-1]
            following = next(rest, None)
            if following is None:
                stack.pop()
                path.pop()
                done.add(node)
            elif following in path:
                yield node, 1, "include cycle: " + " -> ".join(path[path.index(following):] + [following])
                done.add(following)
            elif following in graph and following not in done:
                path.append(following)
                stack.append((following, iter(graph[following])))


def rule_include_order(sources):
    """Own header first, then <system>, then "folder/file.h"."""
    for source in sources.values():
        if not source.path.endswith(".c"):
            continue
        listed = [(line, name, is_system) for line, name, is_system in includes(source)
                  if not name.endswith(".def") and name not in tables.GENERATED]
        if listed and listed[0][1] == "Python.h":
            listed = listed[1:]  # it defines what libc's headers then show, so it wants to be first
        own = source.path[:-2] + ".h"
        if own in sources and listed and listed[0][1] != own:
            yield source.path, listed[0][0], f'"{own}" comes first'
        seen_quoted = False
        for line, name, is_system in listed[1:]:
            seen_quoted = seen_quoted or not is_system
            if is_system and seen_quoted:
                yield source.path, line, f"<{name}> comes before the project's own headers"


def rule_guard(sources):
    """BH_<FOLDER>_<FILE>_H, and none in .def files."""
    for source in sources.values():
        if source.path.endswith(".h"):
            folder = os.path.basename(source.folder)
            want = f"BH_{folder}_{source.name[:-2]}_H".upper()
            if f"#ifndef {want}\n#define {want}\n" not in source.text:
                yield source.path, 1, f"the guard is {want}"
        elif source.path.endswith(".def") and re.search(r"(?m)^#ifndef BH_\w+_(H|DEF)$", source.code):
            yield source.path, 1, "a .def file is included several times and has no guard"


def rule_system_header(sources):
    """Only listed files see the system; libraries stay where the table has them."""
    for source in sources.values():
        if not source.is_c:
            continue
        for line, name, is_system in includes(source):
            if not is_system or name in tables.ISO_HEADERS:
                continue
            library = next((row for row in tables.LIBRARIES if re.fullmatch(row, name)), None)
            if library is not None:
                if best_row(source.path, tables.LIBRARIES[library]) is None:
                    yield source.path, line, (f"<{name}> belongs to " + ", ".join(tables.LIBRARIES[library]))
            elif best_row(source.path, tables.SYSTEM_FILES) is None:
                yield source.path, line, (f"<{name}>: this file makes no system calls; go through src/core/os.h, "
                                          "or give the file a row with its reason in SYSTEM_FILES")


def rule_banned_call(sources):
    """Calls that have a better replacement."""
    for source in sources.values():
        if not source.path.endswith((".c", ".h", ".cu")):
            continue
        for banned, (replacement, allowed) in tables.BANNED_CALLS.items():
            for match in re.finditer(rf"(?<![\w.>])(?:{banned})\s*\(", source.code):
                if best_row(source.path, allowed) is None:
                    name = match.group(0).rstrip("( \t\n")
                    yield source.path, source.line_of(match.start()), f"{name}(): {replacement}"


def rule_banned_word(sources):
    """Words of the language that are not used here."""
    for source in sources.values():
        if not source.path.endswith((".c", ".h", ".cu")):
            continue
        for banned, (replacement, allowed) in tables.BANNED_WORDS.items():
            for match in re.finditer(banned, source.code):
                if best_row(source.path, allowed) is None:
                    yield source.path, source.line_of(match.start()), f"{match.group(0).strip()}: {replacement}"


def rule_goto_backwards(sources):
    """A goto goes down, to the one exit label."""
    for source in sources.values():
        if not source.path.endswith((".c", ".h")):
            continue
        for first, last in functions(source):
            labels = set()
            for number in range(first, last + 1):
                line = source.code_lines[number - 1]
                jump = re.search(r"\bgoto\s+(\w+)\s*;", line)
                if jump and jump.group(1) in labels:
                    yield source.path, number, f"goto {jump.group(1)} goes backwards: write a loop"
                label = re.match(r"\s*(\w+):\s*$", line)
                if label and label.group(1) != "default":
                    labels.add(label.group(1))


def edge_halves(sources):
    for source in sources.values():
        if source.is_c and source.path.startswith(("shm/", "src/", "kernels/")) and source.path != "shm/atomic.h":
            for match in re.finditer(r"edge ([a-z_]+\.[a-z_]+): (acquire|release)", source.text):
                yield source, source.line_of(match.start()), match.group(1), match.group(2)


def rule_edge(sources):
    """Each named edge has its release and its acquire, and both name something that exists."""
    halves = {}
    for source, line, name, half in edge_halves(sources):
        halves.setdefault(name, {}).setdefault(half, (source.path, line))
    for name, found in sorted(halves.items()):
        for half, other in (("release", "acquire"), ("acquire", "release")):
            if half in found and other not in found:
                yield found[half] + (f"edge {name} has a {half} and no {other}: comment both halves",)
    everything = "\n".join(source.code for source in sources.values() if source.is_c)
    for source in sources.values():
        if not source.is_c or not source.path.startswith(("shm/", "src/")) or source.path == "shm/atomic.h":
            continue
        for match in re.finditer(r"pairs with \w+ in\s+(bh_\w+)", source.text):
            if not re.search(rf"\b{match.group(1)}\b", everything):
                yield source.path, source.line_of(match.start()), f"{match.group(1)} does not exist"
        for match in re.finditer(r"\bedges? ([a-z_]+\.[a-z_]+)\b(?!:)", source.text):
            if match.group(1) not in halves and not match.group(1).endswith((".c", ".h", ".py")):
                yield source.path, source.line_of(match.start()), f"edge {match.group(1)} has no halves anywhere"


def rule_atomic_comment(sources):
    """A function that loads or stores with an order says which edge it is, or why."""
    call = re.compile(r"\bbh_(word_(load|store)|swap_(load|store|try|add)|fence_seq_cst)\s*\(")
    for source in sources.values():
        if not source.is_c or not source.path.startswith(("shm/", "src/")) or source.path == "shm/atomic.h":
            continue
        for first, last in functions(source):
            body = "\n".join(source.code_lines[first - 1:last])
            match = call.search(body)
            if match is None:
                continue
            above = first
            while above > 1 and source.lines[above - 2].strip():
                above -= 1
            if not re.search(r"\b[Ee]dges? ?[a-z]", "\n".join(source.lines[above - 1:last])):
                yield source.path, first + body.count("\n", 0, match.start()), \
                    f"{match.group(0)[:-1].strip()} without an edge comment in its function"


def rule_card(sources):
    """Each object in shared memory has its card."""
    for source in sources.values():
        if source.folder != "shm" or not source.path.endswith(".h") or \
                not re.search(r"(?m)^size_t bh_\w+_footprint\(", source.code):
            continue
        card = source.text.split("*/", 1)[0]
        at = -1
        for heading in CARD_HEADINGS:
            match = re.search(rf"(?m)^   {heading}\s", card)
            if match is None:
                yield source.path, 1, f"the card lacks {heading}"
            elif match.start() < at:
                yield source.path, 1, f"the card's {heading} is out of order: " + ", ".join(CARD_HEADINGS)
            else:
                at = match.start()


def rule_readme(sources):
    """Each folder with sources has a README that names its files, and none that do not exist."""
    folders = {}
    for source in sources.values():
        if source.path.endswith(SOURCE_ENDS) or source.name not in ("README.md", "meson.build"):
            folders.setdefault(source.folder, []).append(source)
    for folder, members in sorted(folders.items()):
        if folder in tables.README_EXEMPT or any(in_folder(folder, row) for row in tables.README_ABOVE):
            continue
        readme = sources.get(f"{folder}/README.md")
        if readme is None:
            yield f"{folder}/README.md", 1, "missing: vocabulary, numbered rules, files, how to test"
            continue
        groups = [name for name in re.findall(r"`([\w*./]+)`", readme.text) if "*" in name]
        for source in members:
            stem = source.name.split(".")[0]
            if any(fnmatch.fnmatch(source.name, group) for group in groups):
                continue
            if not re.search(rf"(?<![A-Za-z0-9_]){re.escape(stem)}(?![A-Za-z0-9_])", readme.text):
                yield readme.path, 1, f"does not name {source.name}"
        names = {os.path.basename(path) for path in sources}
        for match in re.finditer(r"`([\w/]+\.(?:c|h|def|py|cu))`", readme.text):
            if os.path.basename(match.group(1)) not in names | tables.GENERATED:
                yield readme.path, readme.line_of(match.start()), f"names {match.group(1)}, which does not exist"


def rule_unlisted(sources):
    """Each .c file is built by some meson.build."""
    build = "\n".join(source.text for source in sources.values() if source.name == "meson.build")
    for source in sources.values():
        if not source.path.endswith((".c", ".cu")):
            continue
        stem = source.name.rsplit(".", 1)[0]
        kind = stem.split("_", 1)[0] if source.path.startswith(("tests/", "bench/")) else ""
        short = stem[len(kind) + 1:] if kind else stem
        if not re.search(rf"['/]{re.escape(source.name)}'", build) and not re.search(rf"'{re.escape(short)}'", build):
            yield source.path, 1, "no meson.build names it"


def rule_length(sources):
    """A function fits a screen, a file has one subject."""
    for source in sources.values():
        if source.name in ("README.md",) or source.path in tables.LONG_FILES:
            continue
        if len(source.lines) - 1 > FILE_LINES_MAX:
            yield source.path, 1, f"{len(source.lines) - 1} lines: at most {FILE_LINES_MAX}"
        if source.is_c:
            for first, last in functions(source):
                if last - first + 1 > FUNCTION_LINES_MAX:
                    yield source.path, first, f"a function of {last - first + 1} lines: at most {FUNCTION_LINES_MAX}"


def rule_opening(sources):
    """A file opens with a paragraph: its subject and its place."""
    for source in sources.values():
        start = source.text
        if source.is_c:
            good = start.startswith("/*")
        elif source.path.endswith((".py", ".sh")):
            good = re.match(r'(#![^\n]*\n)?("""|#)', start) is not None
        elif source.name == "README.md":
            good = start.startswith("# ")
        elif source.name == "meson.build":
            good = True
        else:
            good = re.match(r"#![^\n]*\n#", start) is not None
        if not good:
            yield source.path, 1, "opens without saying what it is"


def rule_text(sources):
    """No tabs, no blanks at line ends, one newline at the end, no reminders."""
    for source in sources.values():
        if not source.text.endswith("\n") or source.text.endswith("\n\n"):
            yield source.path, len(source.lines), "ends with exactly one newline"
        for number, line in enumerate(source.lines, 1):
            if line != line.rstrip():
                yield source.path, number, "blank at the end of the line"
            if "\t" in line:
                yield source.path, number, "tab"
            if source.path not in tables.REMINDERS_NAMED and re.search(r"\b(TODO|FIXME|XXX|HACK)\b", line):
                yield source.path, number, "a reminder: do it, or file it"


def rule_hook_name(sources):
    """Hooks are named object.verb:place."""
    for source in sources.values():
        if not source.is_c or not source.path.startswith(("shm/", "src/")) or source.path == "shm/hook.h":
            continue
        for match in re.finditer(r'BH_(?:HOOK|FAULT)\("([^"]*)"', source.text):
            if not re.fullmatch(r"[a-z_]+\.[a-z_]+:[a-z0-9_]+", match.group(1)):
                yield source.path, source.line_of(match.start()), f'hook "{match.group(1)}" is not object.verb:place'


RULES = {name[5:]: rule for name, rule in sorted(globals().items()) if name.startswith("rule_")}


def check(root):
    """All findings under root, by rule."""
    sources = load(root)
    return {name: sorted(rule(sources)) for name, rule in RULES.items()}


def report_tap(findings):
    print(f"1..{len(findings)}")
    for number, (name, found) in enumerate(findings.items(), 1):
        print(f"{'not ok' if found else 'ok'} {number} - {name}")
        for path, line, message in found:
            print(f"# {path}:{line}: {name}: {message}")


def report_text(findings):
    for name, found in findings.items():
        for path, line, message in found:
            print(f"{path}:{line}: {name}: {message}")


def main(arguments):
    tap = "--tap" in arguments
    paths = [argument for argument in arguments if not argument.startswith("--")]
    unknown = [argument for argument in arguments if argument.startswith("--") and argument not in ("--tap", "--rules")]
    if unknown or len(paths) > 1:
        print(__doc__, file=sys.stderr)
        return 2
    if "--rules" in arguments:
        for name, rule in RULES.items():
            print(f"{name}: {rule.__doc__}")
        return 0
    root = paths[0] if paths else os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    if not os.path.isdir(root):
        print(f"tidy.py: {root} is no folder", file=sys.stderr)
        return 2
    findings = check(root)
    (report_tap if tap else report_text)(findings)
    return 1 if any(findings.values()) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
