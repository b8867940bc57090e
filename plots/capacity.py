"""What `python -m harness capacity` tried: each number of its condition, and the bound."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from harness.errors import UsageError
from harness.files import read_json
from harness.records.run_folder import FinishedRun
from plots.style import PALETTE, figure, save, stamp_runs


def draw(folder: Path) -> Path:
    """Draws the capacity.json in `folder`, beside it; returns the picture."""
    source = folder / "capacity.json"
    if not source.is_file():
        raise UsageError(f"{folder} has no capacity.json")
    found = read_json(source)
    ran = [probe for probe in found["probes"] if probe["metrics"] is not None]
    values, holds = (np.array([probe[name] for probe in ran]) for name in ("value", "holds"))
    made, panels = figure(1, len(found["terms"]), width=4.5 * len(found["terms"]) + 1.5, height=3.6)
    of_terms = np.array([probe["metrics"] for probe in ran]).T
    for axes, term, metrics in zip(panels, found["terms"], of_terms, strict=True):
        axes.plot(values, metrics, color="0.6", zorder=1)
        for mine, color, label in ((holds, PALETTE[2], "holds"), (~holds, PALETTE[3], "does not")):
            if mine.any():
                axes.scatter(values[mine], metrics[mine], color=color, label=label, zorder=2)
        axes.axhline(term["bound"], color="0.3", linestyle="--", linewidth=0.8)
        if min(metrics) > 0 and max(metrics) > 20 * min(metrics):
            axes.set_yscale("log")
        axes.set(xlabel=found["key"], ylabel=term["metric"])
        axes.legend()
    made.suptitle(found["answer"], fontsize=9)
    stamp_runs(made, [FinishedRun.load(folder / probe["folder"]) for probe in ran])
    return save(made, folder / "capacity.png")
