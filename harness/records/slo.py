"""Service-level objectives: a limit on TTFT and one on TBT, absolute or relative to a run.

A relative SLO (5x P50 in KunServe, 5x the mean in BlitzScale) is settled here, once, from a
baseline run's summary; what judges a run sees two numbers of seconds either way.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

from harness.configuration.checks import one_of, require
from harness.errors import UsageError
from harness.files import read_json


class Slo:
    """`ttft_s` bounds the first token's latency, `tbt_s` the time per token after it."""

    @dataclass(kw_only=True, slots=True)
    class Config:
        name: str
        ttft_s: float
        tbt_s: float

    def __init__(self, config: Config) -> None:
        self.name = config.name
        self.ttft_s = config.ttft_s
        self.tbt_s = config.tbt_s
        self.definition = "absolute"
        for key, value in (("slo.ttft_s", self.ttft_s), ("slo.tbt_s", self.tbt_s)):
            positive = isfinite(value) and value > 0
            require(positive, f"{key} must be a number of seconds above 0, got {value}")


def slo_of(summary: Mapping[str, Any]) -> Slo:
    """The limits that a run was judged by."""
    found = summary["slo"]
    config = Slo.Config(name=found["name"], ttft_s=found["ttft_s"], tbt_s=found["tbt_s"])
    return Slo(config)


class RelativeSlo(Slo):
    """Limits of `factor` x a statistic of TTFT and of tpot (a request's mean TBT) in a baseline.

    `baseline` is the folder of a completed run under modest load; `statistic` a key of its
    summary: mean, p50, p90, p95 or p99. Raises UsageError where either is missing there.
    """

    @dataclass(kw_only=True, slots=True)
    class Config:
        name: str
        factor: float
        statistic: str
        baseline: str | None

    def __init__(self, config: Config) -> None:
        if config.baseline is None:
            raise UsageError(
                f"slo={config.name} is relative: give slo.baseline=PATH, a completed run's folder"
            )
        path = Path(config.baseline) / "summary.json"
        folder = f"slo.baseline={config.baseline} is not the folder of a completed run"
        require(path.is_file(), f"{folder}: it has no summary.json")
        summary = read_json(path)
        ttft_s, tpot_s = (
            config.factor * _statistic(summary, key, config) for key in ("ttft_s", "tpot_s")
        )
        super().__init__(Slo.Config(name=config.name, ttft_s=ttft_s, tbt_s=tpot_s))
        self.definition = f"{config.factor:g} x {config.statistic} of {config.baseline}"


def _statistic(summary: dict[str, Any], metric: str, config: RelativeSlo.Config) -> float:
    values: dict[str, float | None] | None = summary.get(metric)
    if not isinstance(values, dict):
        raise UsageError(f"slo.baseline={config.baseline}: its summary.json has no {metric}")
    statistics = [key for key in values if key != "num_samples"]
    one_of(config.statistic, statistics, "slo.statistic", "choose one of")
    value = values[config.statistic]
    if value is None:
        raise UsageError(
            f"slo.baseline={config.baseline} has too few requests for {metric}.{config.statistic}"
        )
    return value
