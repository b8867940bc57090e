"""Reads the requests of other tools' results: rows of requests.parquet.

Time counts from the first arrival, or from the first sending where the file has no arrivals. Where
the file does not say when single tokens came, those that are left over come with the last one, and
`surplus_tokens` counts them: metrics of single tokens are then none.
Read from vLLM 0.32 (benchmarks/serve.py), AIPerf 0.13 (common/models/record_models.py), GuideLLM
0.8.1 (schemas/base/request_stats.py) and inference-perf 0.7 (apis/base.py).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from harness.errors import UsageError, first_line

SECONDS = {"sec": 1.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
MAX_TOKENS = 10_000_000  # of a prompt or an answer: more is no number of tokens
MAX_S = 1e12  # the time of day is 1.8e9 s
LOST_S = 1e-6  # a time of day in float64 is 2.4e-7 s off at most
NO_ARRIVALS = "scheduled arrivals: each request arrives when it was sent"
NOT_ASKED = "how many tokens were asked for: those that came"
NO_CHUNKS = "how many tokens each chunk had"
BY_TIME = "chunks: tokens of one time count as one"
NO_ERROR = "no token, and the file tells no error"
AGGREGATES = {  # a key of a tool's summary, and what of that tool can be imported
    "load_summary": "inference-perf's per_request_lifecycle_metrics.json",
    "time_to_first_token": "AIPerf's profile_export.jsonl",
}


@dataclass(slots=True)
class Result:
    """`rows`: of requests.parquet, by arrival. `lacking`: what the tool's file has not. A request
    asks for the tokens that came, or for one."""

    tool: str
    simulated: bool
    lacking: list[str]
    left_out: int = 0  # requests of the tool's own warm-up
    rows: list[dict[str, Any]] = field(default_factory=list)

    def add(
        self, model: str, arrival_s: float, sent_s: float | None, prompt_tokens: int, error: str
    ) -> dict[str, Any]:
        """The row of a request without a token: completed, if `error` is empty."""
        status = "scheduled" if sent_s is None else "failed" if error else "completed"
        row = {
            "request_id": len(self.rows), "model": _text(model), "instance": "", "status": status,
            "arrival_s": _finite(arrival_s), "prompt_tokens": _count(prompt_tokens),
            "sent_s": None if sent_s is None else _finite(sent_s), "output_tokens": 1,
            "error": _text(error), "num_preemptions": 0, "token_times_s": [], "chunk_tokens": [],
            "surplus_tokens": 0, "buffered": False,
        }  # fmt: skip
        self.rows.append(row)
        return row

    def in_order(self) -> Result:
        """By arrival, from the first on. Raises ValueError without a request."""
        begin_s = min(row["arrival_s"] for row in self.rows)
        self.rows.sort(key=lambda row: float(row["arrival_s"]))
        for i, row in enumerate(self.rows):
            row["request_id"] = i
            row["arrival_s"] -= begin_s
            if row["sent_s"] is not None:
                row["sent_s"] -= begin_s
            row["token_times_s"] = [at_s - begin_s for at_s in row["token_times_s"]]
        if any(row["surplus_tokens"] for row in self.rows):
            self.lacking.append(NO_CHUNKS)
        return self


def read_result(content: bytes, file: Path, benchmark: int | None = None) -> Result:
    """Raises UsageError where `content` is no whole result of a tool that is known."""
    refuse_llm_d(content, file)
    try:
        found = json.loads(content)
        found = [found] if isinstance(found, dict) and "metadata" in found else found
    except (ValueError, RecursionError):
        try:
            found = [json.loads(line) for line in content.splitlines() if line.strip()]
        except (ValueError, RecursionError) as error:
            raise UsageError(f"{file} is neither JSON nor JSON lines: {error}") from error
    if not found:
        raise UsageError(f"{file} has no request")
    try:
        if isinstance(found, list) and len(found) == 1 and "benchmarks" in found[0]:
            (found,) = found
        if isinstance(found, list):
            read = _inference_perf if "start_time" in found[0] else _aiperf
            return read(found).in_order()
        if "benchmarks" in found:
            return _guidellm(found, file, benchmark).in_order()
        if "mean_ttft_ms" in found or "ttfts" in found:
            return _vllm(found, file).in_order()
    except UsageError:
        raise
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        told = f"{type(error).__name__}: {first_line(error)}"
        raise UsageError(f"{file} is no whole result that can be imported: {told}") from error
    for key, single in AGGREGATES.items():
        if key in found:
            raise UsageError(f"{file} is a summary without single requests: import {single}")
    raise UsageError(
        f"{file} is of no tool that is known: vllm has mean_ttft_ms, guidellm benchmarks, aiperf a "
        "line with metadata and metrics for each request, inference-perf a list of requests with "
        "start_time and info"
    )


def refuse_llm_d(content: bytes, file: Path) -> None:
    """Raises UsageError where `content` is llm-d's benchmark report, as JSON or YAML."""
    if re.search(rb'request_performance"?:', content):
        raise UsageError(
            f"{file} is llm-d's benchmark report, which has no single requests and does not say by "
            "whose definitions its numbers are: give the result of the tool that llm-d ran"
        )


