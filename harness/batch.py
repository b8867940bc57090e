"""All runs of experiments: those of their sweeps, then those that find where curves end.

Simulated runs share the cores; runs on a real engine come one after another, with nothing beside
them.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context

from harness.experiments import Composed, composed, groups, sweep
from harness.points import Point, run_point
from harness.seek import Sought, next_runs

Runs = list[tuple[Composed, list[str]]]  # composed with their groups; overrides


def run_all(
    names: Sequence[str], jobs: int, sought: Mapping[str, Sought], live: Sequence[str] = (),
    *, again: bool,
) -> Iterator[tuple[str, list[Point]]]:  # fmt: skip
    """Every run of the experiments `names`, experiment by experiment, and those of `sought`, which
    are simulated, once more when the ends of their curves have been found. `live`: overrides of
    those on a real engine."""
    with processes(jobs) as pool:
        runs = composed_runs(names, pool, live)
        pending = {
            name: [pool.submit(run_point, name, *run, again=again) for run in of_name]
            for name, of_name in runs.items()
            if all(made.choices["engine"] == "sim" for made, _ in of_name)
        }
        found = {}
        for name, futures in pending.items():
            found[name] = [future.result() for future in futures]
            yield name, found[name]
        ends = {name: found[name] for name in found if name in sought}
        find_ends(ends, sought, runs, pool, again=again)
        yield from ends.items()
    for name, of_name in runs.items():
        if name not in pending:
            yield name, [run_point(name, *run, again=again) for run in of_name]


def find_ends(
    points: Mapping[str, list[Point]],
    sought: Mapping[str, Sought],
    runs: Mapping[str, Runs],
    pool: Executor,
    *,
    again: bool,
) -> None:
    """Adds to each experiment's `points` those that `sought` asks for, round after round."""
    made = {name: {groups(run): found for found, run in runs[name]} for name in points}
    while True:
        more = [
            (name, pool.submit(run_point, name, made[name][groups(run)], run, again=again))
            for name in points
            for run in next_runs(points[name], sought[name])
        ]
        if not more:
            return
        for name, future in more:
            points[name].append(future.result())


@contextmanager
def processes(jobs: int) -> Iterator[Executor]:
    """At most `jobs` of them. What ends the block early ends what they have not begun; Ctrl-C ends
    them at once, for an exception would end what each is at, and not what it has been given."""
    interrupt = (signal.SIGINT, signal.SIG_DFL)
    spawn = get_context("spawn")
    with ProcessPoolExecutor(jobs, spawn, initializer=signal.signal, initargs=interrupt) as pool:
        try:
            yield pool
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def composed_runs(
    names: Sequence[str], pool: Executor, live: Sequence[str] = ()
) -> dict[str, Runs]:
    """Each experiment's; composed once for each choice of groups."""
    sweeps = {}
    for name, (engine, runs) in zip(names, pool.map(sweep, names), strict=True):
        sweeps[name] = runs if engine == "sim" else [[*run, *live] for run in runs]
    chosen = {(name, groups(run)): None for name, runs in sweeps.items() for run in runs}
    made = dict(zip(chosen, pool.map(composed, *zip(*chosen, strict=True)), strict=True))
    return {name: [(made[name, groups(run)], run) for run in runs] for name, runs in sweeps.items()}
