"""engine_metrics.png: requests running and waiting, the KV memory used, and each second's mean TTFT
and inter-token latency, as servers told."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from plots.style import figure, save

PANELS = {  # by vLLM's names
    "requests running": "vllm:num_requests_running",
    "requests waiting": "vllm:num_requests_waiting",
    "KV memory used": "vllm:kv_cache_usage_perc",
}
HISTOGRAMS = {
    "mean TTFT (s)": "vllm:time_to_first_token_seconds",
    "mean inter-token\nlatency (s)": "vllm:inter_token_latency_seconds",
}


def draw(run_dir: Path) -> None:
    """Draws nothing where no server told any of it."""
    path = run_dir / "engine_metrics.parquet"
    if not path.is_file():
        return
    told = pd.read_parquet(path)
    panels = {words: told[told["name"] == name] for words, name in PANELS.items()}
    panels |= {words: means(told, name) for words, name in HISTOGRAMS.items()}
    panels = {words: rows for words, rows in panels.items() if len(rows)}
    if not panels:
        return
    made, axes = figure(len(panels), 1, width=7, height=1.8 * len(panels))
    for axis, (words, rows) in zip(axes, panels.items(), strict=True):
        for (server, _), its in rows.groupby(["server", "labels"]):
            axis.plot(its["time_s"], its["value"], label=server)
        axis.set_ylabel(words)
        axis.set_ylim(bottom=0)
    axes[0].legend()
    axes[-1].set_xlabel("seconds since the schedule's start")
    save(made, run_dir / "engine_metrics.png")


def means(told: pd.DataFrame, name: str) -> pd.DataFrame:
    """The mean of what a histogram counted since the page before, where it counted something."""
    keys = ["server", "labels", "time_s"]
    parts = {
        end: told[told["name"] == f"{name}_{end}"].set_index(keys)["value"]
        for end in ("sum", "count")
    }
    gained = pd.DataFrame(parts).sort_index().groupby(level=keys[:2]).diff()
    gained = gained[gained["count"] > 0]
    return (gained["sum"] / gained["count"]).rename("value").reset_index()
