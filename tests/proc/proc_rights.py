#!/usr/bin/python3
"""What each process of a running engine may touch, as the kernel sees it: maps, descriptors, user,
capabilities, filters. Compared with the topology, and with the promises that the topology itself has
to keep: no KV where sockets are, no sockets where KV is."""

import copy
import fcntl
import os
import pathlib
import socket

import harness
import procfs

F_GET_SEALS = 1034
F_SEAL_SHRINK, F_SEAL_GROW = 2, 4
SEALS_WRITE = 0x08 | 0x10  # no writing at all, or no new writing
WANTED = {"r": {"r--s"}, "w": {"rw-s"}}
THREADS = 2

folder = harness.temporary("bulkhead-rights-")
state = {}


def _running():
    """One engine for all tests; it has answered a request and has a client connected."""
    procfs.need_root()
    if not state:
        model = harness.make_model(folder / "tiny.gguf")
        keys = folder / "keys"
        keys.write_text("key-of-one-1 one\n")
        server = harness.Server(model, "--threads", THREADS, "--api-key-file", keys)
        state.update(server=server, pids=server.pids(), keys=str(keys), topology=procfs.Topology())
        answer = server.post("/v1/completions", {"prompt": [50, 51, 52], "max_tokens": 4},
                             {"Authorization": "Bearer key-of-one-1"})
        assert answer.status == 200, answer.body
        assert all(state["pids"].values()), state["pids"]
    return state["server"], state["pids"], state["topology"]


def _map_faults(topology, role, maps):
    """Differences between the table and the maps of a role, as sentences."""
    want = topology.role(role, topology.memory)
    faults = [f"{role} does not map {name}" for name in want if name not in maps]
    faults += [f"{role} maps {name}, which is not its" for name in maps if name not in want]
    faults += [f"{role} maps {name} {maps[name]}, the table says {want[name]}"
               for name in want if name in maps and maps[name] != WANTED[want[name]]]
    return faults


def maps_are_the_table():
    _, pids, topology = _running()
    assert len(topology.memory) > 20, topology.memory
    faults = [f for role, pid in pids.items() for f in _map_faults(topology, role, procfs.memory_files(pid))]
    assert not faults, faults


def a_wrong_map_would_be_seen():
    _, pids, topology = _running()
    for role, pid in pids.items():
        maps = procfs.memory_files(pid)
        for name in topology.memory:
            for right in "rw.":
                spoiled = copy.deepcopy(topology)
                spoiled.rights[name][role] = right
                changed = right != topology.rights[name][role]
                assert bool(_map_faults(spoiled, role, maps)) == changed, (role, name, right)


def promises_of_the_table():
    """Independent of the table: it could be wrong too."""
    _, pids, _ = _running()
    maps = {role: procfs.memory_files(pid) for role, pid in pids.items()}
    for role in ("tokenizer", "egress", "ledger"):
        for secret in ("pool", "weights"):
            assert secret not in maps[role], (role, secret)
    for name in ("pagetable", "requests"):
        writers = [role for role in maps if any("w" in perms for perms in maps[role].get(name, ()))]
        assert writers == ["ledger"], (name, writers)
    for name in ("weights", "vocab"):
        for role in maps:
            assert maps[role].get(name, {"r--s"}) == {"r--s"}, (role, name)
    for role, names in maps.items():
        for name, perms in names.items():
            assert not any("x" in p for p in perms), (role, name, perms)
    for role in ("ledger", "prefill", "decode"):
        targets = [target for target, _ in procfs.descriptors(pids[role]).values()]
        assert not [t for t in targets if t.startswith("socket:") or "uring" in t], (role, targets)


def no_writable_code():
    """No private map that is writable and executable, none executable without a file."""
    _, pids, _ = _running()
    for role, pid in pids.items():
        for line in pathlib.Path(f"/proc/{pid}/maps").read_text().splitlines():
            words = line.split()
            if "x" in words[1] and "[v" not in line:
                assert "w" not in words[1] and len(words) == 6, (role, line)


def _want_descriptors(topology, role):
    """[(beginning of the link, access mode)] from descriptor 3 on."""
    rows = [("/memfd:" + name, os.O_RDWR if right == "w" else os.O_RDONLY)
            for name, right in topology.role(role, topology.memory).items()]
    for name in topology.role(role, topology.others):
        if name.startswith("bell_"):
            rows.append(("anon_inode:[eventfd]", os.O_RDWR))
        elif name == "keys":
            rows.append((state["keys"], os.O_RDONLY))
        else:
            rows.append(("socket:", os.O_RDWR))
    if role in ("tokenizer", "egress"):
        rows.append(("anon_inode:[io_uring]", os.O_RDWR))
    return rows


