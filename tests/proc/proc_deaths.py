#!/usr/bin/python3
"""Deaths: every process killed and stopped under load, by the clock and between any two stores. The
death of a worker or of the ledger is a pause, and every answer has the bytes it has alone. The death of
the tokenizer or of egress may end connections whose place in the answer nobody can know any more; what
was received until then is right. Nothing hangs, the engine is whole again, and the pages are home."""

import os
import pathlib
import random
import signal
import subprocess
import tempfile
import time

import harness
import flows

CTX = 2048
POOL = 8192
BEAT_LIMIT_S = 3.0  # a role that is silent for so long is fenced

folder = pathlib.Path(tempfile.mkdtemp(prefix="bulkhead-deaths-"))


def _model():
    path = folder / "tiny.gguf"
    if not path.exists():
        harness.make_model(path, "--ctx", CTX)
    return path


alone = flows.Alone(_model, "--ctx", CTX, "--pool-tokens", POOL)

FRONT = ("tokenizer", "egress")  # they have sockets
BODIES = [flows.request(n, 40 + 17 * n, 300) for n in range(4)]
LONG = [flows.request(20 + n, 60, 1500) for n in range(3)]


def _serve(inject=None):
    return harness.Server(_model(), "--ctx", CTX, "--pool-tokens", POOL, hooked=True, inject=inject)


def _roles(server):
    return {role["name"].lower(): role for role in server.ctl("status")["roles"]}


def _deaths(server):
    return {name: role["restarts"] for name, role in _roles(server).items() if name in harness.ROLES}


def _all_up(server, seconds=20):
    harness.wait_until("all roles up", lambda: all(role["state"] == "up" for role in _roles(server).values()), seconds)


def _check(flow, front_died):
    """Whole with the right bytes; or, where a process with sockets died, ended and right so far."""
    if flow.whole():
        alone.check_whole(flow)
        return True
    assert front_died, ("a worker's death was no pause", flow.state())
    assert flow.broken is not None or flow.status == 503 or flow.error is not None or not flow.done, flow.state()
    assert alone.text(flow.body).startswith(flow.text), ("wrong bytes before the end", flow.state())
    return False


def _after(server):
    """Healthy, home, and as good as new."""
    _all_up(server)
    flows.check_home(server, deaths=None)
    for body in BODIES[:2]:
        alone.check_whole(flows.Flow(server, body).end())
    assert server.violations() == 0
    flows.check_home(server, deaths=None)


def _kill(server, *roles):
    pids = {role: server.pid(role) for role in roles}
    for pid in pids.values():
        os.kill(pid, signal.SIGKILL)
    for role, pid in pids.items():
        harness.wait_until(f"{role} again", lambda: server.pid(role) not in (None, pid))
    _all_up(server)


def killed_under_load():
    alone.learn(BODIES + LONG)
    notes = []
    for role in harness.ROLES:
        with _serve() as server:
            running = [flows.Flow(server, body).begin() for body in LONG]
            running += [flows.Flow(server, body, stream=False) for body in BODIES]
            time.sleep(0.05)
            _kill(server, role)
            whole = sum(_check(flow.end(), role in FRONT) for flow in running)
            notes.append(f"{role} {whole}/{len(running)}")
            _after(server)
    return "whole answers: " + ", ".join(notes)


def killed_together():
    alone.learn(BODIES + LONG)
    for roles in (("prefill", "decode"), ("ledger", "decode"), ("ledger", "prefill"), ("tokenizer", "egress"),
                  ("ledger", "egress"), harness.ROLES):
        with _serve() as server:
            running = [flows.Flow(server, body).begin() for body in LONG]
            running += [flows.Flow(server, body, stream=False) for body in BODIES]
            _kill(server, *roles)
            for flow in running:
                _check(flow.end(), any(role in FRONT for role in roles))
            _after(server)


