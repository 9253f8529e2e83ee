#!/usr/bin/python3
"""What an engine costs while nobody asks it anything: processor time, memory, and the time to be there
again after a restart."""

import os
import pathlib
import socket
import statistics
import time

import harness
import procfs

MIB = 1 << 20
IDLE_S = 10
IDLE_CORE = 0.01            # of one core, all processes together
READY_S = 2.0               # from exec to the ready line, the model file in the page cache
BESIDES_BYTES = 150 * MIB   # resident memory that is neither weights nor pool
CTX, POOL = 512, 2048


def _pids(server):
    return {"supervisor": server.process.pid, **server.pids()}


def _cpu(server):
    return {name: procfs.cpu_s(pid) for name, pid in _pids(server).items()}


def idle_costs_nothing():
    with harness.Server(harness.need("BH_MODEL"), "--ctx", CTX, "--pool-tokens", POOL) as server:
        server.complete("The sea is", 8)
        server.settled()
        with socket.create_connection((server.host, server.port)) as waiting:
            # A client that says nothing must cost nothing either.
            waiting.sendall(b"POST /v1/completions HTTP/1.1\r\n")
            before, began = _cpu(server), time.monotonic()
            time.sleep(IDLE_S)
            took = time.monotonic() - began
            after = _cpu(server)
        used = {name: (after[name] - before[name]) / took for name in after}
        total = sum(used.values())
        shares = ", ".join(f"{name} {100 * share:.2f}" for name, share in used.items())
        assert total < IDLE_CORE, f"{100 * total:.2f} % of a core: {shares}"
        return f"{100 * total:.2f} % of a core ({shares})"


def busy_is_seen():
    """The clock that idling is judged by moves when there is work."""
    with harness.Server(harness.need("BH_MODEL"), "--ctx", CTX, "--pool-tokens", POOL) as server:
        before = _cpu(server)
        server.complete("The sea is", 16)
        after = _cpu(server)
        for name in ("prefill", "decode", "tokenizer", "egress"):
            assert after[name] > before[name], name
        assert sum(after.values()) - sum(before.values()) > IDLE_CORE * IDLE_S


def memory_is_weights_and_pool():
    """After every page was written once. Each shared page counts once: proportional shares are added up."""
    procfs.need_root()
    with harness.Server(harness.need("BH_MODEL"), "--ctx", CTX, "--pool-tokens", POOL) as server:
        for number in range(POOL // CTX + 1):
            server.complete([1000 + 7 * number + i % 1500 for i in range(CTX - 8)], 4)
        metrics = server.settled()
        pages = server.ctl("status")["pool"]
        unused = metrics["bulkhead:pages_free"] - pages["page_cnt"] * 0.1
        assert unused <= 0, ("the pool was not filled", metrics["bulkhead:pages_free"], pages)
        weights = _size(server, "weights")
        resident = {name: procfs.rollup(pid)["Pss"] for name, pid in _pids(server).items()}
        files = _memory_files_bytes(server)
        besides = sum(resident.values()) - weights - pages["bytes"]
        parts = ", ".join(f"{name} {size / MIB:.0f}" for name, size in resident.items())
        assert besides <= BESIDES_BYTES, f"{besides / MIB:.0f} MiB besides weights and pool: {parts}"
        besides_files = files - weights - pages["bytes"]
        assert besides_files <= BESIDES_BYTES, f"{besides_files / MIB:.0f} MiB of memory files besides weights and pool"
        return (f"{besides / MIB:.0f} MiB besides weights {weights / MIB:.0f} and pool {pages['bytes'] / MIB:.0f}; "
                f"memory files besides those {besides_files / MIB:.0f} MiB; MiB by process: {parts}")


def _stats(server):
    """os.stat of every memory file that the supervisor holds, by name."""
    out = {}
    for number in os.listdir(f"/proc/{server.process.pid}/fd"):
        path = f"/proc/{server.process.pid}/fd/{number}"
        target = os.readlink(path)
        if target.startswith("/memfd:"):
            out[target[len("/memfd:"):].removesuffix(" (deleted)")] = os.stat(path)
    return out


def _size(server, name):
    return _stats(server)[name].st_size


def _memory_files_bytes(server):
    """What the memory files really occupy, whoever maps them."""
    return sum(stat.st_blocks * 512 for stat in _stats(server).values())


def a_warm_start_is_quick():
    pathlib.Path(harness.need("BH_MODEL")).read_bytes()
    seconds = []
    for _ in range(3):
        procfs.need_quiet()
        with harness.Server(harness.need("BH_MODEL"), "--ctx", CTX, "--pool-tokens", POOL) as server:
            seconds.append(server.ready_s)
    median = statistics.median(seconds)
    assert median < READY_S, f"ready after {median:.2f} s: {seconds}"
    return f"ready after {median:.2f} s"


harness.main([idle_costs_nothing, busy_is_seen, memory_is_weights_and_pool, a_warm_start_is_quick])
