#!/usr/bin/python3
"""The HTTP API as clients use it: every route, both completions shapes, streams, and the habits of
HTTP clients. Texts come from the demo model; arithmetic is compared with tiny_reference.py."""

import atexit
import json
import math
import pathlib
import re
import shutil
import socket
import tempfile
import time

import numpy as np

import harness
import tiny_reference

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
PROMPT = "The capital of France is"
KEY_RED, KEY_RED_2, KEY_BLUE = "red-key-0001", "red-key-0002", "blue-key-0001"

folder = pathlib.Path(tempfile.mkdtemp(prefix="bulkhead-api-"))
running = {}


def _stop_all():
    for server in running.values():
        server.stop()
    shutil.rmtree(folder, ignore_errors=True)


atexit.register(_stop_all)


def demo():
    if "demo" not in running:
        running["demo"] = harness.Server(harness.need("BH_MODEL"), "--ctx", 2048, "--pool-tokens", 8192)
    return running["demo"]


def tiny_path():
    path = folder / "tiny.gguf"
    if not path.exists():
        harness.make_model(path, "--layers", 1, "--d-model", 32, "--heads", 2, "--kv-heads", 1, "--head-dim", 16,
                           "--ffn", 64, "--vocab", 512, "--ctx", 8192, "--type", "f32", "--seed", 3)
    return path


def tiny():
    if "tiny" not in running:
        running["tiny"] = harness.Server(tiny_path(), "--pool-tokens", 16384)
    return running["tiny"]


def user(text):
    return [{"role": "user", "content": text}]


def ask(server, path, body):
    answer = server.post(path, body)
    assert answer.status == 200, (answer.status, answer.body)
    return answer.json()


def chat_text(answer, index=0):
    return answer["choices"][index]["message"]["content"]


# -- answers -----------------------------------------------------------------------------------


def chat_whole_and_streamed_are_one_answer():
    server = demo()
    body = {"messages": user("What is 2+2?"), "max_tokens": 40, "temperature": 0}
    whole = ask(server, CHAT, body)
    assert whole["object"] == "chat.completion" and whole["id"].startswith("chatcmpl-"), whole
    assert whole["choices"][0]["message"]["role"] == "assistant", whole
    assert "4" in chat_text(whole), whole
    assert whole["choices"][0]["finish_reason"] == "stop", whole
    usage = whole["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"], usage

    stream = server.stream(CHAT, {**body, "stream_options": {"include_usage": True}})
    assert stream.response.headers["Content-Type"].startswith("text/event-stream")
    events = list(stream)
    assert stream.done and all(e["object"] == "chat.completion.chunk" for e in events)
    assert len({e["id"] for e in events}) == 1 and events[0]["id"] != whole["id"]
    assert events[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}, events[0]
    text = "".join(e["choices"][0]["delta"].get("content", "") for e in events[1:-2])
    assert text == chat_text(whole), (text, whole)
    assert all(e["usage"] is None and e["choices"][0]["finish_reason"] is None for e in events[:-2])
    assert events[-2]["choices"][0]["delta"] == {} and events[-2]["choices"][0]["finish_reason"] == "stop"
    assert events[-1]["choices"] == [], events[-1]
    for field in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert events[-1]["usage"][field] == usage[field], (events[-1], usage)
    plain = list(server.stream(CHAT, body))
    assert all("usage" not in e for e in plain), "usage without being asked"


def prompts_come_in_four_forms():
    server = demo()
    other = "Water boils at"
    ids = ask(server, "/tokenize", {"content": PROMPT})["tokens"]
    other_ids = ask(server, "/tokenize", {"content": other})["tokens"]
    one = server.complete(PROMPT, 12)
    two = server.complete(other, 12)
    assert " Paris" in one["choices"][0]["text"], one
    assert one["usage"]["prompt_tokens"] == len(ids), one
    texts = [one["choices"][0]["text"], two["choices"][0]["text"]]
    for prompt, want in (([PROMPT], texts[:1]), (ids, texts[:1]), ([ids], texts[:1]), ([PROMPT, other], texts),
                         ([ids, other_ids], texts)):
        answer = server.complete(prompt, 12)
        assert [c["text"] for c in answer["choices"]] == want, (prompt, answer)
        assert [c["index"] for c in answer["choices"]] == list(range(len(want)))
    assert answer["usage"]["prompt_tokens"] == len(ids) + len(other_ids), answer["usage"]
    assert answer["usage"]["completion_tokens"] == 24, answer["usage"]
    streamed = {0: "", 1: ""}
    for event in server.stream(TEXT, {"prompt": [PROMPT, other], "max_tokens": 12, "temperature": 0}):
        for choice in event["choices"]:
            streamed[choice["index"]] += choice["text"]
    assert [streamed[0], streamed[1]] == texts, streamed


