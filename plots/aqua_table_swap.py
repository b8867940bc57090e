"""Section 9.4: swap space that Yi-34B needs in bursts of 2, 3 and 5 times the stable rate: the most
that was paged out at once, from the run's copies.
"""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
from matplotlib.figure import Figure

from harness.experiments.points import Point
from plots.aqua import most_paged_bytes, overrides, paged_gb
from plots.panels import Look, bars, legend_above
from plots.style import PALETTE, figure

EXPERIMENTS = ("aqua_swap",)
PUBLISHED_GB = {2: 6, 3: 15, 5: 40}
LOOKS = {
    "published": Look("published", "0.7"),
    "ours": Look("ours, mean and range of seeds", PALETTE[2]),
}


def table(points: Sequence[Point]) -> pd.DataFrame:
    ours = [
        {
            "series": "ours", "factor": int(overrides(point)["factor"]), "seed": point.seed,
            "swap_gb": most_paged_bytes(point) / 1e9, "mechanism": paged_gb(point, "aqua"),
        }
        for point in points
    ]  # fmt: skip
    return pd.DataFrame(ours)


def plot(rows: pd.DataFrame) -> tuple[Figure, str]:
    made, (panel,) = figure(1, 1, width=6.5, height=3.4)
    published = pd.DataFrame({"factor": PUBLISHED_GB.keys(), "swap_gb": PUBLISHED_GB.values()})
    both = pd.concat([rows, published.assign(series="published")])
    bars(panel, both, "factor", "swap_gb", LOOKS, by="series")
    panel.set(ylabel="GB", title="swap space of Yi-34B", xlabel="rate over the stable rate")
    legend_above(made, (panel,), 2)
    return made, "arXiv scaled to a median of 7,000 tokens; most paged at once."
