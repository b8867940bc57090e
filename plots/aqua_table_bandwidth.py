"""Section 7: what a copy's size makes of a link's bandwidth, by the hardware profiles."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import yaml
from hydra import compose

from harness.config import typed
from harness.cost.hardware import Hardware
from harness.device.topology import cluster_topology
from harness.experiments.compose import CONF
from harness.experiments.points import Point
from harness.location import dram, hbm
from harness.model_spec import ModelSpec
from harness.options import plain
from plots.aegaeon import publish
from plots.caption import stamp
from plots.style import PALETTE, figure, log_scale

EXPERIMENTS: tuple[str, ...] = ()
SIZES = [2**k for k in range(14, 31)]  # 16 KiB to 1 GiB
PUBLISHED = {4e6: 50.0, 64e6: 200.0}  # GB/s between two A100 (section 7)


def hardware(name: str) -> Hardware:
    node = compose("config", [f"hardware={name}"])  # Hydra is there while figures are drawn
    found: Hardware = typed(plain(node)["hardware"], Hardware, "hardware")
    return found


def model(name: str) -> ModelSpec:
    node = compose("config", [f"model={name}"])
    found: ModelSpec = typed(plain(node)["model"], ModelSpec, "model")
    return found


def draw(points: Sequence[Point], folder: Path) -> list[Path]:
    rows = []
    for name in ("h100x8", "a100x2"):
        path = cluster_topology(hardware(name)).path
        for link, end in (("NVLink", hbm(0, 1)), ("PCIe", dram(0))):
            for size in sorted([*SIZES, *(int(each) for each in PUBLISHED)]):
                rate = size / path(hbm(0, 0), end).time_s(size) / 1e9
                rows.append({"hardware": name, "link": link, "bytes": size, "gb_per_s": rate})
    table = pd.DataFrame(rows).assign(seed=0)
    made, (panel,) = figure(1, 1, width=6.5, height=3.8)
    looks = {"h100x8": PALETTE[2], "a100x2": PALETTE[0]}
    each: Iterable[tuple[Any, pd.DataFrame]] = table.groupby(["hardware", "link"], sort=False)
    for (profile, link), of in each:
        style = "-" if link == "NVLink" else "--"
        label = f"{profile}, {link}"
        panel.plot(of.bytes / 1e6, of.gb_per_s, color=looks[profile], ls=style, label=label)
    at = [size / 1e6 for size in PUBLISHED]
    panel.plot(at, list(PUBLISHED.values()), "kx", label="published, A100")
    log_scale(panel, "x")
    log_scale(panel, "y")
    panel.set(xlabel="MB in one message", ylabel="GB/s", title="paging bandwidth by size")
    panel.legend()
    about = yaml.safe_load((CONF / "hardware" / "device" / "a100_sxm.yaml").read_text())
    alpha = 1e6 * float(about["nvlink_copy_latency_s"])
    stamp(
        made, points, f"By the profiles' latency and rate (NVLink, A100: {alpha:.0f} µs); no run."
    )
    return publish(made, table, folder, Path(__file__).stem)
