#!/usr/bin/python3
"""The unmodified openai client against a real server with the demo model: what its users call, what they
get, and which of its exceptions they see. tools/check puts the client into .venv; without it, or without
the model, everything is skipped."""

import asyncio
import importlib.util
import json
import os
import pathlib
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
VENV = ROOT / ".venv" / "bin" / "python"
if importlib.util.find_spec("openai") is None and VENV.exists() and not sys.executable.startswith(str(VENV.parent)):
    os.execv(VENV, [str(VENV), *sys.argv])

sys.path.insert(0, str(ROOT / "tests" / "proc"))
import harness  # noqa: E402

if importlib.util.find_spec("openai") is None:
    print("1..0 # SKIP no openai client: tools/check puts it into .venv")
    sys.exit(0)
if not pathlib.Path(os.environ.get("BH_MODEL", "")).is_file():
    print("1..0 # SKIP no demo model: tools/check and tools/demo put it into models/")
    sys.exit(0)
import openai  # noqa: E402

QUESTION = [{"role": "user", "content": "What is the capital of Japan?"}]
STORY = [{"role": "user", "content": "Tell me a long story about a lighthouse."}]
MODEL = "any"  # replaced by what /v1/models says
SERVER = None
CLIENT = None


def client_of(server, key="none"):
    """No retries: a test wants to see each error."""
    return openai.OpenAI(base_url=f"http://{server.host}:{server.port}/v1", api_key=key, max_retries=0, timeout=120)


def chat(messages=None, **more):
    return CLIENT.chat.completions.create(
        **{"model": MODEL, "messages": messages or QUESTION, "max_tokens": 24, "temperature": 0, **more})


def refused(kind, call, **fields):
    """The exception of that class that `call` raises; its fields are compared."""
    try:
        call()
    except kind as error:
        for name, value in fields.items():
            assert getattr(error, name) == value, (name, getattr(error, name), value, str(error))
        return error
    raise AssertionError(f"no {kind.__name__}")


def test_models():
    models = CLIENT.models.list().data
    assert [model.id for model in models] == [MODEL], models
    assert models[0].object == "model" and models[0].max_model_len == int(SERVER.fields["ctx"])


def test_chat():
    answer = chat()
    choice = answer.choices[0]
    assert answer.object == "chat.completion" and answer.model == MODEL, answer
    assert choice.message.role == "assistant" and "Tokyo" in choice.message.content, choice
    assert choice.finish_reason == "stop", choice
    # The oracle for the count of prompt tokens: the same conversation, rendered and counted elsewhere.
    tokens = SERVER.post("/apply-template", {"messages": QUESTION}).json()["tokens"]
    usage = answer.usage
    assert usage.prompt_tokens == len(tokens), (usage, tokens)
    assert usage.completion_tokens > 1 and usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    return repr(choice.message.content)


def test_chat_streamed():
    whole = chat()
    chunks = list(chat(stream=True, stream_options={"include_usage": True}))
    assert all(chunk.object == "chat.completion.chunk" for chunk in chunks)
    assert len({chunk.id for chunk in chunks}) == 1, "one answer has one id"
    assert chunks[0].choices[0].delta.role == "assistant", chunks[0]
    text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    assert text == whole.choices[0].message.content, (text, whole)
    reasons = [choice.finish_reason for chunk in chunks for choice in chunk.choices if choice.finish_reason]
    assert reasons == ["stop"], reasons
    assert chunks[-1].choices == [] and all(chunk.usage is None for chunk in chunks[:-1])
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert chunks[-1].usage.total_tokens == whole.usage.total_tokens


def test_stream_without_usage():
    assert all(chunk.usage is None and chunk.choices for chunk in chat(stream=True))


def test_completions():
    ask = {"model": MODEL, "prompt": "One, two, three, four,", "max_tokens": 8, "temperature": 0}
    whole = CLIENT.completions.create(**ask)
    assert whole.object == "text_completion" and "five" in whole.choices[0].text, whole
    assert whole.choices[0].finish_reason == "length" and whole.usage.completion_tokens == 8
    streamed = "".join(chunk.choices[0].text for chunk in CLIENT.completions.create(**ask, stream=True))
    assert streamed == whole.choices[0].text, (streamed, whole)
    echoed = CLIENT.completions.create(**ask, echo=True)
    assert echoed.choices[0].text == ask["prompt"] + whole.choices[0].text, echoed