def _vllm(found: Mapping[str, Any], file: Path) -> Result:
    columns = ("start_times", "input_lens", "output_lens", "ttfts", "itls", "errors")
    if missing := [name for name in columns if name not in found]:
        told = f"{file} has no {', '.join(missing)}: vllm bench serve writes them with"
        raise UsageError(f"{told} --save-detailed")
    result = Result("vllm", bool(found.get("simulated")), [NO_ARRIVALS, NOT_ASKED])
    model = str(found.get("model_id", ""))
    lengths = {name: len(found[name]) for name in columns}
    if len(set(lengths.values())) > 1:
        told = ", ".join(f"{name} {count}" for name, count in lengths.items())
        raise UsageError(f"{file} has not as many of each: {told}")
    rows = zip(*(found[name] for name in columns), strict=True)
    for sent_s, prompt, tokens, ttft_s, itls, error in rows:
        error = str(error) or ("" if ttft_s else NO_ERROR)
        row = result.add(model, sent_s, sent_s, prompt, error)
        first = [sent_s + ttft_s] if ttft_s else []
        steps_s = [*first, *itls]
        _set_chunks(row, np.cumsum(steps_s), len(steps_s) if error else tokens)
    return result


def _aiperf(lines: Sequence[Mapping[str, Any]]) -> Result:
    result = Result("aiperf", False, [NO_ARRIVALS, NOT_ASKED])
    kept = [one for one in lines if one["metadata"].get("benchmark_phase") != "warmup"]
    result.left_out = len(lines) - len(kept)
    begin_ns = min(one["metadata"]["request_start_ns"] for one in kept)
    for one in kept:
        about, error = one["metadata"], one.get("error") or {}
        result.simulated |= bool(about.get("simulated"))
        sent_s = (about["request_start_ns"] - begin_ns) * 1e-9
        metrics = {
            name: np.multiply(told["value"], SECONDS.get(told["unit"], 1.0)).tolist()
            for name, told in one["metrics"].items()
            if told["unit"] in (*SECONDS, "tokens")
        }
        prompt = metrics.get("input_sequence_length", metrics.get("error_isl", 0))
        said = str(error.get("message") or "failed") if error else ""
        row = result.add(str(about.get("model", "")), sent_s, sent_s, int(prompt), said)
        if "time_to_first_token" in metrics:
            gaps_s = metrics.get("inter_chunk_latency", [])
            tokens = int(metrics["output_sequence_length"])
            first_s = sent_s + metrics["time_to_first_token"]
            _set_chunks(row, np.cumsum([first_s, *gaps_s]), tokens)
    return result


