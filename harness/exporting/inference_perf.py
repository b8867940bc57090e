"""A run as inference-perf 0.7 reports it: its summary_lifecycle_metrics.json, and its
per_request_lifecycle_metrics.json with the time of every token. And the same numbers as llm-d's
benchmark report, version 0.2.1 (llm-d-benchmark, schema_v0_2_1.py), which defines none of its own.

inference-perf's definitions, not ours: seconds that count from when a request was sent, and numbers
of completed requests. Requests that were never sent are left out. The time at which a request ended
that failed before its first token is not known: null. llm-d's report allows no other field, so its
description says SIMULATED or measured, and the verdict.
"""

from __future__ import annotations

from collections import Counter
from datetime import datetime
from typing import Any

import numpy as np

from harness.exporting.conventions import IP, Names, about, distribution, seen_by
from harness.records.run_folder import FinishedRun
from harness.records.token_log import Floats

SHARES = {f"p{at:g}": at for at in (0.1, 1, 5, 10, 25, 50, 75, 90, 95, 99, 99.9)}
ENDS: Names = {"mean": "mean", "min": "min", "max": "max"}
SPREAD: Names = {**ENDS, **{name: at for name, at in SHARES.items() if at != 50}, "median": 50}
LLM_D_VERSION = "0.2.1"
STATISTICS: Names = {**ENDS, **{name.replace(".", "p"): at for name, at in SHARES.items()}}
LLM_D_RATES = {"requests_per_sec": "request_rate", "output_tokens_per_sec": "output_token_rate"}


def summary(run: FinishedRun) -> dict[str, Any]:
    """Raises UsageError where no request completed."""
    seen, table = seen_by(run, IP), run.requests
    log, window_s = seen.logs["all"], seen.window_s["sent"]
    sent = np.isfinite(log.sent_s)
    prompts, tokens = seen.lengths
    every = list(seen.by(IP))
    latency = {one.name: s.values for one, s in every if not one.is_one_number}
    rates = {one.name: s.mean for one, s in every if one.quantity in ("requests/s", "tokens/s")}
    good = {
        one.name: s.mean * one.unit
        for one, s in every
        if one.quantity.startswith("good") and s.mean is not None
    }
    failed_s = (log.last_s - log.sent_s)[log.failed & log.started]
    errors = Counter(word for word in table["error"].to_pylist() if word)
    return {
        **about(run), "benchmark_time_seconds": window_s,
        "load_summary": {
            "count": int(sent.sum()), "schedule_delay": _spread(log.send_lag_s[sent]),
            "send_duration": float(np.ptp(log.sent_s[sent])),
            "requested_rate": run.summary["asked_rate_per_s"],
            "achieved_rate": run.summary["achieved_rate_per_s"],
        },
        "successes": {
            "count": len(prompts),
            "latency": {name: _spread(values) for name, values in latency.items()},
            **({"goodput_metrics": good | {"total_requests": len(prompts)}} if good else {}),
            "throughput": {
                **rates, "input_tokens_per_sec": float(prompts.sum()) / window_s,
                "total_tokens_per_sec": float((prompts + tokens).sum()) / window_s,
            },
            "prompt_tokens": {"total": float(prompts.sum()), **(_spread(prompts) or {})},
            "output_len": _spread(tokens),
            "output_tokens": {"total": float(tokens.sum()), **(_spread(tokens) or {})},
        },
        "failures": {
            "count": int(sent.sum()) - len(prompts), "request_latency": _spread(failed_s),
            "by_label": {word: {"count": many, "messages": [{"message": word}]}
                         for word, many in errors.most_common()},
        },
    }  # fmt: skip


def per_request(run: FinishedRun) -> list[dict[str, Any]]:
    """One record for each request that was sent, in the schedule's order."""
    return [
        {
            "scheduled_time": row["arrival_s"], "start_time": row["sent_s"],
            "end_time": times[-1] if (times := row["token_times_s"]) else None,
            "info": {
                "request_metrics": {"text": {"input_tokens": row["prompt_tokens"]}},
                "response_metrics": {
                    "output_tokens": len(times), "output_token_times": times,
                    "server_usage": {"prompt_tokens": row["server_prompt_tokens"]},
                } if times else None,
                "labels": {"model": row["model"], "simulated": str(run.manifest["simulated"])},
            },
            "error": None if row["status"] == "completed"
            else {"error_type": row["status"], "error_msg": row["error"]},
        }
        for row in run.requests.to_pylist() if row["sent_s"] is not None
    ]  # fmt: skip


def _spread(values: Floats) -> dict[str, float] | None:
    """None: no sample."""
    return distribution(values, SPREAD) if len(values) else None


def benchmark_report(run: FinishedRun) -> dict[str, Any]:
    """Raises UsageError where no request completed."""
    seen, manifest = seen_by(run, IP), run.manifest
    prompts, tokens = seen.lengths
    log, window_s = seen.logs["all"], seen.window_s["sent"]
    latency: dict[str, Any] = {}
    throughput = {
        "input_token_rate": _of([prompts.sum() / window_s], "tokens/s"),
        "total_token_rate": _of([(prompts + tokens).sum() / window_s], "tokens/s"),
    }  # fmt: skip
    for one, samples in seen.by(IP):
        if one.quantity.startswith("good"):
            continue  # the report has no goodput
        if one.name in LLM_D_RATES:
            unit = "queries/s" if one.each == "request" else "tokens/s"
            throughput[LLM_D_RATES[one.name]] = _of(samples.values, unit)
        elif len(samples.values):
            unit = "s" if one.quantity in ("TTFT", "E2E") else "s/token"
            latency[one.name] = _of(samples.values, unit)
    begun, ended = (
        datetime.fromisoformat(manifest[f"{word}_utc"]) for word in ("started", "ended")
    )
    word = "SIMULATED" if manifest["simulated"] else "measured"
    return {
        "version": LLM_D_VERSION,
        "run": {
            "uid": run.path.name, "eid": manifest["config_hash"],
            "description": f"{word}; {run.invalid or 'VALID'}",
            "time": {"start": begun.isoformat(), "end": ended.isoformat(),
                     "duration": f"PT{(ended - begun).total_seconds():.3f}S"},
        },
        "results": {"request_performance": {"aggregate": {
            "requests": {
                "total": int(np.isfinite(log.sent_s).sum()), "failures": int(log.failed.sum()),
                "input_length": _of(prompts, "count"), "output_length": _of(tokens, "count"),
            },
            "throughput": throughput, "latency": latency,
        }}},
    }  # fmt: skip


def _of(values: Floats | list[float], units: str) -> dict[str, Any]:
    """Statistics of samples; of one rate its mean alone. With the sample's standard deviation."""
    if units.endswith("/s"):
        return {"units": units, "mean": float(np.mean(values))}
    spread = {"stddev": float(np.std(values, ddof=1))} if len(values) > 1 else {}
    return {"units": units, **spread, **distribution(np.asarray(values), STATISTICS)}
