"""A run as llm-d's benchmark report, version 0.2.1 (llm-d-benchmark, schema_v0_2_1.py).

Its numbers are inference-perf's, by that tool's definitions: it defines none of its own. The report
allows no other field, so its description says SIMULATED or measured, and the verdict.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

import numpy as np

from harness.exporting.conventions import IP, seen_by
from harness.exporting.inference_perf import PERCENTILES, lengths
from harness.records.run_folder import FinishedRun
from harness.records.token_log import Floats

VERSION = "0.2.1"
RATES = {"requests_per_sec": "request_rate", "output_tokens_per_sec": "output_token_rate"}


def benchmark_report(run: FinishedRun) -> dict[str, Any]:
    """Raises UsageError where no request completed."""
    seen, manifest = seen_by(run, IP), run.manifest
    prompts, tokens = lengths(run, seen)
    log, window_s = seen.logs["all"], seen.window_s["sent"]
    latency: dict[str, Any] = {}
    throughput = {
        "input_token_rate": _of([prompts.sum() / window_s], "tokens/s"),
        "total_token_rate": _of([(prompts + tokens).sum() / window_s], "tokens/s"),
    }  # fmt: skip
    for one, samples in seen.by(IP):
        if one.name in RATES:
            unit = "queries/s" if one.each == "request" else "tokens/s"
            throughput[RATES[one.name]] = _of(samples.values, unit)
        elif len(samples.values):
            unit = "s" if one.quantity in ("TTFT", "E2E") else "s/token"
            latency[one.name] = _of(samples.values, unit)
    begun, ended = (
        datetime.fromisoformat(manifest[f"{word}_utc"]) for word in ("started", "ended")
    )
    word = "SIMULATED" if manifest["simulated"] else "measured"
    return {
        "version": VERSION,
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
    mean = {"units": units, "mean": float(np.mean(values))}
    if units.endswith("/s"):
        return mean
    names = [f"p{share:g}".replace(".", "p") for share in PERCENTILES]
    spread = {"stddev": float(np.std(values, ddof=1))} if len(values) > 1 else {}
    shares = np.percentile(values, PERCENTILES).tolist()
    ends = {"min": float(np.min(values)), "max": float(np.max(values))}
    return mean | spread | ends | dict(zip(names, shares, strict=True))
