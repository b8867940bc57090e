"""A run as AIPerf's `profile_export_aiperf.json` (its schema 1.4, of AIPerf 0.13).

AIPerf's definitions, not ours: latencies count from when a request was sent, and numbers are of
completed requests, over the time from the first sending to the last token. What AIPerf would know
of the server is left out. `simulated`, `verdict` and `run` stand beside its fields; it allows more.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.exporting.conventions import Names, about, chunk_gaps_s, distribution, seen_by
from harness.records.run_folder import FinishedRun
from harness.records.token_log import Floats

SCHEMA_VERSION = "1.4"
DISTRIBUTION: Names = {
    "avg": "mean", **{f"p{share}": share for share in (1, 5, 10, 25, 50, 75, 90, 95, 99)},
    "min": "min", "max": "max", "std": "std",
}  # fmt: skip


def aiperf_result(run: FinishedRun) -> dict[str, Any]:
    """Latencies in milliseconds. Raises UsageError where no request completed."""
    seen = seen_by(run, "AIPerf")
    log = seen.logs["all"]
    prompts, tokens = seen.lengths
    found: dict[str, Any] = {}
    for one, samples in seen.by("aiperf"):
        values = samples.values
        if not len(values):
            continue
        if one.is_one_number:
            rate = one.quantity.removeprefix("good ").replace("/s", "/sec")
            unit = rate if one.is_rate else "ratio"
            found[one.name] = {"unit": unit, "avg": float(values[0])}
        else:
            found[one.name] = _distribution("ms", values * one.unit)
    found |= {
        "input_sequence_length": _distribution("tokens", prompts),
        "output_sequence_length": _distribution("tokens", tokens),
        "total_isl": {"unit": "tokens", "avg": float(prompts.sum())},
        "total_osl": {"unit": "tokens", "avg": float(tokens.sum())},
        "request_count": {"unit": "requests", "avg": float(len(prompts))},
        "error_request_count": {"unit": "requests", "avg": float(log.failed.sum())},
        "benchmark_duration": {"unit": "sec", "avg": seen.window_s["sent"]},
    }
    tpot_s = seen.logs["streamed"].tpot_s
    if (tpot_s > 0).any():
        per_user = _distribution("tokens/sec/user", 1 / tpot_s[tpot_s > 0])
        found["output_token_throughput_per_user"] = per_user
    return {
        "schema_version": SCHEMA_VERSION, **about(run),
        "was_cancelled": False, "is_complete": True, **found,
    }  # fmt: skip


def aiperf_records(run: FinishedRun) -> list[dict[str, Any]]:
    """The lines of AIPerf's profile_export.jsonl: one for each request that was sent. Stamps count
    from the schedule's start, where AIPerf has the time of day."""
    rows, simulated = run.requests.to_pylist(), run.manifest["simulated"]
    sent = [row for row in rows if row["sent_s"] is not None]
    return [_record(i, row, simulated) for i, row in enumerate(sent)]


def _record(i: int, row: Mapping[str, Any], simulated: bool) -> dict[str, Any]:
    times, sent_s = row["token_times_s"], row["sent_s"]
    done = row["status"] == "completed"
    metrics = {"input_sequence_length": (row["prompt_tokens"], "tokens")}
    if times and done:
        gaps_ms = 1e3 * chunk_gaps_s(row)
        metrics |= {
            "time_to_first_token": (1e3 * (times[0] - sent_s), "ms"),
            "request_latency": (1e3 * (times[-1] - sent_s), "ms"),
            "output_sequence_length": (len(times), "tokens"),
            **({"inter_chunk_latency": (gaps_ms.tolist(), "ms")} if len(gaps_ms) else {}),
        }
    if done and len(times) > 1:
        metrics["inter_token_latency"] = 1e3 * (times[-1] - times[0]) / (len(times) - 1), "ms"
    stamps = {"request_start_ns": sent_s, "request_end_ns": times[-1] if times else sent_s}
    told = {name: {"value": value, "unit": unit} for name, (value, unit) in metrics.items()}
    return {
        "metadata": {
            "session_num": i, "x_request_id": str(row["request_id"]), "model": row["model"],
            "simulated": simulated,
            **{name: round(1e9 * at_s) for name, at_s in stamps.items()},
            "worker_id": "harness", "record_processor_id": "harness",
            "benchmark_phase": "profiling", "was_cancelled": False,
        },
        "metrics": told,
        "error": None if done else {"message": row["error"], "type": row["status"]},
    }  # fmt: skip


def _distribution(unit: str, values: Floats) -> dict[str, Any]:
    found = distribution(values, DISTRIBUTION)
    return {"unit": unit, **found, "count": len(values), "sum": float(values.sum())}