def choices_have_seeds_of_their_own():
    server = demo()
    body = {"prompt": "Once upon a time", "max_tokens": 16, "temperature": 1.0, "seed": 42}
    first = [c["text"] for c in ask(server, TEXT, {**body, "n": 3})["choices"]]
    again = [c["text"] for c in ask(server, TEXT, {**body, "n": 3})["choices"]]
    assert first == again and len(set(first)) == 3, (first, again)
    for k in range(3):
        alone = ask(server, TEXT, {**body, "seed": 42 + k})["choices"][0]["text"]
        assert alone == first[k], (k, alone, first)
    free = {ask(server, TEXT, {k: v for k, v in body.items() if k != "seed"})["choices"][0]["text"] for _ in range(3)}
    assert len(free) > 1, "answers without a seed are all alike"
    batch = ask(server, TEXT, {**body, "prompt": [body["prompt"], PROMPT], "n": 2})
    assert [c["text"] for c in batch["choices"]][:2] == first[:2], batch


def stop_strings_cut_exactly():
    server = demo()
    body = {"prompt": "List: apple, banana, cherry,", "temperature": 0, "max_tokens": 24}
    full = ask(server, TEXT, {**body, "logprobs": 0})["choices"][0]
    text, tokens = full["text"], full["logprobs"]["tokens"]
    assert "".join(tokens) == text, full
    ends = np.cumsum([len(t) for t in tokens])
    border = int(ends[8])
    cases = [text[border - 2:border + 2], text[border - 1:border + 5], text[border - 3:border], tokens[5],
             text[3:12], text[-2:], text[0], text[:4]]
    for stop in cases:
        at = text.find(stop)
        want_tokens = int(np.searchsorted(ends, at + len(stop))) + 1
        for stops in (stop, [stop, "\x00never\x00"[1:-1] + "QQQQ"]):
            answer = ask(server, TEXT, {**body, "stop": stops})
            choice = answer["choices"][0]
            assert choice["text"] == text[:at], (stop, choice, text)
            assert choice["finish_reason"] == "stop", (stop, choice)
            assert answer["usage"]["completion_tokens"] == want_tokens, (stop, answer["usage"], want_tokens)
        sent = ""
        for event in server.stream(TEXT, {**body, "stop": stop}):
            sent += event["choices"][0]["text"]
            assert text[:at].startswith(sent), ("a part of a stop string was sent", stop, sent)
        assert sent == text[:at], (stop, sent)
    # One that begins and never ends is given back; of two the one that is complete first counts.
    for stop in (text[-3:] + "QQ", "QQQQ"):
        choice = ask(server, TEXT, {**body, "stop": stop})["choices"][0]
        assert (choice["text"], choice["finish_reason"]) == (text, "length"), (stop, choice)
        assert server.stream(TEXT, {**body, "stop": stop}).text() == text
    choice = ask(server, TEXT, {**body, "stop": [text[4:20], text[6:9]]})["choices"][0]
    assert choice["text"] == text[:text.find(text[6:9])], choice