def _descriptor_faults(topology, role, found):
    want = _want_descriptors(topology, role)
    faults = []
    for number, (begin, mode) in enumerate(want, 3):
        target, got = found.get(number, ("nothing", -1))
        if not target.lower().startswith(begin.lower()) or got != mode:
            faults.append(f"{role} fd {number} is {target} mode {got}, expected {begin} mode {mode}")
    faults += [f"{role} has fd {n}: {found[n][0]}" for n in sorted(found) if n >= 3 + len(want)]
    for number, mode in ((0, os.O_RDONLY), (1, os.O_WRONLY), (2, os.O_WRONLY)):
        if found[number][1] != mode:
            faults.append(f"{role} fd {number} has mode {found[number][1]}")
    if found[0][0] != "/dev/null":
        faults.append(f"{role} reads {found[0][0]}")
    return faults


def descriptors_are_the_table():
    server, pids, topology = _running()
    server.settled_connections()
    faults = [f for role, pid in pids.items() for f in _descriptor_faults(topology, role, procfs.descriptors(pid))]
    assert not faults, faults


def a_wrong_descriptor_would_be_seen():
    server, pids, topology = _running()
    server.settled_connections()
    for role, pid in pids.items():
        found = procfs.descriptors(pid)
        last = max(found)
        extra = {**found, last + 1: ("/etc/passwd", os.O_RDONLY)}
        assert _descriptor_faults(topology, role, extra), role
        for number in range(3, last + 1):
            target, mode = found[number]
            other = os.O_RDWR if mode == os.O_RDONLY else os.O_RDONLY
            assert _descriptor_faults(topology, role, {**found, number: (target, other)}), (role, number)
            assert _descriptor_faults(topology, role, {k: v for k, v in found.items() if k != number}), (role, number)


def a_client_is_known_to_two_roles_only():
    server, pids, _ = _running()
    server.settled_connections()
    before = {role: procfs.descriptor_cnt(pid) for role, pid in pids.items()}
    with socket.create_connection((server.host, server.port)):
        harness.wait_until("both roles have the socket", lambda: all(
            procfs.descriptor_cnt(pids[role]) == before[role] + 1 for role in ("tokenizer", "egress")))
        for role in ("ledger", "prefill", "decode"):
            assert procfs.descriptor_cnt(pids[role]) == before[role], role
    harness.wait_until("both let go of it", lambda: all(
        procfs.descriptor_cnt(pids[role]) == before[role] for role in pids))


def privileges_are_gone():
    server, pids, _ = _running()
    users = {}
    for role, pid in pids.items():
        status = procfs.status(pid)
        uids, gids = set(status["Uid"].split()), set(status["Gid"].split())
        assert len(uids) == 1 and len(gids) == 1 and "0" not in uids | gids, (role, uids, gids)
        users[role] = uids.pop()
        assert status["Groups"] == "", (role, status["Groups"])
        for field in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
            assert int(status[field], 16) == 0, (role, field, status[field])
        assert status["NoNewPrivs"] == "1" and status["Seccomp"] == "2", (role, status["NoNewPrivs"], status["Seccomp"])
        threads = THREADS if role in ("prefill", "decode") else 1
        assert int(status["Threads"]) == threads, (role, status["Threads"])
        for task in os.listdir(f"/proc/{pid}/task"):
            assert procfs.status(f"{pid}/task/{task}")["Seccomp"] == "2", (role, task)
        environment = pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        assert sorted(filter(None, environment)) == [b"LC_ALL=C.UTF-8", b"PATH=/usr/bin:/bin"], (role, environment)
        assert os.stat(f"/proc/{pid}/environ").st_uid == 0, "not dumpable: its own user must not look into it"
        assert procfs.status(pid)["PPid"] == str(server.process.pid), role
    assert len(set(users.values())) == len(users), ("roles share a user", users)


def raw_bytes_are_sealed():
    """Who got hold of a descriptor of the weights could still not change them."""
    _, pids, topology = _running()
    found = procfs.descriptors(pids["decode"])
    number = next(n for n, (target, _) in found.items() if target == "/memfd:weights")
    fd = os.open(f"/proc/{pids['decode']}/fd/{number}", os.O_RDWR)
    try:
        seals = fcntl.fcntl(fd, F_GET_SEALS)
        assert seals & SEALS_WRITE and seals & F_SEAL_SHRINK and seals & F_SEAL_GROW, seals
        try:
            os.pwrite(fd, b"x", 0)
        except PermissionError:
            return
        raise AssertionError("the weights were written")
    finally:
        os.close(fd)


def the_supervisor_writes_its_own_words_only():
    server, _, topology = _running()
    allowed = {n for n, right in topology.role("supervisor", topology.memory).items() if right == "w"}
    for name, perms in procfs.memory_files(server.process.pid).items():
        assert perms == {"r--s"} or name in allowed, (name, perms)
    assert "pool" not in procfs.memory_files(server.process.pid)


harness.main([maps_are_the_table, a_wrong_map_would_be_seen, promises_of_the_table, no_writable_code,
              descriptors_are_the_table, a_wrong_descriptor_would_be_seen, a_client_is_known_to_two_roles_only,
              privileges_are_gone, raw_bytes_are_sealed, the_supervisor_writes_its_own_words_only],
             end=lambda: state and state["server"].stop())
