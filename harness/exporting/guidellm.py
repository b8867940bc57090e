"""A run as GuideLLM's benchmarks.json (its report version 2, of GuideLLM 0.8.1).

GuideLLM's definitions, not ours: latencies count from when a request was sent, percentiles are the
smallest sample that reaches the share, and numbers are of completed requests. Stamps count from the
schedule's start, where GuideLLM has the time of day. Its distributions of rates and of concurrency
over time are left out, and times that only its own scheduler has are 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow.compute as pc

from harness.exporting.conventions import Samples, Seen, about, equal, percentile, seen_by
from harness.records.run_folder import FinishedRun
from harness.records.token_log import floats

PERCENTILES = {
    "p001": 0.1, "p01": 1, "p05": 5, "p10": 10, "p25": 25, "p50": 50, "p75": 75, "p90": 90,
    "p95": 95, "p99": 99, "p999": 99.9,
}  # fmt: skip
STATUS = {"completed": "successful", "scheduled": "incomplete", "sent": "incomplete"}
NOT_OF_A_RUN = (  # metrics that must be there, of rates, other media and other backends
    "requests_per_second", "request_concurrency", "time_to_last_round_trip_ms",
    "avg_round_trip_time_ms", "prompt_tokens_per_second", "output_tokens_per_second",
    "tokens_per_second", "output_tokens_per_iteration", "iter_tokens_per_iteration",
)  # fmt: skip
MEDIA = {
    "text": ("tokens", "words", "characters"),
    "image": ("tokens", "images", "pixels", "bytes"),
    "video": ("tokens", "frames", "seconds", "bytes"),
    "audio": ("tokens", "samples", "seconds", "bytes"),
    "tool_call": ("tokens", "mixed_tokens", "count"),
}
NOT_OURS = (
    "queued_time_avg", "resolve_start_delay_avg", "resolve_targeted_start_delay_avg",
    "request_start_delay_avg", "resolve_end_delay_avg", "resolve_time_avg",
    "finalized_delay_avg", "processed_delay_avg",
)  # fmt: skip


def guidellm_result(run: FinishedRun) -> dict[str, Any]:
    """Raises UsageError where no request completed."""
    seen, streams = seen_by(run, "GuideLLM"), run.manifest.get("closed_loop")
    log = seen.logs["all"]
    requests: dict[str, list[dict[str, Any]]] = {
        "successful": [], "incomplete": [], "errored": [],
    }  # fmt: skip
    for row in run.requests.to_pylist():
        requests[STATUS.get(row["status"], "errored")].append(_request(row))
    totals = {name: len(rows) for name, rows in requests.items()} | {"total": len(log)}
    begin_s = float(np.nanmin(log.sent_s))
    end_s = begin_s + seen.window_s["sent"]
    strategy = {"type_": "concurrent", "streams": streams} if streams else {"type_": "trace"}
    profile = {"kind": "concurrent", "streams": [streams]} if streams else {"kind": "replay"}
    schedule = {"kind": "parquet_file", "path": "schedule.parquet"}
    backend = {"kind": "openai_http", "target": run.manifest["choices"]["engine"]}
    benchmark = {
        "type_": "generative_benchmark",
        "config": {
            "run_id": run.path.name, "run_index": 0, "strategy": strategy, "constraints": {},
            "profile": profile, "requests": schedule, "backend": backend, "environment": {},
        },
        "scheduler_state": {"start_time": begin_s, "end_time": end_s},
        "scheduler_metrics": {
            "start_time": begin_s, "request_start_time": begin_s, "measure_start_time": begin_s,
            "measure_end_time": end_s, "request_end_time": end_s, "end_time": end_s,
            "requests_made": totals, **dict.fromkeys(NOT_OURS, 0.0),
            "request_targeted_start_delay_avg": float(np.nanmean(log.send_lag_s)),
            "request_time_avg": float(np.mean(seen.logs["completed"].last_s
                                              - seen.logs["completed"].sent_s)),
        },
        "metrics": {"request_totals": totals, **_metrics(run, seen)},
        "requests": requests,
    }  # fmt: skip
    return {
        **about(run), "metadata": {"version": 2, "guidellm_version": "0.8.1"},
        "config": {"spec": {"backend": backend, "profile": profile, "data": [schedule]}},
        "benchmarks": [benchmark],
    }  # fmt: skip


def _metrics(run: FinishedRun, seen: Seen) -> dict[str, Any]:
    prompts, tokens = seen.lengths
    chunks = floats(pc.list_value_length(run.requests["chunk_tokens"]))[seen.logs["all"].completed]
    found = {
        one.name: replace(samples, values=samples.values * one.unit)
        for one, samples in seen.by("guidellm")
    }
    found |= {
        "time_to_first_output_token_ms": found["time_to_first_token_ms"],
        "request_streaming_iterations_count": equal(chunks),
        "prompt_token_count": equal(prompts), "output_token_count": equal(tokens),
        "total_token_count": equal(prompts + tokens),
    }  # fmt: skip
    return {
        **{name: {"successful": _distribution(samples)} for name, samples in found.items()},
        **{name: {} for name in NOT_OF_A_RUN},
        **{medium: dict.fromkeys(parts) for medium, parts in MEDIA.items()},
    }


def _distribution(samples: Samples) -> dict[str, Any]:
    """Zeros where there is no sample, as GuideLLM has it."""
    if not len(samples.values):
        samples = equal(np.zeros(1))
    values, place = np.unique(samples.values, return_inverse=True)
    shares = np.bincount(place, samples.weights) / samples.weights.sum()
    mean, count = float(values @ shares), round(float(samples.weights.sum()))
    variance = float((values - mean) ** 2 @ shares)
    at = {name: percentile(samples, share, "inverted_cdf") for name, share in PERCENTILES.items()}
    return {
        "mean": mean, "median": at["p50"], "mode": float(values[np.argmax(shares)]),
        "variance": variance, "std_dev": variance**0.5, "min": float(values[0]),
        "max": float(values[-1]), "count": count, "total_sum": mean * count, "percentiles": at,
    }  # fmt: skip


def _request(row: Mapping[str, Any]) -> dict[str, Any]:
    """Of a request without a token the end is not known: its sending stands there."""
    times, sent_s, chunks = row["token_times_s"], row["sent_s"], len(row["chunk_tokens"])
    first_s, last_s = (times[0], times[-1]) if times else (None, None)
    status = {"completed": "completed", "scheduled": "queued", "sent": "in_progress"}
    timings = {
        "targeted_start": row["arrival_s"], "resolve_start": sent_s, "request_start": sent_s,
        "first_request_iteration": first_s, "first_token_iteration": first_s,
        "first_output_token_iteration": first_s, "last_token_iteration": last_s,
        "last_request_iteration": last_s, "request_iterations": chunks,
        "token_iterations": chunks, "request_end": last_s,
        "resolve_end": last_s if times else sent_s if sent_s is not None else row["arrival_s"],
    }  # fmt: skip
    return {
        "type_": "generative_request_stats", "request_id": str(row["request_id"]),
        "model": row["model"],
        "info": {
            "request_id": str(row["request_id"]), "timings": timings,
            "status": status.get(row["status"], "errored"), "error": row["error"] or None,
        },
        "input_metrics": {"text_tokens": row["prompt_tokens"],
                          "cached_tokens": row["cached_tokens"]},
        "output_metrics": {"text_tokens": len(times)},
    }  # fmt: skip
