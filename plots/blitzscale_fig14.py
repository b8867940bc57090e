"""Fig. 14: four GPUs with the parameters send them to four others, each a quarter of the layers
over its own NIC; NVLink brings the rest.

Our planner's plan, by whole layers, nothing was run. A box is a layer that reaches a target.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from harness.experiments.points import Point
from plots.aegaeon import publish
from plots.caption import stamp
from plots.style import PALETTE, figure
from systems.blitzscale.chains import Medium, Source, Target
from systems.blitzscale.fabric import Device, Fabric
from systems.blitzscale.planner import plan
from systems.blitzscale.pulls import Pull, pulls

EXPERIMENTS: tuple[str, ...] = ()
WIDTH, LAYERS = 4, 8


def draw(points: Sequence[Point], folder: Path) -> list[Path]:
    found = sharded()
    rows = []
    made, (panel,) = figure(1, 1, width=6, height=2.8)
    for pull in found:
        number = int(pull.target[1:]) - 1
        network = pull.source < WIDTH
        for layer in pull.layers:
            panel.barh(
                number, 0.92, left=layer, color=PALETTE[0] if network else "0.85",
                label="NIC" if network else "NVLink",
            )  # fmt: skip
            source = f"S{pull.source + 1}" if network else f"T{pull.source - WIDTH + 1}"
            panel.text(layer + 0.46, number, source, ha="center", va="center", fontsize=8)
            over = "NIC" if network else "NVLink"
            rows.append({"target": pull.target, "layer": layer, "from": source, "over": over})
    handles = dict(zip(*reversed(panel.get_legend_handles_labels()), strict=True))
    panel.legend(list(handles.values()), list(handles), loc="upper left", bbox_to_anchor=(1, 1))
    panel.set_yticks(range(WIDTH), [f"T{i + 1}" for i in range(WIDTH)])
    panel.set_xticks([i + 0.46 for i in range(LAYERS)], [str(i + 1) for i in range(LAYERS)])
    panel.set(title="Who sends which layer to whom", xlabel="layer", ylim=(3.6, -0.6))
    panel.grid(False)
    stamp(made, points, "Our planner's plan, nothing was run. S: a source's GPU, T: a target's.")
    table = pd.DataFrame(rows)
    shares = table[table.over == "NIC"].groupby("target").layer.count() / LAYERS
    quantity = {"target": "", "over": "share of the layers over one NIC", "value": shares.max()}
    table = pd.concat([table, pd.DataFrame([quantity])], ignore_index=True)
    return publish(made, table, folder, Path(__file__).stem)


def sharded() -> list[Pull]:
    devices = tuple(
        Device(
            index=i, node=i // WIDTH, domain=i // WIDTH, leaf=0, nvlink_bytes_per_s=1e6,
            peer_bytes_per_s=1.0, nic_bytes_per_s=1.0, pcie_bytes_per_s=1.0, ssd_bytes_per_s=0.1,
        )
        for i in range(2 * WIDTH)
    )  # fmt: skip
    sources = [Source(medium=Medium.GPU, node=0, devices=(i,)) for i in range(WIDTH)]
    targets = [Target(name=f"T{i + 1}", devices=(WIDTH + i,)) for i in range(WIDTH)]
    fabric = Fabric(devices=devices, inter_leaf_share=1.0)
    return pulls(plan(fabric, sources, targets, [1.0] * LAYERS), LAYERS)
