#!/usr/bin/python3
"""How fast is the model through HTTP, and how much of it is lost between kernels and client: prefill and
decode of one stream and of sixteen, as ratios to what bench_model reaches in one process, and to a
peer that serves the same file, asked in turns with us.

    bench_serve.py [--rounds N] [--peer URL]

The peer is any server with /v1/completions that takes token ids, streams, and knows `ignore_eos`."""

import argparse
import concurrent.futures
import http.client
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import time
import urllib.parse

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tests" / "proc"))
import harness  # noqa: E402  (its folder is not a package)

PROMPT = 512
TOKENS = 49       # the first comes with prefill, the others are decode
STREAMS = 16
MANY_PROMPT = 32  # PROMPT / STREAMS, as bench_model does
VOCAB = 49152


def prompt(length, salt):
    """Token ids that no request before had, so that no prefix cache helps."""
    return [(salt * 104729 + i * 7919 + 13) % (VOCAB - 1000) + 500 for i in range(length)]


def ask(address, ids, tokens):
    """One streamed completion; returns seconds to the first event, seconds from there to the last, text."""
    connection = http.client.HTTPConnection(*address, timeout=300)
    body = {"prompt": ids, "max_tokens": tokens, "temperature": 0, "ignore_eos": True, "stream": True}
    begin = time.monotonic()
    connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    response = connection.getresponse()
    assert response.status == 200, (response.status, response.read())
    first = last = None
    text = ""
    for line in response:
        if line.startswith(b"data: {"):
            event = json.loads(line[6:])
            assert "error" not in event, event
            said = "".join(choice.get("text") or "" for choice in event["choices"])
            if said:
                last = time.monotonic()
                first = first or last
                text += said
    connection.close()
    return first - begin, last - first, text


def one_stream(address, salt):
    """(prefill, decode) in tokens a second."""
    ttft, rest, _ = ask(address, prompt(PROMPT, salt), TOKENS)
    return PROMPT / ttft, (TOKENS - 1) / rest


def many_streams(address, salt):
    """Tokens a second of all streams together, prompts included in the time."""
    with concurrent.futures.ThreadPoolExecutor(STREAMS) as lanes:
        begin = time.monotonic()
        list(lanes.map(lambda lane: ask(address, prompt(MANY_PROMPT, salt * 100 + lane), TOKENS), range(STREAMS)))
        return STREAMS * TOKENS / (time.monotonic() - begin)


def measure(address, salt):
    prefill, decode = one_stream(address, salt)
    return {"prefill": prefill, "decode": decode, f"{STREAMS} streams": many_streams(address, salt)}


def check(address):
    """Right before fast: the same question twice has the same answer."""
    answers = [ask(address, prompt(MANY_PROMPT, 1), 16)[2] for _ in range(2)]
    assert answers[0] == answers[1] and answers[0], answers


def bound():
    """What bench_model reaches with the fastest variant: the last line that it prints."""
    path = os.environ.get("BH_BENCH_MODEL")
    if not path:
        return {}
    out = subprocess.run([path], capture_output=True, text=True, check=True).stdout
    line = re.findall(r"prefill_512=([\d.]+) tok/s decode=([\d.]+) tok/s.*decode_16_streams=([\d.]+)", out)[-1]
    return dict(zip(("prefill", "decode", f"{STREAMS} streams"), map(float, line)))


def report(ours, peer, limit):
    for name in ours[0]:
        mine = statistics.median(round[name] for round in ours)
        parts = [f"{name:<10} {mine:8.1f} tok/s"]
        if limit:
            parts.append(f"{mine / limit[name]:.2f} of bench_model's {limit[name]:.1f}")
        if peer:
            ratios = sorted(a[name] / b[name] for a, b in zip(ours, peer))
            parts.append(f"{statistics.median(ratios):.2f} times the peer's "
                         f"{statistics.median(round[name] for round in peer):.1f} "
                         f"(rounds {', '.join(f'{ratio:.2f}' for ratio in ratios)})")
        print("; ".join(parts))


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--peer", help="URL of another server of the same model")
    chosen = options.parse_args()
    limit = bound()
    ours, peer = [], []
    with harness.Server(harness.need("BH_MODEL"), "--ctx", 2048, "--pool-tokens", 16384) as server:
        address = (server.host, server.port)
        check(address)
        for salt in range(2, 2 + chosen.rounds):
            ours.append(measure(address, salt))
            if chosen.peer:
                url = urllib.parse.urlsplit(chosen.peer)
                peer.append(measure((url.hostname, url.port), salt))
    report(ours, peer, limit)


if __name__ == "__main__":
    try:
        main()
    except harness.Skip as reason:
        print(f"skipped: {reason}")
        sys.exit(77)
