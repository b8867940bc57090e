"""A sweep over seeds: mean and 95 % interval of each number at each setting.

The interval is Student's t of the mean over seeds. Of repeats that draw nothing
(`sweep.idle_seeds`) it is of the machine's noise, not of the workload's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, stdev
from typing import Any

CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Interval:
    """`half`: from the mean to either end; None: one value has no interval."""

    mean: float
    half: float | None
    count: int


def interval(values: Sequence[float]) -> Interval:
    count = len(values)
    if count < 2:
        return Interval(mean(values), None, count)
    from scipy.special import stdtrit  # not above: every command would wait for its import

    reach = float(stdtrit(count - 1, (1 + CONFIDENCE) / 2))  # Student's t
    return Interval(mean(values), reach * stdev(values) / count**0.5, count)


def settings(runs: Iterable[Sequence[str]]) -> dict[tuple[str, ...], list[int]]:
    """The numbers of the runs of each setting: what is overridden but for the seed."""
    found: dict[tuple[str, ...], list[int]] = {}
    for number, overrides in enumerate(runs):
        setting = tuple(word for word in overrides if not word.startswith("seed="))
        found.setdefault(setting, []).append(number)
    return found


def flattened(summary: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """Every number of a summary by its dotted name; None and words are left out."""
    found: dict[str, float] = {}
    for key, value in summary.items():
        if isinstance(value, Mapping):
            found |= flattened(value, f"{prefix}{key}.")
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            found[f"{prefix}{key}"] = float(value)
    return found
