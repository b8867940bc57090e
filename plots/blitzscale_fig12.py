"""Fig. 12: two prefills are scaled from one source, and from two; only a chain's tail serves live.

Our planner's plans, nothing was run. Each instance is a node of its own, as in the paper's figure.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes

from harness.experiments.points import Point
from plots.aegaeon import publish
from plots.caption import stamp
from plots.style import PALETTE, figure
from systems.blitzscale.chains import Medium, Plan, Source, Target, finish_s
from systems.blitzscale.fabric import Device, Fabric
from systems.blitzscale.planner import plan

EXPERIMENTS: tuple[str, ...] = ()
LAYERS = [1.0] * 32
SOURCES = {"(a) one source": 1, "(b) two sources": 2}


def draw(points: Sequence[Point], folder: Path) -> list[Path]:
    made, axes = figure(1, 2, width=8, height=2.6)
    rows = []
    for panel, (name, num_sources) in zip(axes, SOURCES.items(), strict=True):
        found = scaled(num_sources)
        live = _chains(panel, found)
        panel.set_title(f"{name}: {live} of 2 serve live")
        end = max(finish_s(chain, LAYERS)[-1] for chain in found.chains)
        rows += [
            {"sources": num_sources, "quantity": "targets that serve live", "value": float(live)},
            {"sources": num_sources, "quantity": "last target has all layers", "value": end},
        ]
    stamp(made, points, "Our planner's plans, nothing was run. Blue: serves while it loads.")
    return publish(made, pd.DataFrame(rows), folder, Path(__file__).stem)


def scaled(num_sources: int) -> Plan:
    """Two prefills from `num_sources` decodes, at one layer a unit of time."""
    devices = tuple(
        Device(
            index=i, node=i, domain=i, leaf=0, nvlink_bytes_per_s=16.0, peer_bytes_per_s=1.0,
            nic_bytes_per_s=1.0, pcie_bytes_per_s=1.0, ssd_bytes_per_s=0.1,
        )
        for i in range(num_sources + 2)
    )  # fmt: skip
    sources = [Source(medium=Medium.GPU, node=i, devices=(i,)) for i in range(num_sources)]
    targets = [Target(name=f"T{i + 1}", devices=(num_sources + i,), live=True) for i in range(2)]
    return plan(Fabric(devices=devices, inter_leaf_share=1.0), sources, targets, LAYERS)


def _chains(panel: Axes, found: Plan) -> int:
    """A row for each chain; how many of its targets serve live."""
    live = 0
    for y, chain in enumerate(found.chains):
        names = [f"S{y + 1}"] + [target.name for hop in chain.hops for target in hop.targets]
        tails = {target.name for target in chain.hops[-1].targets if target.live}
        live += len(tails)
        for x, name in enumerate(names):
            colour = PALETTE[0] if name in tails else "0.85" if x else PALETTE[1]
            panel.text(
                x, y, name, ha="center", va="center", color="black",
                bbox={"boxstyle": "round,pad=0.6", "fc": colour, "ec": "none"},
            )  # fmt: skip
            if x:
                panel.annotate(
                    "", (x - 0.2, y), (x - 0.8, y), arrowprops={"arrowstyle": "->", "color": "0.3"}
                )
    panel.set(xlim=(-0.5, 2.5), ylim=(1.6, -0.6))
    panel.axis("off")
    return live
