"""engine_metrics.png: requests running and waiting, and the KV memory used, as servers told."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from plots.style import figure, save

PANELS = {  # by vLLM's names
    "requests running": "vllm:num_requests_running",
    "requests waiting": "vllm:num_requests_waiting",
    "KV memory used": "vllm:kv_cache_usage_perc",
}


def draw(run_dir: Path) -> None:
    """Draws nothing where no server told any of it."""
    path = run_dir / "engine_metrics.parquet"
    told = pd.read_parquet(path) if path.is_file() else pd.DataFrame({"name": []})
    panels = {words: told[told["name"] == name] for words, name in PANELS.items()}
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
