"""The numbers of a run by each tool's definition, all from its one token log.

A definition says what is measured, from when it counts (`anchor`), of which requests (`of`) and
what is one sample (`each`). Read from vLLM 0.32 (benchmarks/serve.py), AIPerf 0.13 (metrics/types),
GuideLLM 0.8.1 (schemas/base/request_stats.py, benchmark/schemas/metrics.py) and inference-perf 0.7
(reportgen/base.py), whose definitions llm-d's benchmark report has too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from harness.errors import UsageError
from harness.records.attainment import good_requests
from harness.records.run_folder import FinishedRun
from harness.records.slo import slo_of
from harness.records.token_log import Bools, Floats, TokenLog, floats

Quantity = Literal[
    "TTFT", "E2E", "TPOT", "E2E a token", "gaps", "requests/s", "tokens/s", "good requests/s",
    "good share",
]  # fmt: skip
Anchor = Literal["arrival", "sent"]
Of = Literal["all", "completed", "streamed"]  # streamed: completed, with several tokens
Each = Literal["request", "token", "chunk"]
Percentiles = Literal["linear", "inverted_cdf"]
Names = Mapping[str, float | str]  # a tool's, of what `distribution` computes
HARNESS, IP = "harness", "inference-perf"
NEEDS_SEVERAL_TOKENS = {"aiperf": {"tpot"}, IP: {"ttft", "tpot"}}  # latencies to limit
OF_TOOLS = {"ttft", "tpot", "e2e"}  # limits that tools have, each with one for all models


@dataclass(frozen=True, slots=True)
class Definition:
    """`anchor`: what latencies count from, and where a rate's window begins. `each`: one sample is
    a request, a token, or a chunk of an answer. `unit`: 1e3 for a file that has milliseconds."""

    quantity: Quantity
    tool: str
    name: str  # in the tool's file
    anchor: Anchor
    of: Of
    each: Each
    unit: float = 1.0

    @property
    def id(self) -> str:
        """Its name in docs/measurement.md."""
        return f"{self.tool}/{self.name}"

    @property
    def percentiles(self) -> Percentiles:
        """What the tool's are, by numpy's name for the method."""
        return "inverted_cdf" if self.tool == "guidellm" else "linear"

    @property
    def is_rate(self) -> bool:
        return self.quantity.endswith("/s")

    @property
    def is_one_number(self) -> bool:
        """A rate or a share: it has no percentiles."""
        return self.is_rate or self.quantity == "good share"


DEFINITIONS = (
    Definition("TTFT", HARNESS, "ttft_s", "arrival", "all", "request"),
    Definition("TTFT", "vllm", "ttft_ms", "sent", "completed", "request", 1e3),
    Definition("TTFT", "aiperf", "time_to_first_token", "sent", "completed", "request", 1e3),
    Definition("TTFT", "guidellm", "time_to_first_token_ms", "sent", "completed", "request", 1e3),
    Definition("TTFT", IP, "time_to_first_token", "sent", "streamed", "request"),
    Definition("E2E", HARNESS, "e2e_s", "arrival", "completed", "request"),
    Definition("E2E", "vllm", "e2el_ms", "sent", "completed", "request", 1e3),
    Definition("E2E", "aiperf", "request_latency", "sent", "completed", "request", 1e3),
    Definition("E2E", "guidellm", "request_latency", "sent", "completed", "request"),
    Definition("E2E", IP, "request_latency", "sent", "completed", "request"),
    Definition("TPOT", HARNESS, "tpot_s", "arrival", "completed", "request"),
    Definition("TPOT", "vllm", "tpot_ms", "arrival", "completed", "request", 1e3),
    Definition("TPOT", "aiperf", "inter_token_latency", "arrival", "completed", "request", 1e3),
    Definition("TPOT", "guidellm", "inter_token_latency_ms", "arrival", "completed", "token", 1e3),
    Definition("TPOT", IP, "time_per_output_token", "arrival", "completed", "request"),
    Definition("E2E a token", HARNESS, "tpot_incl_first_s", "arrival", "completed", "request"),
    Definition("E2E a token", "guidellm", "time_per_output_token_ms", "sent", "completed", "token",
               1e3),
    Definition("E2E a token", IP, "normalized_time_per_output_token", "sent", "completed",
               "request"),
    Definition("gaps", HARNESS, "tbt_s", "arrival", "all", "token"),
    Definition("gaps", HARNESS, "itl_chunk_s", "arrival", "all", "chunk"),
    Definition("gaps", "vllm", "itl_ms", "arrival", "completed", "chunk", 1e3),
    Definition("gaps", "aiperf", "inter_chunk_latency", "arrival", "completed", "chunk", 1e3),
    Definition("gaps", IP, "inter_token_latency", "arrival", "completed", "token"),
    Definition("requests/s", HARNESS, "request_throughput_per_s", "arrival", "completed",
               "request"),
    Definition("requests/s", "vllm", "request_throughput", "sent", "completed", "request"),
    Definition("requests/s", "aiperf", "request_throughput", "sent", "completed", "request"),
    Definition("requests/s", IP, "requests_per_sec", "sent", "completed", "request"),
    Definition("tokens/s", HARNESS, "output_throughput_tokens_per_s", "arrival", "all", "token"),
    Definition("tokens/s", "vllm", "output_throughput", "sent", "completed", "token"),
    Definition("tokens/s", "aiperf", "output_token_throughput", "sent", "completed", "token"),
    Definition("tokens/s", IP, "output_tokens_per_sec", "sent", "completed", "token"),
    Definition("good requests/s", HARNESS, "goodput_per_s", "arrival", "all", "request"),
    Definition("good requests/s", "vllm", "request_goodput", "sent", "completed", "request"),
    Definition("good requests/s", "aiperf", "goodput", "sent", "completed", "request"),
    Definition("good requests/s", IP, "request_goodput", "sent", "completed", "request"),
    Definition("good share", HARNESS, "slo_attainment.request", "arrival", "all", "request"),
    Definition("good share", "aiperf", "good_request_fraction", "sent", "all", "request"),
    Definition("good share", IP, "goodput_percentage", "sent", "completed", "request", 1e2),
)  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class Samples:
    """`values` [n] in seconds, or one rate per second or share; each counts `weights` [n] times."""

    values: Floats
    weights: Floats

    @property
    def mean(self) -> float | None:
        if not len(self.values):
            return None
        return float(np.average(self.values, weights=self.weights))


class Seen:
    """A run as definitions see it, with good requests by the SLO that judged it. `logs`: of each
    `Of`. `window_s`: from each anchor's first time to the last token, of arrivals to the last
    arrival where that is later; of a tool it is the benchmark's duration. `lengths`: tokens of the
    prompts and of the answers [completed]."""

    def __init__(self, run: FinishedRun) -> None:
        table, self._slo, self._times_known = run.requests, slo_of(run.summary), run.times_known
        self._imported = "imported" in run.manifest
        log = TokenLog.from_table(table)
        streamed = log.completed & (log.num_tokens > 1)
        self.logs = {"all": log, "completed": log.of(log.completed), "streamed": log.of(streamed)}
        prompts, tokens = floats(table["prompt_tokens"]), log.num_tokens.astype(np.float64)
        self.lengths = prompts[log.completed], tokens[log.completed]
        ends_s = float(np.max(log.times_s, initial=-np.inf))
        self.window_s = {"arrival": log.duration_s, "sent": ends_s - _first(log.sent_s)}

    def by(self, tool: str) -> Iterator[tuple[Definition, Samples]]:
        """The samples of each definition of a tool."""
        return ((one, self.of(one)) for one in DEFINITIONS if one.tool == tool)

    def of(self, one: Definition) -> Samples:
        """The samples of a definition, without those that have no such value."""
        log, quantity, each = self.logs[one.of], one.quantity, one.each
        if quantity == "gaps":
            gaps_s = log.itl_chunk_s() if each == "chunk" else log.tbt_s()
            return equal(gaps_s if self._gaps_known(one) else gaps_s[:0])
        if one.is_one_number:
            return self._one_number(one)
        begin_s = log.arrival_s if one.anchor == "arrival" else log.sent_s
        tokens = log.num_tokens.astype(np.float64)
        values = {
            "TTFT": log.first_s - begin_s,
            "E2E": log.last_s - begin_s,
            "TPOT": log.tpot_s,
            "E2E a token": (log.last_s - begin_s) / np.where(tokens > 0, tokens, np.nan),
        }[quantity]
        after_first = tokens - 1 if quantity == "TPOT" else tokens
        weights = after_first if each == "token" else np.ones(len(log))
        there = np.isfinite(values)
        return Samples(values[there], weights[there])

    def _gaps_known(self, one: Definition) -> bool:
        """Where the times of single tokens are not, ours are none, as in summary.json; a tool takes
        the chunks that its client saw, which an import may not have."""
        seen = one.each == "chunk" and one.tool != HARNESS and not self._imported
        return self._times_known or seen

    def _one_number(self, one: Definition) -> Samples:
        """A rate over the window, or a share of requests; inference-perf's window of good ones is
        that of completed ones, and AIPerf's share is of requests that ended."""
        log, over = self.logs[one.of], self.window_s[one.anchor]
        count = len(log.times_s) if one.quantity == "tokens/s" else len(log)
        if one.quantity.startswith("good"):
            good = self._good(one, log)
            if good is None or not len(log):
                return equal(np.array([]))
            count = int(good.sum())
            if one.tool == IP:
                over = float(log.last_s.max() - log.sent_s.min())
        if not one.is_rate:
            ended = log.completed | log.failed
            over = float(ended.sum() if one.tool == "aiperf" else len(log))
        return equal(np.array([count / over] if over > 0 else []))

    def _good(self, one: Definition, log: TokenLog) -> Bools | None:
        """Which requests of `log` are good. None: the tool has no such limits, of single tokens or
        of single models."""
        log = log if one.anchor == "arrival" else replace(log, arrival_s=log.sent_s)
        good = good_requests(log, self._slo, times_known=self._times_known)
        if one.tool == HARNESS:
            return good
        limits_s = [self._slo.limits_s(model) for model in log.models]
        kinds = limits_s[0].keys()
        if not kinds <= OF_TOOLS or any(each != limits_s[0] for each in limits_s):
            return None
        several = kinds & NEEDS_SEVERAL_TOKENS.get(one.tool, set())
        return good & (log.num_tokens > 1) if several else good


