"""Where a curve of SLO attainment ends: runs between the two points of a sweep that bound it.

A claim of capacity is read off between the last point that holds 90 % and the first that does not,
so these should be near each other; elsewhere a coarse sweep shows the curve as well. A figure may
say of an experiment which swept key it is and which values it may take (its `searches`).
Bisection over these; pure decisions, runs are `harness.experiments.points`'.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from statistics import mean

from harness.claims.expressions import GOOD
from harness.experiments.points import Point
from harness.files import read_json


@dataclass(frozen=True, slots=True)
class Search:
    """The end of each curve over `key`, to between two neighbours of `values` (ascending).

    draws: keys that draw a curve's inputs anew; its points are means over them. share: the SLO
    attainment that is to be 90 %, of tokens or of requests (`records.attainment`).
    """

    key: str
    values: tuple[float, ...]
    draws: tuple[str, ...] = ("seed",)
    share: str = "token"


def next_runs(points: Sequence[Point], search: Search) -> list[list[list[str]]]:
    """Returns, for each curve whose end is not found, the overrides of the runs, one for each of
    its draws, that halve where it may be."""
    curves: dict[tuple[tuple[str, str], ...], list[Point]] = {}
    for point in points:
        of_curve = {
            k: v for k, v in point.overrides.items() if k not in (search.key, *search.draws)
        }
        curves.setdefault(tuple(of_curve.items()), []).append(point)
    halvings = []
    for curve in curves.values():
        value = middle(attained(curve, search.key, search.share), search.values)
        if value is not None:
            runs = dict.fromkeys(_at(point, search.key, value) for point in curve)
            halvings.append([list(run) for run in runs])
    return halvings


def attained(curve: Sequence[Point], key: str, share: str = "token") -> dict[float, float | None]:
    """The mean share on time at each value of `key`; None: all were refused."""
    shares: dict[float, list[float]] = {}
    for point in curve:
        of_value = shares.setdefault(float(point.overrides[key]), [])
        if point.path is not None:
            of_value.append(_share(point.path, share))
    return {value: mean(found) if found else None for value, found in sorted(shares.items())}


def middle(found: dict[float, float | None], values: Sequence[float]) -> float | None:
    """The middle of `values` between the last point up to which GOOD holds and the next one."""
    holds = {value: share is not None and share >= GOOD for value, share in found.items()}
    for low, high in pairwise(holds):
        if not holds[low]:
            break
        if not holds[high]:
            between = [value for value in values if low < value < high]
            return between[len(between) // 2] if between else None
    return None


@cache
def _share(run: Path, name: str) -> float:
    """An attainment of a run that is complete, which curves ask for again and again."""
    share: float = read_json(run / "summary.json")["slo_attainment"][name]
    return share


def _at(point: Point, key: str, value: float) -> tuple[str, ...]:
    words = point.overrides | {key: str(value)}
    return tuple(f"{name}={word}" for name, word in words.items())
