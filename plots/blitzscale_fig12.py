"""Fig. 12: two prefills are scaled from one source, and from two; only a chain's tail serves live.

Our planner's plans, nothing was run. Each instance is a node of its own, as in the paper's figure.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from harness.experiments.points import Point
from plots.style import PALETTE, figure
from systems.blitzscale.chains import Medium, Plan, Source, Target, finish_s
from systems.blitzscale.fabric import Device, Fabric
from systems.blitzscale.planner import plan

EXPERIMENTS: tuple[str, ...] = ()
LAYERS = [1.0] * 32
SOURCES = {"(a) one source": 1, "(b) two sources": 2}


def table(points: Sequence[Point]) -> pd.DataFrame:
    rows: list[dict[str, object]] = []
    for num_sources in SOURCES.values():
        found = scaled(num_sources)
        nodes = list(chained(found))
        values = {
            "targets that serve live": float(sum(bool(node["live"]) for node in nodes)),
            "last target has all layers": max(finish_s(c, LAYERS)[-1] for c in found.chains),
        }
        rows += [node | {"sources": num_sources, "quantity": "node of a chain"} for node in nodes]
        rows += [
            {"sources": num_sources, "quantity": name, "value": value}
            for name, value in values.items()
        ]
    return pd.DataFrame(rows).assign(inputs="ours")


def plot(rows: pd.DataFrame) -> tuple[Figure, str]:
    made, axes = figure(1, 2, width=8, height=2.6)
    for panel, (name, num_sources) in zip(axes, SOURCES.items(), strict=True):
        of_panel = rows[rows.sources == num_sources]
        live = of_panel[of_panel.quantity == "targets that serve live"].value.item()
        _chains(panel, of_panel[of_panel.quantity == "node of a chain"])
        panel.set_title(f"{name}: {live:.0f} of 2 serve live")
    return made, "Our planner's plans, nothing was run. Blue: serves while it loads."


def scaled(num_sources: int) -> Plan:
    """Two prefills from `num_sources` decodes, at one layer a unit of time."""
    fabric = Fabric(
        devices=tuple(Device(index=i, node=i, domain=i, leaf=0) for i in range(num_sources + 2)),
        nvlink_bytes_per_s=16.0, peer_bytes_per_s=1.0, nic_bytes_per_s=1.0, pcie_bytes_per_s=1.0,
        ssd_bytes_per_s=0.1,
    )  # fmt: skip
    sources = [Source(medium=Medium.GPU, node=i, devices=(i,)) for i in range(num_sources)]
    targets = [Target(name=f"T{i + 1}", devices=(num_sources + i,), live=True) for i in range(2)]
    return plan(fabric, sources, targets, LAYERS)


def chained(found: Plan) -> Iterator[dict[str, object]]:
    """The nodes of each chain, its source first; a target serves live at the tail."""
    for number, chain in enumerate(found.chains):
        names = [f"S{number + 1}"] + [target.name for hop in chain.hops for target in hop.targets]
        tails = {target.name for target in chain.hops[-1].targets if target.live}
        for place, name in enumerate(names):
            yield {"chain": number, "place": place, "node": name, "live": name in tails}


def _chains(panel: Axes, nodes: pd.DataFrame) -> None:
    """A row for each chain."""
    for x, y, name, live in nodes[["place", "chain", "node", "live"]].to_numpy():
        colour = PALETTE[0] if live else "0.85" if x else PALETTE[1]
        panel.text(
            x, y, name, ha="center", va="center", color="black",
            bbox={"boxstyle": "round,pad=0.6", "fc": colour, "ec": "none"},
        )  # fmt: skip
        if x:
            arrow = {"arrowstyle": "->", "color": "0.3"}
            panel.annotate("", (x - 0.2, y), (x - 0.8, y), arrowprops=arrow)
    panel.set(xlim=(-0.5, 2.5), ylim=(1.6, -0.6))
    panel.axis("off")
