"""All runs of experiments: those of their sweeps, then those that find where curves end.

Simulated runs share the cores, or the tasks of one of Hydra's launchers; runs on a real engine come
one after another on this host, with nothing beside them.
"""

from __future__ import annotations

import gc
import os
import signal
import threading
from collections.abc import Generator, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing import active_children, get_context, parent_process

from harness.errors import RunError
from harness.experiments.capacity_search import Search, next_runs
from harness.experiments.compose import Composed, composed, groups, seed_in, sweep
from harness.experiments.figure_progress import RunsProgress
from harness.experiments.launched import Launched
from harness.experiments.points import Only, Point, among, by_key, run_point
from harness.running.interrupts import check, heard

Runs = list[tuple[Composed, list[str]]]  # composed with their groups; overrides
Halving = tuple[str, tuple[tuple[str, ...], ...]]  # of an experiment; overrides of each run


@dataclass(frozen=True, slots=True)
class Making:
    """How runs are made: `jobs` simulated ones at a time. `live`: overrides of those on a real
    engine; `simulated`: of the others, and then those on one are left out. `again`: complete ones
    are repeated. `seeds`: of each sweep only so many seeds, the first; None: all. `launcher`: words
    that name one of Hydra's, which makes the simulated runs in `jobs` tasks; none: processes of
    this host do. `only`: of an experiment those that a figure has (`wanted`); none: all."""

    jobs: int
    live: Sequence[str] = ()
    simulated: Sequence[str] = ()
    again: bool = False
    seeds: int | None = None
    launcher: Sequence[str] = ()
    only: Mapping[str, Sequence[Only]] = field(default_factory=dict)


def run_all(
    names: Sequence[str], searches: Mapping[str, Search], making: Making, progress: RunsProgress
) -> Generator[tuple[str, list[Point] | Exception]]:
    """Every run of the experiments `names`, experiment by experiment, or what one of the simulated
    failed of, which stops no other experiment; those of `searches` that are simulated last, with
    the ends of their curves. A failed run of a search, or of a real engine, ends all. `progress` is
    told of each run."""
    jobs, again = making.jobs, making.again
    with processes(jobs) as pool:
        runs = composed_runs(names, pool, making)
        on_sim = [
            name
            for name, of_name in runs.items()
            if all(made.choices["engine"] == "sim" for made, _ in of_name)
        ]
        for name, of_name in runs.items():
            progress.more(name, len(of_name), jobs if name in on_sim else 1)

        on = Launched(making.launcher, jobs) if making.launcher else pool
        makers = Makers(on, making, progress)
        pending = {
            name: [makers.begin(name, made, run) for made, run in runs[name]] for name in on_sim
        }
        found = {}
        for name, futures in pending.items():
            makers.await_one(futures)
            try:
                found[name] = [future.result() for future in futures]
            except BrokenProcessPool:
                raise  # no other run can be made either
            except Exception as error:
                for future in futures:
                    future.cancel()
                yield name, error
                continue
            if name not in searches:
                yield name, found[name]
        ends = {name: found[name] for name in found if name in searches}
        find_ends(ends, searches, runs, makers)
        yield from ends.items()
    for name, of_name in runs.items():
        if name not in pending:
            points = []
            for run in of_name:
                points.append(run_point(name, *run, again=again))
                progress.done(name)
            yield name, points


@dataclass(frozen=True, slots=True)
class Makers:
    """What makes runs: processes of this host, or tasks of a launcher."""

    pool: Executor
    making: Making
    progress: RunsProgress

    def begin(self, name: str, made: Composed, run: Sequence[str]) -> Future[Point]:
        """A run of experiment `name`, once a process is free."""
        future = self.pool.submit(run_point, name, made, run, again=self.making.again)
        future.add_done_callback(lambda _: self.progress.done(name, self.making.jobs))
        return future

    def await_one(self, futures: Sequence[Future[Point]]) -> None:
        """Waits until one of `futures` has ended; a launcher's all end together."""
        if isinstance(self.pool, Launched):
            self.pool.launch()
        wait(futures, return_when=FIRST_COMPLETED)


