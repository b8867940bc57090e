"""Fig. 13: a chain forwards layer by layer (a), and which of two targets comes first in it (b).

By the planner's own arithmetic (`arrivals_s`), in the time that a layer takes at rate 1. Each row
is a node of the chain, each box a layer on its way to it.
"""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
from matplotlib.figure import Figure

from harness.experiments.points import Point
from plots.style import PALETTE, figure
from systems.blitzscale.chains import arrivals_s

EXPERIMENTS: tuple[str, ...] = ()
LAYERS = 4
CHAINS = {  # the rate of each hop
    "(a) three targets at one rate": (1.0, 1.0, 1.0),
    "(b) the slower target first": (1.0, 2.0),
    "the faster target first": (2.0, 1.0),
}


def table(points: Sequence[Point]) -> pd.DataFrame:
    rows = [
        {"chain": name, "node": node + 1, "rate": rates[node], "layer": layer + 1, "arrives": end}
        for name, rates in CHAINS.items()
        for node, arrived in enumerate(arrivals_s(rates, [1.0] * LAYERS))
        for layer, end in enumerate(arrived)
    ]
    return pd.DataFrame(rows).assign(inputs="ours")


def plot(rows: pd.DataFrame) -> tuple[Figure, str]:
    made, axes = figure(1, 3, width=11, height=2.6)
    for panel, name in zip(axes, CHAINS, strict=True):
        boxes = rows[rows.chain == name]
        labels = {}
        for node, rate, layer, end in boxes[["node", "rate", "layer", "arrives"]].to_numpy():
            colour = PALETTE[int(layer) - 1]
            panel.barh(node, 1 / rate, left=end - 1 / rate, edgecolor="white", color=colour)
            panel.text(end - 0.5 / rate, node, f"{layer:.0f}", ha="center", va="center")
            labels[node] = f"target {node:.0f}, rate {rate:g}"
        panel.set_yticks(list(labels), list(labels.values()), fontsize=7)
        panel.set(title=name, xlim=(0, 7), ylim=(len(labels) + 0.5, 0.5), xlabel="layer times")
        panel.grid(False, axis="y")
    return made, f"The planner's arithmetic, nothing was run. {LAYERS} layers; (b) has two orders."
