"""Fig. 14: four GPUs with the parameters send them to four others, each a quarter of the layers
over its own NIC; NVLink brings the rest.

Our planner's plan, by whole layers, nothing was run. A box is a layer that reaches a target.
"""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from harness.experiments.points import Point
from plots.style import PALETTE, figure
from systems.blitzscale.chains import Medium, Source, Target
from systems.blitzscale.fabric import Device, Fabric
from systems.blitzscale.loads import Pull, pulls
from systems.blitzscale.planner import plan

EXPERIMENTS: tuple[str, ...] = ()
WIDTH, LAYERS = 4, 8


LINKS = {"NIC": PALETTE[0], "NVLink": "0.85"}


def table(points: Sequence[Point]) -> pd.DataFrame:
    rows = []
    for pull in sharded():
        network = pull.source < WIDTH
        source = f"S{pull.source + 1}" if network else f"T{pull.source - WIDTH + 1}"
        link = "NIC" if network else "NVLink"
        rows += [
            {"target": pull.target, "layer": layer + 1, "from": source, "over": link}
            for layer in pull.layers
        ]
    found = pd.DataFrame(rows)
    shares = found[found.over == "NIC"].groupby("target").layer.count() / LAYERS
    quantity = {"over": "share of the layers over one NIC", "value": shares.max()}
    return pd.concat([found, pd.DataFrame([quantity])], ignore_index=True).assign(inputs="ours")


def plot(rows: pd.DataFrame) -> tuple[Figure, str]:
    made, (panel,) = figure(1, 1, width=6, height=2.8)
    boxes = rows[rows.over.isin(list(LINKS))]
    names = sorted(boxes.target.unique())
    for target, layer, source, link in boxes[["target", "layer", "from", "over"]].to_numpy():
        y = names.index(target)
        panel.barh(y, 0.92, left=layer - 0.46, color=LINKS[link])
        panel.text(layer, y, source, ha="center", va="center", fontsize=8)
    handles = [Patch(color=colour, label=link) for link, colour in LINKS.items()]
    panel.legend(handles=handles, loc="upper left", bbox_to_anchor=(1, 1))
    panel.set_yticks(range(len(names)), names)
    panel.set_xticks(range(1, LAYERS + 1))
    panel.set(title="Who sends which layer to whom", xlabel="layer", ylim=(3.6, -0.6))
    panel.grid(False)
    return made, "Our planner's plan, nothing was run. S: a source's GPU, T: a target's."


def sharded() -> list[Pull]:
    devices = (
        Device(index=i, node=i // WIDTH, domain=i // WIDTH, leaf=0) for i in range(2 * WIDTH)
    )
    fabric = Fabric(
        devices=tuple(devices), nvlink_bytes_per_s=1e6, peer_bytes_per_s=1.0, nic_bytes_per_s=1.0,
        pcie_bytes_per_s=1.0, ssd_bytes_per_s=0.1,
    )  # fmt: skip
    sources = [Source(medium=Medium.GPU, node=0, devices=(i,)) for i in range(WIDTH)]
    targets = [Target(name=f"T{i + 1}", devices=(WIDTH + i,)) for i in range(WIDTH)]
    return pulls(plan(fabric, sources, targets, [1.0] * LAYERS), LAYERS)
