"""Published effect against ours, one dot a claim, from results/claims/PAPER.json."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
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
        rows = [row for row in paper["claims"] if row["effect"] is not None and row["kind"]]
        shown = [found for row in rows if (found := dots(row))]
        _panel(panel, paper["paper"], shown)
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


def dots(row: dict[str, Any]) -> list[tuple[float, float, str, str]]:
    """(published, ours, verdict, marker) as ratios above 1; of a range each end. Nothing where
    a value is missing."""
    bounds = row["registered"]["published"]
    ends = bounds if isinstance(bounds, list) else [bounds]
    ours = row["ours"]
    if None in ours or len(ours) != len(ends) or row["verdict"] not in COLOURS:
        return []
    marker = KINDS.get(row["kind"], "s")
    pairs = [
        _as_ratio(row["registered"]["effect"], end, mine)
        for end, mine in zip(ends, ours, strict=True)
    ]
    return [(end, mine, row["verdict"], marker) for end, mine in pairs if end > 1]


def _as_ratio(effect: str, published: float, ours: float) -> tuple[float, float]:
    if effect == "saving":
        return 1 / (1 - min(published, SAVED_MOST)), 1 / (1 - min(ours, SAVED_MOST))
    if published < 1:
        return 1 / published, 1 / max(ours, 1e-3)
    return published, max(ours, 1e-3)


def _panel(axes: Axes, title: str, shown: list[list[tuple[float, float, str, str]]]) -> None:
    flat = [dot for found in shown for dot in found]
    most = 1.5 * max([2.0, *(max(end, mine) for end, mine, *_ in flat)])
    least = 0.8 * min([1.0, *(mine for _, mine, *_ in flat)])
    ends = np.geomspace(1, most, 50)
    band = ends * (1 - TOLERANCE), ends * (1 + TOLERANCE)
    axes.fill_between(ends, *band, color="0.9", zorder=0, label="within 15 %")
    axes.plot(ends, ends, color="0.4", lw=0.8, label="_diagonal")
    axes.axhline(1, color="0.4", lw=0.8, ls=":")
    for verdict, colour in COLOURS.items():
        for marker in sorted(set(KINDS.values()) | {"s"}):
            found = [dot[:2] for dot in flat if dot[2:] == (verdict, marker)]
            label = verdict if marker == "o" else "_other kinds"
            x, y = np.array(found).reshape(-1, 2).T
            axes.plot(x, y, marker, ms=4.5, mew=0.5, mec="white", color=colour, label=label)
    axes.set(title=title, xlabel="published effect (x)", xlim=(1, most), ylim=(least, most))
    log_scale(axes, "x")
    log_scale(axes, "y")