def stopped_and_continued_before_the_limit():
    """A pause is no death: nobody is fenced, every answer is whole."""
    alone.learn(BODIES + LONG)
    with _serve() as server:
        pids = server.pids()
        for role in harness.ROLES:
            running = [flows.Flow(server, body).begin() for body in LONG]
            os.kill(pids[role], signal.SIGSTOP)
            running += [flows.Flow(server, body, stream=False) for body in BODIES]
            time.sleep(0.7)
            os.kill(pids[role], signal.SIGCONT)
            for flow in running:
                _check(flow.end(), False)
        assert server.pids() == pids
        assert set(_deaths(server).values()) == {0}
        _after(server)


def stopped_longer_than_the_heartbeat_limit():
    """Silent is dead: fenced while it is stopped, so that it can never wake up and write."""
    alone.learn(BODIES + LONG)
    for role in harness.ROLES:
        with _serve() as server:
            pid = server.pid(role)
            running = [flows.Flow(server, body).begin() for body in LONG]
            os.kill(pid, signal.SIGSTOP)
            stopped = time.monotonic()
            running += [flows.Flow(server, body, stream=False) for body in BODIES]
            harness.wait_until("a successor", lambda: server.pid(role) not in (None, pid), 30)
            waited = time.monotonic() - stopped
            try:
                os.kill(pid, signal.SIGCONT)
                raise AssertionError("the stopped process is still there beside its successor")
            except ProcessLookupError:
                pass
            assert waited > BEAT_LIMIT_S - 0.3, waited
            for flow in running:
                _check(flow.end(), role in FRONT)
            _after(server)


def a_request_that_kills_workers_does_so_three_times():
    body = LONG[0]
    alone.learn([body])
    with _serve("decode.step:before_recheck:50=kill") as server:
        flow = flows.Flow(server, body).end()
        alone.check_refused(flow, "worker_lost", 503)
        _all_up(server)
        assert _deaths(server)["decode"] == 3, _deaths(server)
        short = flows.request(1, 20, 20)
        alone.check_whole(flows.Flow(server, short).end())
        flows.check_home(server, deaths=None)


PLACES = {
    "prefill": ("prefill.layer:before:4", "prefill.chunk:before_recheck:2", "pool.reopen:after_word:3"),
    "decode": ("decode.token:before_word:40", "decode.token:after_word:40", "decode.step:before_recheck:30",
               "decode.step:before:25", "decode.scrub:before_word:2", "pool.scrub:after_word:2",
               "pool.scrub:before_stamp:2"),
    "ledger": ("ledger.submit:record:2", "ledger.state:stored:5", "ledger.state:stored:9", "ledger.order:stored:4",
               "ledger.order:stored:7", "ledger.grant:held:3", "ledger.grant:entry:3", "ledger.grant:list:2",
               "ledger.grow:entry:2", "ledger.grow:list:2", "ledger.cache:key:2", "ledger.cache:cached:2",
               "ledger.return:list0:1", "ledger.return:pages:1", "ledger.page:ended:1", "ledger.page:freed:1",
               "ledger.free:stored:1"),
    "egress": ("egress.frame:offered:20", "egress.frame:before_sent:20", "egress.edge:after_word:2",
               "egress.answer:before_answered:2"),
    "tokenizer": ("tokenizer.ask:before_word:3", "tokenizer.ask:after_word:3", "tokenizer.submit:before_word:3"),
    # Passed by several roles: each of them dies there once.
    "prefill decode": ("pool.stamp:before_word:5", "pool.stamp:after_word:5", "worker.report:before_word:2",
                       "worker.report:after_word:2",
                       "request.claim:between_words:3"),
    "ledger prefill decode tokenizer egress": ("ring.publish:before_tail:4", "ring.publish:after_tail:4",
                                               "bell.pull:before_swap:4", "world.hint:before_consume:4"),
}


