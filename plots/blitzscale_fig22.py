"""Fig. 22: share of the cluster's NIC bandwidth in use over time, by KV and by parameters.

Bytes that cross from one host to another, over what all NICs could carry. Within a host they cross
NVLink or PCIe.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import yaml
from matplotlib.figure import Figure

from harness.experiments.points import Point
from plots.blitzscale import OVER_TIME_S, SYSTEMS, WORKLOADS, Floats, Run, curve, row, runs
from plots.panels import legend_above
from plots.runs import events
from plots.style import PALETTE, figure

EXPERIMENTS = ("blitzscale_fig17",)
SHOWN = ("serverlessllm", "blitzscale")
SHOWN_SEED = 0
KINDS = {"kv_move": ("KV", PALETTE[0]), "transfer": ("parameters", PALETTE[1])}


def table(points: Sequence[Point]) -> pd.DataFrame:
    rows: list[dict[str, Any]] = []
    used = [point for point in points if not set(SHOWN).isdisjoint(point.overrides.values())]
    for run in runs(used):
        levels = {label: used_share(run, kind) for kind, (label, _) in KINDS.items()}
        values = {f"used by {label}": level.mean() for label, level in levels.items()}
        values["used by KV in the busiest second"] = levels["KV"].max()
        values["free in the busiest second"] = 1 - sum(levels.values(), np.float64()).max()
        rows += [row(run, f"share of the NICs {what}", float(v)) for what, v in values.items()]
        if run.seed == SHOWN_SEED:
            for kind, (label, _) in KINDS.items():
                share = used_share(run, kind, OVER_TIME_S)
                rows += curve(run, f"share by {label}", np.arange(len(share)) * OVER_TIME_S, share)
    return pd.DataFrame(rows)


def plot(rows: pd.DataFrame) -> tuple[Figure, str]:
    made, axes = figure(2, 3, width=9, height=4.8)
    shown = [(system, workload) for system in SHOWN for workload in WORKLOADS]
    for panel, (system, workload) in zip(axes, shown, strict=True):
        of_panel = rows[(rows.system == system) & (rows.workload == workload)]
        levels = [of_panel[of_panel.quantity == f"share by {label}"] for label, _ in KINDS.values()]
        panel.stackplot(
            levels[0].x, [100 * level.value for level in levels], lw=0,
            colors=[colour for _, colour in KINDS.values()],
            labels=[label for label, _ in KINDS.values()],
        )  # fmt: skip
        title = f"{SYSTEMS[system].label}: {WORKLOADS[workload].partition(',')[0]}"
        panel.set(title=title, ylim=(0, None), xlim=(0, None))
    for panel in axes[::3]:
        panel.set_ylabel("% of all NICs")
    for panel in axes[3:]:
        panel.set_xlabel("seconds")
    legend_above(made, axes[:1], len(KINDS))
    return made, (
        f"Means of {OVER_TIME_S:g} s, seed {SHOWN_SEED}. Between hosts alone; 100 %: every NIC "
        "sends at its rate; scales differ."
    )


def used_share(run: Run, kind: str, step_s: float = 1.0) -> Floats:
    """In each step, of what the NICs of all GPUs can send."""
    config = yaml.safe_load((run.path / "config.yaml").read_text())
    hardware, tp = config["hardware"], config["model"]["tp"]
    moves = events(run.path, kind)
    sender = moves.instance if kind == "kv_move" else moves.source
    receiver = moves.to if kind == "kv_move" else moves.instance
    length = int(np.ceil(events(run.path, "slot").end_s.max() / step_s)) + 1
    found = np.zeros(length)
    between = _nodes(sender, hardware, tp) != _nodes(receiver, hardware, tp)
    crossing = sender.str.startswith("sim-") & receiver.str.startswith("sim-") & between
    at = np.minimum((moves.end_s[crossing].to_numpy() / step_s).astype(int), length - 1)
    np.add.at(found, at, moves.bytes[crossing].to_numpy(float))
    every_nic = float(hardware["num_devices"] * hardware["nic_bytes_per_s"])
    return found / (every_nic * step_s)


def _nodes(names: pd.Series, hardware: dict[str, Any], tp: int) -> pd.Series:
    """The host of each instance; −1 for what is none."""
    number = names.str.extract(r"^sim-(\d+)$", expand=False).astype(float)
    nodes: pd.Series = (number * tp // hardware["devices_per_node"]).fillna(-1)
    return nodes
