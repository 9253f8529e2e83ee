#!/usr/bin/python3
"""Faults on demand: each way in which a page, a count, a message or a byte can be wrong is made to
happen once, beside healthy streams. Each time the request concerned ends with an error before a token
computed from the bad page leaves, exactly the right counter moves, the others get the bytes they get
alone, and the pages come home. Then the same places without a fault, where nothing may fire."""

import pathlib
import tempfile

import harness
import flows

CTX = 2048
POOL = 16384
OTHERS = 3
LAYERS = 2

folder = pathlib.Path(tempfile.mkdtemp(prefix="bulkhead-faults-"))


def _model():
    path = folder / "tiny.gguf"
    if not path.exists():
        harness.make_model(path, "--ctx", CTX, "--layers", LAYERS)
    return path


alone = flows.Alone(_model, "--ctx", CTX, "--pool-tokens", POOL)

# Prompts of the others have two pages, computed in one chunk: so many stamps before the victim's first.
OTHER_STAMPS = 2 * LAYERS * OTHERS
VICTIM_PAGES = 3
VICTIM = flows.request(99, 32 * VICTIM_PAGES - 5, 150)


def _others():
    return [flows.request(n, 50, 700) for n in range(OTHERS)]


def _serve(inject=None):
    return harness.Server(_model(), "--ctx", CTX, "--pool-tokens", POOL, hooked=True, inject=inject)


def _fence_workers(server):
    """Both workers die once: what was quarantined may be wiped then."""
    for role in ("prefill", "decode"):
        server.kill_role(role)
    harness.wait_until("quarantine ends", lambda: server.metrics()["bulkhead:pages_quarantined"] == 0)


def _beside_others(inject, expected, victim=VICTIM, stream=True, code="kv_integrity_failure"):
    """The others run; the victim comes; it alone is refused. Returns the refused flow."""
    with _serve(inject) as server:
        before = flows.alarms(server)
        others = [flows.Flow(server, body).begin() for body in _others()]
        flow = flows.Flow(server, victim, stream=stream).end()
        alone.check_refused(flow, code)
        for other in others:
            alone.check_whole(other.end())
        assert flow.ended < max(other.ended for other in others), "the others were not there any more"
        rose = flows.raised(server, before)
        assert rose == {**expected, "requests_failed": 1}, rose
        flows.check_home(server, quarantined=True)
        # The same request again: the place has fired, and no page of the refused one is used.
        alone.check_whole(flows.Flow(server, victim).end())
        assert flows.raised(server, before) == rose
        _fence_workers(server)
        flows.check_home(server, deaths=2)
        return flow


def _no_token(flow):
    assert flow.text == "" and flow.status == 500, flow.state()


def _stamp(place, number, expected):
    """A fault of the victim's NUMBERth stamp, streamed and whole: no token may leave."""
    for stream in (True, False):
        _no_token(_beside_others(f"prefill.stamp:{place}:{OTHER_STAMPS + number}", expected, stream=stream))


def nothing_fires_without_a_fault():
    with _serve("nowhere.at_all:never") as server:
        before = flows.alarms(server)
        running = [flows.Flow(server, body) for body in _others() + [VICTIM, VICTIM]]
        for flow in running:
            alone.check_whole(flow.end())
        assert flows.raised(server, before) == {}
        flows.check_home(server)


def page_not_written_seen_by_prefill():
    """The first page's first layer is never stamped: the same chunk's attention refuses to read it."""
    _stamp("skip", 1, {"filled": 1})


def page_not_written_seen_by_decode():
    """In the last layer prefill itself reads nothing back; decode proves every layer before it joins."""
    _stamp("skip", LAYERS * VICTIM_PAGES, {"filled": 1})


def page_short_by_one_token():
    _stamp("short", LAYERS * VICTIM_PAGES, {"filled": 1})


def page_short_in_the_middle():
    _stamp("short", 2, {"filled": 1})


