"""Section 7: what a copy's size makes of a link's bandwidth, by the hardware profiles."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
from hydra import compose
from matplotlib.figure import Figure

from harness.configuration.config import typed
from harness.configuration.options import plain
from harness.cost.hardware import Hardware
from harness.device.location import dram, hbm
from harness.device.topology import Topology
from harness.experiments.points import Point
from harness.model_spec import ModelSpec
from plots.panels import Look, legend_above, lines
from plots.style import PALETTE, figure, log_scale

EXPERIMENTS: tuple[str, ...] = ()
SIZES = [2**k for k in range(14, 31)]  # 16 KiB to 1 GiB
PUBLISHED = {4e6: 50.0, 64e6: 200.0}  # GB/s between two A100 (section 7)
LOOKS = {
    "h100x8, NVLink": Look("H100, NVLink", PALETTE[2]),
    "h100x8, PCIe": Look("H100, PCIe", PALETTE[2], line="--"),
    "a100x2, NVLink": Look("A100, NVLink", PALETTE[0]),
    "a100x2, PCIe": Look("A100, PCIe", PALETTE[0], line="--"),
    "published": Look("A100, published", "k", "x"),
}


def hardware(name: str) -> Hardware:
    node = compose("config", [f"hardware={name}"])  # Hydra is there while figures are drawn
    found: Hardware = typed(plain(node)["hardware"], Hardware, "hardware")
    return found


def model(name: str) -> ModelSpec:
    node = compose("config", [f"model={name}"])
    found: ModelSpec = typed(plain(node)["model"], ModelSpec, "model")
    return found


def table(points: Sequence[Point]) -> pd.DataFrame:
    rows = []
    for name in ("h100x8", "a100x2"):
        path = Topology(hardware(name)).path
        for link, end in (("NVLink", hbm(0, 1)), ("PCIe", dram(0))):
            for size in SIZES:
                rate = size / path(hbm(0, 0), end).time_s(size) / 1e9
                rows.append({"series": f"{name}, {link}", "bytes": size, "gb_per_s": rate})
    ours = pd.DataFrame(rows).assign(inputs="ours")
    published = pd.DataFrame(PUBLISHED.items(), columns=["bytes", "gb_per_s"])
    return pd.concat([ours, published.assign(series="published", inputs="paper")]).assign(seed=0)


def plot(rows: pd.DataFrame) -> tuple[Figure, str]:
    made, (panel,) = figure(1, 1, width=6.5, height=3.8)
    lines(panel, rows.assign(mb=rows.bytes / 1e6), "mb", "gb_per_s", LOOKS, by="series")
    log_scale(panel, "x")
    log_scale(panel, "y")
    panel.set(xlabel="MB in one message", ylabel="GB/s", title="paging bandwidth by size")
    legend_above(made, (panel,), 3)
    return made, "By the latencies and rates of the hardware profiles; no run."
