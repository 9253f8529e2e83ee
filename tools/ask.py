#!/usr/bin/python3
"""Asks a running server one question, prints the answer as it comes, and then one line of numbers from
the server's own metrics. Standard library only.

    tools/ask.py URL QUESTION
    tools/ask.py --free-port N     prints N if nobody listens there, or another free port
"""
import http.client
import json
import socket
import sys
import time
import urllib.parse

TOKENS_MAX = 200


def free_port(wanted):
    for port in (wanted, 0):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
                return probe.getsockname()[1]
            except OSError:
                continue
    raise SystemExit("no free port")


def events(response):
    """The JSON of each server-sent event, until [DONE]."""
    for line in response:
        if line.startswith(b"data: "):
            data = line[6:].strip()
            if data == b"[DONE]":
                return
            yield json.loads(data)
    raise SystemExit("\nthe stream ended without [DONE]")


def ask(address, question):
    connection = http.client.HTTPConnection(address.hostname, address.port, timeout=120)
    body = {"messages": [{"role": "user", "content": question}], "max_tokens": TOKENS_MAX, "temperature": 0,
            "stream": True, "stream_options": {"include_usage": True}}
    began = time.monotonic()
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
    response = connection.getresponse()
    if response.status != 200:
        raise SystemExit(f"HTTP {response.status}: {response.read().decode(errors='replace')}")
    first, usage = None, {}
    for event in events(response):
        if "error" in event:
            raise SystemExit(f"\n{event['error']['message']}")
        usage = event.get("usage") or usage
        for choice in event["choices"]:
            text = choice["delta"].get("content") or ""
            if text and first is None:
                first = time.monotonic()
            print(text, end="", flush=True)
    ended = time.monotonic()
    print()
    return began, first or ended, ended, usage


def metrics(address):
    """Sum of each metric over its labels."""
    connection = http.client.HTTPConnection(address.hostname, address.port, timeout=20)
    connection.request("GET", "/metrics")
    sums = {}
    for line in connection.getresponse().read().decode().splitlines():
        if line and not line.startswith("#"):
            name, value = line.rsplit(" ", 1)
            name = name.split("{")[0]
            sums[name] = sums.get(name, 0.0) + float(value)
    return sums


def main(arguments):
    if len(arguments) == 2 and arguments[0] == "--free-port":
        print(free_port(int(arguments[1])))
        return 0
    if len(arguments) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    address = urllib.parse.urlsplit(arguments[0])
    began, first, ended, usage = ask(address, arguments[1])
    tokens = usage.get("completion_tokens", 0)
    rate = (tokens - 1) / (ended - first) if tokens > 1 and ended > first else 0.0
    sums = metrics(address)
    print(f"\n   {usage.get('prompt_tokens', 0)} prompt tokens, {tokens} generated; first after "
          f"{(first - began) * 1000:.0f} ms, then {rate:.1f} tokens/s")
    print(f"   KV pages written {sums['bulkhead:pages_written_total']:.0f}, page proofs made while reading "
          f"{sums['bulkhead:page_checks_total']:.0f}, violations {sums['bulkhead:kv_violations_total']:.0f}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