def stop_tokens_and_end_of_answer():
    server = demo()
    body = {"prompt": PROMPT, "temperature": 0, "max_tokens": 12}
    full = ask(server, TEXT, {**body, "logprobs": 0})["choices"][0]
    tokens = full["logprobs"]["tokens"]
    cut = 4
    ids = ask(server, "/tokenize", {"content": tokens[cut]})["tokens"]
    assert len(ids) == 1, (tokens, ids)
    answer = ask(server, TEXT, {**body, "stop_token_ids": ids})
    first = tokens.index(tokens[cut])
    assert answer["choices"][0]["text"] == "".join(tokens[:first]), answer
    assert answer["choices"][0]["finish_reason"] == "stop" and answer["usage"]["completion_tokens"] == first + 1
    chat = {"messages": user("Say hello."), "temperature": 0, "max_tokens": 60}
    ended = ask(server, CHAT, chat)
    assert ended["choices"][0]["finish_reason"] == "stop" and ended["usage"]["completion_tokens"] < 60, ended
    forced = ask(server, CHAT, {**chat, "ignore_eos": True})
    assert forced["choices"][0]["finish_reason"] == "length" and forced["usage"]["completion_tokens"] == 60, forced
    assert chat_text(forced).startswith(chat_text(ended)), (forced, ended)
    many = list(range(100, 132))
    refused = server.post(CHAT, {**chat, "stop_token_ids": many})
    assert refused.status == 400 and refused.error()["param"] == "stop_token_ids", refused.body
    assert server.post(CHAT, {**chat, "stop_token_ids": many, "ignore_eos": True, "max_tokens": 1}).status == 200


def max_tokens_has_two_names():
    server = demo()
    for name in ("max_tokens", "max_completion_tokens"):
        for cnt in (1, 7):
            answer = ask(server, CHAT, {"messages": user("Tell me a story."), name: cnt, "temperature": 0})
            assert answer["usage"]["completion_tokens"] == cnt, (name, answer["usage"])
            assert answer["choices"][0]["finish_reason"] == "length", answer
    assert server.post(TEXT, {"prompt": PROMPT, "temperature": 0}).json()["usage"]["completion_tokens"] == 16


# -- log-probabilities -------------------------------------------------------------------------


def logprobs_in_both_shapes():
    server = demo()
    for top in (0, 1, 5, 20):
        choice = server.complete(PROMPT, 8, logprobs=top)["choices"][0]
        entry = choice["logprobs"]
        assert "".join(entry["tokens"]) == choice["text"] and len(entry["tokens"]) == 8, choice
        assert entry["text_offset"] == [len("".join(entry["tokens"][:i])) for i in range(8)], entry
        for token, logprob, tops in zip(entry["tokens"], entry["token_logprobs"], entry["top_logprobs"]):
            assert len(tops) == top and sum(map(math.exp, tops.values())) <= 1 + 1e-5, tops
            assert top == 0 or (max(tops, key=tops.get) == token and tops[token] == logprob), (token, tops)
            assert logprob <= 0
        if top > 1:
            assert all(list(t.values()) == sorted(t.values(), reverse=True) for t in entry["top_logprobs"])
    texts = {}
    for streamed in (False, True):
        body = {"messages": user("Name a colour."), "max_tokens": 8, "temperature": 0, "logprobs": True,
                "top_logprobs": 3}
        if streamed:
            events = [e["choices"][0] for e in server.stream(CHAT, body)]
            entries = [x for e in events if e["logprobs"] for x in e["logprobs"]["content"]]
            texts[streamed] = "".join(e["delta"].get("content", "") for e in events)
        else:
            answer = ask(server, CHAT, body)
            entries = answer["choices"][0]["logprobs"]["content"]
            texts[streamed] = chat_text(answer)
        assert b"".join(bytes(e["bytes"]) for e in entries).decode() == texts[streamed], entries
        for e in entries:
            assert [t["token"] for t in e["top_logprobs"]][0] == e["token"] and len(e["top_logprobs"]) == 3, e
            assert e["top_logprobs"][0]["logprob"] == e["logprob"], e
            assert sum(math.exp(t["logprob"]) for t in e["top_logprobs"]) <= 1 + 1e-5, e
    assert texts[False] == texts[True]
    plain = ask(server, CHAT, {"messages": user("Hi"), "max_tokens": 1})
    assert plain["choices"][0]["logprobs"] is None


