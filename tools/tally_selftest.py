#!/usr/bin/python3
"""The self-test of tally.py: what must count as a failure does, however a program ended. TAP."""
import io
import json
import os
import sys
import tempfile
from contextlib import redirect_stdout

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import tally  # noqa: E402

GOOD = "1..2\nok 1 - a\nok 2 - b\n"

# What happened, fields of meson's log, and the last line that must follow.
CASES = [
    ("all points passed", {"stdout": GOOD, "result": "OK"}, "2 passed, 0 failed"),
    ("a point failed", {"stdout": "1..2\nok 1 - a\nnot ok 2 - b\n", "result": "FAIL"}, "1 passed, 1 failed"),
    ("it died before its plan was through", {"stdout": "1..3\nok 1 - a\n", "result": "ERROR"}, "1 passed, 1 failed"),
    ("it died after its last point", {"stdout": GOOD, "result": "FAIL", "returncode": -11}, "2 passed, 1 failed"),
    ("it took too long", {"stdout": "", "result": "TIMEOUT"}, "0 passed, 1 failed"),
    ("no TAP, status 0", {"stdout": "hello", "result": "OK"}, "1 passed, 0 failed"),
    ("no TAP, status 1", {"stdout": "hello", "result": "FAIL", "returncode": 1}, "0 passed, 1 failed"),
    ("status 77: nothing ran", {"stdout": "no model", "result": "SKIP"}, "0 passed, 0 failed"),
    ("a skipped plan", {"stdout": "1..0 # SKIP no client\n", "result": "SKIP"}, "0 passed, 0 failed"),
    ("a skipped point", {"stdout": "1..2\nok 1 - a\nok 2 - b # SKIP no GPU\n", "result": "OK"}, "1 passed, 0 failed"),
    ("it must fail and does", {"stdout": "x", "result": "EXPECTEDFAIL", "returncode": 1}, "1 passed, 0 failed"),
    ("it must fail and does not", {"stdout": "x", "result": "UNEXPECTEDPASS"}, "0 passed, 1 failed"),
]


def judge(fields, last):
    with tempfile.NamedTemporaryFile("w", suffix=".testlog.json") as log:
        log.write(json.dumps({"name": "bulkhead:unit / case", **fields}) + "\n")
        log.flush()
        output = io.StringIO()
        with redirect_stdout(output):
            status = tally.main([log.name])
    lines = output.getvalue().splitlines()
    passed = int(last.split()[0])
    want = 0 if "0 failed" in last and passed > 0 else 1
    return lines[-1] == last and status == want, f"{lines[-1]}, status {status}"


print(f"1..{len(CASES)}")
wrong = 0
for number, (what, fields, last) in enumerate(CASES, 1):
    good, found = judge(fields, last)
    wrong += not good
    print(f"{'ok' if good else 'not ok'} {number} - {what}" + ("" if good else f"\n# {found}, not {last}"))
sys.exit(1 if wrong else 0)
