"""report.md and report.json of a tier's folder: what became of each figure and claim when it was
made last, by which revision. A command replaces the rows of what it made, and no others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import asdict, astuple, fields, replace
from pathlib import Path

from harness.calibrate.tables import markdown_rows
from harness.files import read_json, write_json, write_text
from harness.records.claim import claimed
from harness.records.manifest import git_revision
from harness.reproduce.holding import DIFFERING, OUTCOMES, SAME, WITHIN, Row

NAME = "report.json"


def read(folder: Path) -> list[Row]:
    """The rows; keys that another version wrote into them are passed over."""
    path = folder / NAME
    rows = read_json(path)["rows"] if path.is_file() else []
    known = [each.name for each in fields(Row)]
    return [Row(**{key: row[key] for key in known if key in row}) for row in rows]


def write(
    folder: Path, rows: Sequence[Row], left_out: Sequence[Row] = (), claims: Collection[str] = ()
) -> None:
    """`rows`: of what the command made. `left_out`: those that replace none. `claims`: those that
    were asked for, of which no earlier row stays. Commands at the same time keep each other's."""
    git = git_revision()
    dirty = ", changed since" if git and git["dirty"] else ""
    made = f"{folder.name}, " + (f"{git['revision'][:8]}{dirty}" if git else "revision unknown")
    now, out = ([replace(row, made=made) for row in of] for of in (rows, left_out))
    with claimed(folder / "report.claim", wait=True):
        stay = [row for row in read(folder) if row.what != "claim" or row.name not in claims]
        every = list({(row.what, row.name): row for row in (*out, *stay, *now)}.values())
        write_json(folder / NAME, {"rows": [asdict(row) for row in every]})
        write_text(folder / "report.md", as_page(every))


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
    lines = markdown_rows(["", "name", "outcome", "", "made by"], map(astuple, rows))
    return "\n".join(["# Reproduced", "", verdict(rows), "", *lines, ""])
