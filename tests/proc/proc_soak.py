#!/usr/bin/python3
"""Ten thousand requests of eight tenants at once, a quarter of them abandoned at some moment, over a
pool that holds a fraction of what is asked for. Every answer is compared, to the last printed digit
of its log-probabilities, with the one the same tenant got for the same prompt when nobody else was
there: one foreign or stale row of KV would move a digit. Afterwards everything is home again: pages,
slots, descriptors, memory, counters."""

import asyncio
import json
import random
import socket
import struct

import harness
import procfs

SEED = 20261201
REQUESTS = 10000
WARM = 1000          # memory is compared with what it was after so many
TENANTS = 8
PROMPTS = 12         # of each tenant
LANES = 4            # connections of each tenant at a time
COMMON = range(260, 400)      # token ids that everybody uses
MARKS = 8                     # ids that only one tenant has in his prompts
POOL_TOKENS = 1280            # 32 lanes want about 3,500
RSS_SLACK_KIB = 8 * 1024
ANON_SLACK_KIB = 2 * 1024

folder = harness.temporary("bulkhead-soak-")


class Counting(harness.Server):
    """Counts its own GETs, to tell them from the requests of the soak."""

    gets = 0

    def get(self, path, headers=None):
        self.gets += 1
        return super().get(path, headers)


def _key(tenant):
    return f"key-of-tenant-{tenant}"


def _marks(tenant):
    return set(range(400 + tenant * MARKS, 400 + (tenant + 1) * MARKS))


