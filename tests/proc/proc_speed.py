#!/usr/bin/python3
"""Floors of speed through HTTP with the demo model: far below what a quiet machine reaches, so that only a
real loss, or a kernel variant that was not chosen, falls through. bench/bench_serve.py measures."""

import pathlib
import statistics
import sys

import harness
import procfs

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent.parent / "bench"))
import bench_serve  # noqa: E402  (its folder is not a package)

DECODE = 60.0    # tokens a second, one stream
PREFILL = 250.0
ROUNDS = 3


def floors_are_held():
    procfs.need_quiet()
    with harness.Server(harness.need("BH_MODEL"), "--ctx", 2048, "--pool-tokens", 8192) as server:
        address = (server.host, server.port)
        bench_serve.check(address)
        rounds = [bench_serve.one_stream(address, salt) for salt in range(2, 2 + ROUNDS)]
    prefill, decode = (statistics.median(values) for values in zip(*rounds))
    said = f"prefill {prefill:.0f} tok/s, decode {decode:.0f} tok/s"
    if prefill < PREFILL or decode < DECODE:
        procfs.need_quiet()  # somebody may have come in between
        raise AssertionError(f"{said}; floors are {PREFILL:.0f} and {DECODE:.0f}: {rounds}")
    return said


harness.main([floors_are_held])