def _killed_at(places, roles):
    """One place an incarnation: the first dies at the first, its successor at the next."""
    inject = ",".join(f"{place}@{epoch}=kill" for epoch, place in enumerate(places, 1))
    front = any(role in FRONT for role in roles)
    with _serve(inject) as server:
        for _ in range(len(places) + 2):
            running = [flows.Flow(server, body, stream=n % 2 == 0) for n, body in enumerate(BODIES)]
            for flow in running:
                _check(flow.end(), front)
            _all_up(server)
            died = {role for role, cnt in _deaths(server).items() if cnt >= len(places)}
            if died:
                break
        assert died and died <= set(roles), (died, _deaths(server), server.log_text()[-1500:])
        _after(server)


def killed_between_any_two_stores():
    alone.learn(BODIES)
    cnt = 0
    for roles, places in PLACES.items():
        roles = roles.split()
        # A request survives two deaths of workers. The ledger and the front are counted against nobody.
        group = 5 if not {"prefill", "decode"} & set(roles) else 2 if len(roles) == 1 else 1
        for at in range(0, len(places), group):
            chosen = places[at:at + group]
            try:
                _killed_at(chosen, roles)
            except BaseException as error:
                raise AssertionError(f"killed at {chosen}") from error
            cnt += len(chosen)
    return f"{cnt} places"


def prompt_logprobs_survive_a_death():
    """A prompt whose pages the cache has meanwhile is not written again for its log-probabilities."""
    body = flows.request(5, 200, 600, echo=True, logprobs=2)
    with _serve() as server:
        want = server.post("/v1/completions", body).json()["choices"]
    for place in ("decode.token:before_word:300", "prefill.chunk:before_recheck:1"):
        with _serve(f"{place}@1=kill") as server:
            flow = flows.Flow(server, body, stream=False).end()
            assert flow.whole() and flow.choices == want, flow.state()
            assert sum(_deaths(server).values()) == 1
            _after(server)


def stopped_between_two_stores():
    """The late writer: a worker stops with a store half done, is fenced, and its successor goes on."""
    alone.learn(BODIES)
    for place in ("pool.stamp:before_word:5", "decode.token:before_word:40"):
        with _serve(f"{place}@1=stop") as server:
            running = [flows.Flow(server, body) for body in BODIES]
            for flow in running:
                _check(flow.end(), False)
            assert sum(_deaths(server).values()) >= 1
            _after(server)


def storm():
    """Kills at random under a steady load; some connections end, no byte is wrong, nothing hangs."""
    draw = random.Random(4)
    alone.learn(BODIES + LONG)
    with _serve() as server:
        running, kills = [], 0
        end = time.monotonic() + 10
        while time.monotonic() < end:
            running += [flows.Flow(server, body, stream=draw.random() < 0.7) for body in draw.sample(BODIES + LONG, 2)]
            time.sleep(draw.uniform(0.1, 0.5))
            pid = server.pid(draw.choice(harness.ROLES))
            if pid:
                os.kill(pid, signal.SIGKILL)
                kills += 1
        whole = sum(_check(flow.end(90), True) if flow.error is None or flow.error["code"] != "worker_lost" else 0
                    for flow in running)
        _after(server)
        return f"{kills} kills, {whole} of {len(running)} answers whole"


def the_engine_ends_with_its_supervisor():
    with _serve() as server:
        pids = [pid for pid in server.pids().values()]
        server.process.kill()
        server.process.wait(10)
        harness.wait_until("no role is left", lambda: not any(pathlib.Path(f"/proc/{pid}/stat").exists()
                           and pathlib.Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z" for pid in pids), 5)


harness.main([
    killed_under_load,
    killed_together,
    stopped_and_continued_before_the_limit,
    stopped_longer_than_the_heartbeat_limit,
    a_request_that_kills_workers_does_so_three_times,
    killed_between_any_two_stores,
    prompt_logprobs_survive_a_death,
    stopped_between_two_stores,
    storm,
    the_engine_ends_with_its_supervisor,
])
