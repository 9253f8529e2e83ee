#!/usr/bin/python3
"""Adds up what tests said: TAP files, and logs of `meson test`, each TAP subtest counted. Lists skips
and failures by name and ends with one line `N passed, N failed`.

    tools/tally.py FILE...      NAME.tap or NAME.testlog.json; the name says which build it was
"""
import json
import os
import re
import sys

OUTPUT_LINES_MAX = 60
GOOD = ("OK", "EXPECTEDFAIL")


def read_tap(text):
    """(name, verdict, detail) of each point of a TAP text; what was planned and did not run failed."""
    lines = text.splitlines()
    planned, seen = None, 0
    for at, line in enumerate(lines):
        plan = re.match(r"1\.\.(\d+)(?:\s*# SKIP\s*(.*))?", line)
        if plan:
            planned = int(plan.group(1))
            if planned == 0:
                yield "", "skipped", plan.group(2) or ""
        point = re.match(r"(not )?ok\b\s*\d*\s*(?:- )?(.*)", line)
        if not point:
            continue
        seen += 1
        name, _, reason = point.group(2).partition("# SKIP")
        if point.group(1):
            notes = [other.lstrip("# ") for other in take_notes(lines[at + 1:])]
            yield name.strip(), "failed", "\n".join(notes[:OUTPUT_LINES_MAX])
        else:
            yield name.strip(), "skipped" if "# SKIP" in line else "passed", reason.strip()
    if planned is None or seen < planned:
        yield "the whole plan", "failed", f"{seen} of {planned} tests ran"


def take_notes(lines):
    for line in lines:
        if not line.startswith("#"):
            return
        yield line


def read_meson(text):
    """The same of the JSON lines that meson logs: one object a program."""
    for line in text.splitlines():
        program = json.loads(line)
        name = program["name"].split(" / ")[-1]
        result, output = program["result"], program.get("stdout") or ""
        points = []
        if re.search(r"(?m)^1\.\.\d+", output) and result != "EXPECTEDFAIL":
            points = list(read_tap(output))
            yield from ((f"{name}: {point}" if point else name, verdict, detail) for point, verdict, detail in points)
        failed = any(verdict == "failed" for _, verdict, _ in points)
        if result == "SKIP" and not points:
            yield name, "skipped", (output + (program.get("stderr") or "")).strip().replace("\n", "; ")[-200:]
        elif result not in GOOD + ("SKIP",) and not failed:
            everything = output + "\n" + (program.get("stderr") or "")
            yield name, "failed", f"meson says {result}, exit status {program.get('returncode')}\n" + \
                "\n".join(everything.splitlines()[-OUTPUT_LINES_MAX:])
        elif not points:
            yield name, "passed", ""


def main(paths):
    results = []
    for path in paths:
        label = os.path.basename(path).split(".")[0]
        with open(path, encoding="utf-8", errors="replace") as file:
            found = (read_tap if path.endswith(".tap") else read_meson)(file.read())
            results += [(f"{label}: {name}", verdict, detail) for name, verdict, detail in found]
    for name, verdict, detail in results:
        if verdict == "skipped":
            print(f"skipped  {name}" + (f" ({detail})" if detail else ""))
        elif verdict == "failed":
            print(f"FAILED   {name}")
            print("\n".join("    " + line for line in detail.splitlines()))
    count = {verdict: sum(1 for _, found, _ in results if found == verdict) for verdict in ("passed", "failed")}
    print(f"{count['passed']} passed, {count['failed']} failed")
    return 1 if count["failed"] or not count["passed"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
