"""Fig. 3: throughput and free memory of audio and image models by batch, on an A100 (section 4).

No measurement: each curve is a line through the one published point of its model (conf/producer).
The marks are where the profiler's sweep of batches stops on that curve.
"""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
import yaml
from matplotlib.figure import Figure

from harness.experiments.compose import CONF
from harness.experiments.points import Point
from plots.aqua import nested
from plots.aqua_fig07 import batches, producer
from plots.panels import Look
from plots.style import PALETTE, figure
from systems.aqua.profiler.plateau import BatchSample, Plateau, sweep

EXPERIMENTS: tuple[str, ...] = ()
PANELS = {
    "(a) audio": ("audiogen", "musicgen"),
    "(b) images": ("sd-1.5", "kandinsky-2.2", "sd-3", "sdxl"),
}
SHOWN = {"throughput_share": "share of the plateau", "free_gb": "free memory (GB)"}


def plateau(name: str) -> Plateau:
    """What the profiler finds on the curve of conf/producer."""
    made = producer(name)

    def measure(batch: int) -> BatchSample | None:
        free = int(made.device_memory_bytes - made.memory_bytes(batch))
        return BatchSample(batch, made.throughput_share(batch), free) if free >= 0 else None

    constants = yaml.safe_load((CONF / "system/aqua/constants.yaml").read_text())["profiler"]
    return sweep(measure, constants["plateau_gain"])


def table(points: Sequence[Point]) -> pd.DataFrame:
    return pd.concat([of_model(name) for names in PANELS.values() for name in names])


def of_model(name: str) -> pd.DataFrame:
    rows, peak = batches(name, 2 * producer(name).peak_batch), plateau(name).peak
    return pd.concat([rows, rows[rows.batch == peak.batch].assign(row="peak")])


def plot(rows: pd.DataFrame) -> tuple[Figure, str]:
    made, axes = figure(2, 2, width=9, height=5.4)
    for column, (title, names) in enumerate(PANELS.items()):
        looks = {name: Look(name, PALETTE[k]) for k, name in enumerate(names)}
        for panel, (shown, label) in zip(axes[column::2], SHOWN.items(), strict=True):
            nested(panel, rows[rows.row == "batch"], "batch", shown, looks, by="model")
            for name, look in looks.items():
                peak = rows[(rows.row == "peak") & (rows.model == name)]
                panel.plot(peak.batch, peak[shown], "o", color=look.colour)
            panel.set(ylabel=label, ylim=(0, None))
        axes[column].set(title=title)
        axes[column].legend(loc="lower right")
        axes[2 + column].set_xlabel("batch")
    return made, (
        "INPUT, not measured: lines through one published point of each model, of which it is "
        "assumed to have 90 % of the plateau; models of one published batch have one curve. Marks: "
        "where the profiler's sweep over powers of two stops."
    )
