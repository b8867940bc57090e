"""Which runs are repeats of one thing under several seeds, and which runs make a pair."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from harness.comparing.conditions import NEEDED, WORK, conditions, same
from harness.errors import UsageError
from harness.records.run_folder import FinishedRun
from harness.running.prepare import PRESENTATION

NOT_WHAT_IS_RUN = ("seed", "repeat", "hydra", *PRESENTATION)


@dataclass(slots=True)
class Arm:
    """Runs that differ in their seeds alone."""

    overrides: tuple[str, ...]
    by_seed: dict[int, FinishedRun] = field(default_factory=dict)
    label: str = ""


def arms(runs: Sequence[FinishedRun]) -> list[Arm]:
    """The runs by what they run, in the order given. A second run of the same seed begins an arm of
    its own, so that a run and its repeat compare, too."""
    found: list[Arm] = []
    for run in runs:
        overrides = tuple(
            sorted(o for o in run.manifest["overrides"] if key(o) not in NOT_WHAT_IS_RUN)
        )
        seed = int(run.manifest["seeds"]["seed"])
        for arm in found:
            if arm.overrides == overrides and seed not in arm.by_seed:
                arm.by_seed[seed] = run
                break
        else:
            found.append(Arm(overrides, {seed: run}))
    for number, arm in enumerate(found):
        arm.label = _label(arm, found[:number], found)
    return found


def pairs(reference: Arm, other: Arm) -> dict[int, tuple[FinishedRun, FinishedRun]]:
    """The runs of both arms by the seeds that they share.

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
    found: dict[int, tuple[FinishedRun, FinishedRun]] = {}
    for seed in shared:
        first, second = reference.by_seed[seed], other.by_seed[seed]
        lacking = [name for name in WORK if not same(first, second, name)]
        if lacking:
            raise UsageError(
                f"{first.path} and {second.path} differ in {' and '.join(lacking)}: requests "
                "are compared one by one, so both runs must serve the same ones"
            )
        kept = [(a.requests, b.requests) for a, b in found.values()]
        if not any(first.requests.equals(a) and second.requests.equals(b) for a, b in kept):
            found[seed] = first, second
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


def _label(arm: Arm, before: Sequence[Arm], every: Sequence[Arm]) -> str:
    """The overrides that not all arms share."""
    shared = set.intersection(*(set(each.overrides) for each in every))
    own = " ".join(o.lstrip("+") for o in arm.overrides if o not in shared)
    run = next(iter(arm.by_seed.values()))
    label = own or f"system={run.manifest['choices']['system']}"
    times = sum(each.overrides == arm.overrides for each in before)
    return f"{label}, repeated" + (f" ({times})" if times > 1 else "") if times else label


def _listed(arm: Arm) -> str:
    return ", ".join(map(str, sorted(arm.by_seed)))