def page_of_another_writer_seen_by_prefill():
    _stamp("other_writer", 1, {"writer": 1})


def page_of_another_writer_seen_by_decode():
    _stamp("other_writer", LAYERS * VICTIM_PAGES, {"writer": 1})


def page_reserved_and_reported_but_empty():
    """The incident: prefill says done, the count is right, and one page was never written."""
    _no_token(_beside_others(f"prefill.report:unwritten:{OTHERS + 1}", {"filled": 1}))


def report_of_more_and_fewer_tokens():
    for place in ("more", "fewer"):
        with _serve(f"prefill.report:{place}:{OTHERS + 1}") as server:
            before = flows.alarms(server)
            others = [flows.Flow(server, body).begin() for body in _others()]
            flow = flows.Flow(server, VICTIM).end()
            alone.check_refused(flow, "kv_integrity_failure")
            _no_token(flow)
            for other in others:
                alone.check_whole(other.end())
            assert flows.raised(server, before) == {"coverage_mismatches": 1, "requests_failed": 1}
            flows.check_home(server)  # the pages are as ordered, only the count is not: nothing to lock up


def report_that_the_ledger_lets_through():
    """Decode compares the numbers too, whatever the ledger made of them."""
    inject = f"prefill.report:more:{OTHERS + 1},ledger.prefilled:unchecked"
    _no_token(_beside_others(inject, {"filled": 1}))


def handle_of_an_old_generation():
    _one_of_all("decode.want:old_generation:200", {"generation": 1})


def _one_of_all(inject, expected, code="kv_integrity_failure", bodies=None, quarantined=True):
    """Some row among all is hit: it alone is refused, and had only right tokens until then."""
    with _serve(inject) as server:
        before = flows.alarms(server)
        running = [flows.Flow(server, body) for body in bodies or _others() + [VICTIM]]
        for flow in running:
            flow.end()
        refused = [flow for flow in running if not flow.whole()]
        assert len(refused) == 1, [flow.state() for flow in running]
        alone.check_refused(refused[0], code)
        for flow in running:
            if flow is not refused[0]:
                alone.check_whole(flow)
        rose = flows.raised(server, before)
        assert rose == {**expected, "requests_failed": 1}, rose
        flows.check_home(server, quarantined=quarantined)
        alone.check_whole(flows.Flow(server, refused[0].body).end())
        _fence_workers(server)
        flows.check_home(server, deaths=2)
        return refused[0]


def logit_that_is_not_a_number():
    _one_of_all("decode.step:nan:150", {"nonfinite": 1})
    _one_of_all("decode.step:nan:1", {"nonfinite": 1})


def decode_page_not_written():
    _one_of_all("decode.stamp:skip:333", {"filled": 1})


def _regranted(inject, expected):
    """The ledger does it on the second of its ticks (100 ms) that see a page in work; the worker pauses
    over that moment, in a place that it reaches before."""
    return _one_of_all(inject, expected, bodies=[flows.request(n, 500, 60) for n in range(OTHERS)])


def page_regranted_between_two_steps():
    """The ledger ends a page under its reader, the scrubber wipes it, and then a step begins."""
    _regranted("ledger.page:regrant:2,decode.token:after_word:1=pause_600", {"generation": 1})


def page_regranted_during_a_step():
    """The same while the step is under way: nothing in the page has changed yet, only its word."""
    _regranted("ledger.page:regrant:2,decode.step:before_recheck:1=pause_600", {"recheck": 1})


def page_regranted_under_prefill():
    _no_token(_regranted("ledger.page:regrant_prefill:2,prefill.chunk:before_recheck:1=pause_600", {"recheck": 1}))


def bytes_flipped_after_sealing():
    _no_token(_beside_others(f"prefill.report:flip:{OTHERS + 1}", {"digest": 1}))


