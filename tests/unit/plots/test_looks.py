"""Every published figure can be drawn from its table, and a reader can see all that is in it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from harness.experiments.figures import figures, published
from plots.figure import drawn
from plots.grey import told_apart
from plots.style import PALETTE, figure
from tests.unit.plots.looks import faults


@pytest.mark.parametrize("name", figures())
def test_a_published_figure_shows_all_that_it_has(name: str) -> None:
    assert faults(drawn(name, published(name))) == []


X = np.arange(5.0)


def broken(what: Callable[[Figure, Axes], object]) -> list[str]:
    made, (axes,) = figure(1, 1, width=4, height=3)
    axes.set(xlabel="rate (/s)", ylabel="TTFT (s)", title="a panel")
    what(made, axes)
    return faults(made)


def test_a_good_figure_has_no_fault() -> None:
    assert broken(lambda made, axes: axes.plot(X, X, label="a")) == []


def alike(axes: Axes) -> None:
    """Two colours that are one grey."""
    axes.plot(X, X, color=PALETTE[2], label="a")
    axes.plot(X, 2 * X + 1, color=PALETTE[3], label="b")


@pytest.mark.parametrize(
    ("what", "words"),
    [
        (lambda m, a: (a.plot(X, X), m.text(0.99, 0.5, "a long text")), "leaves the page"),
        (lambda m, a: (a.plot(X, X), m.text(0.2, 0.5, "one"), m.text(0.2, 0.5, "two")), "over"),
        (lambda m, a: None, "is empty"),
        (lambda m, a: (a.plot(X, X), a.set_xticks([2])), "one tick on x"),
        (lambda m, a: (a.plot(X, X), a.set_xlabel("")), "no words on x"),
        (lambda m, a: (a.plot(X, X), a.plot(X, 2 * X)), "lines without a name"),
        (lambda m, a: (a.plot(X, X, label="a"), a.plot(X, X, label="b")), "'a' is hidden"),
        (lambda m, a: a.plot([0, 1], [0, 1], label="a"), "a curve of 2 points"),
        (lambda m, a: (a.plot(X, X, label="a"), a.legend(loc="upper right")), "covers 'a'"),
        (lambda m, a: (alike(a), a.legend(loc="upper left")), "'a' and 'b' are alike in grey"),
        (lambda m, a: (a.plot(X, X), a.text(-0.3, 2, "a word")), "across the y axis"),
        (lambda m, a: (a.plot(X, X), a.set_xlabel("x", fontsize=5)), "'x' has 5.0 pt in print"),
    ],
)
def test_a_fault_is_found(what: Callable[[Figure, Axes], object], words: str) -> None:
    assert any(words in fault for fault in broken(what))


def test_what_is_alike_in_grey_gets_marks_and_a_legend_that_shows_them() -> None:
    made, (lines, fills) = figure(1, 2, width=6, height=3)
    alike(lines)
    lines.legend()
    for k in (2, 3):
        fills.bar(X + 6 * k, X, color=PALETTE[k], label=f"bars {k}")
    fills.legend()
    told_apart(made)
    curves, marked = lines.lines, lines.get_legend().get_lines()  # type: ignore[union-attr]
    assert [each.get_marker() for each in curves] == [each.get_marker() for each in marked]
    assert len({each.get_marker() for each in curves}) == 2
    assert {each.get_hatch() for each in fills.patches[:5]} == {None}
    assert len({each.get_hatch() for each in fills.patches[5:]} - {None}) == 1
    assert not [fault for fault in faults(made) if "alike" in fault]
