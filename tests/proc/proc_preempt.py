#!/usr/bin/python3
"""Too little room: requests that grow until the pool is full are preempted and go on later with the
same bytes; the queue is fair over tenants, has an end, and says so with a status and a time to come
back; tenants share no prefix."""

import pathlib
import tempfile
import time

import harness
import flows

CTX = 512
POOL = 768
KEYS = {"alpha": "alpha-key-0001", "beta": "beta-key-00002"}

folder = pathlib.Path(tempfile.mkdtemp(prefix="bulkhead-preempt-"))
keys = folder / "keys"
PREEMPTIONS = "vllm:num_preemptions_total"


def _model():
    path = folder / "tiny.gguf"
    if not path.exists():
        harness.make_model(path, "--ctx", CTX)
        keys.write_text("".join(f"{key} {tenant}\n" for tenant, key in KEYS.items()))
    return path


alone = flows.Alone(_model, "--ctx", CTX)


def _as(tenant):
    return {"Authorization": f"Bearer {KEYS[tenant]}"}


def _serve(*args, **more):
    return harness.Server(_model(), "--ctx", CTX, "--pool-tokens", POOL, *args, hooked=True, **more)


def preempted_answers_have_the_same_bytes():
    bodies = [flows.request(n, 40 + 9 * n, 350) for n in range(7)]
    alone.learn(bodies)
    with _serve() as server:
        before = flows.alarms(server)
        running = [flows.Flow(server, body, stream=n % 3 != 0) for n, body in enumerate(bodies)]
        for flow in running:
            alone.check_whole(flow.end())
        preemptions = server.metrics()[PREEMPTIONS]
        assert preemptions > 0
        assert flows.raised(server, before) == {}
        flows.check_home(server)
        return f"{preemptions:.0f} preemptions of {len(bodies)} requests"


def prompt_logprobs_survive_preemption():
    """Log-probabilities of prompt and answer too, to the bit."""
    bodies = [flows.request(n, 70, 300, echo=True, logprobs=2) for n in range(5)]
    with harness.Server(_model(), "--ctx", CTX) as server:
        wanted = [server.post("/v1/completions", body).json()["choices"] for body in bodies]
    with _serve() as server:
        running = [flows.Flow(server, body, stream=False) for body in bodies]
        for flow, want in zip(running, wanted):
            assert flow.end().whole(), flow.state()
            assert flow.choices == want, "other text or log-probabilities than alone"
        assert server.metrics()[PREEMPTIONS] > 0
        flows.check_home(server)


def room_is_not_preempted():
    bodies = [flows.request(n, 40, 60) for n in range(4)]
    with _serve() as server:
        for flow in [flows.Flow(server, body) for body in bodies]:
            alone.check_whole(flow.end())
        assert server.metrics()[PREEMPTIONS] == 0


def cancelled_while_preempted():
    """Clients that leave in all phases under pressure: nothing is kept for them."""
    with _serve() as server:
        running = [flows.Flow(server, flows.request(n, 60, 350)) for n in range(6)]
        leaving = [server.stream("/v1/completions", flows.request(50 + n, 60, 350)) for n in range(6)]
        for n, stream in enumerate(leaving):
            for event in stream:
                if n % 2 == 0 or event["choices"][0].get("text"):
                    break
            stream.close()
        for flow in running:
            alone.check_whole(flow.end())
        m = flows.check_home(server)
        done = m['vllm:request_success_total{finished_reason="length"}']
        assert m["bulkhead:requests_cancelled_total"] + done == len(leaving) + len(running), m
        assert m["bulkhead:requests_cancelled_total"] >= 2, m


def a_tenant_with_much_does_not_delay_one_with_little():
    alpha = [flows.request(n, 60, 120) for n in range(24)]
    beta = [flows.request(100 + n, 60, 120) for n in range(3)]
    alone.learn(alpha + beta)
    with _serve("--api-key-file", keys, key=KEYS["beta"]) as server:
        many = [flows.Flow(server, body, headers=_as("alpha")) for body in alpha]
        many[0].begin()
        harness.wait_until("a queue", lambda: server.metrics()["vllm:num_requests_waiting"] >= 12)
        few = [flows.Flow(server, body, headers=_as("beta")) for body in beta]
        for flow in many + few:
            alone.check_whole(flow.end())
        last = max(flow.ended for flow in few)
        behind = sum(flow.ended > last for flow in many)
        assert behind >= 8, f"only {behind} of the {len(many)} requests of the busy tenant ended after the others"
        return f"{behind} of {len(many)} earlier requests of the busy tenant ended later"


def a_tenant_has_a_limit_and_the_other_is_served():
    with _serve("--api-key-file", keys, key=KEYS["beta"]) as server:
        many = [flows.Flow(server, flows.request(n % 5, 60, 150), headers=_as("alpha")) for n in range(80)]
        harness.wait_until("a refusal", lambda: any(flow.status == 429 for flow in many))
        alone.check_whole(flows.Flow(server, flows.request(7, 60, 20), headers=_as("beta")).end())
        refused = 0
        for flow in many:
            if flow.end().error is None:
                alone.check_whole(flow)
                continue
            assert (flow.status, flow.error["code"]) == (429, "rate_limit_exceeded"), flow.state()
            assert int(flow.retry_after) > 0
            refused += 1
        assert 0 < refused <= 80 - 64, refused
        m = flows.check_home(server)
        assert m["bulkhead:requests_rejected_total"] == refused, (m["bulkhead:requests_rejected_total"], refused)
        return f"{refused} of {len(many)} refused"


def a_full_queue_says_so():
    with _serve() as server:
        many = [flows.Flow(server, flows.request(n % 5, 60, 150)) for n in range(140)]
        refused = 0
        for flow in many:
            if flow.end().error is None:
                alone.check_whole(flow)
                continue
            assert (flow.status, flow.error["code"]) == (503, "queue_full"), flow.state()
            assert int(flow.retry_after) > 0
            refused += 1
        assert refused > 0
        flows.check_home(server)
        alone.check_whole(flows.Flow(server, flows.request(1, 60, 20)).end())
        return f"{refused} of {len(many)} refused"


def tenants_share_no_prefix():
    body = flows.request(3, 200, 20)
    with harness.Server(_model(), "--ctx", CTX, "--api-key-file", keys, key=KEYS["beta"]) as server:
        def cached(tenant):
            flow = flows.Flow(server, body, headers=_as(tenant)).end()
            alone.check_whole(flow)
            return flow.usage["prompt_tokens_details"]["cached_tokens"]
        assert cached("alpha") == 0
        assert cached("alpha") == 192  # the control: without it the zeros below would prove nothing
        assert cached("beta") == 0
        assert cached("beta") == 192
        assert cached("alpha") == 192
        assert flows.Flow(server, body).end().status == 401
        assert flows.Flow(server, body, headers={"Authorization": "Bearer wrong-key-3"}).end().status == 401
        assert server.violations() == 0


harness.main([
    preempted_answers_have_the_same_bytes,
    prompt_logprobs_survive_preemption,
    room_is_not_preempted,
    cancelled_while_preempted,
    a_tenant_with_much_does_not_delay_one_with_little,
    a_tenant_has_a_limit_and_the_other_is_served,
    a_full_queue_says_so,
    tenants_share_no_prefix,
])
