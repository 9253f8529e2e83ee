#!/usr/bin/python3
"""A request gets the same bytes whatever happens around it: sixteen of mixed length at once or each
alone, one compute thread or two, prompts in chunks of 16 or of 512, the prefix cache cold or warm,
streamed or whole. Log-probabilities are compared as printed, nine digits, so one different rounding
anywhere in thirty layers is seen; and so is one row of KV that is not the request's own."""

import concurrent.futures
import json
import pathlib

import harness

PAGE = 32
LENGTHS = (1, 2, 17, 31, 32, 33, 63, 64, 65, 100, 127, 200, 257, 430, 600, 1100)  # around pages and chunks
TOKENS = 10
CTX, POOL = 2048, 16384

folder = harness.temporary("bulkhead-same-")
text = pathlib.Path(__file__).parent.parent / "golden" / "perplexity.txt"
state = {}


def _serve(threads, chunk):
    keys = folder / "keys"
    keys.write_text("".join(f"key-of-{name} {name}\n" for name in ("ann-0000", "bob-0000")))
    return harness.Server(harness.need("BH_MODEL"), "--ctx", CTX, "--pool-tokens", POOL, "--threads", threads,
                          "--chunk", chunk, "--api-key-file", keys, key="key-of-ann-0000")


def _auth(tenant):
    return {"Authorization": f"Bearer key-of-{tenant}"}


def _bodies(server):
    """Windows of an English text, each from another place; every second one is sampled."""
    ids = server.post("/tokenize", {"content": text.read_text()}, _auth("ann-0000")).json()["tokens"]
    bodies = []
    for number, length in enumerate(LENGTHS):
        begin = 97 * number % (len(ids) - length)
        body = {"prompt": ids[begin:begin + length], "max_tokens": TOKENS, "logprobs": 5, "ignore_eos": True}
        body.update({"temperature": 0.9, "top_p": 0.95, "top_k": 50, "seed": 1000 + number} if number % 2
                    else {"temperature": 0})
        bodies.append(body)
    return bodies


def _ask(server, tenant, body):
    """The choice with numbers as they were printed, and how many prompt tokens came from the cache."""
    answer = server.post("/v1/completions", body, _auth(tenant))
    assert answer.status == 200, (answer.status, answer.body)
    parsed = json.loads(answer.body, parse_float=str)
    assert parsed["usage"]["prompt_tokens"] == len(body["prompt"])
    return parsed["choices"][0], parsed["usage"]["prompt_tokens_details"]["cached_tokens"]


def _together(server, tenant, bodies):
    with concurrent.futures.ThreadPoolExecutor(len(bodies)) as lanes:
        return list(lanes.map(lambda body: _ask(server, tenant, body), bodies))


def _difference(got, want):
    """Where two choices differ first, in words; empty if nowhere."""
    if got == want:
        return ""
    for position, (a, b) in enumerate(zip(got["logprobs"]["token_logprobs"], want["logprobs"]["token_logprobs"])):
        if a != b or got["logprobs"]["tokens"][position] != want["logprobs"]["tokens"][position]:
            return (f"token {position}: {got['logprobs']['tokens'][position]!r} {a}, "
                    f"expected {want['logprobs']['tokens'][position]!r} {b}")
    return f"{got} expected {want}"


def _compare(what, answers, cached=None):
    """Every answer against the one alone; with what the cache should have given."""
    faults = []
    for number, (choice, hit) in enumerate(answers):
        difference = _difference(choice, state["alone"][number])
        if difference:
            faults.append(f"{what}, prompt of {LENGTHS[number]}: {difference}")
        if cached is not None and hit != cached(LENGTHS[number]):
            faults.append(f"{what}, prompt of {LENGTHS[number]}: {hit} tokens from the cache, "
                          f"expected {cached(LENGTHS[number])}")
    assert not faults, "\n".join([f"{len(faults)} differ"] + faults)


def _whole_pages(length):
    """A hit is of whole pages, and the last token is always fed to decode."""
    return (length - 1) // PAGE * PAGE


def _nothing(_length):
    return 0


def _need_alone():
    if "alone" not in state:
        raise harness.Skip("what to compare with is missing: alone_then_together_then_warm failed")


def alone_then_together_then_warm():
    with _serve(2, 256) as server:
        bodies = _bodies(server)
        alone = [_ask(server, "ann-0000", body) for body in bodies]
        state.update(bodies=bodies, alone=[choice for choice, _ in alone])
        assert not any(hit for _, hit in alone), [hit for _, hit in alone]
        _compare("together, cold, another tenant", _together(server, "bob-0000", bodies), _nothing)
        _compare("together, warm", _together(server, "ann-0000", bodies), _whole_pages)
        for number in (5, 14):
            stream = server.stream("/v1/completions", bodies[number], _auth("bob-0000"))
            assert stream.text() == state["alone"][number]["text"], number
        assert server.violations() == 0


def _other(threads, chunk):
    _need_alone()
    with _serve(threads, chunk) as server:
        _compare(f"threads {threads}, chunk {chunk}", _together(server, "ann-0000", state["bodies"]), _nothing)
        assert server.violations() == 0


def _case(threads, chunk):
    def run():
        _other(threads, chunk)
    run.__name__ = f"threads_{threads}_chunk_{chunk}"
    return run


def a_small_change_would_be_seen():
    """The comparison fires: another first token, another seed, another neighbour's answer."""
    _need_alone()
    with _serve(2, 256) as server:
        for number in (5, 9):
            body = state["bodies"][number]
            ids = [body["prompt"][0] + 1] + body["prompt"][1:]
            assert _difference(_ask(server, "ann-0000", {**body, "prompt": ids})[0], state["alone"][number]), number
            assert not _difference(_ask(server, "ann-0000", body)[0], state["alone"][number]), number
        other = _ask(server, "ann-0000", {**state["bodies"][9], "seed": 77})[0]
        assert _difference(other, state["alone"][9])
        assert _difference(state["alone"][9], state["alone"][8])


harness.main([alone_then_together_then_warm,
              *(_case(threads, chunk) for threads in (1, 2) for chunk in (16, 64, 256, 512)
                if (threads, chunk) != (2, 256)),
              a_small_change_would_be_seen])
