"""Fig. 08: TTFT and TPOT in a burst on Llama-3.1-70B over two H100 (section 9.3)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from harness.experiments.points import Point
from plots.aqua_burst import burst

EXPERIMENTS = ("aqua_fig08",)
NOTE = "Llama-3.1-70B, TP 2, ShareGPT, twice the stable rate; an idle Llama-3.1-8B lends."


def draw(points: Sequence[Point], folder: Path) -> list[Path]:
    return burst(points, folder, Path(__file__).stem, ("ttft_s", "tpot_s"), NOTE)
