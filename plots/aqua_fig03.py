"""Fig. 3: throughput and free memory of audio and image models by batch, on an A100 (section 4).

No measurement: each curve is a line through the one published point of its model (conf/producer).
The marks are where the profiler's sweep of batches stops on that curve.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import yaml
from matplotlib.axes import Axes

from harness.experiments.compose import CONF
from harness.experiments.points import Point
from plots.aegaeon import publish
from plots.aqua_fig07 import batches, producer
from plots.caption import stamp
from plots.style import PALETTE, figure
from systems.aqua.profiler.plateau import BatchSample, Plateau, sweep

EXPERIMENTS: tuple[str, ...] = ()
PANELS = {
    "(a) audio": ("audiogen", "musicgen"),
    "(b) images": ("sd-1.5", "sd-3", "sdxl", "kandinsky-2.2"),
}


def plateau(name: str) -> Plateau:
    """What the profiler finds on the curve of conf/producer."""
    made = producer(name)

    def measure(batch: int) -> BatchSample | None:
        free = int(made.device_memory_bytes - made.memory_bytes(batch))
        return BatchSample(batch, made.throughput_share(batch), free) if free >= 0 else None

    constants = yaml.safe_load((CONF / "system/aqua/constants.yaml").read_text())["profiler"]
    return sweep(measure, constants["plateau_gain"])


def draw(points: Sequence[Point], folder: Path) -> list[Path]:
    made, axes = figure(2, 2, width=9, height=5.4)
    tables = []
    for column, (title, names) in enumerate(PANELS.items()):
        for k, name in enumerate(names):
            rows = batches(name, 2 * producer(name).peak_batch)
            rows = rows[rows.free_gb >= 0]
            peak = plateau(name).peak
            tables.append(rows)
            tables.append(
                pd.DataFrame(
                    [
                        {
                            "row": "peak", "model": name, "batch": peak.batch,
                            "throughput_share": peak.items_per_s, "free_gb": peak.free_bytes / 1e9,
                        }
                    ]
                )
            )  # fmt: skip
            share, free = axes[column], axes[2 + column]
            line(share, rows.batch, 100 * rows.throughput_share, k, name)
            line(free, rows.batch, rows.free_gb, k, name)
            share.plot(peak.batch, 100 * peak.items_per_s, "o", color=PALETTE[k])
            free.plot(peak.batch, peak.free_bytes / 1e9, "o", color=PALETTE[k])
        axes[column].set(title=title, ylabel="throughput (% of plateau)")
        axes[2 + column].set(xlabel="batch", ylabel="free memory (GB)")
        axes[column].legend(loc="lower right")
        axes[column].set_ylim(0, 100)
        axes[2 + column].set_ylim(0)
    stamp(
        made, points, "INPUT, not measured: lines through one published point of each "
        "model, of which it is assumed to have 90 % of the plateau;\n"
        "models of one published batch have one curve. "
        "Marks: where the profiler's sweep over powers of two stops.",
    )  # fmt: skip
    table = pd.concat(tables, ignore_index=True).assign(seed=0)
    return publish(made, table, folder, Path(__file__).stem)


def line(axes: Axes, x: pd.Series, y: pd.Series, k: int, name: str) -> None:
    axes.plot(x, y, color=PALETTE[k], lw=1.2, label=name)
