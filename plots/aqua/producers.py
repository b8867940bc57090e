"""Image and audio models, and the memory that they can lend by batch (section 4, Fig. 3)."""

from __future__ import annotations

import pandas as pd

from plots.conf import read
from plots.figure import Panels, Points, picture
from plots.panels import Look, curves
from plots.style import PALETTE
from systems.aqua.producer import Producer
from systems.aqua.profiler.plateau import BatchSample, Plateau, sweep

PANELS = {
    "(a) audio": ("audiogen", "musicgen"),
    "(b) images": ("sd-1.5", "kandinsky-2.2", "sd-3", "sdxl"),
}
SHOWN = {"throughput_share": "share of the plateau", "free_gb": "free memory (GB)"}


def producer(name: str) -> Producer:
    return Producer(**read(f"producer/{name}"))


def batches(name: str, most: int) -> pd.DataFrame:
    """Throughput and free memory of producer `name` for each batch from 1 to `most`, as far as the
    memory goes."""
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


def plateau(name: str) -> Plateau:
    """What the profiler finds on the curve of conf/producer."""
    made = producer(name)

    def measure(batch: int) -> BatchSample | None:
        free = int(made.device_memory_bytes - made.memory_bytes(batch))
        return BatchSample(batch, made.throughput_share(batch), free) if free >= 0 else None

    return sweep(measure, read("system/aqua/constants")["profiler"]["plateau_gain"])


def by_batch(points: Points) -> pd.DataFrame:
    tables = []
    for name in (name for names in PANELS.values() for name in names):
        rows, peak = batches(name, 2 * producer(name).peak_batch), plateau(name).peak
        tables += [rows, rows[rows.batch == peak.batch].assign(row="peak")]
    return pd.concat(tables)


@picture("aqua_fig03", by_batch, shape=(2, 2), size=(9, 5.4))
def fig03(axes: Panels, rows: pd.DataFrame) -> str:
    """Fig. 3: throughput and free memory of audio and image models by batch, on an A100.

    No measurement: each curve is a line through the one published point of its model
    (conf/producer). The marks are where the profiler's sweep of batches stops on that curve.
    """
    for column, (title, names) in enumerate(PANELS.items()):
        looks = {name: Look(name, PALETTE[k]) for k, name in enumerate(names)}
        for panel, (shown, label) in zip(axes[column::2], SHOWN.items(), strict=True):
            curves(panel, rows[rows.row == "batch"], "batch", shown, looks, by="model")
            for name, look in looks.items():
                peak = rows[(rows.row == "peak") & (rows.model == name)]
                panel.plot(peak.batch, peak[shown], "o", color=look.colour)
            panel.set(ylabel=label, ylim=(0, None))
        axes[column].set(title=title)
        axes[column].legend(loc="lower right")
        axes[2 + column].set_xlabel("batch")
    return (
        "INPUT, not measured: lines through one published point of each model, of which it is "
        "assumed to have 90 % of the plateau; models of one published batch have one curve. Marks: "
        "where the profiler's sweep over powers of two stops."
    )
