"""Tables 1 and 2, and Fig. 5: the links of both clusters as our profiles have them, and of vendors.

Table 2 is the paper's; from it, what loading Llama3-8B takes from each instance's SSD and network.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes

from harness.experiments.points import Point
from plots.aegaeon import publish
from plots.aegaeon_table1 import spec
from plots.blitzscale_table_numbers import GBPS, hardware
from plots.caption import stamp
from plots.style import figure

EXPERIMENTS: tuple[str, ...] = ()
CLUSTERS = {"A": "a800x32", "B": "a100pcie_x16"}
PUBLISHED = {  # Table 1, Gbps a GPU: intra-host, inter-host, host to GPU, SSD to GPU
    "A": (1600, 100, 128, 10),
    "B": (256, 100, 128, 10),
}
LINKS = ("GPU-GPU (intra)", "GPU-GPU (inter)", "host-GPU", "SSD-GPU")
VENDORS = {  # Table 2: local SSD, network, Gbps a GPU
    "a2-ultragpu-8g": (2.58, 12.5), "p4d.24xlarge": (2.31, 100), "ml.hpcpni2.28xlarge": (4, 100),
    "p4de.24xlarge": (2.31, 100), "a3-highgpu-8g": (6.09, 100), "a3-megagpu-8g": (6.09, 200),
    "p5.48xlarge": (9.8, 400),
}  # fmt: skip


def draw(points: Sequence[Point], folder: Path) -> list[Path]:
    clusters = pd.DataFrame([each for cluster in CLUSTERS for each in links(cluster)])
    size = spec("llama3-8b").weight_bytes / GBPS
    vendors = pd.DataFrame(
        [
            {"instance": name, "ssd_gbps": ssd, "network_gbps": network,
             "from_ssd_s": size / ssd, "from_network_s": size / network}
            for name, (ssd, network) in VENDORS.items()
        ]
    )  # fmt: skip
    made, axes = figure(2, 1, width=8, height=5.2)
    _table(axes[0], clusters, "Table 1: Gbps a GPU, our profiles beside the paper")
    _table(axes[1], vendors, "Table 2: vendors' rates, and seconds to load Llama3-8B at them")
    stamp(made, points, "Inputs and arithmetic; nothing was run.")
    both = pd.concat([clusters, vendors], ignore_index=True)
    return publish(made, both, folder, Path(__file__).stem)


def links(cluster: str) -> list[dict[str, object]]:
    found = hardware(CLUSTERS[cluster])
    inside = found.nvlink_copy_bytes_per_s or found.pcie_bytes_per_s
    ours = (inside, found.nic_bytes_per_s, found.pcie_bytes_per_s, found.ssd_bytes_per_s)
    return [
        {"cluster": cluster, "link": link, "ours": rate / GBPS, "published": published}
        for link, rate, published in zip(LINKS, ours, PUBLISHED[cluster], strict=True)
    ]


def _table(panel: Axes, rows: pd.DataFrame, title: str) -> None:
    panel.axis("off")
    cells = [[v if isinstance(v, str) else f"{v:.4g}" for v in row] for row in rows.to_numpy()]
    columns = [column.replace("_", " ") for column in rows.columns]
    panel.table(cells, colLabels=columns, loc="center", cellLoc="center", edges="horizontal")
    panel.set_title(title)
