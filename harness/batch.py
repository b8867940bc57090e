"""All runs of experiments: those of their sweeps, then those that find where curves end.

Simulated runs share the cores; runs on a real engine come one after another, with nothing beside
them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context

from harness.experiments import Composed, composed, groups
from harness.points import Point, run_point
from harness.seek import Sought, next_runs

Runs = list[tuple[Composed, list[str]]]  # composed with their groups; overrides


def run_all(
    names: Sequence[str], jobs: int, sought: Mapping[str, Sought], *, again: bool
) -> Iterator[tuple[str, list[Point]]]:
    """Every run of the experiments `names`, experiment by experiment, and those of `sought`, which
    are simulated, once more when the ends of their curves have been found."""
    with processes(jobs) as pool:
        runs = composed_runs(names, pool)
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
    """At most `jobs` of them; what ends the block early ends what they have not begun."""
    with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
        try:
            yield pool
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def composed_runs(names: Sequence[str], pool: Executor) -> dict[str, Runs]:
    """Each experiment's; every choice of groups is composed once."""
    plain = zip(names, pool.map(composed, names), strict=True)
    made: dict[tuple[str, tuple[str, ...]], Composed] = {(name, ()): found for name, found in plain}
    sweeps = {name: made[name, ()].sweep for name in names}
    chosen = dict.fromkeys((name, groups(run)) for name in names for run in sweeps[name])
    others = [choice for choice in chosen if choice not in made]
    made |= zip(others, pool.map(composed, *zip(*others, strict=True)), strict=True)
    return {name: [(made[name, groups(run)], run) for run in sweeps[name]] for name in names}
