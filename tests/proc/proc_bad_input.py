#!/usr/bin/python3
"""Hostile and mistaken input: bytes that are no HTTP, bodies that are no requests, files that are no
models, flags that make no sense. Each gets an error that names what is wrong; nobody else notices; and
nothing of a prompt stands in a log."""

import atexit
import json
import pathlib
import shutil
import socket
import struct
import subprocess
import tempfile
import threading

import harness
import tiny_reference

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
MARKER = "ZEBRAMARKER"

folder = pathlib.Path(tempfile.mkdtemp(prefix="bulkhead-bad-"))
running = {}


def _clean_up():
    for server in running.values():
        server.stop()
    shutil.rmtree(folder, ignore_errors=True)


atexit.register(_clean_up)

RAISING = ("{% if messages[0]['content'] == 'raise' %}{{ raise_exception('the first message must not be ' + "
           "messages[0]['content']) }}{% endif %}{% if messages[0]['content'] == 'loop' %}{% for i in range(99999) %}"
           "{% for j in range(99999) %}{% endfor %}{% endfor %}{% endif %}{% if messages[0]['content'] == 'attr' %}"
           "{{ ''.__class__.__mro__ }}{% endif %}"
           "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}")


def model():
    path = folder / "tiny.gguf"
    if not path.exists():
        harness.make_model(path, "--ctx", 1024, "--vocab", 512, "--template", RAISING)
    return path


def server():
    if "one" not in running:
        running["one"] = harness.Server(model(), "--pool-tokens", 4096)
    return running["one"]


class Bystander:
    """Streams, one after the other, while others misbehave; the bytes of each must be those of a quiet
    server."""

    BODY = {"prompt": [9, 8, 7], "max_tokens": 900, "temperature": 1.0, "seed": 77, "ignore_eos": True}

    quiet = None

    def __enter__(self):
        if Bystander.quiet is None:
            Bystander.quiet = server().stream(TEXT, self.BODY).text()
        self.over = False
        self.texts = []
        self.thread = threading.Thread(target=self._run)
        self.thread.start()
        return self

    def _run(self):
        while not self.over:
            try:
                stream = server().stream(TEXT, self.BODY)
                self.texts.append(stream.text() if stream.status == 200 else f"status {stream.status}")
                stream.close()
            except (AssertionError, OSError) as error:
                self.texts.append(repr(error))

    def __exit__(self, kind, *_):
        self.over = True
        self.thread.join()
        if kind is None:
            assert self.texts and set(self.texts) == {Bystander.quiet}, ("a running stream was disturbed",
                                                                         set(self.texts) - {Bystander.quiet})


def refused(answer, status, code=None, param=None):
    assert answer.status == status, (status, answer.status, answer.body[:400])
    error = answer.error()
    assert error["message"] and error["type"], error
    assert code is None or error["code"] == code, (code, error)
    assert param is None or error["param"] == param, (param, error)
    return error


# -- HTTP --------------------------------------------------------------------------------------

OK_BODY = b'{"prompt":[5],"max_tokens":1}'
SMUGGLING = b"GET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n"

