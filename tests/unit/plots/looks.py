"""What is wrong with a drawn figure, as a reader would see it: one sentence for each fault."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import combinations
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.lines import Line2D
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from plots.grey import GREYS, entries, look

SLACK_PX = 1.5  # by which boxes of text may touch
SAME_PX = 1.0  # curves nearer than this cover each other
HIDDEN = 0.95  # share of a curve that another covers
PRINT_IN, LANDSCAPE_IN = 7.0, 9.5  # what a page of two columns has, upright and turned
UPRIGHT_IN = 10.0  # figures that are wider are printed on a turned page
SMALLEST_PT = 6.0


def faults(made: Figure) -> list[str]:
    made.draw_without_rendering()
    panels = [axes for axes in made.axes if axes.get_visible()]
    found = [*_texts(made), *_letters(panels), *_alike(made), *_small(made)]
    for axes in panels:
        if axes.axison:
            found += [*_empty(axes), *_ticks(axes), *_unlabelled(axes, panels)]
            found += [*_hidden(axes), *_anonymous(axes), *_short(axes)]
        found += [*_covered(axes), *_across(axes)]
    return found


def _name(axes: Axes) -> str:
    return repr(axes.get_title() or axes.get_ylabel() or axes.get_xlabel() or "an untitled panel")


# --- texts


def _shown(made: Figure) -> list[tuple[str, Bbox]]:
    """The boxes of all texts that are drawn, but slanted ones."""
    hidden = {text for axes in made.axes for text in _undrawn(axes)}
    found = []
    for text in made.findobj(Text):
        if not text.get_visible() or not text.get_text().strip() or text in hidden:
            continue
        if text.get_rotation() % 90 == 0 and (box := _inked(text)).width > 0:
            found.append((text.get_text(), box))
    return found


def _inked(text: Text) -> Bbox:
    """Its box, without the empty lines below: a caption keeps them for the grey lines."""
    box, lines = text.get_window_extent(), text.get_text().split("\n")
    inked = len("\n".join(lines).rstrip().split("\n"))
    return Bbox([[box.x0, box.y1 - box.height * inked / len(lines)], [box.x1, box.y1]])


def _undrawn(axes: Axes) -> Iterator[Text]:
    """Labels of ticks beyond the panel's limits, and all of a panel that is not drawn."""
    if not axes.get_visible():
        yield from axes.findobj(Text)
    for axis in (axes.xaxis, axes.yaxis):
        drawn = axis._update_ticks() if axes.axison and axis.get_visible() else []
        for tick in [*axis.majorTicks, *axis.minorTicks]:
            if not any(tick is each for each in drawn):
                yield from (tick.label1, tick.label2)
        if not (axes.axison and axis.get_visible()):
            yield from (axis.label, axis.offsetText)


def _texts(made: Figure) -> Iterator[str]:
    page = made.bbox
    texts = _shown(made)
    for words, box in texts:
        if (
            box.x0 < -SLACK_PX
            or box.y0 < -SLACK_PX
            or (box.x1 > page.width + SLACK_PX or box.y1 > page.height + SLACK_PX)
        ):
            yield f"{words!r} leaves the page"
        if words.rstrip().endswith("…"):
            yield f"{words!r} is cut"
    for (words, box), (others, other) in combinations(texts, 2):
        width = min(box.x1, other.x1) - max(box.x0, other.x0)
        height = min(box.y1, other.y1) - max(box.y0, other.y0)
        if width > SLACK_PX and height > SLACK_PX + 1:
            yield f"{words!r} stands over {others!r}"


def _letters(panels: list[Axes]) -> Iterator[str]:
    letters = [found[1] for axes in panels if (found := re.match(r"\((\w)\)", axes.get_title()))]
    for letter in sorted({each for each in letters if letters.count(each) > 1}):
        yield f"two panels are ({letter})"


# --- in print