def seen_by(run: FinishedRun, tool: str) -> Seen:
    """Raises UsageError where no request completed, or none is known to have been sent."""
    seen = Seen(run)
    if not len(seen.logs["completed"]):
        told = f"no request of {run.path} completed: {tool}'s file would have no number"
        raise UsageError(told)
    if not seen.window_s["sent"] > 0:
        told = (
            f"{run.path} does not tell when requests were sent: {tool}'s rates are over that time"
        )
        raise UsageError(told)
    return seen


def about(run: FinishedRun) -> dict[str, Any]:
    """What stands beside a tool's own fields: none of them tells it."""
    simulated: bool = run.manifest["simulated"]
    return {"run": run.path.name, "simulated": simulated, "verdict": run.invalid or "VALID"}


def chunk_gaps_s(row: Mapping[str, Any]) -> Floats:
    """Between the chunks of a row of requests.parquet."""
    sizes = np.array(row["chunk_tokens"], np.int64)
    return np.diff(np.array(row["token_times_s"], np.float64)[np.cumsum(sizes) - sizes])


def distribution(values: Floats, names: Names) -> dict[str, float]:
    """What `names` name, in their order: numbers are percentiles, linear between samples; words are
    of numpy, where std is the population's. ValueError where there is no sample."""
    return {
        name: float(getattr(np, of)(values) if isinstance(of, str) else np.percentile(values, of))
        for name, of in names.items()
    }


def percentile(samples: Samples, share: float, method: Percentiles = "linear") -> float | None:
    """Linear between samples that all weigh the same, or else the smallest value at which `share`
    percent of the weight is reached. None: no sample."""
    values, weights = samples.values, samples.weights
    if not len(values):
        return None
    if method == "linear" and (weights == weights[0]).all():
        return float(np.percentile(values, share))
    order = np.argsort(values)
    reached = np.cumsum(weights[order] / weights.sum())
    at = int(np.searchsorted(reached, share / 100))
    return float(values[order][min(at, len(values) - 1)])


def equal(values: Floats) -> Samples:
    return Samples(values, np.ones(len(values)))


def _first(times_s: Floats) -> float:
    sent = times_s[np.isfinite(times_s)]
    return float(sent.min()) if len(sent) else np.inf