def echoed_prompts_say_what_arithmetic_says():
    """Every prompt position against numpy in double precision, and against a request of its own."""
    server = tiny()
    gguf = tiny_reference.Gguf(tiny_path())
    rng = np.random.default_rng(5)
    ids = rng.integers(3, 512, 70).tolist()
    answer = server.complete(ids, 0, echo=True, logprobs=20)
    choice = answer["choices"][0]
    entry = choice["logprobs"]
    assert answer["usage"]["completion_tokens"] == 0 and answer["usage"]["prompt_tokens"] == 70, answer["usage"]
    assert choice["finish_reason"] == "length" and len(entry["tokens"]) == 70, choice
    assert entry["token_logprobs"][0] is None and entry["top_logprobs"][0] is None, entry
    worst = 0.0
    for i in range(1, 70):
        want = tiny_reference.last_logprobs(gguf, ids[:i])
        worst = max(worst, abs(want[ids[i]] - entry["token_logprobs"][i]))
        best = np.sort(want)[::-1]
        got = list(entry["top_logprobs"][i].values())
        worst = max(worst, float(np.abs(best[:len(got)] - got).max()) if len(got) == 20 else 0.0)
    assert worst < 0.01, worst
    for i in (1, 31, 32, 33, 64, 69):
        alone = server.complete(ids[:i], 1, logprobs=20)["choices"][0]["logprobs"]["top_logprobs"][0]
        assert alone == entry["top_logprobs"][i], (i, alone, entry["top_logprobs"][i])
    both = server.complete(ids, 5, echo=True, logprobs=1)["choices"][0]
    text = ask(server, "/detokenize", {"tokens": ids})["content"]
    after = server.complete(ids, 5)["choices"][0]["text"]
    assert both["text"] == text + after, (both["text"], text, after)
    assert both["logprobs"]["token_logprobs"][:70] == entry["token_logprobs"], "max_tokens changed the prompt's"
    events = list(server.stream(TEXT, {"prompt": ids, "max_tokens": 5, "temperature": 0, "echo": True, "logprobs": 1}))
    assert "".join(e["choices"][0]["text"] for e in events) == both["text"]
    streamed = [x for e in events if e["choices"][0]["logprobs"]
                for x in e["choices"][0]["logprobs"]["token_logprobs"]]
    assert streamed == both["logprobs"]["token_logprobs"], streamed
    return f"largest error {worst:.5f}"


# -- characters --------------------------------------------------------------------------------


def characters_arrive_whole():
    server = demo()
    prompt = "I love you " + "😍" * 8
    ids = ask(server, "/tokenize", {"content": prompt})["tokens"]
    pieces = ask(server, "/tokenize", {"content": prompt, "with_pieces": True})["tokens"]
    assert any(isinstance(p["piece"], list) for p in pieces), "no token holds a part of a character"
    assert [p["id"] for p in pieces] == ids
    assert ask(server, "/detokenize", {"tokens": ids})["content"] == prompt
    stream = server.stream(TEXT, {"prompt": prompt, "max_tokens": 48, "temperature": 0})
    parts = [e["choices"][0]["text"] for e in stream]
    whole = server.complete(prompt, 48, logprobs=0)["choices"][0]
    assert "".join(parts) == whole["text"], (parts, whole)
    assert any(ord(c) > 0xffff for c in whole["text"]), whole["text"]
    assert all("\ufffd" not in p for p in parts[:-2]), parts

    # Random bytes of the tiny model: the text is what Python makes of the tokens' bytes.
    model = tiny()
    for seed in range(4):
        body = {"messages": user("x"), "max_tokens": 300, "temperature": 1.5, "seed": seed, "logprobs": True,
                "ignore_eos": True}
        events = [e["choices"][0] for e in model.stream(CHAT, body)]
        sent = "".join(e["delta"].get("content", "") for e in events)
        entries = [x for e in events if e["logprobs"] for x in e["logprobs"]["content"]]
        control = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
        data = b"".join(bytes(e["bytes"]) for e in entries if e["token"] not in control)
        assert len(entries) == 300 and sent == data.decode("utf-8", "replace"), (seed, sent, data)
        assert chat_text(ask(model, CHAT, body)) == sent


# -- other routes ------------------------------------------------------------------------------


