"""Fig. 13: TTFT and TPOT in a burst of three times the rate, arXiv (section 9.4)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from harness.experiments.points import Point
from plots.aqua_burst import burst

EXPERIMENTS = ("aqua_fig13",)
NOTE = "Yi-34B-200K, arXiv scaled to a median of 7,000 tokens, three times the rate."


def draw(points: Sequence[Point], folder: Path) -> list[Path]:
    return burst(points, folder, Path(__file__).stem, ("ttft_s", "tpot_s"), NOTE)
