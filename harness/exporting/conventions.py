"""The numbers of a run by each tool's definition, all from its one token log.

A definition says what is measured, from when it counts (`anchor`), of which requests (`of`) and
what is one sample (`each`). Read from vLLM 0.32 (benchmarks/serve.py), AIPerf 0.13 (metrics/types),
GuideLLM 0.8.1 (schemas/base/request_stats.py, benchmark/schemas/metrics.py) and inference-perf 0.7
(reportgen/base.py), whose definitions llm-d's benchmark report has too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from harness.errors import UsageError
from harness.records.run_folder import FinishedRun
from harness.records.token_log import Floats, TokenLog, floats

Quantity = Literal["TTFT", "E2E", "TPOT", "E2E a token", "gaps", "requests/s", "tokens/s"]
Anchor = Literal["arrival", "sent"]
Of = Literal["all", "completed", "streamed"]  # streamed: completed, with several tokens
Each = Literal["request", "token", "chunk"]
Percentiles = Literal["linear", "inverted_cdf"]
Names = Mapping[str, float | str]  # a tool's, of what `distribution` computes
HARNESS, IP = "harness", "inference-perf"


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
)  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class Samples:
    """`values` [n] in seconds, or one rate per second; each counts `weights` [n] times."""

    values: Floats
    weights: Floats

    @property
    def mean(self) -> float | None:
        if not len(self.values):
            return None
        return float(np.average(self.values, weights=self.weights))


class Seen:
    """A requests table as definitions see it. `logs`: of each `Of`. `window_s`: from each anchor's
    first time to the last token, of arrivals to the last arrival where that is later; of a tool it
    is the benchmark's duration. `lengths`: tokens of the prompts and of the answers [completed]."""

    def __init__(self, table: pa.Table) -> None:
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
            return equal(log.itl_chunk_s() if each == "chunk" else log.tbt_s())
        if quantity in ("requests/s", "tokens/s"):
            count = len(log.times_s) if quantity == "tokens/s" else len(log)
            window_s = self.window_s[one.anchor]
            return equal(np.array([count / window_s] if window_s > 0 else []))
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


def seen_by(run: FinishedRun, tool: str) -> Seen:
    """Raises UsageError where no request completed, or none is known to have been sent."""
    seen = Seen(run.requests)
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