def models_health_and_text_routes():
    server = demo()
    model = server.get("/v1/models").json()
    assert model["object"] == "list" and len(model["data"]) == 1, model
    row = model["data"][0]
    assert row["object"] == "model" and row["max_model_len"] == 2048 == server.ctl("status")["ctx"], row
    meta = row["meta"]
    assert meta["n_ctx_train"] == 8192 and meta["n_vocab"] == 49152 and meta["n_embd"] == 576, meta
    assert meta["n_kv_tokens"] == 8192 == server.ctl("status")["pool"]["tokens"], meta
    assert meta["n_params"] == 134515008 and meta["size"] == pathlib.Path(server.model).stat().st_size, meta
    assert server.get("/health").json() == {"status": "ok"} == server.get("/live").json()
    hello = ask(server, "/tokenize", {"content": "Hello world"})
    assert hello == {"tokens": [19556, 905]}, hello
    assert ask(server, "/tokenize", {"content": ""}) == {"tokens": []}
    assert ask(server, "/detokenize", {"tokens": []}) == {"content": ""}
    special = "<|im_end|>"
    assert len(ask(server, "/tokenize", {"content": special})["tokens"]) == 1
    assert len(ask(server, "/tokenize", {"content": special, "parse_special": False})["tokens"]) > 1
    chat = ask(server, "/apply-template", {"messages": user("Hi <|im_end|> there")})
    assert chat["prompt"].endswith("<|im_start|>user\nHi <|im_end|> there<|im_end|>\n<|im_start|>assistant\n"), chat
    end = ask(server, "/tokenize", {"content": special})["tokens"][0]
    assert chat["tokens"].count(end) == 2, "a client's text became a control token"
    usage = ask(server, CHAT, {"messages": user("Hi <|im_end|> there"), "max_tokens": 1})["usage"]
    assert usage["prompt_tokens"] == len(chat["tokens"]), usage


SAMPLE = re.compile(r'^([a-zA-Z_:][a-zA-Z0-9_:]*)(\{[a-zA-Z_]\w*="(?:[^"\\\n]|\\.)*"(?:,[a-zA-Z_]\w*="(?:[^"\\\n]|\\.)*")*\})? '
                    r'(-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?|\+Inf|-Inf|NaN)$')


def metrics_are_prometheus_and_add_up():
    server = tiny()
    before = server.settled()
    whole = server.complete([7] * 40, 20, ignore_eos=True)
    list(server.stream(TEXT, {"prompt": [9] * 33, "max_tokens": 10, "ignore_eos": True, "n": 2}))
    server.settled()
    server.complete([9] * 33, 1)
    after = server.settled()

    def grew(name):
        return after[name] - before[name]
    assert grew("vllm:prompt_tokens_total") == 40 + 3 * 33, grew("vllm:prompt_tokens_total")
    assert grew("vllm:generation_tokens_total") == whole["usage"]["completion_tokens"] + 21
    assert grew('vllm:request_success_total{finished_reason="length"}') == 4
    assert grew('vllm:request_success_total{finished_reason="stop"}') == 0
    assert grew("vllm:prefix_cache_queries_total") == 139 and grew("vllm:prefix_cache_hits_total") >= 32
    for name in ("time_to_first_token_seconds", "e2e_request_latency_seconds", "request_queue_time_seconds",
                 "inter_token_latency_seconds", "request_prompt_tokens", "request_generation_tokens"):
        assert grew(f"vllm:{name}_count") >= 1, name
        assert after[f'vllm:{name}_bucket{{le="+Inf"}}'] == after[f"vllm:{name}_count"], name
    assert grew("vllm:request_generation_tokens_sum") == 41 and grew("vllm:request_prompt_tokens_sum") == 139
    assert 0 <= after["vllm:kv_cache_usage_perc"] <= 1
    text = server.get("/metrics").body.decode()
    kinds, seen = {}, set()
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert name not in kinds, f"{name} twice"
            kinds[name] = kind
            continue
        if line.startswith("# HELP "):
            continue
        match = SAMPLE.match(line)
        assert match, line
        base = re.sub(r"_(bucket|sum|count)$", "", match.group(1))
        kind = kinds.get(match.group(1)) or kinds.get(base)
        assert kind, f"no TYPE before {line}"
        assert (match.group(1), match.group(2)) not in seen, f"sample twice: {line}"
        seen.add((match.group(1), match.group(2)))
        assert 'model_name="' in line, line
    for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "prompt_tokens_total",
                 "generation_tokens_total", "request_success_total", "num_preemptions_total",
                 "prefix_cache_queries_total", "prefix_cache_hits_total", "time_to_first_token_seconds",
                 "inter_token_latency_seconds", "e2e_request_latency_seconds", "request_queue_time_seconds",
                 "request_prompt_tokens", "request_generation_tokens"):
        assert "vllm:" + name in kinds, name