def test_completions_batch():
    prompts = ["The sun is", "Water is", "One, two,"]
    batch = CLIENT.completions.create(model=MODEL, prompt=prompts, max_tokens=6, temperature=0)
    assert [choice.index for choice in batch.choices] == [0, 1, 2]
    for choice, prompt in zip(batch.choices, prompts):
        alone = CLIENT.completions.create(model=MODEL, prompt=prompt, max_tokens=6, temperature=0)
        assert choice.text == alone.choices[0].text, (prompt, choice, alone)


def test_token_ids_as_prompt():
    text = "One, two, three, four,"
    ids = SERVER.post("/tokenize", {"content": text}).json()["tokens"]
    ask = {"model": MODEL, "max_tokens": 6, "temperature": 0}
    by_text, by_ids = (CLIENT.completions.create(prompt=prompt, **ask) for prompt in (text, ids))
    assert by_ids.choices[0].text == by_text.choices[0].text
    assert by_ids.usage.prompt_tokens == len(ids)


def test_chat_logprobs():
    answer = chat(logprobs=True, top_logprobs=3)
    tokens = answer.choices[0].logprobs.content
    # The end token is no text; what is left spells the answer.
    assert b"".join(bytes(token.bytes) for token in tokens).decode().startswith(answer.choices[0].message.content)
    for token in tokens:
        tops = [top.logprob for top in token.top_logprobs]
        assert len(tops) == 3 and tops == sorted(tops, reverse=True), token
        assert token.token == token.top_logprobs[0].token and token.logprob == tops[0] <= 0, "greedy takes the best"


def test_completions_logprobs():
    ask = {"model": MODEL, "prompt": "The sky is", "max_tokens": 5, "temperature": 0, "logprobs": 2}
    choice = CLIENT.completions.create(**ask).choices[0]
    probs = choice.logprobs
    assert len(probs.tokens) == len(probs.token_logprobs) == len(probs.top_logprobs) == len(probs.text_offset) == 5
    assert "".join(probs.tokens) == choice.text and all(len(top) == 2 for top in probs.top_logprobs)
    whole = CLIENT.completions.create(**ask, echo=True).choices[0].logprobs
    assert whole.token_logprobs[0] is None and whole.tokens[-5:] == probs.tokens
    assert whole.token_logprobs[-5:] == probs.token_logprobs, "a prompt changes no logits of its answer"


def test_stop():
    free = chat(STORY, max_tokens=60).choices[0].message.content
    word = free.split()[12]
    for stop in (word, ["no such words", word]):
        choice = chat(STORY, max_tokens=60, stop=stop).choices[0]
        assert choice.message.content == free[:free.index(word)], (choice, free)
        assert choice.finish_reason == "stop"
    streamed = "".join(chunk.choices[0].delta.content or "" for chunk in chat(STORY, max_tokens=60, stop=word, stream=True))
    assert streamed == free[:free.index(word)], (streamed, free)
    return f"at {word!r}"


def test_max_tokens():
    for limit in (1, 7):
        for name in ("max_tokens", "max_completion_tokens"):
            answer = CLIENT.chat.completions.create(model=MODEL, messages=STORY, temperature=0, **{name: limit})
            assert answer.usage.completion_tokens == limit and answer.choices[0].finish_reason == "length", answer


def test_seed():
    def draw(**more):
        return chat(STORY, temperature=1.2, max_tokens=16, **more).choices[0].message.content
    first = draw(seed=7)
    assert draw(seed=7) == first
    assert draw(seed=8) != first
    assert len({draw() for _ in range(3)}) > 1, "without a seed answers differ"


def test_n():
    ask = {"temperature": 1.2, "max_tokens": 12, "seed": 100}
    three = chat(STORY, n=3, **ask)
    assert [choice.index for choice in three.choices] == [0, 1, 2]
    for choice in three.choices:
        alone = chat(STORY, **{**ask, "seed": 100 + choice.index}).choices[0]
        assert choice.message.content == alone.message.content, (choice, alone)
    assert three.usage.completion_tokens == 36, three.usage


