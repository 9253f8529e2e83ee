"""A real server for tests: starts `bulkhead serve`, talks HTTP to it with the standard library only,
reads its metrics and processes, and prints TAP. Every wait is on a condition with a deadline."""

import atexit
import http.client
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback

ROLES = ("tokenizer", "ledger", "prefill", "decode", "egress")


class Skip(Exception):
    """Raised by a test that this machine cannot run; the reason is printed."""


def need(name):
    """Path from the environment; meson sets it."""
    value = os.environ.get(name)
    if not value or not pathlib.Path(value).exists():
        raise Skip(f"{name} is not set or does not exist")
    return value


def wait_until(what, condition, seconds=20.0):
    """Poll `condition` until it returns something true; returns that."""
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds} s: {what}")
        time.sleep(0.02)


def temporary(prefix):
    """A folder that is gone when the program ends."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix=prefix))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def make_model(path, *args):
    """A small random model of tools/mkmodel; args are its flags without --out."""
    subprocess.run([need("BH_MKMODEL"), "--out", str(path), *map(str, args)], check=True, stdout=subprocess.DEVNULL)
    return str(path)


class Answer:
    """A whole HTTP answer."""

    def __init__(self, response):
        self.status = response.status
        self.headers = {k.lower(): v for k, v in response.getheaders()}
        self.body = response.read()

    def json(self):
        return json.loads(self.body)

    def error(self):
        return self.json()["error"]


def read_answer(file, bodyless=False):
    """One HTTP answer from a buffered socket file, and not a byte more: (status, headers, body), or None
    when the server ended the connection instead."""
    line = file.readline()
    if not line:
        return None
    status = int(line.split()[1])
    headers = {}
    while (line := file.readline().strip()):
        name, _, value = line.decode().partition(":")
        headers[name.lower()] = value.strip()
    body = b""
    if bodyless or status == 100:
        pass
    elif headers.get("transfer-encoding") == "chunked":
        while (size := int(file.readline(), 16)) > 0:
            body += file.read(size)
            assert file.read(2) == b"\r\n"
        assert file.readline() == b"\r\n"
    elif "content-length" in headers:
        body = file.read(int(headers["content-length"]))
    else:
        body = file.read()
    return status, headers, body


class Stream:
    """Events of a streamed answer, one parsed JSON object at a time; `done` after [DONE]."""

    def __init__(self, connection, response):
        self.connection = connection
        self.response = response
        self.status = response.status
        self.done = False
        self.raw = b""

    def __iter__(self):
        for line in self.response:
            self.raw += line
            line = line.strip()
            if not line.startswith(b"data: "):
                continue
            if line == b"data: [DONE]":
                self.done = True
                return
            yield json.loads(line[6:])

    def text(self):
        """All text of choice 0; raises on an error event."""
        out = ""
        for event in self:
            assert "error" not in event, event
            for choice in event["choices"]:
                if choice["index"] == 0:
                    out += choice.get("text") or choice.get("delta", {}).get("content") or ""
        return out

    def close(self):
        self.connection.close()


class Server:
    """One running engine. Use as a context manager; leaves nothing behind."""

    def __init__(self, model, *args, hooked=False, inject=None, env=None, key=None):
        self.model = str(model)
        self.auth = {"Authorization": f"Bearer {key}"} if key else {}  # of requests without headers
        self.folder = str(temporary("bulkhead-test-"))
        self.control = self.folder + "/control.sock"
        self.log_path = self.folder + "/log"
        binary = need("BH_BULKHEAD_HOOKED" if hooked or inject else "BH_BULKHEAD")
        environment = dict(os.environ, **(env or {}))
        environment.pop("BH_INJECT", None)
        if inject:
            environment["BH_INJECT"] = inject
        command = [binary, "serve", "--model", self.model, "--port", "0", "--control", self.control, *map(str, args)]
        self.log = open(self.log_path, "wb")
        self.process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log, env=environment)
        self.started = time.monotonic()
        try:
            line = wait_until("ready line", self._ready, 60)
        except BaseException:
            self.stop()
            raise
        self.ready_s = time.monotonic() - self.started
        self.fields = dict(re.findall(r"(\w+)=(\S+)", line))
        host, port = re.match(r"http://(.*):(\d+)", self.fields["url"]).groups()
        self.host, self.port = host.strip("[]"), int(port)

    def _ready(self):
        if self.process.poll() is not None:
            raise AssertionError(f"serve ended with {self.process.returncode}:\n{self.log_text()}")
        match = re.search(r"^.*\bready url=.*$", self.log_text(), re.M)
        return match and match.group(0)

    def log_text(self):
        return pathlib.Path(self.log_path).read_text(errors="replace")

    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        if kind is not None:
            sys.stderr.write("--- server log\n" + self.log_text()[-4000:] + "---\n")
        self.stop()

    def stop(self, how=signal.SIGTERM):
        """End the engine; returns its exit status."""
        if self.process.poll() is None:
            self.process.send_signal(how)
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.log.close()
        return self.process.returncode

    # -- HTTP ----------------------------------------------------------------------------------

    def connect(self, timeout=120):
        return http.client.HTTPConnection(self.host, self.port, timeout=timeout)

    def raw(self, data, timeout=20, half_close=False):
        """Send bytes, return everything until the server ends the connection or falls silent."""
        with socket.create_connection((self.host, self.port), timeout=timeout) as sock:
            sock.sendall(data)
            if half_close:
                sock.shutdown(socket.SHUT_WR)
            out = b""
            try:
                while chunk := sock.recv(65536):
                    out += chunk
            except (socket.timeout, ConnectionResetError):
                pass
            return out

    def get(self, path, headers=None):
        connection = self.connect()
        connection.request("GET", path, headers=headers or self.auth)
        answer = Answer(connection.getresponse())
        connection.close()
        return answer

    def post(self, path, body, headers=None):
        connection = self.connect()
        data = body if isinstance(body, (bytes, str)) else json.dumps(body)
        connection.request("POST", path, data, {"Content-Type": "application/json", **(headers or {})})
        answer = Answer(connection.getresponse())
        connection.close()
        return answer

    def stream(self, path, body, headers=None):
        connection = self.connect()
        connection.request(
            "POST", path, json.dumps({**body, "stream": True}), {"Content-Type": "application/json", **(headers or {})})
        return Stream(connection, connection.getresponse())

    def complete(self, prompt, max_tokens=16, **more):
        """Greedy /v1/completions; returns the JSON of the answer."""
        body = {"prompt": prompt, "max_tokens": max_tokens, "temperature": 0, **more}
        answer = self.post("/v1/completions", body)
        assert answer.status == 200, (answer.status, answer.body)
        return answer.json()

    def metrics(self):
        """Samples by name with their labels, without model_name: {'bulkhead:pages_free': 12.0, ...}."""
        out = {}
        for line in self.get("/metrics").body.decode().splitlines():
            if line.startswith("#") or not line:
                continue
            name, value = line.rsplit(" ", 1)
            name = re.sub(r',?model_name="[^"]*"', "", name).replace("{}", "").replace("{,", "{")
            out[name] = float(value)
        return out

    def violations(self):
        return sum(v for k, v in self.metrics().items() if k.startswith("bulkhead:kv_violations_total"))

    # -- processes -----------------------------------------------------------------------------

    def ctl(self, *words):
        """bulkheadctl WORDS --json, parsed."""
        run = subprocess.run(
            [need("BH_BULKHEADCTL"), "--control", self.control, *words, "--json"], capture_output=True, text=True)
        assert run.returncode in (0, 1), run.stderr
        return json.loads(run.stdout)

    def pid(self, role):
        for line in subprocess.run(
                ["ps", "-o", "pid=,args=", "--ppid", str(self.process.pid)], capture_output=True, text=True
        ).stdout.splitlines():
            pid, command = line.strip().split(None, 1)
            if command.endswith(f"role {role}"):
                return int(pid)
        return None

    def pids(self):
        return {role: self.pid(role) for role in ROLES}

    def wait_up(self, role, not_pid=None, seconds=20):
        """Wait until `role` runs (again) and the server is healthy; returns its pid."""
        pid = wait_until(f"{role} runs", lambda: (p := self.pid(role)) and p != not_pid and p, seconds)
        wait_until("health", lambda: self.get("/health").status == 200, seconds)
        return pid

    def kill_role(self, role, how=signal.SIGKILL):
        """Kill it and wait until another one of it runs and the server is healthy; returns its pid."""
        pid = self.pid(role)
        os.kill(pid, how)
        return self.wait_up(role, pid)

    def settled(self, seconds=30):
        """Wait until no request is alive and no page is held or dirty; returns the metrics then."""
        def look():
            m = self.metrics()
            busy = (m["vllm:num_requests_running"] + m["vllm:num_requests_waiting"] + m["bulkhead:pages_held"]
                    + m["bulkhead:pages_dirty"])
            return m if busy == 0 else None
        return wait_until("no request alive, no page held or dirty", look, seconds)

    def settled_connections(self, seconds=10):
        """Wait until tokenizer and egress hold no client socket. The metrics call is one itself, so the
        kernel is asked: sockets with our port on the server's side."""
        def look():
            want = f":{self.port:04X}"
            rows = [line.split() for name in ("tcp", "tcp6")
                    for line in pathlib.Path(f"/proc/net/{name}").read_text().splitlines()[1:]]
            return not any(row[1].endswith(want) and row[3] != "0A" and row[9] != "0" for row in rows)
        wait_until("no client socket", look, seconds)


# -- TAP ---------------------------------------------------------------------------------------

def main(tests, end=None):
    """Run functions in order and print TAP; a test is skipped by raising Skip. `end` is called last."""
    chosen = [t for t in tests if len(sys.argv) < 2 or t.__name__ in sys.argv[1:]]
    print(f"1..{len(chosen)}")
    failed = 0
    for number, test in enumerate(chosen, 1):
        name = test.__name__
        began = time.monotonic()
        try:
            note = test()
            print(f"ok {number} - {name} ({time.monotonic() - began:.1f} s)" + (f": {note}" if note else ""))
        except Skip as reason:
            print(f"ok {number} - {name} # SKIP {reason}")
        except BaseException:  # a test that ends the run would hide the others
            failed += 1
            print(f"not ok {number} - {name}")
            print("".join("# " + line + "\n" for line in traceback.format_exc().splitlines()), end="")
        sys.stdout.flush()
    if end is not None:
        end()
    sys.exit(1 if failed else 0)
