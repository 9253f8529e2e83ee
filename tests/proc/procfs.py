"""What the kernel says of a process: maps, descriptors, status, time, memory. And the topology table
as `bulkhead topo` prints it, to compare with."""

import os
import pathlib
import re
import subprocess
import time

import harness


def status(pid):
    """/proc/PID/status as a dict of strings."""
    out = {}
    for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
        key, _, value = line.partition(":")
        out[key] = value.strip()
    return out


def kib(pid, field):
    """A field of status that is a size, in KiB."""
    return int(status(pid)[field].split()[0])


def memory_files(pid):
    """Shared maps of memory files: {name: set of permissions like 'rw-s'}."""
    out = {}
    for line in pathlib.Path(f"/proc/{pid}/maps").read_text().splitlines():
        words = line.split()
        if len(words) >= 6 and words[5].startswith("/memfd:"):
            out.setdefault(words[5][len("/memfd:"):].lower(), set()).add(words[1])
    return out


def descriptors(pid):
    """{number: (what it is, access mode)}; the mode is os.O_RDONLY, O_WRONLY or O_RDWR."""
    out = {}
    for name in os.listdir(f"/proc/{pid}/fd"):
        target = os.readlink(f"/proc/{pid}/fd/{name}").removesuffix(" (deleted)")
        info = pathlib.Path(f"/proc/{pid}/fdinfo/{name}").read_text()
        flags = int(re.search(r"^flags:\s*([0-7]+)", info, re.M).group(1), 8)
        out[int(name)] = (target, flags & os.O_ACCMODE)
    return out


def descriptor_cnt(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


def cpu_s(pid):
    """Seconds of processor time of all threads, to the nanosecond."""
    total = 0
    for task in os.listdir(f"/proc/{pid}/task"):
        total += int(pathlib.Path(f"/proc/{pid}/task/{task}/schedstat").read_text().split()[0])
    return total / 1e9


def rollup(pid):
    """Fields of smaps_rollup in bytes."""
    out = {}
    for line in pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]:
        key, value = line.split(":")
        out[key] = int(value.split()[0]) * 1024
    return out


def children(pid):
    """{pid: state letter} of the children, the dead ones that nobody waited for included."""
    out = {}
    for line in subprocess.run(["ps", "-o", "pid=,stat=", "--ppid", str(pid)],
                               capture_output=True, text=True).stdout.splitlines():
        child, state = line.split()
        out[int(child)] = state[0]
    return out


def need_root():
    if os.geteuid() != 0:
        raise harness.Skip("not root: the kernel does not show descriptors of processes that are not dumpable")


def _machine_s():
    """Processor seconds used by everything on this machine, waiting and idling excluded."""
    words = pathlib.Path("/proc/stat").read_text().split("\n")[0].split()[1:]
    user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, words[:8])
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def need_quiet(seconds=1.0, cores=0.3):
    """Skip if others use more than `cores` of this machine just now: times would be theirs."""
    before = _machine_s()
    time.sleep(seconds)
    used = (_machine_s() - before) / seconds
    if used > cores:
        raise harness.Skip(f"the machine is busy: {used:.1f} cores used by others")


class Topology:
    """The table: rights[name][role letter] is 'w', 'r', 'x' or '.', in the order of the table; names of
    memory in `memory`, of descriptors in `others`."""

    LETTERS = {"S": "supervisor", "T": "tokenizer", "L": "ledger", "P": "prefill", "D": "decode", "E": "egress"}

    def __init__(self):
        text = subprocess.run([harness.need("BH_BULKHEAD"), "topo"], capture_output=True, text=True, check=True).stdout
        self.rights, self.memory, self.others = {}, [], []
        section = None
        for line in text.splitlines():
            if line.startswith("memory"):
                section, letters = self.memory, line.split()[-6:]
            elif line.startswith("descriptors"):
                section, letters = self.others, line.split()[-6:]
            row = re.match(r"  (\w+) +((?:[wrx.] +){6})", line)
            if section is not None and row:
                section.append(row.group(1))
                self.rights[row.group(1)] = {
                    self.LETTERS[letter]: right for letter, right in zip(letters, row.group(2).split())}

    def role(self, role, names):
        """{name: right} of what a role has, in table order."""
        return {name: self.rights[name][role] for name in names if self.rights[name][role] != "."}