def test_n_streamed():
    texts = {0: "", 1: ""}
    for chunk in chat(STORY, n=2, temperature=1.2, seed=5, max_tokens=12, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
    whole = chat(STORY, n=2, temperature=1.2, seed=5, max_tokens=12)
    assert texts == {choice.index: choice.message.content for choice in whole.choices}


def test_too_long():
    ctx = int(SERVER.fields["ctx"])
    error = refused(openai.BadRequestError, lambda: chat([{"role": "user", "content": "word " * (ctx + 1)}]),
                    status_code=400, code="context_length_exceeded")
    assert f"maximum context length is {ctx} tokens" in error.message, error.message
    refused(openai.BadRequestError, lambda: chat(max_tokens=ctx), code="context_length_exceeded")
    assert chat().choices[0].finish_reason == "stop", "the next request is served"


def test_wrong_fields():
    refused(openai.BadRequestError, lambda: chat(temperature=-1), param="temperature", code="invalid_value",
            type="invalid_request_error")
    refused(openai.BadRequestError, lambda: chat(max_tokens=0), param="max_tokens", code="invalid_value")
    refused(openai.BadRequestError, lambda: chat(n=65), param="n", code="invalid_value")
    refused(openai.BadRequestError, lambda: chat(presence_penalty=1.0), param="presence_penalty",
            code="unsupported_parameter")
    refused(openai.BadRequestError, lambda: chat(stream=True, temperature="hot"), param="temperature")
    refused(openai.BadRequestError, lambda: chat(extra_body={"messages": "hello"}), param="messages")


def test_not_found():
    refused(openai.NotFoundError, lambda: chat(model="gpt-none"), code="model_not_found", status_code=404)
    refused(openai.NotFoundError, lambda: CLIENT.embeddings.create(model=MODEL, input="x"), code="not_found")


def test_keys():
    with tempfile.NamedTemporaryFile("w", suffix=".keys") as keys:
        keys.write("sk-alice-key alice\nsk-bob-key bob\n")
        keys.flush()
        with harness.Server(SERVER.model, "--api-key-file", keys.name) as server:
            for key in ("sk-alice-key", "sk-bob-key"):
                answer = client_of(server, key).chat.completions.create(
                    model=MODEL, messages=QUESTION, max_tokens=4, temperature=0)
                assert answer.choices[0].message.content
            for key in ("sk-eve-key", "sk-alice-ke", "sk-alice-key2"):
                error = refused(openai.AuthenticationError, client_of(server, key).models.list,
                                code="invalid_api_key", status_code=401)
                assert key not in error.message, "the key is not repeated"


def test_closed_stream_is_cancelled():
    before = SERVER.metrics()["bulkhead:requests_cancelled_total"]
    stream = chat(STORY, max_tokens=2000, stream=True, extra_body={"ignore_eos": True})
    for _ in range(3):
        next(stream)
    stream.close()
    after = SERVER.settled()
    assert after["bulkhead:requests_cancelled_total"] == before + 1, (before, after)
    assert after["bulkhead:pages_held"] == 0


def test_many_at_once():
    """The same bytes in a crowd as alone."""
    questions = [[{"role": "user", "content": f"What is {n} plus {n}?"}] for n in range(1, 9)]
    alone = [chat(question).choices[0].message.content for question in questions]

    async def crowd():
        async with openai.AsyncOpenAI(base_url=str(CLIENT.base_url), api_key="none", max_retries=0) as client:
            calls = [client.chat.completions.create(model=MODEL, messages=question, max_tokens=24, temperature=0)
                     for question in questions]
            return [answer.choices[0].message.content for answer in await asyncio.gather(*calls)]
    together = asyncio.run(crowd())
    assert together == alone, list(zip(alone, together))


def test_raw_response():
    """Headers as the client's users see them."""
    raw = CLIENT.chat.completions.with_raw_response.create(model=MODEL, messages=QUESTION, max_tokens=2)
    assert raw.headers["content-type"] == "application/json" and json.loads(raw.text)["object"] == "chat.completion"


def test_no_violations():
    assert SERVER.violations() == 0
    assert SERVER.settled()["bulkhead:pages_written_total"] > 0


def run():
    global SERVER, CLIENT, MODEL
    SERVER = harness.Server(os.environ["BH_MODEL"])
    CLIENT, MODEL = client_of(SERVER), SERVER.fields["model"]
    tests = [value for name, value in globals().items() if name.startswith("test_")]
    try:
        harness.main(tests)
    finally:
        SERVER.stop()


run()