def _alike(made: Figure) -> Iterator[str]:
    """Series of one legend that differ by their colour alone, and hardly in grey."""
    looks: dict[str, Any] = {}
    for name, each in entries(made):
        looks.setdefault(name, look(each))
    for legend in [*made.legends, *(axes.get_legend() for axes in made.axes)]:
        names = [text.get_text() for text in legend.get_texts()] if legend else []
        for name, other in combinations(names, 2):
            (shape, grey), (same, near) = looks[name], looks[other]
            if shape == same and abs(grey - near) < GREYS:
                yield f"{name!r} and {other!r} are alike in grey"


def _small(made: Figure) -> Iterator[str]:
    """Words that cannot be read in print. What stands below a figure does not count, for a paper's
    own caption has its place, nor do tables, which are set as text."""
    if not any(axes.axison for axes in made.axes):
        return
    page_in = LANDSCAPE_IN if made.get_figwidth() > UPRIGHT_IN else PRINT_IN
    scale = min(1.0, page_in / made.get_figwidth())
    unread = {*made.texts, *(text for axes in made.axes for text in _undrawn(axes))}
    below = made.get_supxlabel()
    sizes = {
        scale * text.get_fontsize(): text.get_text()
        for text in made.findobj(Text)
        if text.get_visible() and text.get_text().strip() and text not in unread
        if text.get_text() != below
    }
    if min(sizes) < SMALLEST_PT:
        yield f"{sizes[min(sizes)]!r} has {min(sizes):.1f} pt in print"


# --- panels


def _across(axes: Axes) -> Iterator[str]:
    for text in axes.texts:
        box = _inked(text)
        if axes.axison and box.x0 + SLACK_PX < axes.bbox.x0 < box.x1 - SLACK_PX:
            yield f"{text.get_text()!r} stands across the y axis of {_name(axes)}"


def _curves(axes: Axes) -> list[Line2D]:
    """Lines in data coordinates; not those across the whole panel (axhline, axvline)."""
    visible = (line for line in axes.lines if line.get_visible())
    return [line for line in visible if line.get_transform() == axes.transData]


def _finite(line: Line2D) -> Any:
    """Vertices in pixels, those within the panel."""
    at = line.get_transform().transform(np.column_stack(line.get_data(orig=False)))
    at = at[np.isfinite(at).all(axis=1)]
    box = axes.bbox if (axes := line.axes) is not None else None
    if box is None:
        return at
    inside = (at[:, 0] >= box.x0 - 2) & (at[:, 0] <= box.x1 + 2)
    inside &= (at[:, 1] >= box.y0 - 2) & (at[:, 1] <= box.y1 + 2)
    return at[inside]


def _empty(axes: Axes) -> Iterator[str]:
    drawn = any(len(_finite(line)) for line in _curves(axes))
    drawn |= any(len(each.get_paths()) for each in axes.collections)
    drawn |= bool(axes.patches) or bool(axes.images) or bool(axes.tables)
    if not drawn:
        yield f"{_name(axes)} is empty"


def _ticks(axes: Axes) -> Iterator[str]:
    for which, axis in (("x", axes.xaxis), ("y", axes.yaxis)):
        if axis.get_visible():
            texts = [tick.label1.get_text() for tick in axis._update_ticks()]
            said = [text for text in texts if text]
            if len(said) == 1 and re.search(r"\d", said[0]):
                yield f"{_name(axes)} has one tick on {which}: {said[0]!r}"


def _unlabelled(axes: Axes, panels: list[Axes]) -> Iterator[str]:
    """Of panels that stand above or beside others these may have the words."""
    box = axes.get_position()
    below = [p for p in panels if abs(p.get_position().x0 - box.x0) < 0.02 and p.axison]
    left = [p for p in panels if abs(p.get_position().y0 - box.y0) < 0.02 and p.axison]
    said = any(panel.get_xlabel().strip() for panel in below)
    if axes.xaxis.get_visible() and _numeric(axes, "x") and not said:
        yield f"{_name(axes)} has no words on x"
    titled = "(" in re.sub(r"^\(\w\)", "", axes.get_title())
    said = titled or any(panel.get_ylabel().strip() for panel in left)
    if axes.yaxis.get_visible() and _numeric(axes, "y") and not said:
        yield f"{_name(axes)} has no words on y"


