"""Claims judged by tables that somebody else made, and files of such verdicts checked.

Nothing that is committed is touched: the verdicts are printed, and written where --out says.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.calibrate.tables import markdown_rows
from harness.claims.assess import Judged, conditional, judged
from harness.claims.data import as_csv, differences, read
from harness.claims.ledger import Claim, load
from harness.claims.page import published, values, verdict
from harness.claims.record import committed
from harness.errors import UsageError
from harness.files import write_text, writing


def of_folder(folder: Path, ledgers: Path, out: Path | None) -> int:
    """Judges the claims whose figures have a table in `folder`, or in its folder of their paper,
    and tells each beside the committed verdict. Raises UsageError where there is no table."""
    rows: list[tuple[Judged, Path]] = []
    for path in sorted(ledgers.glob("*.yaml")):
        of_paper = folder / path.stem if (folder / path.stem).is_dir() else folder
        found = [
            by_table(claim, of_paper)
            for claim in load(path).claims
            if claim.value is not None and (of_paper / f"{claim.figure}.csv").is_file()
        ]
        rows += [(each, of_paper) for each in conditional(found)]
    if not rows:
        raise UsageError(f"{folder} has no FIGURE.csv and FIGURE.json that a claim rests on")
    before = committed(ledgers)
    head = ["claim", "published", "value", "verdict", "committed", ""]
    lines = markdown_rows(head, (_cells(each, before) for each, _ in rows))
    print("\n".join(lines))
    if out is not None:
        with writing(out):
            write_text(out, as_csv(rows))
        print(f"\n{len(rows)} claims: {out}")
    return 0


def by_table(claim: Claim, folder: Path) -> Judged:
    """A table with other rows than the committed one tells some of its claims only."""
    try:
        return judged(claim, folder)
    except UsageError as error:
        return Judged(claim, "not attempted", str(error))


def _cells(each: Judged, before: Mapping[tuple[str, str], Mapping[str, Any]]) -> list[str]:
    claim = each.claim
    was = before.get((claim.paper, claim.id), {"verdict": "none"})["verdict"]
    name = f"{claim.paper}/{claim.id}"
    return [name, published(claim), values(claim, each.ours), verdict(each), was, each.why]


def check_file(path: Path, ledgers: Path) -> int:
    """Judges each row of such a CSV again by its values. 1: a verdict is not what they give."""
    rows = read(path)
    ledger = [claim for each in sorted(ledgers.glob("*.yaml")) for claim in load(each).claims]
    wrong = list(differences(rows, {(claim.paper, claim.id): claim for claim in ledger}))
    for name, what in wrong:
        print(f"{name}: {what}")
    told = f"{len(wrong)} verdicts differ" if wrong else "each verdict is what its values give"
    print(f"{len(rows)} claims: {told}")
    return 1 if wrong else 0
