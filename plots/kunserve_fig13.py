"""Fig. 13: end to end, 90B, as Fig. 12."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from harness.experiments.points import Point
from plots.kunserve_fig12 import drawn

EXPERIMENTS = ("kunserve_fig13",)


def draw(points: Sequence[Point], folder: Path) -> list[Path]:
    return drawn(points, folder, Path(__file__).stem)