def find_ends(
    points: Mapping[str, list[Point]],
    searches: Mapping[str, Search],
    runs: Mapping[str, Runs],
    makers: Makers,
) -> None:
    """Adds to each experiment's `points` those that `searches` asks for. A curve goes on as soon as
    all draws of its latest value are there, whatever other curves are waiting for."""
    made = {name: {groups(run): found for found, run in runs[name]} for name in points}
    found: dict[str, list[Point]] = {name: [] for name in points}
    under_way: dict[Halving, list[Future[Point]]] = {}

    def halve(name: str) -> None:
        for of_curve in next_runs([*points[name], *found[name]], searches[name]):
            halving = name, tuple(map(tuple, of_curve))
            if halving not in under_way:
                makers.progress.more(name, len(of_curve), makers.making.jobs)
                under_way[halving] = [
                    makers.begin(name, made[name][groups(run)], run) for run in of_curve
                ]

    for name in points:
        halve(name)
    while under_way:
        # Looked at before the halvings are: one that ends in between is waited for, at no cost.
        left = [future for futures in under_way.values() for future in futures if not future.done()]
        ended = [key for key, futures in under_way.items() if all(f.done() for f in futures)]
        for halving in ended:
            found[halving[0]] += [future.result() for future in under_way.pop(halving)]
            halve(halving[0])
        if not ended:
            makers.await_one(left)
    for name, of_name in points.items():  # in one order, whichever came first
        of_name += sorted(found[name], key=lambda point: list(point.overrides.values()))


@contextmanager
def processes(jobs: int) -> Iterator[Executor]:
    """Yields a pool of at most `jobs` processes. What ends the block early ends what they have not
    begun; an interrupt ends them at once, and so does the end of this process, however it comes."""
    with ProcessPoolExecutor(jobs, get_context("spawn"), initializer=_begin) as pool:
        try:
            yield pool
        except BrokenProcessPool as error:
            check()  # Ctrl-C may have reached them first
            raise RunError("a process that made runs was killed (out of memory?)") from error
        except BaseException as error:
            # what it yields to may have been interrupted
            if isinstance(error, KeyboardInterrupt) or heard():
                for process in active_children():
                    process.kill()
            else:
                pool.shutdown(cancel_futures=True)
            raise


def _begin() -> None:
    """Prepares a process of the pool. Ctrl-C ends it, for an exception would end what it is at, and
    not what it has been given. It waits for work at a pipe that it holds open itself, so it would
    outlive a parent that was killed. What it has imported by now is no garbage: collections, of
    which each run has several, need not look at it again."""
    gc.freeze()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    threading.Thread(target=_end_with_parent, name="parent", daemon=True).start()


def _end_with_parent() -> None:
    parent = parent_process()
    assert parent is not None, "spawned"
    parent.join()
    os._exit(1)


def composed_runs(names: Sequence[str], pool: Executor, making: Making) -> dict[str, Runs]:
    """The runs of each experiment; composed once for each choice of groups."""
    sweeps = {}
    for name in names:
        engine, runs = sweep(name)
        more = making.simulated if engine == "sim" else making.live
        if engine == "sim" or not making.simulated:
            kept = of_first_seeds(wanted(runs, making.only.get(name, [{}])), making.seeds)
            sweeps[name] = [[*run, *more] for run in kept]
    chosen = dict.fromkeys((name, groups(run)) for name, runs in sweeps.items() for run in runs)
    # Not by `map`: it cancels what is left when it is interrupted, on which a pool stumbles.
    under_way = {
        (name, of_run): pool.submit(composed, [f"+experiment={name}", *of_run])
        for name, of_run in chosen
    }
    made = {choice: future.result() for choice, future in under_way.items()}
    return {name: [(made[name, groups(run)], run) for run in runs] for name, runs in sweeps.items()}


def wanted(runs: Sequence[list[str]], only: Sequence[Only]) -> list[list[str]]:
    """The runs of an experiment that one of its figures has: `only` of each."""
    return [run for run in runs if any(among(by_key(run), each) for each in only)]


def of_first_seeds(runs: list[list[str]], count: int | None) -> list[list[str]]:
    """The runs of an experiment with one of its first `count` seeds; None: all."""
    seeds = [next(filter(None, map(seed_in, run)), "") for run in runs]
    kept = list(dict.fromkeys(seeds))[:count]
    return [run for run, seed in zip(runs, seeds, strict=True) if seed in kept]
