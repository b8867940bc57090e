"""Section 9.4: swap space that Yi-34B needs in bursts of 2, 3 and 5 times the stable rate: the most
that was paged out at once, from the run's copies.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from harness.experiments.points import Point
from plots.aegaeon import publish
from plots.aqua import events, overrides
from plots.caption import stamp
from plots.style import PALETTE, figure

EXPERIMENTS = ("aqua_swap",)
PUBLISHED_GB = {2: 6, 3: 15, 5: 40}


def draw(points: Sequence[Point], folder: Path) -> list[Path]:
    table = pd.DataFrame(
        [
            {
                "factor": int(overrides(point)["factor"]), "seed": point.seed,
                "swap_gb": most_paged_bytes(point) / 1e9,
            }
            for point in points
        ]
    )  # fmt: skip
    made, (panel,) = figure(1, 1, width=6.5, height=3.4)
    for k, (factor, published) in enumerate(PUBLISHED_GB.items()):
        ours = table[table.factor == factor].swap_gb
        label = ("published", "ours, mean and range of seeds") if k == 0 else (None, None)
        panel.bar(k - 0.2, published, width=0.38, color="0.7", label=label[0])
        panel.bar(k + 0.2, ours.mean(), width=0.38, color=PALETTE[2], label=label[1])
        low, high = [ours.mean() - ours.min()], [ours.max() - ours.mean()]
        panel.errorbar(k + 0.2, ours.mean(), [low, high], color="k", capsize=4)
    panel.set_xticks(range(len(PUBLISHED_GB)), [f"{factor} x" for factor in PUBLISHED_GB])
    panel.set(ylabel="GB", title="swap space of Yi-34B by burst", xlabel="of the stable rate")
    panel.legend()
    stamp(made, points, "arXiv scaled to a median of 7,000 tokens; most paged at once.")
    return publish(made, table, folder, Path(__file__).stem)


def most_paged_bytes(point: Point) -> float:
    """Of each device, outside of it at once."""
    moves = events(point, "kv_move")
    if moves.empty:
        return 0.0
    signs = {"out": 1, "in": -1}
    moves = moves[moves.purpose.str.startswith("page ")]
    change = moves.bytes * moves.purpose.str.split().str[1].map(signs)
    return float(change[moves.end_s.sort_values(kind="stable").index].cumsum().max())
