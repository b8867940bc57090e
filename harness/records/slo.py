"""Service-level objectives: a limit on TTFT and one on TBT, absolute or relative to a run; or
limits of any kinds, of models by name too.

A relative SLO (5x P50 in KunServe, 5x the mean in BlitzScale) is settled here, once, from a
baseline run's summary; what judges a run sees numbers of seconds either way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

from harness.configuration.checks import one_of, positive, require
from harness.errors import UsageError
from harness.files import read_json
from harness.records.token_log import Floats, TokenLog

KINDS: dict[str, Callable[[TokenLog], Floats]] = {  # what a limit can be on: of each request
    "ttft": lambda log: log.ttft_s,
    "tpot": lambda log: log.tpot_s,
    "e2e": lambda log: log.e2e_s,
    "tbt_p99": lambda log: log.tbt_quantile_s(0.99),
    "tbt_max": lambda log: log.tbt_quantile_s(1.0),
}
OF_SINGLE_TOKENS = ("tbt_p99", "tbt_max")  # known where the time of each token is
ALL = ""  # stands for every model


class Slo:
    """`ttft_s` bounds the first token's latency, `tbt_s` the time per token after it. `goodput`
    says instead what a good request meets: "ttft:200 tbt_p99:100 llama2-7b/ttft:500", milliseconds
    by kind, those of a model before those of all."""

    @dataclass(kw_only=True, slots=True)
    class Config:
        name: str
        ttft_s: float
        tbt_s: float
        goodput: str | None = None

    def __init__(self, config: Config) -> None:
        self.name = config.name
        self.ttft_s = config.ttft_s
        self.tbt_s = config.tbt_s
        self.goodput = config.goodput
        self.definition = "absolute"
        positive(config, "slo", "ttft_s", "tbt_s")
        own = {} if self.goodput is None else limits_of(self.goodput)
        self._limits_s = {ALL: {"ttft": self.ttft_s, "tpot": self.tbt_s}} | own

    def limits_s(self, model: str) -> dict[str, float]:
        """What a good request of `model` meets, by kind, in seconds."""
        return self._limits_s[ALL] | self._limits_s.get(model, {})

    def require_models(self, models: Iterable[str]) -> None:
        """Raises UsageError for limits of a model that is not among `models`."""
        for model in self._limits_s.keys() - {ALL}:
            one_of(model, sorted({*models}), "slo.goodput: model")

    def told(self) -> dict[str, Any]:
        """`slo` of summary.json."""
        of_run = ("name", "ttft_s", "tbt_s", "definition", "goodput")
        return {key: getattr(self, key) for key in of_run if getattr(self, key) is not None}


def limits_of(goodput: str) -> dict[str, dict[str, float]]:
    """{model or ALL: {kind: seconds}} of words such as tpot:50 and llama2-7b/ttft:500. Raises
    UsageError for anything else."""
    found: dict[str, dict[str, float]] = {}
    for word in goodput.split() or [goodput]:
        name, _, milliseconds = word.rpartition(":")
        model, _, kind = name.rpartition("/")
        kind = "e2e" if kind == "e2el" else kind  # as vLLM calls it
        try:
            limit_s = float(milliseconds) / 1e3
        except ValueError:
            limit_s = inf
        limits_s = found.setdefault(model, {})
        require(
            kind in KINDS and kind not in limits_s and 0 < limit_s < inf,
            f"slo.goodput has {word!r}: give each limit once, as [MODEL/]KIND:MILLISECONDS, above "
            f"0, e.g. ttft:200; kinds: {', '.join(KINDS)}",
        )
        limits_s[kind] = limit_s
    return found


def slo_of(summary: Mapping[str, Any]) -> Slo:
    """The limits that a run was judged by."""
    found = summary["slo"]
    limits = {key: found[key] for key in ("name", "ttft_s", "tbt_s")}
    return Slo(Slo.Config(**limits, goodput=found.get("goodput")))


class RelativeSlo(Slo):
    """Limits of `factor` x a statistic of TTFT and of tpot (a request's mean TBT) in a baseline.

    `baseline` is the folder of a completed run under modest load; `statistic` a key of its
    summary: mean, p50, p90, p95, p99 or p99.9. Raises UsageError where either is missing there.
    """

    @dataclass(kw_only=True, slots=True)
    class Config:
        name: str
        factor: float
        statistic: str
        baseline: str | None
        goodput: str | None = None

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
        limits = Slo.Config(name=config.name, ttft_s=ttft_s, tbt_s=tpot_s, goodput=config.goodput)
        super().__init__(limits)
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
