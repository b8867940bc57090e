"""Tables 1 and 2, and Fig. 5: the links of both clusters as our profiles have them, and of vendors.

Table 2 is the paper's. Beside each link: how long Llama3-8B takes over it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from harness.experiments.points import Point
from plots.blitzscale_table_numbers import GBPS
from plots.conf import hardware, spec
from plots.style import text_table

EXPERIMENTS: tuple[str, ...] = ()
CLUSTERS = {"A": "a800x32", "B": "a100pcie_x16"}
PUBLISHED = {  # Table 1, Gbps a GPU: intra-host, inter-host, host to GPU, SSD to GPU
    "A": (1600, 100, 128, 10),
    "B": (256, 100, 128, 10),
}
LINKS = ("GPU to GPU, one host", "GPU to GPU, two hosts", "host to GPU", "SSD to GPU")
VENDORS = {  # Table 2: local SSD, network, Gbps a GPU
    "a2-ultragpu-8g": (2.58, 12.5), "p4d.24xlarge": (2.31, 100), "ml.hpcpni2.28xlarge": (4, 100),
    "p4de.24xlarge": (2.31, 100), "a3-highgpu-8g": (6.09, 100), "a3-megagpu-8g": (6.09, 200),
    "p5.48xlarge": (9.8, 400),
}  # fmt: skip


HEADINGS = ["", "link", "paper (Gbps a GPU)", "our profile", "8B loads in (s)"]


def table(points: Sequence[Point]) -> pd.DataFrame:
    rows = pd.DataFrame([*(each for cluster in CLUSTERS for each in links(cluster)), *vendors()])
    gbps = rows.ours.fillna(rows.published)
    return rows.assign(load_s=spec("llama3-8b").weight_bytes / GBPS / gbps)


def plot(rows: pd.DataFrame) -> tuple[Figure, str]:
    columns = rows[["where", "link", "published", "ours", "load_s"]].to_numpy()
    cells = [
        [where, link, f"{paper:g}", "" if np.isnan(ours) else f"{ours:.4g}", f"{load_s:.3g}"]
        for where, link, paper, ours, load_s in columns
    ]
    return text_table(cells, HEADINGS), (
        "Tables 1 and 2. 8B loads at our profile's rate, else at the paper's. Nothing was run."
    )


def links(cluster: str) -> list[dict[str, object]]:
    found = hardware(CLUSTERS[cluster])
    inside = found.nvlink_copy_bytes_per_s or found.peer_bytes_per_s or found.pcie_bytes_per_s
    ours = (inside, found.nic_bytes_per_s, found.pcie_bytes_per_s, found.ssd_bytes_per_s)
    return [
        {"where": f"cluster {cluster}", "link": link, "ours": rate / GBPS, "published": published,
         "inputs": "ours"}
        for link, rate, published in zip(LINKS, ours, PUBLISHED[cluster], strict=True)
    ]  # fmt: skip


def vendors() -> list[dict[str, object]]:
    return [
        {"where": name, "link": link, "published": gbps, "inputs": "paper"}
        for name, rates in VENDORS.items()
        for link, gbps in zip(("SSD to GPU", "network"), rates, strict=True)
    ]
