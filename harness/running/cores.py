"""The client's share of a busy machine: a core of its own, and who else was busy.

The processes of an engine are less urgent than the client (`os.nice` in theirs). On more than two
cores they also leave one to it. On two they do not: one core for an engine's threads costs more.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import psutil

from harness.clock import Loop
from harness.configuration.threads import SHARED
from harness.records.evidence import BUSY
from harness.records.record import Recorder

NAMED, LEAST_CORES = 3, 0.05  # of other processes: so many, and none that used less


@contextmanager
def own_core() -> Iterator[None]:
    """This process has the last core for itself, and the engine's, which have a lower priority, the
    others; threads that are bound already stay where they are, but for that core."""
    ours, cores = psutil.Process(), os.sched_getaffinity(0)
    if len(cores) <= SHARED:
        yield
        return
    own = {max(cores)}
    for child in ours.children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # it has ended meanwhile
            if child.nice() > ours.nice():
                _keep_to(child, cores - own)
    _bind(ours, own)
    try:
        yield
    finally:
        _bind(ours, cores)


def _keep_to(process: psutil.Process, cores: set[int]) -> None:
    for thread in process.threads():
        with suppress(ProcessLookupError):
            bound = os.sched_getaffinity(thread.id) & cores
            os.sched_setaffinity(thread.id, bound or cores)


def _bind(process: psutil.Process, cores: set[int]) -> None:
    for thread in process.threads():
        with suppress(ProcessLookupError):
            os.sched_setaffinity(thread.id, cores)


@contextmanager
def others_watched(recorder: Recorder, loop: Loop) -> Iterator[None]:
    """Records which processes, neither this one nor below it, used the most processor time
    meanwhile. What another process namespace has is not seen, nor what ended meanwhile."""
    before, began_s = _used_s(), time.monotonic()
    yield
    took_s = time.monotonic() - began_s
    ours = {each.pid for each in (psutil.Process(), *psutil.Process().children(recursive=True))}
    cores = {
        who: (used_s - before.get(who, 0.0)) / took_s
        for who, used_s in _used_s().items()
        if who[1] not in ours
    }
    busiest = sorted(cores, key=cores.__getitem__, reverse=True)[:NAMED]
    named = [
        {"name": who[0], "pid": who[1], "cores": round(cores[who], 2)}
        for who in busiest
        if cores[who] >= LEAST_CORES
    ]
    recorder.event(BUSY, "client", 0.0, loop.now, others=named)


def _used_s() -> dict[tuple[str, int, float], float]:
    """CPU seconds of each process, by its name, number and start. None of the kernel's own, which
    have no command line and cannot be closed."""
    seen = psutil.process_iter(["name", "pid", "create_time", "cpu_times", "cmdline"])
    return {
        (each.info["name"], each.info["pid"], each.info["create_time"]): sum(times[:2])
        for each in seen
        if each.info["cmdline"] and (times := each.info["cpu_times"]) is not None
    }
