"""Which goodputs tie with the best of their column if the simulator's band is another one."""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd

from plots.conf import read
from plots.matrix.cells import HARDWARE, cells, leader, leaders
from plots.matrix.figures import SYSTEMS, pooled, title

HEAD = ["band", "worst error of", "ties with the best", "other than at the band of the tables"]
OF = {"capacity": "the capacity", "goodput": "the time per token", "ttft": "the TTFT"}
Place = tuple[str, str, str]  # half, hardware and workload
Tie = tuple[Place, str]  # and system


def ties(rows: pd.DataFrame, band: float) -> list[Tie]:
    """The cells of both halves, but the best itself, that tie with the best of their column."""
    found = []
    for half, of_half in rows.groupby("half", sort=False):
        made = cells(of_half)
        for hardware, workload in dict.fromkeys((on, of) for on, of, _ in made):
            compared = pooled(made, hardware, workload)
            place = (str(half), hardware, workload)
            best = leader(compared)
            found += [(place, name) for name in leaders(compared, band) if name != best]
    return found


def lines(rows: pd.DataFrame) -> list[list[str]]:
    """A line for each band of conf/matrix.yaml, the narrowest first."""
    bands = read("matrix")
    at = ties(rows, bands["goodput"])
    told = []
    for name in sorted(OF, key=bands.__getitem__):
        now = ties(rows, bands[name])
        more = _named(each for each in now if each not in at)
        fewer = _named(each for each in at if each not in now)
        other = "; ".join([f"also {each}" for each in more] + [f"not {each}" for each in fewer])
        told.append(
            [f"{bands[name]:.1%}".replace("%", " %"), OF[name], str(len(now)), other or "none"]
        )
    return told


def _named(found: Iterable[Tie]) -> list[str]:
    by_place: dict[Place, list[str]] = {}
    for place, system in found:
        by_place.setdefault(place, []).append(SYSTEMS[system])
    return [
        f"{' and '.join(systems)} on {title(workload)}, {HARDWARE[hardware]}"
        for (_, hardware, workload), systems in by_place.items()
    ]