def _bodies(rng, tenant):
    """Requests of a tenant: some share a beginning, so that the prefix cache has work."""
    marks = sorted(_marks(tenant))
    shared = [rng.choice(marks + list(COMMON)) for _ in range(80)]
    bodies = []
    for number in range(PROMPTS):
        length = rng.choice((1, 5, 31, 32, 33, 64, 90, 130, 170))
        begin = shared[:length * 2 // 3] if number % 3 == 0 else []
        ids = begin + [rng.choice(marks) if rng.random() < 0.5 else rng.choice(COMMON)
                       for _ in range(length - len(begin))]
        ids[-1] = marks[number % MARKS]
        body = {"prompt": ids, "max_tokens": rng.choice((1, 3, 8, 20, 70)), "logprobs": 2, "ignore_eos": True}
        if number == 0:  # admitted with one page, wants six: preemption has work too
            body.update(prompt=ids[-3:], max_tokens=170)
        body.update({"temperature": 0} if number % 2 else {"temperature": 0.9, "seed": number})
        bodies.append(body)
    return bodies


def _said(choices):
    """What is compared: text, tokens and log-probabilities as printed, and how it ended."""
    text, tokens, numbers, tops, finish = "", [], [], [], None
    for choice in choices:
        text += choice["text"]
        finish = choice["finish_reason"] or finish
        if choice["logprobs"]:
            tokens += choice["logprobs"]["tokens"]
            numbers += choice["logprobs"]["token_logprobs"]
            tops += choice["logprobs"]["top_logprobs"]
    return text, tokens, numbers, tops, finish


def _request(body, tenant, stream, close):
    data = json.dumps({**body, "stream": stream}).encode()
    head = (f"POST /v1/completions HTTP/1.1\r\nHost: soak\r\nContent-Type: application/json\r\n"
            f"Authorization: Bearer {_key(tenant)}\r\nContent-Length: {len(data)}\r\n"
            + ("Connection: close\r\n" if close else "") + "\r\n")
    return head.encode() + data


async def _answer(reader):
    """Status and the choices of one answer, whole or streamed."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
    status = int(head.split(" ", 2)[1])
    if "transfer-encoding: chunked" not in head:
        size = int(head.split("content-length: ")[1].split("\r\n")[0])
        answer = json.loads(await reader.readexactly(size), parse_float=str)
        return status, answer.get("choices", answer)
    data = b""
    while True:
        size = int(await reader.readuntil(b"\r\n"), 16)
        data += (await reader.readexactly(size + 2))[:-2]
        if size == 0:
            break
    events = [line[6:] for line in data.decode().split("\n") if line.startswith("data: ")]
    assert events[-1] == "[DONE]", events[-1]
    parsed = [json.loads(event, parse_float=str) for event in events[:-1]]
    assert not [e for e in parsed if "error" in e], parsed
    return status, [choice for event in parsed for choice in event["choices"]]


class Soak:
    """The load: lanes that take numbered requests until there are none left."""

    def __init__(self, server, bodies, expected, requests):
        self.server, self.bodies, self.expected = server, bodies, expected
        self.left = requests
        self.answered = self.abandoned = 0
        self.wrong = []

    async def connect(self):
        return await asyncio.open_connection(self.server.host, self.server.port)

    async def abandon(self, rng, data):
        """Send some or all of a request, take some or none of the answer, and go, politely or not."""
        reader, writer = await self.connect()
        if rng.random() < 0.2:
            writer.write(data[:rng.randrange(len(data))])
        else:
            writer.write(data)
        try:
            how = rng.random()
            if how < 0.4:
                await asyncio.sleep(rng.random() * 0.03)
            elif how < 0.7:
                await asyncio.wait_for(reader.read(rng.choice((1, 100, 1000))), 0.05)
        except (asyncio.TimeoutError, ConnectionError):
            pass
        if rng.random() < 0.5:  # a reset instead of an orderly end
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.close()
        self.abandoned += 1

    async def lane(self, tenant, seed):
        rng = random.Random(seed)
        reader = writer = None
        while self.left > 0:
            self.left -= 1
            number = rng.randrange(PROMPTS)
            stream, close = rng.random() < 0.5, rng.random() < 0.2
            data = _request(self.bodies[tenant][number], tenant, stream, close)
            if rng.random() < 0.25:
                await self.abandon(rng, data)
                continue
            if writer is None:
                reader, writer = await self.connect()
            writer.write(data)
            status, choices = await asyncio.wait_for(_answer(reader), 60)
            if status != 200 or _said(choices) != self.expected[tenant][number]:
                self.wrong.append((tenant, number, status, choices if status != 200 else _said(choices)))
            self.answered += 1
            if close:
                writer.close()
                writer = None
        if writer is not None:
            writer.close()

    def run(self, seed):
        async def all_lanes():
            await asyncio.gather(*(self.lane(tenant, seed * 1000 + tenant * LANES + lane)
                                   for tenant in range(TENANTS) for lane in range(LANES)))
        asyncio.run(all_lanes())
        assert not self.wrong, (len(self.wrong), "answers differ from those alone; the first:", self.wrong[0],
                                "expected", self.expected[self.wrong[0][0]][self.wrong[0][1]])


def _alone(server, bodies):
    """Every answer when nothing else runs, cold; asked twice, so that what is compared later with is
    known to repeat."""
    expected = []
    for tenant in range(TENANTS):
        expected.append([])
        for body in bodies[tenant]:
            said = []
            for _ in range(2):
                answer = server.post("/v1/completions", body, {"Authorization": "Bearer " + _key(tenant)})
                assert answer.status == 200, answer.body
                said.append(_said(json.loads(answer.body, parse_float=str)["choices"]))
            assert said[0] == said[1], ("differs when repeated alone", body, said)
            expected[-1].append(said[0])
    return expected


def _memory(pids):
    return {role: (procfs.kib(pid, "VmRSS"), procfs.kib(pid, "RssAnon")) for role, pid in pids.items()}


def _outcomes(metrics):
    return sum(value for name, value in metrics.items()
               if name.startswith(("vllm:request_success_total", "bulkhead:requests_rejected_total",
                                   "bulkhead:requests_cancelled_total", "bulkhead:requests_failed_total")))


def ten_thousand_requests():
    rng = random.Random(SEED)
    keys = folder / "keys"
    keys.write_text("".join(f"{_key(t)} tenant{t}\n" for t in range(TENANTS)))
    model = harness.make_model(folder / "tiny.gguf", "--layers", 2, "--vocab", 512, "--ctx", 256)
    bodies = [_bodies(rng, tenant) for tenant in range(TENANTS)]
    with Counting(model, "--pool-tokens", POOL_TOKENS, "--api-key-file", keys, key=_key(0)) as server:
        pids = {"supervisor": server.process.pid, **server.pids()}
        expected = _alone(server, bodies)
        Soak(server, bodies, expected, WARM).run(1)
        before = server.settled()
        server.settled_connections()
        gets = server.gets
        descriptors = {role: procfs.descriptor_cnt(pid) for role, pid in pids.items()}
        memory = _memory(pids)

        soak = Soak(server, bodies, expected, REQUESTS - WARM)
        soak.run(2)

        after = server.settled()
        grown = {name: after[name] - before.get(name, 0.0) for name in after}
        gets = server.gets - gets
        ended = _outcomes(after) - _outcomes(before)
        asked = grown["bulkhead:http_requests_total"] - gets
        assert ended == asked, ("outcomes", ended, "requests", asked)
        assert grown["bulkhead:http_errors_total"] == 0, grown["bulkhead:http_errors_total"]
        for name in ("bulkhead:requests_failed_total", "bulkhead:requests_rejected_total",
                     "bulkhead:coverage_mismatches_total", "bulkhead:orders_refused_total",
                     "bulkhead:hints_refused_total"):
            assert grown[name] == 0, (name, grown[name])
        success = sum(value for name, value in grown.items() if name.startswith("vllm:request_success_total"))
        assert soak.answered <= success <= soak.answered + soak.abandoned, (soak.answered, success, soak.abandoned)
        assert grown["bulkhead:requests_cancelled_total"] > 0, "nobody was interrupted: this proves less than it says"
        assert server.violations() == 0
        pages = ("bulkhead:pages_free", "bulkhead:pages_cached")
        assert sum(after[p] for p in pages) == sum(before[p] for p in pages), [(p, before[p], after[p]) for p in pages]
        assert after["bulkhead:pages_quarantined"] == 0

        server.settled_connections()
        status = server.ctl("status")
        assert status["requests"]["free"] == sum(status["requests"].values()), status["requests"]
        checked = server.ctl("verify")
        assert checked["ok"], checked
        assert {"supervisor": server.process.pid, **server.pids()} == pids, "a role was restarted"
        assert "Z" not in procfs.children(server.process.pid).values()
        now = {role: procfs.descriptor_cnt(pid) for role, pid in pids.items()}
        assert now == descriptors, (descriptors, now)
        drift = {role: (rss - memory[role][0], anon - memory[role][1])
                 for role, (rss, anon) in _memory(pids).items()}
        assert all(rss <= RSS_SLACK_KIB and anon <= ANON_SLACK_KIB for rss, anon in drift.values()), drift
        hits = grown["vllm:prefix_cache_hits_total"] / grown["vllm:prefix_cache_queries_total"]
        return (f"seed {SEED}; {soak.answered} answered, {soak.abandoned} abandoned, "
                f"{grown['bulkhead:requests_cancelled_total']:.0f} of them cancelled; prefix hits {hits:.0%}, "
                f"preemptions {grown['vllm:num_preemptions_total']:.0f}; largest growth of resident memory "
                f"{max(rss for rss, _ in drift.values())} KiB")


def a_foreign_answer_would_be_seen():
    """The comparison itself: another tenant's prompt, another seed or one token less differs."""
    rng = random.Random(SEED)
    keys = folder / "keys-two"
    keys.write_text("".join(f"{_key(t)} tenant{t}\n" for t in range(2)))
    model = harness.make_model(folder / "tiny2.gguf", "--layers", 2, "--vocab", 512, "--ctx", 256)
    first, other = _bodies(rng, 0), _bodies(rng, 1)
    with harness.Server(model, "--api-key-file", keys) as server:
        def said(body):
            answer = server.post("/v1/completions", body, {"Authorization": "Bearer " + _key(0)})
            return _said(json.loads(answer.body, parse_float=str)["choices"])
        for number, body in enumerate(first):
            right = said(body)
            assert said(body) == right
            assert said(other[number]) != right, number
            ids = body["prompt"]
            if len(ids) > 1:
                changed = ids[:]
                changed[0] = ids[0] + 1  # the oldest row of KV, the one that matters least
                assert said({**body, "prompt": changed}) != right, number


harness.main([a_foreign_answer_would_be_seen, ten_thousand_requests])
