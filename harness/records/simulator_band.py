"""The simulator's band: where a real engine's value may lie, given a simulated one.

Parity runs the same load for real and in simulation. A point's residual is (simulated - real) /
real, of shares simulated - real. The band of a metric spans the residuals of the points in the
run's regime: its device, engine profile, source of iteration times, and load. With n points it
leaves out k = 0.05 (n + 1), rounded down and at least 1, at each end but the outermost: if points
and runs are alike, another residual lies within with a probability of (n + 1 - 2 k) / (n + 1).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.records.simulator_error import gpu_errors, report_of
from harness.records.steady import grew

COVERED = 0.9  # of the residuals, where there are enough points for that
LEAST = 5  # points; fewer say too little of a range
BELOW, SATURATED = "below saturation", "saturated"
KNEE = 1.0  # a parity point's load, from which on it is saturated
SHARES = "slo_attainment."


@dataclass(frozen=True, slots=True)
class Band:
    """Residuals from `low` to `high`: shares of the real value, or differences of `absolute`."""

    low: float
    high: float
    num_points: int
    coverage: float
    absolute: bool

    def real(self, simulated: float) -> tuple[float, float]:
        """Where the value of a real engine may lie."""
        if self.absolute:
            return max(simulated - self.high, 0.0), min(simulated - self.low, 1.0)
        return simulated / (1 + self.high), simulated / (1 + self.low)


def band(residuals: Iterable[float], *, absolute: bool = False) -> Band | None:
    """None: fewer than LEAST points."""
    found = sorted(residuals)
    count = len(found)
    if count < LEAST:
        return None
    cut = max(1, int((1 - COVERED) / 2 * (count + 1) + 1e-9))
    coverage = (count + 1 - 2 * cut) / (count + 1)
    return Band(found[cut - 1], found[-cut], count, coverage, absolute)


def regime(summary: Mapping[str, Any]) -> str:
    """Saturated: requests came faster than they were served, so that the backlog grew to the last
    arrival, or all came at once."""
    backlog = tuple(summary.get("steady", {}).get("backlog", ()))
    return SATURATED if not backlog or grew(backlog) else BELOW


def bands(manifest: Mapping[str, Any], summary: Mapping[str, Any]) -> dict[str, Band]:
    """The band of each metric of a simulated run that has one, by its dotted name in summary.json.

    None has one where weights and KV move between instances, where the next request waits for an
    answer (parity's loops are open), and where parity has no points.
    """
    found = {
        name: band((error for _, error in points), absolute=name.startswith(SHARES))
        for name, points in _points(manifest, regime(summary)).items()
    }
    return {name: each for name, each in found.items() if each is not None}


def coverage(manifest: Mapping[str, Any], summary: Mapping[str, Any]) -> tuple[int, int]:
    """How many of parity's points, of all metrics of a run's `bands`, lie within the band of the
    points of other workloads; of how many. 0 of 0: there are not enough."""
    inside: list[bool] = []
    for points in _points(manifest, regime(summary)).values():
        for workload in {each for each, _ in points}:
            if others := band(error for each, error in points if each != workload):
                own = [error for each, error in points if each == workload]
                inside += [others.low <= error <= others.high for error in own]
    return sum(inside), len(inside)


def measured_on(manifest: Mapping[str, Any]) -> str:
    """The machine on which the errors were measured that make a run's bands. A profile of another
    CPU has the same bands: whether they hold there nobody measured."""
    hardware, sources = manifest["hardware"], manifest["engine"].get("step_times", {}).values()
    report = report_of(hardware["device"], hardware["name"], set(sources))
    return str(report["machine"]["cpu"] if report else hardware["device"])


Points = Mapping[str, Sequence[tuple[str, float]]]  # by metric: workload and residual


def _points(manifest: Mapping[str, Any], load: str) -> Points:
    """Parity's points at this `load`; of a GPU the workloads are not told apart."""
    hardware, engine = manifest["hardware"], manifest["engine"]
    moves = engine.get("elastic", False) or "pool" in engine
    waits = manifest.get("closed_loop") is not None or "sessions" in manifest
    if not manifest["simulated"] or moves or waits:
        return {}
    if by_metric := gpu_errors().get(hardware["device"], {}).get(engine.get("profile") or ""):
        return {
            f"{name}_s.mean": [("", each / 100) for each in errors["errors_pct"].get(load, [])]
            for name, errors in by_metric.items()
            if name != "capacity"  # no metric of a run
        }
    sources = set(engine.get("step_times", {}).values())
    report = report_of(hardware["device"], hardware["name"], sources)
    found: defaultdict[str, list[tuple[str, float]]] = defaultdict(list)
    for row in report["rows"] if report else ():
        saturated = SATURATED if row["load"] >= KNEE else BELOW
        if saturated == load and row["error"] is not None:
            name = ".".join(filter(None, (row["quantity"], row["statistic"])))
            error = row["error"] / (1 if name.startswith(SHARES) else 100)
            found[name].append((row["workload"], error))
    return found
