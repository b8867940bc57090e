"""What `make gpu` measured, from its gpu.json: a decode step beside reading its bytes, the latency
of each whole run, and what came of each step.

python -m plots gpu
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes

from harness.files import read_json
from plots.caption import caption
from plots.style import PALETTE, figure, log_scale, save

ATTENTIONS = ("torch", "flashinfer")
COLOURS = {"passed": PALETTE[2], "failed": PALETTE[3], "skipped": "0.8"}  # of a step's status


def draw(folder: Path) -> Path:
    """Makes gpu.png beside gpu.json and returns its path."""
    found = read_json(folder / "gpu.json")
    made, (decode, runs, steps) = figure(1, 3, width=13, height=4.5)
    _decode(decode, found["decode"])
    _runs(runs, found["runs"])
    _steps(steps, found["steps"])
    gpus = ", ".join(f"{gpu['name']} (driver {gpu['driver']})" for gpu in found["machine"]["gpus"])
    git = found["revision"] or {"revision": "unknown", "dirty": False}
    revision = f"git {git['revision'][:10]}" + (" with changes" if git["dirty"] else "")
    torch = f"torch {found['versions'].get('torch', 'unknown')}"
    caption(made, "Random weights. Live, on one machine.", [gpus, torch, revision])
    return save(made, folder / "gpu.png")


def _decode(axes: Axes, made: Mapping[str, Any] | None) -> None:
    axes.set(title="A decode step", xlabel="requests at once", ylabel="ms")
    if made is None:
        return
    axes.set_title(f"A decode step: {made['model']}, {made['context_tokens']} tokens of context")
    rows = made["steps"]
    names = [name for name in ATTENTIONS if any(row["attention"] == name for row in rows)]
    lines = {name: [row for row in rows if row["attention"] == name] for name in names}
    for name, of_name in lines.items():
        numbers = [row["num_requests"] for row in of_name]
        axes.plot(numbers, [1e3 * row["step_s"] for row in of_name], "o-", ms=4, label=name)
    numbers = [row["num_requests"] for row in lines["torch"]]
    floor_ms = [1e3 * row["floor_s"] for row in lines["torch"]]
    axes.plot(numbers, floor_ms, "--", color="0.3", label="reading weights and KV once")
    log_scale(axes, "x")
    axes.set_ylim(bottom=0)
    axes.legend(fontsize=7)


def _runs(axes: Axes, runs: Mapping[str, Mapping[str, Any]]) -> None:
    """TTFT of each run, P50 to P90 (so few requests have no P99); an INVALID run says so."""
    axes.set(title="TTFT of whole runs, P50 to P90", xlabel="ms")
    ends = {step: [made["ttft_s"][key] for key in ("p50", "p90")] for step, made in runs.items()}
    shown = {step: each for step, each in ends.items() if None not in each}
    for at, each in enumerate(shown.values()):
        axes.plot([1e3 * end for end in each], [at, at], "o-", ms=4, color=PALETTE[0])
    labels = [f"{s}{'' if runs[s]['verdict']['status'] == 'VALID' else ', INVALID'}" for s in shown]
    axes.set_yticks(range(len(shown)), labels, fontsize=7)
    axes.invert_yaxis()
    log_scale(axes, "x")


def _steps(axes: Axes, steps: Sequence[Mapping[str, Any]]) -> None:
    axes.set(title="Steps", xlabel="seconds")
    for at, row in enumerate(steps):
        status = row["status"].partition(":")[0]
        axes.barh(at, row["seconds"], color=COLOURS[status])
        axes.text(row["seconds"], at, f" {status}", va="center", fontsize=6)
    axes.set_yticks(range(len(steps)), [row["step"] for row in steps], fontsize=7)
    axes.invert_yaxis()
    axes.margins(x=0.2)
