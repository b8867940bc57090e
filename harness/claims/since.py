"""What changed in the ledger since an earlier version of it, as a page.

Both are CSVs of `harness.claims.data`: today's, and a file or what a git revision has committed.
"""

from __future__ import annotations

import io
import subprocess
from collections import Counter
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
    command = ["git", "show", "--end-of-options", f"{version}:{CSV}", "--"]  # no path, as "[" is
    shown = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    if shown.returncode:
        raise UsageError(f"{version} is no file, and no revision of git that has {CSV}")
    return table(shown.stdout)


def table(csv: str) -> pd.DataFrame:
    return pd.read_csv(io.StringIO(csv), dtype=str, keep_default_na=False)


def page(old: pd.DataFrame, new: pd.DataFrame, version: str, note: str = "") -> str:
    """Markdown: how many verdicts there were and are, then each claim that was judged otherwise,
    then those that only one of the versions has, then how many values moved. Claims are named
    PAPER/ID. `note` stands above them."""
    both = old.merge(new, on=KEY, suffixes=("_old", ""))
    other = both[both["verdict_old"] != both["verdict"]]
    moved = both[(both["verdict_old"] == both["verdict"]) & (both["ours_old"] != both["ours"])]
    told = f"{len(other)} verdicts of {len(both)}; {len(moved)} more values."
    lines = [f"# What changed since {version}", "", told + note, ""]
    before, now = Counter(old["verdict"]), Counter(new["verdict"])
    counts = ([each, str(before[each]), str(now[each])] for each in VERDICTS)
    lines += markdown_rows(["claims", "then", "now"], counts)
    if len(other):
        rows = [_cells(row) for _, row in other.iterrows()]
        lines += ["", "## Judged otherwise", "", *markdown_rows(HEAD, rows)]
    names, known = (["/".join(key) for key in each[KEY].to_numpy()] for each in (new, old))
    for title, these, those in (("New", names, known), ("Gone", known, names)):
        if only := [name for name in these if name not in those]:
            lines += ["", f"## {title}", "", ", ".join(only)]
    return "\n".join([*lines, ""])


def _cells(row: pd.Series) -> list[str]:
    published = " to ".join(filter(None, (row["published"], row["published_to"])))
    then, now = (
        f"{row[f'ours{suffix}'] or 'none'}: {row[f'verdict{suffix}']}" for suffix in ("_old", "")
    )
    name = f"{row['paper']}/{row['id']}"
    return [name, row["quantity"], f"{published} {row['unit']}".strip(), then, now]
