"""Two lines at most and the small grey ones below a figure, all of them within it."""

from __future__ import annotations

from pathlib import Path

import pytest
from matplotlib.text import Text
from PIL import Image

from plots.caption import FROM_PT, LINES, caption
from plots.style import figure, save

SAID = "What is shown, in the words of the paper, by system and by seed. "
ORIGINS = ["SIMULATED", "h800x16 (16 x H800-SXM5-80GB)", "563 runs, seeds 0, 1, 2"]


def drawn(width: float, said: str, origins: list[str]) -> tuple[Text, Text, tuple[float, float]]:
    made, axes = figure(1, 1, width=width, height=3.0)
    axes[0].set(xlabel="models", ylabel="share")
    caption(made, said, origins)
    made.canvas.draw()
    below = made._supxlabel  # type: ignore[attr-defined]
    return below, made.texts[-1], (made.bbox.width, axes[0].get_tightbbox().y0)


@pytest.mark.parametrize("width", [5.0, 9.0, 14.0])
@pytest.mark.parametrize("times", [0, 1, 3, 20])
def test_it_fits(width: float, times: int) -> None:
    origins = ORIGINS * max(1, times)
    below, origin, (most, axes_bottom) = drawn(width, SAID * times, origins)
    lines = below.get_text().split("\n")
    num_grey = origin.get_text().count("\n") + 1
    place = lines.count(" ")
    assert 1 <= place <= num_grey, "the origin's place"
    assert len(lines) <= LINES + place
    said, grey = below.get_window_extent(), origin.get_window_extent()
    for box in (said, grey):
        assert 0 <= box.x0 < box.x1 <= most
    assert said.y1 < axes_bottom
    assert " ".join(origin.get_text().split()) == " · ".join(origins), "nothing of it is cut"
    assert origin.get_fontsize() >= FROM_PT * 0.95
    assert origin.get_fontsize() < below.get_fontsize()
    line_px = (said.y1 - said.y0) / len(lines)
    assert grey.y1 < said.y0 + (place + 0.3) * line_px, "below the words"


def test_what_is_cut_is_in_the_file(tmp_path: Path) -> None:
    made, _ = figure(1, 1, width=5.0, height=3.0)
    caption(made, SAID * 20, ORIGINS)
    path = save(made, tmp_path / "x.png")
    with Image.open(path) as image:
        told = str(image.info["Description"])
    assert told == f"{SAID * 20}\n{' · '.join(ORIGINS)}"
    assert made._supxlabel.get_text().rstrip().endswith(" …")  # type: ignore[attr-defined]