def cached_tokens_are_the_ledgers():
    """The usage of an answer, and the metric, name the same hits, whatever egress saw in passing."""
    server = tiny()
    prompt = [11, 12, 13] * 50
    server.complete(prompt, 1)
    server.settled()
    for _ in range(20):
        before = server.metrics()["vllm:prefix_cache_hits_total"]
        usage = server.complete(prompt, 1)["usage"]
        hits = server.metrics()["vllm:prefix_cache_hits_total"] - before
        assert usage["prompt_tokens_details"]["cached_tokens"] == hits == 128, (usage, hits)


# -- HTTP --------------------------------------------------------------------------------------


class Wire:
    """A socket that says exactly what it is told to, and reads one answer at a time."""

    def __init__(self, server):
        self.sock = socket.create_connection((server.host, server.port), timeout=30)
        self.file = self.sock.makefile("rb")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.file.close()
        self.sock.close()

    def send(self, data):
        self.sock.sendall(data)

    def answer(self, bodyless=False):
        return harness.read_answer(self.file, bodyless)

    def ended(self):
        return self.file.read(1) == b""


def request(method, path, body=None, headers="", version="1.1"):
    data = b"" if body is None else json.dumps(body).encode()
    head = f"{method} {path} HTTP/{version}\r\nHost: x\r\n{headers}"
    if body is not None:
        head += f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n"
    return head.encode() + b"\r\n" + data


def connections_are_kept_and_pipelined():
    server = tiny()
    body = {"prompt": [5, 6, 7], "max_tokens": 3, "temperature": 0}
    want = server.complete([5, 6, 7], 3)["choices"]
    with Wire(server) as wire:
        for _ in range(5):
            wire.send(request("POST", TEXT, body))
            status, headers, data = wire.answer()
            assert status == 200 and json.loads(data)["choices"] == want and "connection" not in headers
        wire.send(request("POST", TEXT, body) + request("GET", "/health") + request("POST", TEXT, {**body, "stream": True}))
        first, second, third = wire.answer(), wire.answer(), wire.answer()
        assert json.loads(first[2])["choices"] == want, first
        assert json.loads(second[2]) == {"status": "ok"}, second
        assert third[2].rstrip().endswith(b"data: [DONE]"), third
        # A request in pieces of one byte, then two whose border lies inside a piece.
        for byte in request("GET", "/v1/models"):
            wire.send(bytes([byte]))
        assert wire.answer()[0] == 200
        both = request("POST", TEXT, body) + request("GET", "/live")
        wire.send(both[:40])
        wire.send(both[40:-10])
        assert json.loads(wire.answer()[2])["choices"] == want
        wire.send(both[-10:])
        assert wire.answer()[0] == 200
        # What is refused soundly keeps the connection.
        wire.send(request("GET", "/nothing"))
        assert wire.answer()[0] == 404
        wire.send(request("GET", "/health", headers="Connection: close\r\n"))
        status, headers, _ = wire.answer()
        assert status == 200 and headers["connection"] == "close" and wire.ended()
    with Wire(server) as wire:
        wire.send(request("POST", TEXT, {**body, "stream": True}, headers="Connection: close\r\n"))
        status, headers, data = wire.answer()
        assert headers["connection"] == "close" and data.rstrip().endswith(b"[DONE]") and wire.ended()