def _guidellm(found: Mapping[str, Any], file: Path, number: int | None) -> Result:
    every = found["benchmarks"]
    if number is None and len(every) != 1:
        raise UsageError(f"{file} has {len(every)} benchmarks: name one with --benchmark 1, 2, …")
    if number is not None and not 1 <= number <= len(every):
        raise UsageError(f"--benchmark {number}: {file} has benchmarks 1 to {len(every)}")
    one = every[(number or 1) - 1]
    result = Result("guidellm", bool(found.get("simulated")), [NOT_ASKED])
    served = one["config"]["backend"].get("model")
    for group, rows in one["requests"].items():
        for request in rows or ():
            times = request["info"]["timings"]
            sent_s, at_s = times.get("request_start"), times.get("targeted_start")
            if at_s is None and NO_ARRIVALS not in result.lacking:
                result.lacking.append(NO_ARRIVALS)
            error = "" if group == "successful" else request["info"].get("error") or group
            row = result.add(
                str(request.get("model") or served or ""), sent_s if at_s is None else at_s, sent_s,
                request["input_metrics"].get("text_tokens") or 0, str(error),
            )  # fmt: skip
            tokens = request["output_metrics"].get("text_tokens") or 0
            first_s, last_s = times.get("first_token_iteration"), times.get("last_token_iteration")
            if first_s is not None and tokens:
                _set_chunks(row, [first_s, *([last_s] if tokens > 1 else [])], tokens)
    return result


def _inference_perf(records: Sequence[Mapping[str, Any]]) -> Result:
    result = Result("inference-perf", False, [NOT_ASKED, BY_TIME])
    for one in records:
        info, error = one["info"], one.get("error") or {}
        answer, labels = info.get("response_metrics") or {}, info.get("labels") or {}
        result.simulated |= labels.get("simulated") == "True"
        times_s = answer.get("output_token_times") or []
        said = str(error.get("error_msg") or "failed") if error else "" if times_s else NO_ERROR
        row = result.add(
            str(labels.get("model", "")), one["scheduled_time"], one["start_time"],
            info["request_metrics"]["text"]["input_tokens"], said,
        )  # fmt: skip
        _set_chunks(row, times_s, len(times_s) if error else answer.get("output_tokens") or 0)
        if not row["surplus_tokens"]:  # tokens of one time came together
            _, sizes = np.unique(row["token_times_s"], return_counts=True)
            row["chunk_tokens"] = sizes.tolist()
    return result


def _set_chunks(row: dict[str, Any], times_s: npt.ArrayLike, tokens: int) -> None:
    """`times_s`: of each chunk. The last one has what is left of `tokens`; where there are fewer
    tokens than chunks, the last one has the last chunk's time. Raises ValueError where a token
    comes before the sending, the time that was scheduled, or another token, by more than float64
    loses of a time of day."""
    at_s: list[float] = [_finite(each) for each in np.array(times_s, np.float64).tolist()]
    tokens, chunks = _count(tokens), len(at_s)
    if (np.diff(at_s) < 0).any() or (tokens and not chunks):
        raise ValueError(f"{tokens} tokens in {chunks} chunks, one after the other")
    for name, what in (("sent_s", "its sending"), ("arrival_s", "it was due")):
        if at_s and row[name] is not None and at_s[0] < row[name] - LOST_S:
            raise ValueError(f"a first token {row[name] - at_s[0]:.3g} s before {what}")
    kept = min(tokens, chunks)
    at_s = [*at_s[: kept - 1], at_s[-1]] if kept else []
    row["chunk_tokens"] = [1] * (kept - 1) + [tokens - kept + 1] if kept else []
    row["token_times_s"] = [*at_s, *at_s[-1:] * (tokens - kept)]
    row["output_tokens"], row["surplus_tokens"] = max(tokens, 1), abs(tokens - chunks)


def _finite(value: float) -> float:
    if not abs(value) < MAX_S:
        raise ValueError(f"{value} is no time")
    return float(value)


def _count(value: int) -> int:
    if not 0 <= value <= MAX_TOKENS or value != int(value):
        raise ValueError(f"{value} is no number of tokens")
    return int(value)


def _text(words: str) -> str:
    """Only what UTF-8 can hold."""
    return words.encode(errors="replace").decode()