def bytes_flipped_in_the_cache():
    """A cached page went bad: who would share it is refused, and the page gives no hits any more."""
    with _serve("prefill.open:flip_shared:1") as server:
        before = flows.alarms(server)
        others = [flows.Flow(server, body).begin() for body in _others()]
        alone.check_whole(flows.Flow(server, VICTIM).end())
        flow = flows.Flow(server, VICTIM).end()
        alone.check_refused(flow, "kv_integrity_failure")
        _no_token(flow)
        again = flows.Flow(server, VICTIM).end()
        alone.check_whole(again)
        assert again.usage["prompt_tokens_details"]["cached_tokens"] == 0, again.usage
        warm = flows.Flow(server, VICTIM).end()
        alone.check_whole(warm)
        assert warm.usage["prompt_tokens_details"]["cached_tokens"] > 0, warm.usage
        for other in others:
            alone.check_whole(other.end())
        assert flows.raised(server, before) == {"digest": 1, "requests_failed": 1}
        flows.check_home(server, quarantined=True)
        _fence_workers(server)
        flows.check_home(server, deaths=2)


def hint_out_of_range():
    """A worker's messages name things that do not exist: refused and counted, and the words still say
    everything that the messages should have said."""
    for nth in ("", ":3"):
        with _serve("worker.report:bad_hint" + nth) as server:
            before = flows.alarms(server)
            running = [flows.Flow(server, body) for body in _others() + [VICTIM]]
            for flow in running:
                alone.check_whole(flow.end())
            rose = flows.raised(server, before)
            assert set(rose) == {"hints_refused"}, rose
            assert rose["hints_refused"] >= 2, rose
            flows.check_home(server)


def ring_with_a_spoiled_cursor():
    """Every ring of every role is spoiled once, and again: each reader starts over and scans."""
    for nth in (2, 5):
        with _serve(f"ring.publish:spoil:{nth}") as server:
            before = flows.alarms(server)
            running = [flows.Flow(server, body) for body in _others() + [VICTIM]]
            for flow in running:
                alone.check_whole(flow.end())
            assert set(flows.raised(server, before)) <= {"hints_refused"}
            flows.check_home(server)


def quarantine_beyond_its_share_renews_the_workers():
    """More than a twentieth of the pool is locked up: both workers are fenced, running requests go on."""
    small = 2048
    with harness.Server(_model(), "--ctx", 1024, "--pool-tokens", small, hooked=True,
                        inject=f"prefill.report:unwritten:{OTHERS + 1}@1") as server:
        before = flows.alarms(server)
        pids = server.pids()
        others = [flows.Flow(server, flows.request(n, 50, 450)).begin() for n in range(OTHERS)]
        victim = flows.Flow(server, flows.request(7, 300, 50)).end()
        alone.check_refused(victim, "kv_integrity_failure")
        harness.wait_until("both workers are new", lambda: all(
            server.pid(role) not in (None, pids[role]) for role in ("prefill", "decode")))
        for other in others:
            alone.check_whole(other.end())
        harness.wait_until("quarantine ends", lambda: server.metrics()["bulkhead:pages_quarantined"] == 0)
        assert flows.raised(server, before) == {"filled": 1, "requests_failed": 1}
        flows.check_home(server, deaths=2)


harness.main([
    nothing_fires_without_a_fault,
    page_not_written_seen_by_prefill,
    page_not_written_seen_by_decode,
    page_short_by_one_token,
    page_short_in_the_middle,
    page_of_another_writer_seen_by_prefill,
    page_of_another_writer_seen_by_decode,
    page_reserved_and_reported_but_empty,
    report_of_more_and_fewer_tokens,
    report_that_the_ledger_lets_through,
    handle_of_an_old_generation,
    logit_that_is_not_a_number,
    decode_page_not_written,
    page_regranted_between_two_steps,
    page_regranted_during_a_step,
    page_regranted_under_prefill,
    bytes_flipped_after_sealing,
    bytes_flipped_in_the_cache,
    hint_out_of_range,
    ring_with_a_spoiled_cursor,
    quarantine_beyond_its_share_renews_the_workers,
])
