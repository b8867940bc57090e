"""A run as AIPerf's `profile_export_aiperf.json` (its schema 1.4, of AIPerf 0.13).

AIPerf's definitions, not ours: latencies count from when a request was sent, and numbers are of
completed requests, over the time from the first sending to the last token. What AIPerf would know
of the server is left out. `simulated`, `verdict` and `run` stand beside its fields; it allows more.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from harness.errors import UsageError
from harness.exporting.conventions import DEFINITIONS, Seen
from harness.records.run_folder import FinishedRun
from harness.records.token_log import Floats, TokenLog

SCHEMA_VERSION = "1.4"
PERCENTILES = (1, 5, 10, 25, 50, 75, 90, 95, 99)


def aiperf_result(run: FinishedRun) -> dict[str, Any]:
    """Latencies in milliseconds. Raises UsageError where no request completed."""
    log, seen = TokenLog.from_table(run.requests), Seen(run.requests)
    if not log.completed.any():
        raise UsageError(f"no request of {run.path} completed: AIPerf's file would have no number")
    done, many = log.completed, log.completed & (log.num_tokens > 1)
    prompts = np.array(run.requests["prompt_tokens"].to_pylist(), np.float64)
    tokens = log.num_tokens.astype(np.float64)
    window_s = float(np.max(log.times_s)) - float(np.nanmin(log.sent_s))
    found: dict[str, Any] = {}
    for one in DEFINITIONS:
        if one.tool != "aiperf":
            continue
        values = seen.of(one).values
        if one.quantity in ("requests/s", "tokens/s"):
            found[one.name] = {"unit": one.quantity.replace("/s", "/sec"), "avg": float(values[0])}
        elif len(values):
            found[one.name] = _distribution("ms", values * one.unit)
    found |= {
        "input_sequence_length": _distribution("tokens", prompts[done]),
        "output_sequence_length": _distribution("tokens", tokens[done]),
        "total_isl": {"unit": "tokens", "avg": float(prompts[done].sum())},
        "total_osl": {"unit": "tokens", "avg": float(tokens[done].sum())},
        "request_count": {"unit": "requests", "avg": float(done.sum())},
        "error_request_count": {"unit": "requests", "avg": float(log.failed.sum())},
        "benchmark_duration": {"unit": "sec", "avg": window_s},
    }
    if many.any():
        per_user = 1 / log.tpot_s[many & (log.tpot_s > 0)]
        if len(per_user):
            unit = "tokens/sec/user"
            found["output_token_throughput_per_user"] = _distribution(unit, per_user)
    return {
        "schema_version": SCHEMA_VERSION, "run": run.path.name,
        "simulated": run.manifest["simulated"], "verdict": run.invalid or "VALID",
        "was_cancelled": False, "is_complete": True, **found,
    }  # fmt: skip


def _distribution(unit: str, values: Floats) -> dict[str, Any]:
    """With the population's standard deviation, and percentiles linear between samples."""
    shares = np.percentile(values, PERCENTILES).tolist()
    return {
        "unit": unit, "avg": float(values.mean()),
        **{f"p{share}": value for share, value in zip(PERCENTILES, shares, strict=True)},
        "min": float(values.min()), "max": float(values.max()), "std": float(values.std()),
        "count": len(values), "sum": float(values.sum()),
    }  # fmt: skip
