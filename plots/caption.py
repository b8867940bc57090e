"""What stands below a figure: at most four lines on what is shown and, in small grey ones, where
its numbers came from, in full. Words that do not fit end in …; the PNG's Description has them all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from math import ceil
from textwrap import wrap
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.textpath import TextPath

from harness.records.run_table import simulator

LINES = 4
SAID_PT, FROM_PT = 7.0, 5.0
TIMES = "iteration times"  # the part that comes last
FOOT_PT = 2.0  # space below the grey lines
LINE_HEIGHT = 1.3  # height of a line in font sizes
GREY_LINE = 0.7  # height of a grey line over one of the words
MARGIN = 0.9  # text's share of the width; small text is drawn a little wider than its outlines


def caption(made: Figure, said: str, origins: Sequence[str]) -> None:
    """Writes the caption. `origins`: the parts of the provenance, the most important first."""
    width_pt = MARGIN * 72 * made.get_figwidth()
    origin = " · ".join(origins)
    made.set_label("\n".join(filter(None, [said, origin])))
    lines = wrap(said, _columns(said, width_pt / SAID_PT), max_lines=LINES, placeholder=" …")
    grey = wrap(origin, _columns(origin, width_pt / FROM_PT))
    # Layouts know one text below the axes: its last, empty lines are the origin's place.
    said_pt = min([SAID_PT, *(width_pt / _ems(line) for line in lines)])
    below = [*lines, *[" "] * ceil(GREY_LINE * len(grey))]
    # What stands below takes no height from the panels.
    made.set_figheight(made.get_figheight() + LINE_HEIGHT * said_pt * len(below) / 72)
    made.supxlabel("\n".join(below), fontsize=said_pt, color="0.2")
    foot = FOOT_PT / (72 * made.get_figheight())
    grey_pt = min([FROM_PT, *(width_pt / _ems(line) for line in grey)])
    made.text(
        0.5, foot, "\n".join(grey), fontsize=grey_pt, color="0.5", ha="center", va="bottom",
        linespacing=1.05,
    )  # fmt: skip


def _columns(text: str, ems: float) -> int:
    """Characters of `text` in a line of so many font sizes."""
    return max(10, int(0.95 * ems * len(text) / _ems(text))) if text else 80


def _ems(text: str) -> float:
    """How wide `text` is, in font sizes."""
    outline = TextPath((0.0, 0.0), text, size=1.0)
    drawn = outline.codes != TextPath.CLOSEPOLY  # whose points are none
    return float(np.ptp(outline.vertices[drawn, 0]))


def origins(manifests: Sequence[Mapping[str, Any]]) -> list[str]:
    """The parts of where many runs come from, each once; those that must not be cut come first. No
    parts if there are no runs."""
    if not manifests:
        return []
    engines = {_engine(m) for m in manifests}
    machines = {
        f"{m['hardware']['name']} ({m['hardware']['num_devices']} x {m['hardware']['device']})"
        for m in manifests
    }
    seeds = sorted({m["seeds"]["seed"] for m in manifests})
    kinds = Counter(kind for m in manifests for kind in m["dataset"]["synthetic"])
    counted = ", ".join(f"{kind} {count}" for kind, count in sorted(kinds.items()))
    said = simulator(manifests)
    errors = [line for line in said if not line.startswith(TIMES)]
    times = [line for line in said if line.startswith(TIMES)]
    revisions = sorted({_revision(m["git"]) for m in manifests if m.get("git")})
    runs = f"{len(manifests)} run{'s' * (len(manifests) > 1)}"
    parts = [
        ", ".join(sorted(engines)),
        f"{runs}, seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}",
        f"SYNTHETIC: {counted}" if kinds else "",
        ", ".join(sorted(machines)), f"revision {', '.join(revisions)}" if revisions else "",
        *errors, *times,
    ]  # fmt: skip
    return [part for part in parts if part]


def _revision(git: Mapping[str, Any]) -> str:
    return str(git["revision"])[:7] + ("+dirty" if git["dirty"] else "")


def _engine(manifest: Mapping[str, Any]) -> str:
    """The engine's name, with the engine profile that iteration times follow, where there is
    one."""
    if not manifest["simulated"]:
        return f"engine {manifest['engine_name']}"
    profile = manifest["engine"].get("profile")
    return f"SIMULATED, engine.profile={profile}" if profile else "SIMULATED"
