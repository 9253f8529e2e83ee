#!/usr/bin/python3
"""The incident, replayed: a model that advertises 1,048,576 tokens over a pool of 681,280.

The engine of the incident rejected an over-long prompt inside prefill, handed a stub over as "done",
and decode answered from pages that nobody had written for it. Here: a limit that the pool cannot hold
does not start; a prompt above the limit is refused with both numbers before any page is granted; a
prompt below it gets the answer that arithmetic says, with every token of it in view."""

import atexit
import pathlib
import shutil
import subprocess
import tempfile

import numpy as np

import harness
import tiny_reference

MODEL_CTX = 1048576
POOL = 681280
PAGE = 32
TOLERANCE = 0.02  # of a log-probability: float32 engine and float16 cache against double precision

folder = pathlib.Path(tempfile.mkdtemp(prefix="bulkhead-incident-"))
atexit.register(shutil.rmtree, folder, ignore_errors=True)
model = folder / "tiny-1m.gguf"
state = {}


def _model():
    """One small layer; keys with large scores, so that one token in 680,000 can decide the answer,
    and hardly any rotation, so that single precision angles do not."""
    if "gguf" not in state:
        harness.make_model(model, "--layers", 1, "--d-model", 32, "--heads", 2, "--kv-heads", 1, "--head-dim", 16,
                           "--ffn", 64, "--vocab", 512, "--ctx", MODEL_CTX, "--type", "f32", "--rope-freqs",
                           "--seed", 7)
        gguf = tiny_reference.Gguf(model)
        gguf.tensors["rope_freqs.weight"][...] = 1e7
        gguf.tensors["blk.0.attn_norm.weight"][...] *= 3.0
        gguf.save(model)
        state["gguf"] = tiny_reference.Gguf(model)
    return str(model)


def _serve(*args):
    run = subprocess.run([harness.need("BH_BULKHEAD"), "serve", "--model", _model(), "--port", "0",
                          "--control", str(folder / "refused.sock"), *map(str, args)],
                         capture_output=True, text=True, timeout=60)
    return run.returncode, run.stdout + run.stderr


def context_beyond_pool_refuses_to_start():
    status, text = _serve("--ctx", MODEL_CTX, "--pool-tokens", POOL)
    assert status == 2, (status, text)
    for fact in ("pool0", str(MODEL_CTX), str(POOL), "MiB", "--pool-tokens"):
        assert fact in text, (fact, text)


def model_context_beyond_pool_refuses_to_start():
    status, text = _serve("--pool-tokens", POOL)
    assert status == 2, (status, text)
    assert str(MODEL_CTX) in text and str(POOL) in text, text


def _prompt(length, needle_at, needle):
    ids = np.full(length, 40, dtype=np.int64)
    ids[1::2] = 41
    ids[needle_at] = needle
    return ids


def _needle():
    """The token whose key the last query likes best."""
    gguf = state["gguf"]
    t = {k: v.astype(np.float64) for k, v in gguf.tensors.items()}
    x = t["token_embd.weight"]
    x = x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * t["blk.0.attn_norm.weight"]
    k = x @ t["blk.0.attn_k.weight"].T
    q = (x @ t["blk.0.attn_q.weight"].T).reshape(-1, 2, 16)
    return q, k


def prompts_around_the_limit():
    with harness.Server(_model(), "--ctx", POOL, "--pool-tokens", POOL) as server:
        models = server.get("/v1/models").json()["data"][0]
        assert models["max_model_len"] == POOL, models
        limit = POOL - 1  # the longest prompt that leaves room for one token
        q, k = _needle()
        notes = []
        for length, where in ((limit, 5), (limit - 1, limit // 2), (limit, limit - 40), (1000, 3)):
            last = 40 if (length - 1) % 2 == 0 else 41
            needle = int(np.argmax(k[64:] @ q[last][0])) + 64
            ids = _prompt(length, where, needle)
            want = tiny_reference.last_logprobs(state["gguf"], ids)
            without = tiny_reference.last_logprobs(state["gguf"], _prompt(length, where, 40 + where % 2))
            moved = float(np.abs(want - without).max())
            assert moved > 10 * TOLERANCE, ("the needle decides nothing", moved)
            for streamed in (False, True):
                body = {"prompt": ids.tolist(), "max_tokens": 1, "temperature": 0, "logprobs": 20}
                if streamed:
                    events = list(server.stream("/v1/completions", {**body, "stream_options": {"include_usage": True}}))
                    usage = events[-1]["usage"]
                    top = [e["choices"][0]["logprobs"]["top_logprobs"] for e in events
                           if e["choices"] and e["choices"][0].get("logprobs")][0][0]
                else:
                    answer = server.complete(ids.tolist(), 1, logprobs=20)
                    usage = answer["usage"]
                    top = answer["choices"][0]["logprobs"]["top_logprobs"][0]
                assert usage["prompt_tokens"] == length, usage
                got = np.array(sorted(top.values(), reverse=True))
                best = np.sort(want)[::-1][:len(got)]
                error = float(np.abs(got - best).max())
                assert error < TOLERANCE, (length, where, streamed, error)
                notes.append(error)
        server.settled()
        before = server.metrics()["bulkhead:pages_granted_total"]
        for length in (POOL, POOL + 1, POOL + PAGE, POOL * 3 // 2):
            for streamed in (False, True):
                answer = server.post("/v1/completions", {"prompt": _prompt(length, 5, 50).tolist(), "max_tokens": 1,
                                                         "stream": streamed})
                assert answer.status == 400, (length, answer.status, answer.body[:300])
                error = answer.error()
                assert error["code"] == "context_length_exceeded", error
                assert f"maximum context length is {POOL} tokens" in error["message"], error
                assert error["n_prompt_tokens"] == length and error["n_ctx"] == POOL, error
        after = server.metrics()
        assert after["bulkhead:pages_granted_total"] == before, "a refused prompt was granted pages"
        assert server.violations() == 0
        return f"largest error of a log-probability {max(notes):.4f}, allowed {TOLERANCE}"


harness.main([context_beyond_pool_refuses_to_start, model_context_beyond_pool_refuses_to_start,
              prompts_around_the_limit])
