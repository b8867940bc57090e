"""Colours print as greys: what a legend tells apart by colour alone gets a marker or a hatch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from matplotlib.colors import to_rgba
from matplotlib.container import BarContainer, ErrorbarContainer
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

GREYS = 10.0  # steps of CIE lightness, 0 to 100, by which two greys are told apart
MARKERS = ("None", "o", "s", "^", "D", "v", "P", "X", "*")
HATCHES = (None, "....", "\\\\\\\\", "xxxx", "++++", "oooo", "||||", "----")
MARKS = 8  # on a curve that had none, about


def told_apart(made: Figure) -> None:
    """Marks curves and hatches fills of `made` that would be alike in grey, in its legends too."""
    taken: list[tuple[object, float]] = []
    marks: dict[object, Any] = {}  # by a curve's name, or by the colour of fills
    named = list(entries(made))
    for name, each in named:
        (*kind, mark), grey = look(each)
        key = name if isinstance(each, Line2D) else colour(each)
        if key not in marks:
            free = MARKERS if mark == "None" else HATCHES if mark is None else (mark,)
            alike = [shape for shape, other in taken if abs(other - grey) < GREYS]
            marks[key] = next((new for new in free if (*kind, new) not in alike), mark)
            taken.append(((*kind, marks[key]), grey))
    for name, each in named:
        if isinstance(each, Line2D) and look(each)[0][-1] == "None":
            each.set(marker=marks[name], markevery=max(1, np.size(each.get_xdata()) // MARKS))
    fills = [each for axes in made.axes for each in [*axes.patches, *axes.collections]]
    for each in [*fills, *(each for _, each in named if not isinstance(each, Line2D))]:
        if each.get_alpha() is None and each.get_hatch() is None and colour(each) in marks:
            each.set_hatch(marks[colour(each)])


def entries(made: Figure) -> Iterator[tuple[str, Any]]:
    """Each artist with a name, and what stands for it in legends: lines, patches, collections."""
    for axes in made.axes:
        for each, name in zip(*axes.get_legend_handles_labels(), strict=True):
            if isinstance(each, ErrorbarContainer):
                each = each.lines[0]
            yield name, each.patches[0] if isinstance(each, BarContainer) else each
    for legend in [*made.legends, *(axes.get_legend() for axes in made.axes)]:
        if legend is not None:
            texts = (text.get_text() for text in legend.get_texts())
            yield from zip(texts, legend.legend_handles, strict=True)


def look(each: Any) -> tuple[tuple[Any, ...], float]:
    """How an artist looks but for its colour, its marker or hatch last; and its lightness on white
    paper."""
    lightness = _lightness(colour(each))
    if isinstance(each, Line2D):
        joined = each.get_linestyle() != "None" and each.__dict__["_unscaled_dash_pattern"]
        hollow = to_rgba(each.get_markerfacecolor()) == to_rgba("white")
        return ("line", joined, hollow, str(each.get_marker() or "None")), lightness
    return ("fill", each.get_hatch()), lightness


def colour(each: Any) -> tuple[float, ...]:
    """Of a line, or of the face of anything else."""
    if isinstance(each, Line2D):
        return to_rgba(each.get_color())
    faces = np.atleast_2d(each.get_facecolor())
    return tuple(map(float, faces[0])) if faces.size else (1.0, 1.0, 1.0, 0.0)


def _lightness(rgba: tuple[float, ...]) -> float:
    on_white = [c * rgba[3] + 1 - rgba[3] for c in rgba[:3]]
    linear = [((c + 0.055) / 1.055) ** 2.4 for c in on_white]
    return float(116 * np.dot([0.2126, 0.7152, 0.0722], linear) ** (1 / 3) - 16)
