"""What became of each figure and claim, and the verdict over all of them: report.md."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import astuple, dataclass

from harness.calibrate.tables import markdown_rows

SAME = "the same"
WITHIN = "within the allowed variation"
DIFFERENT = "different"
FAILED = "failed"
UNTOLD = "not compared"
OUTCOMES = (SAME, WITHIN, DIFFERENT, FAILED, UNTOLD)
DIFFERING = (DIFFERENT, FAILED)


@dataclass(frozen=True, slots=True)
class Row:
    """A run, a figure or a claim. `outcome`: one of OUTCOMES; `told`: values, and the cause of a
    difference where it is known."""

    what: str
    name: str
    outcome: str
    told: str = ""


def differing(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if row.outcome in DIFFERING]


def verdict(rows: Sequence[Row]) -> str:
    """One sentence."""
    counts = Counter(row.outcome for row in rows)
    told = ", ".join(f"{counts[each]} {each}" for each in OUTCOMES if counts[each])
    if differing(rows):
        return f"Verdict: {len(differing(rows))} of {len(rows)} differ ({told})."
    if not counts[SAME] + counts[WITHIN]:
        return f"Verdict: nothing was held against what is committed ({told})."
    return f"Verdict: nothing differs ({told})."


def as_page(rows: Sequence[Row]) -> str:
    """report.md."""
    lines = markdown_rows(["", "name", "outcome", ""], map(astuple, rows))
    return "\n".join(["# Reproduced", "", verdict(rows), "", *lines, ""])
