"""Fig. 13: a chain forwards layer by layer (a), and which of two targets comes first in it (b).

By the planner's own arithmetic (`arrivals_s`), in the time that a layer takes at rate 1. Each row
is a node of the chain, each box a layer on its way to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from harness.experiments.points import Point
from plots.aegaeon import publish
from plots.caption import stamp
from plots.style import PALETTE, figure
from systems.blitzscale.chains import arrivals_s

EXPERIMENTS: tuple[str, ...] = ()
LAYERS = 4
CHAINS = {  # the rate of each hop
    "(a) three targets at one rate": (1.0, 1.0, 1.0),
    "(b) the slower target first": (1.0, 2.0),
    "(b) the faster target first": (2.0, 1.0),
}


def draw(points: Sequence[Point], folder: Path) -> list[Path]:
    made, axes = figure(1, 3, width=9, height=2.6)
    rows = []
    for panel, (name, rates) in zip(axes, CHAINS.items(), strict=True):
        for node, (rate, arrived) in enumerate(
            zip(rates, arrivals_s(rates, [1.0] * LAYERS), strict=True)
        ):
            for layer, end in enumerate(arrived):
                panel.barh(
                    node, 1 / rate, left=end - 1 / rate, color=PALETTE[layer], edgecolor="white"
                )
                panel.text(end - 0.5 / rate, node, str(layer + 1), ha="center", va="center")
                rows.append({"chain": name, "node": node + 1, "layer": layer + 1, "arrives": end})
        labels = [f"target {node + 1}, rate {rate:g}" for node, rate in enumerate(rates)]
        panel.set_yticks(range(len(rates)), labels, fontsize=7)
        panel.set(title=name, xlim=(0, 7), ylim=(len(rates) - 0.5, -0.5), xlabel="layer times")
        panel.grid(False, axis="y")
    stamp(made, points, f"The planner's arithmetic, nothing was run. {LAYERS} layers.")
    return publish(made, pd.DataFrame(rows), folder, Path(__file__).stem)
