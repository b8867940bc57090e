"""Fig. 7: Stable Diffusion 3's throughput and free memory by batch (a), and the memory that
Llama-3.1-8B leaves free by rate (b), on an H100.

(a) is no measurement: a line through the published point (conf/producer/sd-3.yaml).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import yaml

from harness.experiments.compose import CONF
from harness.experiments.points import Point
from harness.producer import Producer
from plots.aegaeon import publish
from plots.aqua import overrides
from plots.aqua_table_rates import sampled
from plots.caption import stamp
from plots.style import PALETTE, figure

EXPERIMENTS = ("aqua_rates_high",)


def producer(name: str) -> Producer:
    return Producer(**yaml.safe_load((CONF / "producer" / f"{name}.yaml").read_text()))


def batches(name: str, most: int) -> pd.DataFrame:
    made = producer(name)
    return pd.DataFrame(
        {
            "row": "batch", "model": name, "batch": batch,
            "throughput_share": made.throughput_share(batch),
            "free_gb": (made.device_memory_bytes - made.memory_bytes(batch)) / 1e9,
        }
        for batch in range(1, most + 1)
    )  # fmt: skip


def draw(points: Sequence[Point], folder: Path) -> list[Path]:
    used = [point for point in points if overrides(point)["served"] == "llama8b_h100"]
    rates = pd.DataFrame([sampled(point) for point in used]).assign(row="rate")
    vision = batches("sd-3", 16)
    vision = vision[vision.free_gb > 0]
    made, axes = figure(1, 2, width=9, height=3.6)
    axes[0].plot(
        vision.batch, vision.free_gb, color=PALETTE[2], marker="o", ms=3, label="free (GB)"
    )
    share = 100 * vision.throughput_share
    axes[0].plot(vision.batch, share, color=PALETTE[1], marker="s", label="throughput (%)")
    axes[0].set(title="(a) Stable Diffusion 3 (input)", xlabel="batch", ylabel="GB, or %")
    axes[0].legend()
    of = rates.groupby("rate_per_s").free_gb.agg(["mean", "min", "max"])
    axes[1].plot(of.index, of["mean"], color=PALETTE[2], marker="o", ms=3)
    axes[1].fill_between(of.index, of["min"], of["max"], color=PALETTE[2], alpha=0.2, lw=0)
    axes[1].axvline(5, color="0.5", lw=0.8, ls="--")
    axes[1].set(title="(b) Llama-3.1-8B", xlabel="requests/s", ylabel="least free KV memory (GB)")
    axes[1].set_ylim(0)
    stamp(made, used, "(a): a line through the paper's one point. (b): ShareGPT; dashed: 5/s.")
    table = pd.concat([rates, vision.assign(seed=0)], ignore_index=True)
    return publish(made, table, folder, Path(__file__).stem)
