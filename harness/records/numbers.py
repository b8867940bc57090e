"""Numbers as a reader of a table wants them."""

from __future__ import annotations


def seconds(value: float) -> str:
    """Three significant digits, in the unit that keeps them readable."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3)):
        if abs(value) >= scale:
            return f"{_significant(value / scale)} {unit}"
    return f"{_significant(value / 1e-6)} µs" if value else "0 s"


def number(value: float | None) -> str:
    """Three significant digits, "none" for None."""
    return "none" if value is None else _significant(value)


def _significant(value: float) -> str:
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    if abs(value) < 1:
        return f"{value:.3g}"
    return f"{value:.{2 if abs(value) < 10 else 1 if abs(value) < 100 else 0}f}"
