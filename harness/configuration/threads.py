"""How many CPU threads the engine gets unless `engine.num_threads` says so."""

from __future__ import annotations

import os

SHARED = 2  # cores, up to which the client has none of its own


def engine_threads() -> int:
    """The cores but one, which the harness and its client keep.

    Where the engine has all of them, equal runs differ by tens of percent: with sleeping OpenMP
    threads Linux may wake two on one core, and each core is the client's, too.
    """
    return max(1, len(os.sched_getaffinity(0)) - 1)


def most_threads() -> int:
    """The cores that an engine's processes may use: on more than `SHARED` the client has one to
    itself (`harness.running.cores`)."""
    cores = os.cpu_count() or 1
    return cores if cores <= SHARED else cores - 1
