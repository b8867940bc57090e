"""Published effect against ours, one dot a claim, from results/claims/PAPER.json."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from harness.files import read_json
from plots.caption import caption
from plots.style import PALETTE, figure, log_scale, save

SAVED_MOST = 0.995  # a saving of all is drawn as one of 99.5 %, a ratio of 200
KINDS = {"simulated": "o", "live, CPU": "^", "live, GPU": "^"}
COLOURS = {
    "reproduced": PALETTE[2], "trend only": PALETTE[0], "weak": PALETTE[1],
    "not reproduced": PALETTE[3],
}  # fmt: skip
TOLERANCE = 0.15  # of the band: most claims'


def draw(folder: Path) -> Path:
    """Writes effects.png into `folder`."""
    papers = [read_json(path) for path in sorted(folder.glob("*.json")) if path.stem != "lock"]
    made, axes = figure(1, len(papers), width=3.1 * len(papers), height=3.3)
    for panel, paper in zip(axes, papers, strict=True):
        found = [dot for claim in paper["claims"] for dot in _dots(claim)]
        _panel(panel, pd.DataFrame(found, columns=["published", "ours", "verdict", "marker"]))
        panel.set_title(paper["paper"])
    axes[0].set_ylabel("our effect (x)")
    handles, labels = axes[0].get_legend_handles_labels()
    made.legend(handles, labels, loc="outside upper center", ncols=len(COLOURS) + 1)
    caption(
        made,
        "One dot for each claim that compares two systems and has a value; triangles: measured on "
        "real engines. A saving s is drawn as the ratio 1 / (1 - s). Below 1: the opposite effect.",
        ["from results/claims/*.json, engine.profile=eager_2024 where simulated"],
    )
    return save(made, folder / "effects.png")


def _dots(claim: dict[str, Any]) -> Iterator[tuple[float, float, str, str]]:
    """(published, ours, verdict, marker) as ratios above 1; of a range each end. Nothing where it
    is no effect or a value is missing."""
    if claim["effect"] is None or not claim["kind"] or claim["verdict"] not in COLOURS:
        return
    bounds, ours = claim["registered"]["published"], claim["ours"]
    ends = bounds if isinstance(bounds, list) else [bounds]
    if None not in ours and len(ours) == len(ends):
        marker = KINDS.get(claim["kind"], "s")
        for end, mine in zip(ends, ours, strict=True):
            published, ratio = _as_ratio(claim["registered"]["effect"], end, mine)
            if published > 1:
                yield published, ratio, claim["verdict"], marker


def _as_ratio(effect: str, published: float, ours: float) -> tuple[float, float]:
    if effect == "saving":
        return 1 / (1 - min(published, SAVED_MOST)), 1 / (1 - min(ours, SAVED_MOST))
    if published < 1:
        return 1 / published, 1 / max(ours, 1e-3)
    return published, max(ours, 1e-3)


def _panel(axes: Axes, dots: pd.DataFrame) -> None:
    most = 1.5 * max([2.0, *dots.published, *dots.ours])
    ends = np.geomspace(1, most, 50)
    band = ends * (1 - TOLERANCE), ends * (1 + TOLERANCE)
    axes.fill_between(ends, *band, color="0.9", zorder=0, label="within 15 %")
    axes.plot(ends, ends, color="0.4", lw=0.8, label="_diagonal")
    axes.axhline(1, color="0.4", lw=0.8, ls=":")
    for verdict, colour in COLOURS.items():
        for marker in ("^", "o", "s"):
            shown = dots[(dots.verdict == verdict) & (dots.marker == marker)]
            look = {"ms": 4.5, "mew": 0.5, "mec": "white", "color": colour}
            look["label"] = verdict if marker == "o" else "_other kinds"
            axes.plot(shown.published, shown.ours, marker, **look)
    axes.set(
        xlabel="published effect (x)", xlim=(1, most), ylim=(0.8 * min([1.0, *dots.ours]), most)
    )
    log_scale(axes, "x")
    log_scale(axes, "y")