# Bytes, and the status they must get. All of them end the connection.
HTTP_CASES = [
    (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),  # TLS
    (b"\x00\x00\x00\r\n\r\n", 400),
    (b"GET\r\n\r\n", 400),
    (b"GET /health\r\n\r\n", 400),
    (b"GET /health HTTP/3.0\r\nHost: x\r\n\r\n", 505),
    (b"GET /health HTTP/1.1\nHost: x\n\n", 400),
    (b"GET  /health HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    (b"GET /health HTTP/1.1\r\nHost : x\r\n\r\n", 400),
    (b"GET /health HTTP/1.1\r\n Host: x\r\n\r\n", 400),
    (b"GET /health HTTP/1.1\r\nHost: x\r\nA: b\r\n c\r\n\r\n", 400),
    (b"GET /health HTTP/1.1\r\nHost: x\r\nA: \x00\r\n\r\n", 400),
    (b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\nHost: x\r\n\r\n", 414),
    (b"GET /health HTTP/1.1\r\nHost: x\r\nA: " + b"a" * 20000 + b"\r\n\r\n", 431),
    (b"GET /health HTTP/1.1\r\nHost: x\r\n" + b"A: b\r\n" * 200 + b"\r\n", 431),
    (b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n" % TEXT.encode(), 400),
    (b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: 0x10\r\n\r\n" % TEXT.encode(), 400),
    (b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999999999999\r\n\r\n" % TEXT.encode(), 400),
    (b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: 999999999\r\n\r\n" % TEXT.encode(), 413),
    (b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n12345" % TEXT.encode(), 400),
    (b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: 29\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" % TEXT.encode()
     + SMUGGLING, 400),
    (b"POST %s HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip\r\n\r\n" % TEXT.encode(), 501),
    (b"POST %s HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n" % TEXT.encode() + SMUGGLING, 501),
    (b"POST %s HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n" % TEXT.encode(), 400),
    (b"POST %s HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{X\r\n" % TEXT.encode(), 400),
    (b"POST %s HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff1\r\n" % TEXT.encode(), 400),
    (b"POST %s HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\n\n" % TEXT.encode() + SMUGGLING, 400),
    (b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nContent-Encoding: gzip\r\n\r\n{}" % TEXT.encode(), 415),
    (b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nExpect: magic\r\n\r\n{}" % TEXT.encode(), 417),
]


def malformed_http_is_refused_and_ends_the_connection():
    with Bystander():
        for data, want in HTTP_CASES:
            with socket.create_connection((server().host, server().port), timeout=20) as sock:
                sock.sendall(data)
                file = sock.makefile("rb")
                answer = harness.read_answer(file)
                assert answer is not None, (data[:80], "no answer")
                status, headers, body = answer
                assert status == want or (want == 400 and status in (400, 413)), (data[:80], status, body)
                assert headers.get("connection") == "close", (data[:80], status, headers)
                assert json.loads(body)["error"]["code"], body
                assert file.read() == b"", ("something was answered after a refusal", data[:80])


def unknown_paths_and_methods_keep_the_connection():
    with socket.create_connection((server().host, server().port), timeout=20) as sock:
        file = sock.makefile("rb")
        for line, status, code in ((b"GET /v2/models", 404, "not_found"), (b"GET /v1/models/x", 404, "not_found"),
                                   (b"GET /../etc/passwd", 404, "not_found"), (b"PUT /health", 405, "method_not_allowed"),
                                   (b"POST /v1/completions", 411, "length_required"),
                                   (b"GET /health?x=1", 200, None)):
            sock.sendall(line + b" HTTP/1.1\r\nHost: x\r\n\r\n")
            got, _, body = harness.read_answer(file)
            assert got == status, (line, got, body)
            assert code is None or json.loads(body)["error"]["code"] == code, body


def half_requests_harm_nobody():
    """Connections that stop in the middle, many at once; then the server answers as before."""
    socks = []
    for i in range(60):
        sock = socket.create_connection((server().host, server().port), timeout=20)
        sock.sendall((b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: 29\r\n\r\n" % TEXT.encode() + OK_BODY)[:i + 5])
        socks.append(sock)
    assert server().get("/health").status == 200
    assert server().complete([5, 6], 2)["usage"]["completion_tokens"] == 2
    for sock in socks:
        sock.close()
    harness.wait_until("connections are closed", lambda: server().metrics()["bulkhead:connections"] <= 1)


# -- bodies ------------------------------------------------------------------------------------


def bodies_that_are_no_json():
    with Bystander():
        for data in (b"", b"{", b"nonsense", b'{"prompt":[5]} x', b'{"prompt":"\xff\xfe"}', b'{"prompt":"\xed\xa0\x80"}',
                     b"[" * 100000, b'{"a":' * 5000, b'{"prompt":[5],"prompt":[6]}', b"\xef\xbb\xbf{}", b"null", b"[]",
                     b'"text"', b"1"):
            error = refused(server().post(TEXT, data), 400)
            assert error["code"] in ("invalid_json", "invalid_value"), (data[:40], error)


WRONG = [
    ("prompt", None), ("prompt", 5), ("prompt", {}), ("prompt", []), ("prompt", [[]]), ("prompt", [5, "a"]),
    ("prompt", ["a", 5]), ("prompt", [[5], "a"]), ("prompt", [-1]), ("prompt", [512]), ("prompt", [1 << 40]),
    ("prompt", [1.5]), ("prompt", [True]), ("prompt", ""),
    ("max_tokens", -1), ("max_tokens", 0), ("max_tokens", "7"), ("max_tokens", 1.5), ("max_tokens", 1 << 60),
    ("max_tokens", True), ("temperature", -0.1), ("temperature", "hot"), ("temperature", 1e30), ("top_p", 0),
    ("top_p", 1.1), ("top_p", -1), ("top_k", -2), ("top_k", 1.5), ("min_p", 2), ("n", 0), ("n", 65), ("n", -3),
    ("n", 1 << 40), ("seed", "x"), ("seed", 1.5), ("stop", 5), ("stop", [5]), ("stop", ""), ("stop", ["a"] * 17),
    ("stop", ["x" * 2000]), ("stop_token_ids", [512]), ("stop_token_ids", 5), ("stop_token_ids", [-1]),
    ("logprobs", 21), ("logprobs", -1), ("logprobs", True), ("stream", "yes"), ("stream", 1), ("echo", 1),
    ("ignore_eos", "no"), ("stream_options", {"include_usage": True}), ("response_format", "json"),
]
UNSUPPORTED = [
    ("presence_penalty", 0.5), ("frequency_penalty", -1), ("repetition_penalty", 1.2), ("logit_bias", {"5": 1}),
    ("suffix", "x"), ("best_of", 3), ("response_format", {"type": "json_object"}), ("min_tokens", 3),
]


def fields_of_wrong_type_or_size():
    with Bystander():
        for field, value in WRONG:
            body = {"prompt": [5], "max_tokens": 1, field: value}
            error = refused(server().post(TEXT, body), 400)
            assert error["code"] == "invalid_value" and error["param"].startswith(field), (field, value, error)
        for field, value in UNSUPPORTED:
            error = refused(server().post(TEXT, {"prompt": [5], "max_tokens": 1, field: value}), 400)
            assert error["param"] == field and field in error["message"], (field, value, error)
        for number in (b"1e999", b"-1e999", b"NaN", b"123456789012345678901234567890", b"-0", b"00"):
            data = b'{"prompt":[5],"max_tokens":1,"temperature":' + number + b"}"
            assert server().post(TEXT, data).status == (200 if number == b"-0" else 400), number
        for messages in (None, [], {}, "hi", [5], [{}], [{"role": "user"}], [{"content": "x"}],
                         [{"role": 5, "content": "x"}], [{"role": "user", "content": 5}],
                         [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]):
            error = refused(server().post(CHAT, {"messages": messages}), 400)
            assert (error["param"] or "").startswith("messages"), (messages, error)
        error = refused(server().post(CHAT, {"messages": [{"role": "user", "content": "x"}], "top_logprobs": 3}), 400)
        assert error["param"] == "top_logprobs", error
        for body in ({"content": 5}, {}, {"content": None}):
            refused(server().post("/tokenize", body), 400, "invalid_value", "content")
        for body in ({"tokens": "x"}, {}, {"tokens": [512]}, {"tokens": [-1]}, {"tokens": [0.5]}):
            refused(server().post("/detokenize", body), 400, "invalid_value", "tokens")
        # What is unknown, or says what holds anyway, is taken.
        assert server().post(TEXT, {"prompt": [5], "max_tokens": 1, "user": "u", "presence_penalty": 0, "new_field": [1],
                                    "n": None, "stop": None}).status == 200


def unknown_models():
    error = refused(server().post(TEXT, {"model": "gpt-4", "prompt": [5]}), 404, "model_not_found", "model")
    assert "gpt-4" in error["message"] and "/v1/models" in error["message"], error
    name = server().get("/v1/models").json()["data"][0]["id"]
    assert server().post(TEXT, {"model": name, "prompt": [5], "max_tokens": 1}).status == 200


def prompts_that_are_too_long():
    before = server().settled()["bulkhead:pages_granted_total"]
    for prompt, cnt, max_tokens in (([5] * 1024, 1024, None), ([5] * 1025, 1025, 1), ([5] * 50000, 50000, 1),
                                    ([5] * 1000, 1000, 25), ([5], 1, 1024), ([5] * 1024, 1024, 1),
                                    ("q z " * 5000, 20000, 1)):
        for path in (TEXT, CHAT):
            if path == CHAT and not isinstance(prompt, str):
                continue
            body = {"prompt": prompt} if path == TEXT else {"messages": [{"role": "user", "content": prompt}]}
            if max_tokens is not None:
                body["max_tokens"] = max_tokens
            for streamed in (False, True):
                error = refused(server().post(path, {**body, "stream": streamed}), 400, "context_length_exceeded",
                                "prompt" if path == TEXT else "messages")
                assert "maximum context length is 1024 tokens" in error["message"], error
                assert error["n_ctx"] == 1024, error
                assert error["n_prompt_tokens"] >= cnt if isinstance(prompt, str) else error["n_prompt_tokens"] == cnt, (
                    cnt, error)
    error = refused(server().post(TEXT, {"prompt": [[5] * 1000] * 6, "max_tokens": 1}), 400, "invalid_value", "prompt")
    assert "together" in error["message"], error
    assert server().metrics()["bulkhead:pages_granted_total"] == before, "a refused prompt was granted pages"
    assert server().complete([5] * 1000, 24, ignore_eos=True)["usage"]["completion_tokens"] == 24


def the_longest_bodies_cost_nobody_his_server():
    pids = server().pids()
    body = {"prompt": "ab" * (15 << 19), "max_tokens": 1}
    error = refused(server().post(TEXT, body), 400, "context_length_exceeded", "prompt")
    assert error["n_prompt_tokens"] > error["n_ctx"], error
    error = refused(server().post("/tokenize", {"content": "|" * (15 << 20)}), 400, "context_length_exceeded")
    assert error["n_prompt_tokens"] > 1 << 20, error
    assert server().pids() == pids, "a process died"


def prompts_that_fill_the_room_leave_none():
    """A model that puts a token before each prompt: the first prompt takes all the room there is for tokens
    (4 contexts and 1024), so the next has none, not even for that token."""
    path = _patched("bos", lambda d: _patch_key(d, "tokenizer.ggml.add_bos_token", "<B", 1))
    with harness.Server(path) as small:
        pids = small.pids()
        for first in range(5116, 5122):
            refused(small.post(TEXT, {"prompt": ["!" * first, "?" * 250000], "max_tokens": 1}), 400)
        assert small.complete("!!!", 1)["usage"]["prompt_tokens"] == 4
        assert small.pids() == pids, "a process died"


def bodies_are_not_read_for_strangers():
    keys = folder / "two.keys"
    keys.write_text("a-key-long-enough one\n")
    with harness.Server(model(), "--api-key-file", keys, key="a-key-long-enough") as guarded:
        head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 9000000\r\n"
        answer = guarded.raw(head + b"Authorization: Bearer wrong-key-wrong\r\n\r\n", timeout=5)
        assert answer.startswith(b"HTTP/1.1 401 ") and b"invalid_api_key" in answer, answer
        answer = guarded.raw(head + b"Authorization: Bearer a-key-long-enough\r\n\r\n", timeout=1)
        assert answer == b"", "a body was promised by a friend, and not waited for"


def templates_that_fail():
    with Bystander():
        def ask(content):
            return server().post(CHAT, {"messages": [{"role": "user", "content": content}], "max_tokens": 1})
        error = refused(ask("raise"), 400, "invalid_value", "messages")
        assert "the first message must not be raise" in error["message"], error
        refused(ask("loop"), 400, "invalid_value", "messages")
        assert b"class" not in ask("attr").body.replace(b"__class__", b""), "the sandbox was left"
        assert ask("fine").status == 200
        refused(server().post("/apply-template", {"messages": [{"role": "user", "content": "raise"}]}), 400)
    for text, hint in (("", "no usable chat template"), ("{% for %}", "no usable chat template")):
        path = folder / "template.gguf"
        harness.make_model(path, "--ctx", 256, "--template", text)
        with harness.Server(path, "--pool-tokens", 512) as other:
            error = refused(other.post(CHAT, {"messages": [{"role": "user", "content": "x"}]}), 400)
            assert hint in error["message"] and "/v1/completions" in error["message"], error
            assert other.complete([5], 1)["usage"]["completion_tokens"] == 1
            assert other.pid("tokenizer") and other.ctl("status")["fences"] == 0


def more_requests_than_places():
    """Slots run out: a 503 that says when to come back, and those who were in are served."""
    answers = []
    with Bystander():
        for _ in range(3):
            answers.append(server().stream(TEXT, {"prompt": [5], "max_tokens": 400, "n": 60, "ignore_eos": True}))
        statuses = sorted(a.status for a in answers)
        assert statuses[0] == 200 and statuses[-1] in (429, 503), statuses
        late = [a for a in answers if a.status != 200][0]
        assert int(late.response.headers["Retry-After"]) >= 1, late.response.headers
        for a in answers:
            a.close()
    server().settled()
    server().post(TEXT, {"prompt": [5], "max_tokens": 1})


def logs_hold_no_prompts():
    for path, body in ((TEXT, {"prompt": MARKER, "max_tokens": 2}), (TEXT, {"prompt": MARKER, "max_tokens": -2}),
                       (TEXT, {"prompt": MARKER * 2000}), (CHAT, {"messages": [{"role": MARKER, "content": MARKER}]}),
                       (CHAT, {"messages": [{"role": "user", "content": MARKER}], "max_tokens": 2, "stream": True}),
                       (TEXT, {"model": MARKER, "prompt": "x"}), ("/tokenize", {"content": MARKER}),
                       ("/" + MARKER, {"x": MARKER})):
        server().post(path, body)
    server().post(TEXT, '{"prompt":"' + MARKER)
    server().raw(f"GET /{MARKER} {MARKER}\r\n\r\n".encode(), timeout=5)
    server().get("/v1/models", {"Authorization": f"Bearer {MARKER}"})
    server().settled()
    for key, one in running.items():
        assert MARKER.lower() not in one.log_text().lower(), key
    assert server().ctl("status")["fences"] == 0, "a role died of bad input"
    assert server().violations() == 0


# -- starting ----------------------------------------------------------------------------------


def start(*args, timeout=60):
    run = subprocess.run([harness.need("BH_BULKHEAD"), "serve", *map(str, args)], capture_output=True, text=True,
                         timeout=timeout)
    return run.returncode, run.stdout + run.stderr


def must_refuse(args, status, *facts):
    got, text = start(*args)
    assert got == status, (args, got, text)
    for fact in facts:
        assert str(fact) in text, (args, fact, text)


def flags_that_make_no_sense():
    here = ["--model", model(), "--control", folder / "c.sock"]
    must_refuse([], 2, "--model")
    must_refuse([*here, "--nonsense", "1"], 2, "--nonsense", "--help")
    must_refuse([*here, "nonsense"], 2, "nonsense")
    must_refuse([*here, "--port"], 2, "--port", "value")
    for flag, value in (("--port", "65536"), ("--port", "-1"), ("--port", "80x"), ("--ctx", "1"), ("--ctx", "abc"),
                        ("--threads", "65"), ("--chunk", "3"), ("--pool-tokens", "1e5"), ("--deadline", "99999999")):
        must_refuse([*here, flag, value], 2, flag, value)
    must_refuse([*here, "--port", "0", "--port", "0"], 2, "--port", "twice")
    must_refuse([*here, "--ctx", "2048"], 2, "--ctx", 2048, 1024)
    must_refuse([*here, "--pool-tokens", "64"], 2, "pool0", 64, 1024, "--pool-tokens")
    must_refuse([*here, "--host", "no.such.host.invalid"], 2, "--host")
    must_refuse([*here, "--host", "203.0.113.7", "--port", "0"], 1, "203.0.113.7", "--host")


def places_that_cannot_be_used():
    must_refuse(["--model", folder / "missing.gguf"], 2, "missing.gguf", "No such file")
    must_refuse(["--model", folder], 2, str(folder))
    must_refuse(["--model", "/dev/zero"], 2, "/dev/zero", "not a regular file")
    here = ["--model", model(), "--port", "0"]
    must_refuse([*here, "--control", folder / "no" / "such" / "c.sock"], 1, "c.sock", "control")
    must_refuse([*here, "--control", "/" + "x" * 200], 2, "--control")
    (folder / "file").write_text("x")
    must_refuse([*here, "--control", folder / "file"], 2, "file", "--control")
    assert (folder / "file").read_text() == "x", "a file was replaced by a socket"
    must_refuse([*here, "--control", server().control], 2, "another server", "--control")
    must_refuse(["--model", model(), "--port", server().port, "--control", folder / "c.sock"], 1, server().port,
                "--port")
    for text, fact in (("short red\n", "line 1"), ("longenough-key\n", "line 1"), ("key-number-1 a b c\n", "line 1"),
                       ("key-number-1 red\nkey-number-1 blue\n", "line 2")):
        keys = folder / "keys"
        keys.write_text(text)
        keys.chmod(0o600)
        must_refuse([*here, "--control", folder / "c.sock", "--api-key-file", keys], 2, "--api-key-file", fact)
        assert "key-number-1" not in start(*here, "--control", folder / "c.sock", "--api-key-file", keys)[1]
    must_refuse([*here, "--control", folder / "c.sock", "--api-key-file", folder / "none"], 2, "none")
    assert server().get("/health").status == 200 and not (folder / "c.sock").exists()


def _patched(name, change):
    data = bytearray(model().read_bytes())
    change(data)
    path = folder / name
    path.write_bytes(data)
    return path


def _patch_key(data, key, form, value):
    at = data.index(struct.pack("<Q", len(key)) + key.encode()) + 8 + len(key) + 4
    struct.pack_into(form, data, at, value)


def _patch_divisor(data):
    """A file with rotation divisors, one of them 0."""
    path = harness.make_model(folder / "divisors.gguf", "--rope-freqs", "--type", "f32")
    gguf = tiny_reference.Gguf(path)
    gguf.tensors["rope_freqs.weight"].reshape(-1)[0] = 0.0
    data[:] = gguf.data.tobytes()


def model_files_that_lie():
    size = model().stat().st_size
    cases = [
        ("empty", lambda d: d.clear(), "empty"),
        ("magic", lambda d: d.__setitem__(slice(0, 4), b"GGML"), "magic"),
        ("version", lambda d: struct.pack_into("<I", d, 4, 99), "version"),
        ("tensors", lambda d: struct.pack_into("<Q", d, 8, 1 << 60), "tensor"),
        ("keys", lambda d: struct.pack_into("<Q", d, 16, 1 << 60), ""),
        ("cut_header", lambda d: d.__delitem__(slice(2000, None)), ""),
        ("cut_data", lambda d: d.__delitem__(slice(size - 4096, None)), ""),
        ("layers", lambda d: _patch_key(d, "llama.block_count", "<I", 3), "blk.2"),
        ("layers_0", lambda d: _patch_key(d, "llama.block_count", "<I", 0), "llama.block_count"),
        ("width", lambda d: _patch_key(d, "llama.embedding_length", "<I", 65), ""),
        ("heads", lambda d: _patch_key(d, "llama.attention.head_count", "<I", 3), ""),
        ("heads_0", lambda d: _patch_key(d, "llama.attention.head_count", "<I", 0), "llama.attention.head_count"),
        ("kv_heads", lambda d: _patch_key(d, "llama.attention.head_count_kv", "<I", 0xffffffff), ""),
        ("ffn", lambda d: _patch_key(d, "llama.feed_forward_length", "<I", 1 << 30), ""),
        ("ctx_0", lambda d: _patch_key(d, "llama.context_length", "<I", 0), "llama.context_length"),
        ("eps", lambda d: _patch_key(d, "llama.attention.layer_norm_rms_epsilon", "<f", float("nan")), "epsilon"),
        ("divisor", lambda d: _patch_divisor(d), "rope_freqs.weight"),
        ("align", lambda d: _patch_key(d, "general.alignment", "<I", 3), "general.alignment"),
    ]
    for name, change, fact in cases:
        path = _patched(name, change)
        must_refuse(["--model", path, "--port", "0", "--control", folder / "c.sock"], 2, path, fact)
    # A vocabulary that contradicts itself is found by the roles that read it: the engine stops.
    path = _patched("eos", lambda d: _patch_key(d, "tokenizer.ggml.eos_token_id", "<I", 70000))
    got, text = start("--model", path, "--port", "0", "--control", folder / "c.sock")
    assert got != 0 and "eos_token_id" in text, (got, text)
    assert tiny_reference.Gguf(model()).meta["llama.context_length"] == 1024


harness.main([
    malformed_http_is_refused_and_ends_the_connection, unknown_paths_and_methods_keep_the_connection,
    half_requests_harm_nobody, bodies_that_are_no_json, fields_of_wrong_type_or_size, unknown_models,
    prompts_that_are_too_long, the_longest_bodies_cost_nobody_his_server, prompts_that_fill_the_room_leave_none,
    bodies_are_not_read_for_strangers, templates_that_fail, more_requests_than_places, flags_that_make_no_sense,
    places_that_cannot_be_used, model_files_that_lie, logs_hold_no_prompts])
