"""Fig. 7: Stable Diffusion 3's throughput and free memory by batch (a), and the memory that
Llama-3.1-8B leaves free by rate (b), on an H100.

(a) is no measurement: a line through the published point (conf/producer/sd-3.yaml).
"""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
import yaml
from matplotlib.figure import Figure

from harness.experiments.compose import CONF
from harness.experiments.points import Point
from plots.aqua import overrides
from plots.aqua_table_rates import sampled
from plots.panels import Look, legend_above, lines
from plots.style import PALETTE, figure
from systems.aqua.producer import Producer

EXPERIMENTS = ("aqua_rates_high",)
FREE, SHARE = Look("free memory", PALETTE[2], "o"), Look("throughput", PALETTE[1], "s")


def producer(name: str) -> Producer:
    return Producer(**yaml.safe_load((CONF / "producer" / f"{name}.yaml").read_text()))


def batches(name: str, most: int) -> pd.DataFrame:
    """As far as the memory goes."""
    made = producer(name)
    rows = pd.DataFrame(
        {
            "row": "batch", "inputs": "ours", "model": name, "seed": 0, "batch": batch,
            "throughput_share": made.throughput_share(batch),
            "free_gb": (made.device_memory_bytes - made.memory_bytes(batch)) / 1e9,
        }
        for batch in range(1, most + 1)
    )  # fmt: skip
    return rows[rows.free_gb >= 0]


def table(points: Sequence[Point]) -> pd.DataFrame:
    used = [point for point in points if overrides(point)["served"] == "llama8b_h100"]
    rates = pd.DataFrame([sampled(point) for point in used]).assign(row="rate")
    return pd.concat([rates, batches("sd-3", 16)], ignore_index=True)


def plot(rows: pd.DataFrame) -> tuple[Figure, str]:
    made, (vision, llama) = figure(1, 2, width=9, height=3.6)
    share = vision.twinx()
    lines(vision, rows, "batch", "free_gb", {"batch": FREE}, by="row")
    lines(share, rows, "batch", "throughput_share", {"batch": SHARE}, by="row")
    vision.set(title="(a) Stable Diffusion 3 (input)", xlabel="batch")
    share.set(ylabel="share of the throughput's plateau", ylim=(0, 1))
    share.grid(visible=False)
    lines(llama, rows, "rate_per_s", "free_gb", {"rate": FREE}, by="row")
    llama.axvline(5, color="0.5", lw=0.8, ls="--")
    llama.set(title="(b) Llama-3.1-8B, least free KV memory", xlabel="requests/s")
    for panel in (vision, llama):
        panel.set(ylabel="free memory (GB)", ylim=(0, None))
    legend_above(made, (vision, share), 2)
    return made, "(a): a line through the paper's one point. (b): ShareGPT; dashed: 5/s."
