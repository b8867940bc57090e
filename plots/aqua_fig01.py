"""Fig. 01: TTFT and request completion time in a burst on one A100 (section 1)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from harness.experiments.points import Point
from plots.aqua_burst import burst

EXPERIMENTS = ("aqua_fig01",)
NOTE = "Yi-34B-200K (none is named), ShareGPT, twice the stable rate."


def draw(points: Sequence[Point], folder: Path) -> list[Path]:
    return burst(points, folder, Path(__file__).stem, ("ttft_s", "rct_s"), NOTE)
