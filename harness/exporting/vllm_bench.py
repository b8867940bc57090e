"""A run as the result file of `vllm bench serve --save-result --save-detailed` (vLLM 0.32).

vLLM's definitions, not ours: latencies count from when a request was sent, its first token is no
inter-token latency, and numbers are of completed requests. Its plots and comparisons read the file.
What vLLM would know of the server and this harness does not is left out. What vLLM's file has no
word for stands beside it: `simulated`, `verdict` and `run`.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

import numpy as np
import numpy.typing as npt

from harness.exporting.conventions import about, seen_by
from harness.records.run_folder import FinishedRun
from harness.records.token_log import Floats, TokenLog

PERCENTILES = (50, 90, 95, 99)


def vllm_result(run: FinishedRun) -> dict[str, Any]:
    """Times of single requests in seconds, of the summary in milliseconds, as vLLM has them. Raises
    UsageError where no request completed."""
    table, manifest = run.requests, run.manifest
    seen = seen_by(run, "vLLM")
    log, duration_s = seen.logs["all"], seen.window_s["sent"]
    done = log.completed
    ttft_s, latency_s = log.first_s - log.sent_s, log.last_s - log.sent_s
    chunks = table["chunk_tokens"].to_pylist()
    itls = [_between_chunks(log, i, np.array(sizes)) for i, sizes in enumerate(chunks)]
    prompts = np.array(table["prompt_tokens"].to_pylist())
    tokens_in, tokens_out = int(prompts[done].sum()), int(log.num_tokens[done].sum())
    some = done & (log.num_tokens > 1)
    pooled = {
        "ttft": ttft_s[done], "tpot": log.tpot_s[some], "e2el": latency_s[done],
        "itl": np.array([gap for i in np.flatnonzero(done) for gap in itls[i]]),
    }  # fmt: skip
    return {
        **about(run), "date": _date(manifest["ended_utc"]),
        "endpoint_type": "openai", "backend": manifest["choices"]["engine"],
        "model_id": ",".join(sorted(set(table["model"].to_pylist()))),
        "num_prompts": len(log), "request_rate": run.summary["asked_rate_per_s"],
        "max_concurrency": manifest.get("closed_loop"), "duration": duration_s,
        "completed": int(done.sum()), "failed": int(log.failed.sum()),
        "total_input_tokens": tokens_in, "total_output_tokens": tokens_out,
        "request_throughput": float(done.sum()) / duration_s,
        "output_throughput": tokens_out / duration_s,
        "total_token_throughput": (tokens_in + tokens_out) / duration_s,
        **{key: value for name, values in pooled.items() for key, value in _of(name, values)},
        "input_lens": prompts.tolist(),
        "output_lens": np.where(done, log.num_tokens, 0).tolist(),
        "ttfts": _plain(ttft_s), "itls": itls, "latencies": _plain(latency_s),
        "start_times": _plain(log.sent_s), "generated_texts": [""] * len(log),
        "errors": table["error"].to_pylist(),
    }  # fmt: skip


def _of(name: str, values: Floats) -> list[tuple[str, float]]:
    ms = 1e3 * (values if len(values) else np.zeros(1))
    shares = [(f"p{share}_{name}_ms", float(np.percentile(ms, share))) for share in PERCENTILES]
    middle = [("mean", np.mean(ms)), ("median", np.median(ms)), ("std", np.std(ms))]
    return [(f"{word}_{name}_ms", float(value)) for word, value in middle] + shares


def _between_chunks(log: TokenLog, i: int, sizes: npt.NDArray[np.int64]) -> list[float]:
    """Gaps between the chunks of request i: vLLM takes one time a chunk."""
    first = log.start[i] + np.cumsum(sizes) - sizes
    gaps: list[float] = np.diff(log.times_s[first.astype(int)]).tolist()
    return gaps


def _plain(values: Floats) -> list[float]:
    """vLLM has 0 where there is no such time."""
    found: list[float] = np.nan_to_num(values).tolist()
    return found


def _date(utc: str) -> str:
    return datetime.fromisoformat(utc).strftime("%Y%m%d-%H%M%S")