def _numeric(axes: Axes, which: str) -> bool:
    axis = axes.xaxis if which == "x" else axes.yaxis
    shown = [text.get_text() for text in axis.get_ticklabels() if text.get_text()]
    return bool(shown) and all(re.fullmatch(r"[−\-\d.,×e+^${}\\mathdefault ]+", t) for t in shown)


# --- series


def _hidden(axes: Axes) -> Iterator[str]:
    """Curves that lie under another of at least their width: nobody sees that they are there."""
    curves = [(line, _dense(line)) for line in _curves(axes)]
    for (lower, under), (upper, over) in combinations(
        sorted(curves, key=lambda pair: pair[0].get_zorder()), 2
    ):
        if len(under) < 2 or len(over) < 2:
            continue
        nearest = np.min(np.linalg.norm(under[:, None, :] - over[None, :, :], axis=2), axis=1)
        covered = (nearest <= SAME_PX).mean() >= HIDDEN
        if covered and not _shows(lower, upper):
            yield f"{lower.get_label()!r} is hidden under {upper.get_label()!r} in {_name(axes)}"


def _dense(line: Line2D) -> Any:
    """At most 400 points along the curve, in pixels."""
    at = _finite(line)
    if len(at) < 2 or line.get_linestyle() in ("None", ""):
        return at[:400]
    steps = np.concatenate([[0.0], np.cumsum(np.linalg.norm(np.diff(at, axis=0), axis=1))])
    if steps[-1] == 0:
        return at[:1]
    places = np.linspace(0, steps[-1], int(min(400, max(2, steps[-1]))))
    return np.column_stack([np.interp(places, steps, at[:, k]) for k in (0, 1)])


def _shows(lower: Line2D, upper: Line2D) -> bool:
    """Whether what lies below is broader, or what lies above has gaps."""
    wider = lower.get_linewidth() >= upper.get_linewidth() + 1
    gaps = upper.get_linestyle() != "-" and lower.get_linestyle() == "-"
    marked = lower.get_marker() not in ("None", "", None)
    larger = marked and (
        upper.get_marker() in ("None", "", None)
        or lower.get_markersize() >= upper.get_markersize() + 1.5
    )
    return bool(wider or gaps or larger)


def _anonymous(axes: Axes) -> Iterator[str]:
    """Curves of several colours need names."""
    nameless = [
        line for line in _curves(axes)
        if str(line.get_label()).startswith("_child") and len(_finite(line)) > 2
    ]  # fmt: skip
    if len({str(line.get_color()) for line in nameless}) > 1:
        yield f"{_name(axes)} has {len(nameless)} lines without a name"


def _short(axes: Axes) -> Iterator[str]:
    for line in _curves(axes):
        joined = line.get_linestyle() not in ("None", "", " ")
        if joined and not str(line.get_label()).startswith("_"):
            x = line.get_xdata(orig=False)
            y = line.get_ydata(orig=False)
            points = {(a, b) for a, b in zip(x, y, strict=True) if np.isfinite(b)}
            if 0 < len(points) < 3:
                yield f"{line.get_label()!r} of {_name(axes)} is a curve of {len(points)} points"


def _covered(axes: Axes) -> Iterator[str]:
    legends = [each for each in axes.get_children() if isinstance(each, Legend)]
    for legend in legends:
        box = legend.get_window_extent()
        for line in _curves(axes):
            inside = [box.contains(x, y) for x, y in _dense(line)]
            if any(inside):
                yield f"the legend of {_name(axes)} covers {line.get_label()!r}"
        for patch in axes.patches:
            area = patch.get_window_extent()
            seen = area.width > 1 and area.height > 1 and patch.get_visible()
            if seen and Bbox.intersection(area, box) is not None and not _behind(patch, area, axes):
                yield f"the legend of {_name(axes)} covers a bar"


def _behind(patch: Any, area: Bbox, axes: Axes) -> bool:
    """A shaded span across the panel is its background."""
    full = area.height >= 0.98 * axes.bbox.height or area.width >= 0.98 * axes.bbox.width
    return bool(full or patch.get_zorder() <= 0)