def bodies_with_continue_and_in_chunks():
    server = tiny()
    body = json.dumps({"prompt": [5, 6, 7], "max_tokens": 3, "temperature": 0}).encode()
    want = server.complete([5, 6, 7], 3)["choices"]
    head = f"POST {TEXT} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\nExpect: 100-continue\r\n\r\n".encode()
    with Wire(server) as wire:
        for _ in range(2):
            wire.send(head)
            assert wire.answer()[0] == 100
            wire.send(body)
            status, _, data = wire.answer()
            assert status == 200 and json.loads(data)["choices"] == want
        wire.send(head + body)  # did not wait: no interim answer
        assert wire.answer()[0] == 200
        wire.send(f"POST {TEXT} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
        for at in range(0, len(body), 11):
            piece = body[at:at + 11]
            wire.send(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
        wire.send(b"0\r\n\r\n")
        status, _, data = wire.answer()
        assert status == 200 and json.loads(data)["choices"] == want


def old_http_and_other_methods():
    server = tiny()
    body = {"prompt": [5, 6, 7], "max_tokens": 3, "temperature": 0}
    with Wire(server) as wire:
        wire.send(request("POST", TEXT, body, version="1.0"))
        status, headers, data = wire.answer()
        assert status == 200 and "transfer-encoding" not in headers and wire.ended()
        want = json.loads(data)["choices"][0]["text"]
    with Wire(server) as wire:
        wire.send(request("POST", TEXT, {**body, "stream": True}, version="1.0"))
        status, headers, data = wire.answer()
        assert status == 200 and "transfer-encoding" not in headers and headers["connection"] == "close"
        events = [json.loads(line[6:]) for line in data.splitlines() if line.startswith(b"data: {")]
        assert "".join(e["choices"][0]["text"] for e in events) == want and data.rstrip().endswith(b"[DONE]")
    with Wire(server) as wire:
        wire.send(request("HEAD", "/health"))
        status, headers, _ = wire.answer(bodyless=True)
        assert status == 405 and headers["allow"] == "GET" and headers["connection"] == "close", headers
    with Wire(server) as wire:
        for method, path, allow in (("OPTIONS", TEXT, "POST"), ("DELETE", "/health", "GET"), ("GET", CHAT, "POST")):
            wire.send(request(method, path))
            status, headers, data = wire.answer()
            assert status == 405 and headers["allow"] == allow, (method, status, headers)
            assert json.loads(data)["error"]["code"] == "method_not_allowed"


def a_last_answer_survives_a_client_that_still_sends():
    """The refusal of a body that is too large reaches a client that sends all of it before it looks."""
    server = tiny()
    size = 24 << 20
    with Wire(server) as wire:
        wire.send(f"POST {TEXT} HTTP/1.1\r\nHost: x\r\nContent-Length: {size}\r\n\r\n".encode())
        block = b"x" * 65536
        for _ in range(size // len(block)):
            wire.send(block)
        status, headers, data = wire.answer()
        assert status == 413 and headers["connection"] == "close", (status, data)
        assert json.loads(data)["error"]["code"] == "request_too_large", data


# -- clients that read slowly or leave ---------------------------------------------------------


def slow_readers_hold_no_pages():
    server = tiny()
    server.settled()
    body = {"prompt": [5] * 64, "max_tokens": 4000, "temperature": 0, "logprobs": 20, "ignore_eos": True, "stream": True}
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.settimeout(60)
    sock.connect((server.host, server.port))
    done = server.metrics()['vllm:request_success_total{finished_reason="length"}']
    sock.sendall(request("POST", TEXT, body))
    harness.wait_until("the answer is complete", lambda: server.metrics()[
        'vllm:request_success_total{finished_reason="length"}'] == done + 1, 60)
    assert server.settled()["bulkhead:pages_held"] == 0
    assert server.ctl("status")["requests"]["done"] == 1, "the answer was taken by a client that read nothing"
    _, _, data = harness.read_answer(sock.makefile("rb"))
    events = [json.loads(line[6:]) for line in data.splitlines() if line.startswith(b"data: {")]
    assert sum(len(e["choices"][0]["logprobs"]["tokens"]) for e in events if e["choices"][0]["logprobs"]) == 4000
    assert len(data) > 2_000_000 and data.rstrip().endswith(b"[DONE]")
    sock.close()
    harness.wait_until("slot free", lambda: server.ctl("status")["requests"]["done"] == 0)


def leaving_cancels_at_any_moment():
    server = tiny()
    server.settled()
    start = server.metrics()
    gone = 0
    for streamed in (True, False):
        for wait in (0, 0.001, 0.01, 0.05, 0.2):
            body = {"prompt": [5] * 2000, "max_tokens": 6000, "ignore_eos": True, "stream": streamed, "n": 2}
            with Wire(server) as wire:
                wire.send(request("POST", TEXT, body))
                time.sleep(wait)
            gone += 1
    for moment in range(1, 40, 6):  # in the middle of a stream: after so many bytes of it
        with Wire(server) as wire:
            wire.send(request("POST", TEXT, {"prompt": [5] * 40, "max_tokens": 6000, "ignore_eos": True, "stream": True}))
            wire.file.read(moment * 97)
    with Wire(server) as wire:  # half of a request
        wire.send(request("POST", TEXT, {"prompt": [5] * 40})[:-5])
    end = server.settled()
    cancelled = end["bulkhead:requests_cancelled_total"] - start["bulkhead:requests_cancelled_total"]
    assert cancelled >= 20, cancelled
    assert end['vllm:request_success_total{finished_reason="length"}'] == start[
        'vllm:request_success_total{finished_reason="length"}']
    status = harness.wait_until("all slots free", lambda: (s := server.ctl("status"))["requests"]["free"] == 128 and s)
    pages = status["pool"]["pages"]
    assert pages["held"] == pages["dirty"] == pages["quarantined"] == 0, pages
    harness.wait_until("connections are closed", lambda: server.metrics()["bulkhead:connections"] <= 1)
    assert server.violations() == 0 and server.complete([5, 6, 7], 3)["usage"]["completion_tokens"] == 3
    return f"{int(cancelled)} cancelled"


# -- keys --------------------------------------------------------------------------------------


def keys_stand_for_tenants():
    keys = folder / "keys"
    keys.write_text(f"# keys of the test\n{KEY_RED} red\n{KEY_BLUE} blue\n\n{KEY_RED_2} red\n")
    keys.chmod(0o600)
    with harness.Server(tiny_path(), "--pool-tokens", 16384, "--api-key-file", keys) as server:
        body = {"prompt": [21, 22] * 50, "max_tokens": 2, "temperature": 0}

        def bearer(key):
            return {"Authorization": f"Bearer {key}"}
        assert server.get("/health").status == 200 and server.get("/live").status == 200
        for headers in ({}, bearer("red-key-0003"), bearer(KEY_RED[:-1]), bearer(KEY_RED + "x"), bearer(""),
                        {"Authorization": KEY_RED}, {"Authorization": f"Basic {KEY_RED}"}):
            for method, path in (("POST", TEXT), ("POST", CHAT), ("POST", "/tokenize"), ("GET", "/v1/models"),
                                 ("GET", "/metrics")):
                answer = server.get(path, headers) if method == "GET" else server.post(path, body, headers)
                assert answer.status == 401, (headers, path, answer.status)
                assert answer.headers["www-authenticate"] == "Bearer" and answer.error()["code"] == "invalid_api_key"
        cached = {}
        for name, key in (("red", KEY_RED), ("red again", KEY_RED), ("red's other key", KEY_RED_2),
                          ("blue", KEY_BLUE), ("blue again", KEY_BLUE)):
            answer = server.post(TEXT, body, bearer(key))
            assert answer.status == 200, answer.body
            cached[name] = answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
            harness.wait_until("idle", lambda: server.ctl("status")["pool"]["pages"]["held"] == 0)
        assert cached == {"red": 0, "red again": 96, "red's other key": 96, "blue": 0, "blue again": 96}, cached
        assert server.get("/v1/models", bearer(KEY_BLUE)).status == 200
        assert KEY_RED not in server.log_text() and KEY_BLUE not in server.log_text()


def logs_hold_no_text():
    for server in running.values():
        log = server.log_text()
        assert "France" not in log and "hello" not in log.lower(), log


harness.main([
    chat_whole_and_streamed_are_one_answer, prompts_come_in_four_forms, choices_have_seeds_of_their_own,
    stop_strings_cut_exactly, stop_tokens_and_end_of_answer, max_tokens_has_two_names, logprobs_in_both_shapes,
    echoed_prompts_say_what_arithmetic_says, characters_arrive_whole, models_health_and_text_routes,
    metrics_are_prometheus_and_add_up, cached_tokens_are_the_ledgers, connections_are_kept_and_pipelined,
    bodies_with_continue_and_in_chunks, old_http_and_other_methods, a_last_answer_survives_a_client_that_still_sends,
    slow_readers_hold_no_pages, leaving_cancels_at_any_moment, keys_stand_for_tenants, logs_hold_no_text])
