"""Requests that run beside each other, and what became of each: bytes, errors, or neither. For tests
that break something and then ask who noticed."""

import json
import random
import re
import subprocess
import threading
import time

import harness

VIOLATIONS = ("generation", "filled", "place", "writer", "namespace", "digest", "recheck", "nonfinite", "handle")
ALARMS = tuple(f'bulkhead:kv_violations_total{{kind="{kind}"}}' for kind in VIOLATIONS) + (
    "bulkhead:coverage_mismatches_total", "bulkhead:hints_refused_total", "bulkhead:requests_failed_total")


def request(number, prompt_tokens, max_tokens, vocab=512, **more):
    """A completion request whose prompt and seed are its number's own. It samples, so that an answer
    is no short loop and any wrong bit in it shows."""
    draw = random.Random(number * 7919 + prompt_tokens)
    return {"prompt": [draw.randrange(3, vocab) for _ in range(prompt_tokens)], "max_tokens": max_tokens,
            "temperature": 1.0, "seed": number, "ignore_eos": True, **more}


class Flow(threading.Thread):
    """One request in a thread of its own. After join(): `status`, `text`, `error` (the error object of
    the answer or of an event), `done` (ended as an answer ends), `broken` (the connection failed)."""

    def __init__(self, server, body, stream=True, headers=None, timeout=60):
        super().__init__(daemon=True)
        self.server, self.body, self.stream, self.headers, self.timeout = server, body, stream, headers or {}, timeout
        self.status, self.text, self.error, self.done, self.broken = None, "", None, False, None
        self.usage, self.retry_after, self.choices = None, None, None
        self.first = threading.Event()
        self.begun = time.monotonic()
        self.ended = None
        self.start()

    def run(self):
        connection = self.server.connect(self.timeout)
        try:
            self._run(connection)
        except Exception as error:  # whatever the client library says of a connection that ended
            self.broken = repr(error)
        finally:
            self.ended = time.monotonic()
            self.first.set()
            connection.close()

    def _run(self, connection):
        body = dict(self.body)
        if self.stream:
            body.update(stream=True, stream_options={"include_usage": True})
        connection.request("POST", "/v1/completions", json.dumps(body),
                           {"Content-Type": "application/json", **self.headers})
        response = connection.getresponse()
        self.status = response.status
        self.retry_after = response.getheader("Retry-After")
        if response.status != 200:
            self.error = json.loads(response.read())["error"]
        elif self.stream:
            self._events(response)
        else:
            whole = json.loads(response.read())
            self.choices = whole["choices"]
            self.text, self.usage, self.done = whole["choices"][0]["text"], whole["usage"], True

    def _events(self, response):
        for line in response:
            line = line.strip()
            if line == b"data: [DONE]":
                self.done = True
            elif line.startswith(b"data: "):
                event = json.loads(line[6:])
                if "error" in event:
                    self.error = event["error"]
                    continue
                self.usage = event.get("usage") or self.usage
                self.text += "".join(c["text"] for c in event["choices"])
                if self.text:
                    self.first.set()

    def end(self, seconds=60):
        """Wait for the end; a request that hangs is a failure."""
        self.join(seconds)
        assert not self.is_alive(), ("a request hangs", self.status, len(self.text), self.server.log_text()[-2000:])
        return self

    def begin(self, seconds=30):
        """Wait for the first text."""
        assert self.first.wait(seconds), ("no first token", self.server.log_text()[-2000:])
        assert self.text, (self.status, self.error, self.broken)
        return self

    def whole(self):
        return self.done and self.error is None and self.broken is None

    def state(self):
        return {"status": self.status, "error": self.error, "done": self.done, "broken": self.broken,
                "chars": len(self.text)}


class Alone:
    """Answers of an undisturbed server, each request alone on it: what every test compares with.
    `model` is called for the path: it makes the file when there is a first use."""

    def __init__(self, model, *args):
        self.model, self.args, self.known = model, args, {}

    def learn(self, bodies):
        missing = [b for b in bodies if json.dumps(b) not in self.known]
        if not missing:
            return
        with harness.Server(self.model(), *self.args) as server:
            for body in missing:
                answer = server.post("/v1/completions", body)
                assert answer.status == 200, answer.body
                self.known[json.dumps(body)] = answer.json()["choices"][0]["text"]
            assert server.violations() == 0

    def text(self, body):
        self.learn([body])
        return self.known[json.dumps(body)]

    def check_whole(self, flow):
        """The flow ended as an answer, with the bytes of the request alone."""
        assert flow.whole(), flow.state()
        assert flow.text == self.text(flow.body), ("other bytes than alone", flow.state())

    def check_refused(self, flow, code, status=500):
        """The flow ended with this error, and nothing that it got before differs from the right answer."""
        assert flow.error is not None and flow.broken is None and not flow.done, flow.state()
        assert flow.error["code"] == code, flow.state()
        whole = self.text(flow.body)
        assert whole.startswith(flow.text) and len(flow.text) < len(whole), flow.state()
        assert flow.status == (200 if flow.text else status), flow.state()


def alarms(server):
    metrics = server.metrics()
    return {name: int(metrics[name]) for name in ALARMS}


def raised(server, before, settle=True):
    """Alarms that went up since `before`, by short name: {'filled': 1, 'requests_failed': 1}."""
    if settle:
        server.settled()
    out = {}
    for name, value in alarms(server).items():
        if value != before[name]:
            short = name.split('"')[1] if '"' in name else name.split(":")[1].removesuffix("_total")
            out[short] = value - before[name]
    return out


def check_home(server, quarantined=False, deaths=0):
    """Nothing is alive: every page is free, cached or, where a fault named it, quarantined; every object
    in shared memory is well; every role runs and nothing waits to be reaped. No role died but by SIGKILL,
    and so many did (None: any number)."""
    log = server.log_text()
    died = re.findall(r"^.* died (?:signal|exit_status)=.*$", log, re.M)
    assert all("signal=9 " in line for line in died), died
    assert deaths is None or len(died) == deaths, died
    m = server.settled()
    pages = int(re.search(r"\bpages=(\d+)", log).group(1)) - 1  # without the null page
    home = m["bulkhead:pages_free"] + m["bulkhead:pages_cached"] + m["bulkhead:pages_quarantined"]
    assert home == pages, (home, pages, m)
    assert (m["bulkhead:pages_quarantined"] > 0) == quarantined, m["bulkhead:pages_quarantined"]
    assert server.get("/health").status == 200
    bad = [o for o in server.ctl("verify")["objects"] if o["status"] != "ok"]
    assert not bad, bad
    children = subprocess.run(["ps", "-o", "stat=,args=", "--ppid", str(server.process.pid)], capture_output=True,
                              text=True).stdout.splitlines()
    assert len(children) == len(harness.ROLES) and not any(c.startswith("Z") for c in children), children
    return m
