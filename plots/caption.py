"""What stands below a figure: at most two lines on what is shown and, in one small grey line,
where its numbers came from. What does not fit ends in …, and the PNG's Description has it all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from textwrap import wrap
from typing import Any

from matplotlib.figure import Figure
from matplotlib.textpath import TextPath

from harness.experiments.points import Point
from harness.records.run_table import simulator
from harness.schedule import synthetic_kinds

LINES = 2
SAID_PT, FROM_PT, LEAST_PT = 7.0, 5.5, 4.0
TIMES = "iteration times"  # the line that may be cut
FOOT_PT = 2.0  # below the grey line
MARGIN = 0.9  # of the figure's width; small text is drawn a little wider than its outlines


def caption(made: Figure, said: str, origins: Sequence[str]) -> None:
    """`origins`: the parts of the provenance line, the most important first."""
    width_pt = MARGIN * 72 * made.get_figwidth()
    origin = " · ".join(origins)
    made.set_label("\n".join(filter(None, [said, origin])))
    lines = wrap(said, _columns(said, width_pt / SAID_PT), max_lines=LINES, placeholder=" …")
    # Layouts know one text below the axes: its last, empty line is the origin's place.
    said_pt = min([SAID_PT, *(width_pt / _ems(line) for line in lines)])
    made.supxlabel("\n".join([*lines, " "]), fontsize=said_pt, color="0.2")
    foot = FOOT_PT / (72 * made.get_figheight())
    for line in wrap(origin, _columns(origin, width_pt / LEAST_PT), max_lines=1, placeholder=" …"):
        size_pt = min(FROM_PT, width_pt / _ems(line))
        made.text(0.5, foot, line, fontsize=size_pt, color="0.55", ha="center", va="bottom")


def _columns(text: str, ems: float) -> int:
    """Characters of `text` in a line of so many font sizes."""
    return max(10, int(0.95 * ems * len(text) / _ems(text))) if text else 80


def _ems(text: str) -> float:
    """How wide `text` is, in font sizes."""
    return float(TextPath((0.0, 0.0), text, size=1.0).get_extents().width)


def stamp(made: Figure, points: Iterable[Point], *notes: str) -> None:
    """`notes`, and from which runs: engine, what was drawn, hardware, how many, seeds, how wrong
    the simulator is there."""
    manifests = [point.manifest() for point in points if point.path is not None]
    caption(made, " ".join(notes), origins(manifests) or ["nothing was run"])


def origins(manifests: Sequence[Mapping[str, Any]]) -> list[str]:
    """Of many runs, each part once, what must not be cut first; nothing where there is none."""
    if not manifests:
        return []
    engines = {"SIMULATED" if m["simulated"] else f"engine {m['engine_name']}" for m in manifests}
    machines = {
        f"{m['hardware']['name']} ({m['hardware']['num_devices']} x {m['hardware']['device']})"
        for m in manifests
    }
    seeds = sorted({m["seeds"]["seed"] for m in manifests})
    kinds = Counter(kind for m in manifests for kind in synthetic_kinds(m["dataset"]))
    counted = ", ".join(f"{kind} {count}" for kind, count in sorted(kinds.items()))
    said = simulator(manifests)
    errors = [line for line in said if not line.startswith(TIMES)]
    times = [line for line in said if line.startswith(TIMES)]
    runs = f"{len(manifests)} run{'s' * (len(manifests) > 1)}"
    parts = [
        ", ".join(sorted(engines)),
        f"{runs}, seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}",
        f"SYNTHETIC: {counted}" if kinds else "",
        *errors, ", ".join(sorted(machines)), *times,
    ]  # fmt: skip
    return [part for part in parts if part]
