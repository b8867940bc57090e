"""Which runs are of one thing, under several seeds or repeated, and which runs make a pair."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain

from harness.comparing.conditions import NEEDED, WORK, conditions, same
from harness.errors import UsageError
from harness.records.run_folder import FinishedRun
from harness.running.prepare import PRESENTATION

NOT_WHAT_IS_RUN = ("seed", "repeat", "hydra", *PRESENTATION)


@dataclass(slots=True)
class Arm:
    """Runs that differ in seed and repeat alone. `by_seed`: each seed's repeats, as they were
    given."""

    overrides: tuple[str, ...]
    by_seed: dict[int, list[FinishedRun]] = field(default_factory=dict)
    label: str = ""

    @property
    def runs(self) -> list[FinishedRun]:
        return [run for repeats in self.by_seed.values() for run in repeats]


def arms(runs: Sequence[FinishedRun]) -> list[Arm]:
    """The runs by what they run, in the order given. A second run of the same seed and repeat
    begins an arm of its own, and so does each repeat where all runs are of one thing: so a run and
    its repeat compare, too."""
    what = [
        tuple(sorted(o for o in run.manifest["overrides"] if key(o) not in NOT_WHAT_IS_RUN))
        for run in runs
    ]
    one_thing = len(set(what)) == 1
    found: list[Arm] = []
    for run, overrides in zip(runs, what, strict=True):
        seed = int(run.manifest["seeds"]["seed"])
        for arm in found:
            there = arm.by_seed.get(seed, [])
            again = there if one_thing else _repeat(run) in map(_repeat, there)
            if arm.overrides == overrides and not again:
                arm.by_seed.setdefault(seed, []).append(run)
                break
        else:
            found.append(Arm(overrides, {seed: [run]}))
    for number, arm in enumerate(found):
        arm.label = _label(arm, found[:number], found)
    return found


def pairs(reference: Arm, other: Arm) -> list[tuple[FinishedRun, FinishedRun]]:
    """The runs of both arms by the seeds that they share, and of each seed its repeats in order.

    Seeds that change nothing are one seed: no two pairs have the same requests table on both
    sides. Raises UsageError if they share none, or if a pair has not served one model on one
    schedule in one way, open or closed loop.
    """
    shared = sorted(set(reference.by_seed) & set(other.by_seed))
    if not shared:
        raise UsageError(
            f"{reference.label} has seeds {_listed(reference)}, {other.label} has "
            f"{_listed(other)}: runs are paired by seed, and no seed is in both"
        )
    found: list[tuple[FinishedRun, FinishedRun]] = []
    repeats = (zip(reference.by_seed[seed], other.by_seed[seed], strict=False) for seed in shared)
    for first, second in chain.from_iterable(repeats):
        lacking = [name for name in WORK if not same(first, second, name)]
        if lacking:
            raise UsageError(
                f"{first.path} and {second.path} differ in {' and '.join(lacking)}: requests "
                "are compared one by one, so both runs must serve the same ones"
            )
        if not any(
            first.requests.equals(a.requests) and second.requests.equals(b.requests)
            for a, b in found
        ):
            found.append((first, second))
    return found


def unequal(runs: Sequence[FinishedRun]) -> list[str]:
    """What makes a comparison unfair, a sentence each; none: the runs have equal budgets."""
    found = [f"{run.path} is {run.summary['verdict']['status']}" for run in runs if run.invalid]
    if len({NEEDED["SLO"](run) for run in runs}) > 1:
        found.append("the runs differ in their SLO; the first run's judges all")
    if differing := conditions([run.manifest for run in runs]):
        found.append(f"the runs differ in {', '.join(differing)}")
    return found


def key(override: str) -> str:
    """The first part of an override's key, e.g. `hydra` of `hydra.run.dir=x`."""
    return override.lstrip("+~").partition("=")[0].partition(".")[0].partition("@")[0]


def _repeat(run: FinishedRun) -> str | None:
    return next((o for o in run.manifest["overrides"] if key(o) == "repeat"), None)


def _label(arm: Arm, before: Sequence[Arm], every: Sequence[Arm]) -> str:
    """The overrides that not all arms share."""
    shared = set.intersection(*(set(each.overrides) for each in every))
    own = " ".join(o.lstrip("+") for o in arm.overrides if o not in shared)
    label = own or f"system={arm.runs[0].manifest['choices']['system']}"
    times = sum(each.overrides == arm.overrides for each in before)
    return f"{label}, repeated" + (f" ({times})" if times > 1 else "") if times else label


def _listed(arm: Arm) -> str:
    return ", ".join(map(str, sorted(arm.by_seed)))
