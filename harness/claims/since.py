"""What changed in the ledger since an earlier version of it, as a page.

Both are CSVs of `harness.claims.data`: today's, and a file or what a git revision has committed.
"""

from __future__ import annotations

import io
import subprocess
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from harness.calibrate.tables import markdown_rows
from harness.claims.data import read
from harness.claims.judging import VERDICTS
from harness.errors import UsageError

CSV = "results/claims/claims.csv"
KEY = ["paper", "id"]
NEEDED = (*KEY, "ours", "verdict")  # of an earlier version
HEAD = ["claim", "quantity", "published", "then", "now"]


def earlier(version: str, root: Path) -> pd.DataFrame:
    """`version`: a CSV, or a revision of the git repository `root`. Raises UsageError for one that
    is neither, or that has no claims.csv yet."""
    if Path(version).is_file():
        return read(Path(version), NEEDED)
    shown = subprocess.run(
        ["git", "show", f"{version}:{CSV}"], cwd=root, capture_output=True, text=True, check=False
    )
    if shown.returncode:
        raise UsageError(f"{version} is no file, and no revision of git that has {CSV}")
    return table(shown.stdout)


def table(csv: str) -> pd.DataFrame:
    return pd.read_csv(io.StringIO(csv), dtype=str, keep_default_na=False)


@dataclass(frozen=True, slots=True)
class Changes:
    """Of one version of the ledger to the next. Claims are named PAPER/ID."""

    num_both: int  # claims that both versions have
    num_moved: int  # with another value and the same verdict
    counts: list[list[str]]  # verdict, how many then, how many now
    otherwise: list[list[str]]  # claims with another verdict, as HEAD says
    new: list[str]
    gone: list[str]


def changes(old: pd.DataFrame, new: pd.DataFrame) -> Changes:
    both = old.merge(new, on=KEY, suffixes=("_old", ""))
    other = both[both["verdict_old"] != both["verdict"]]
    moved = both[(both["verdict_old"] == both["verdict"]) & (both["ours_old"] != both["ours"])]
    before, now = Counter(old["verdict"]), Counter(new["verdict"])
    names, known = (["/".join(key) for key in each[KEY].to_numpy()] for each in (new, old))
    return Changes(
        len(both), len(moved), [[each, str(before[each]), str(now[each])] for each in VERDICTS],
        [_cells(row) for _, row in other.iterrows()],
        [name for name in names if name not in known],
        [name for name in known if name not in names],
    )  # fmt: skip


def page(old: pd.DataFrame, new: pd.DataFrame, version: str) -> str:
    """Markdown: how many verdicts there were and are, then each claim that was judged otherwise,
    then those that only one of the versions has, then how many values moved."""
    found = changes(old, new)
    told = f"{len(found.otherwise)} verdicts of {found.num_both}; {found.num_moved} more values."
    lines = [f"# What changed since {version}", "", told, ""]
    lines += markdown_rows(["claims", "then", "now"], found.counts)
    if found.otherwise:
        lines += ["", "## Judged otherwise", "", *markdown_rows(HEAD, found.otherwise)]
    for name, only in (("New", found.new), ("Gone", found.gone)):
        if only:
            lines += ["", f"## {name}", "", ", ".join(only)]
    return "\n".join([*lines, ""])


def _cells(row: pd.Series) -> list[str]:
    published = " to ".join(filter(None, (row["published"], row["published_to"])))
    then, now = (
        f"{row[f'ours{suffix}'] or 'none'}: {row[f'verdict{suffix}']}" for suffix in ("_old", "")
    )
    name = f"{row['paper']}/{row['id']}"
    return [name, row["quantity"], f"{published} {row['unit']}".strip(), then, now]
