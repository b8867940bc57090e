"""Fig. 22: share of the cluster's NIC bandwidth in use over time, by KV and by parameters.

Bytes that cross from one host to another, over what all NICs could carry. Within a host they cross
NVLink or PCIe.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml

from harness.experiments.points import Point
from plots.aegaeon import events, publish
from plots.blitzscale import SYSTEMS, WORKLOADS, Floats, Run, row, runs
from plots.caption import stamp
from plots.style import PALETTE, figure

EXPERIMENTS = ("blitzscale_fig17",)
SHOWN = ("serverlessllm", "blitzscale")
SHOWN_SEED = 0
KINDS = {"kv_move": ("KV", PALETTE[0]), "transfer": ("parameters", PALETTE[1])}


def draw(points: Sequence[Point], folder: Path) -> list[Path]:
    rows: list[dict[str, Any]] = []
    made, axes = figure(2, 3, width=9, height=4.8)
    used = [point for point in points if not set(SHOWN).isdisjoint(point.overrides.values())]
    for run in runs(used):
        if run.system not in SHOWN:
            continue
        levels = {kind: used_share(run, kind) for kind in KINDS}
        rows += [row(run, f"share of the NICs used by {KINDS[kind][0]}", float(level.mean()))
                 for kind, level in levels.items()]  # fmt: skip
        every = sum(levels.values())
        assert isinstance(every, np.ndarray)
        busiest = float(levels["kv_move"].max())
        rows.append(row(run, "share of the NICs used by KV in the busiest second", busiest))
        free = 1 - float(every.max())
        rows.append(row(run, "share of the NICs free in the busiest second", free))
        if run.seed == SHOWN_SEED:
            column = list(WORKLOADS).index(run.workload)
            panel = axes[3 * SHOWN.index(run.system) + column]
            panel.stackplot(
                np.arange(len(every)), [100 * level for level in levels.values()],
                colors=[colour for _, colour in KINDS.values()],
                labels=[label for label, _ in KINDS.values()], lw=0,
            )  # fmt: skip
            title = f"{SYSTEMS[run.system][0]}: {WORKLOADS[run.workload].partition(',')[0]}"
            panel.set(title=title, ylim=(0, 35), ylabel="% of NICs" if column == 0 else "")
            rows += list(_lines(run, levels))
    for panel in axes[3:]:
        panel.set_xlabel("seconds")
    axes[0].legend(loc="upper right")
    stamp(
        made, used, f"Seed {SHOWN_SEED}. Between hosts alone; 100 %: every NIC sends at its rate."
    )
    return publish(made, pd.DataFrame(rows), folder, Path(__file__).stem)


def used_share(run: Run, kind: str) -> Floats:
    """In each second, of what the NICs of all GPUs can send."""
    config = yaml.safe_load((run.path / "config.yaml").read_text())
    hardware, tp = config["hardware"], config["model"]["tp"]
    moves = events(run.path, kind)
    sender = moves.instance if kind == "kv_move" else moves.source
    receiver = moves.to if kind == "kv_move" else moves.instance
    length = int(np.ceil(events(run.path, "slot").end_s.max())) + 1
    found = np.zeros(length)
    between = _nodes(sender, hardware, tp) != _nodes(receiver, hardware, tp)
    crossing = sender.str.startswith("sim-") & receiver.str.startswith("sim-") & between
    at = np.minimum(moves.end_s[crossing].to_numpy().astype(int), length - 1)
    np.add.at(found, at, moves.bytes[crossing].to_numpy(float))
    every_nic = float(hardware["num_devices"] * hardware["nic_bytes_per_s"])
    return found / every_nic


def _nodes(names: pd.Series, hardware: dict[str, Any], tp: int) -> pd.Series:
    """The host of each instance; −1 for what is none."""
    number = names.str.extract(r"^sim-(\d+)$", expand=False).astype(float)
    nodes: pd.Series = (number * tp // hardware["devices_per_node"]).fillna(-1)
    return nodes


def _lines(run: Run, levels: dict[str, Floats]) -> Iterator[dict[str, Any]]:
    for kind, level in levels.items():
        for second, value in enumerate(level):
            yield row(run, f"share by {KINDS[kind][0]} in a second", float(value), x=float(second))
