"""A run as the result file of `vllm bench serve --save-result --save-detailed` (vLLM 0.32).

vLLM's definitions, not ours: latencies count from when a request was sent, its first token is no
inter-token latency, and numbers are of completed requests. Its plots and comparisons read the file.
What vLLM would know of the server and this harness does not is left out, and so are requests that
were never sent. What vLLM's file has no word for stands beside it: `simulated`, `verdict` and
`run`.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

import numpy as np
import pyarrow as pa

from harness.exporting.conventions import about, chunk_gaps_s, distribution, seen_by
from harness.records.run_folder import FinishedRun
from harness.records.token_log import Floats

PERCENTILES = (50, 90, 95, 99)


def vllm_result(run: FinishedRun) -> dict[str, Any]:
    """Times of single requests in seconds, of the summary in milliseconds, as vLLM has them. Raises
    UsageError where no request completed."""
    seen, manifest = seen_by(run, "vLLM"), run.manifest
    sent = np.isfinite(seen.logs["all"].sent_s)
    table, log = run.requests.filter(pa.array(sent)), seen.logs["all"].of(sent)
    duration_s = seen.window_s["sent"]
    prompts, tokens = seen.lengths
    numbers: dict[str, float | None] = {}
    for one, samples in seen.by("vllm"):
        if one.is_one_number:
            numbers[one.name] = samples.mean
        else:
            numbers |= _spread(one.name, samples.values * one.unit)
    ended = datetime.fromisoformat(manifest["ended_utc"])
    chunks = table.select(["chunk_tokens", "token_times_s"]).to_pylist()
    return {
        **about(run), "date": ended.strftime("%Y%m%d-%H%M%S"),
        "endpoint_type": "openai", "backend": manifest["choices"]["engine"],
        "model_id": ",".join(sorted(set(table["model"].to_pylist()))),
        "num_prompts": len(log), "request_rate": run.summary["asked_rate_per_s"],
        "max_concurrency": manifest.get("closed_loop"), "duration": duration_s,
        "completed": len(prompts), "failed": int(log.failed.sum()),
        "total_input_tokens": int(prompts.sum()), "total_output_tokens": int(tokens.sum()),
        "total_token_throughput": float((prompts + tokens).sum()) / duration_s, **numbers,
        "input_lens": table["prompt_tokens"].to_pylist(),
        "output_lens": np.where(log.completed, log.num_tokens, 0).tolist(),
        "ttfts": _plain(log.first_s - log.sent_s),
        "itls": [chunk_gaps_s(row).tolist() for row in chunks],  # vLLM takes one time a chunk
        "latencies": _plain(log.last_s - log.sent_s),
        "start_times": _plain(log.sent_s), "generated_texts": [""] * len(log),
        "errors": table["error"].to_pylist(),
    }  # fmt: skip


def _spread(name: str, ms: Floats) -> dict[str, float]:
    """Of one of vLLM's latencies. Zeros where there is no sample."""
    words = {f"{word}_{name}": word for word in ("mean", "median", "std")}
    shares = {f"p{share}_{name}": share for share in PERCENTILES}
    return distribution(ms if len(ms) else np.zeros(1), {**words, **shares})


def _plain(values: Floats) -> list[float]:
    """vLLM has 0 where there is no such time."""
    found: list[float] = np.nan_to_num(values).tolist()
    return found
