"""`python -m harness claims [PAPER …]`: compares each published number with ours, and judges it.

Reads the claims in results/claims/PAPER.yaml and the figures' CSV files in results/published/PAPER.
Runs nothing. Writes results/claims/README.md, which has the rule, and results/claims/PAPER.json. If
the figures were also simulated with another engine profile (`make sensitivity-PAPER`), notes say
where a verdict changes. Exit status: 0 done, whatever the verdicts; 2 a wrong command or ledger.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from harness import engine_profile
from harness.claims.expressions import evaluate, used
from harness.claims.judging import MIN_SEEDS, estimate, judge
from harness.claims.ledger import Claim, Variations, load
from harness.claims.render import ORDER, Judged, as_json, as_markdown
from harness.errors import UsageError, first_line
from harness.files import read_json, write_text

ROOT = Path(__file__).resolve().parents[2]
CLAIMS, PUBLISHED = ROOT / "results/claims", ROOT / "results/published"


def judged(claim: Claim, published: Path, variations: Variations | None = None) -> Judged:
    """`published`: the folder of the paper's figures."""
    if claim.no_result:
        return Judged(claim, None, "no result", claim.reason, None)
    if claim.value is None or claim.figure is None:
        return Judged(claim, None, "not attempted", claim.reason, None)
    csv, about = published / f"{claim.figure}.csv", published / f"{claim.figure}.json"
    if not (csv.is_file() and about.is_file()):
        return Judged(claim, None, "not attempted", _command(claim), None)
    varied = variations.of(claim) if variations else {}
    try:
        table = figure_table(csv)
        values = evaluate(claim.value, table)
        others = {label: evaluate(each, table) for label, each in varied.items()}
        rows = [used(each, table) for each in (claim.value, *varied.values())]
        about_figure = provenance(about)
    except UsageError as error:
        raise UsageError(f"claim {claim.id}, {csv.name}: {error}") from error
    if why := invalid(rows):
        return Judged(claim, None, "not attempted", f"{why}; {_command(claim, '--again')}", None)
    source = narrowed(about_figure, rows[0])
    ours = estimate(list(values.values()))
    verdict = judge(claim, ours)
    why = claim.reason
    if verdict == "not attempted":
        why = f"{ours.num_seeds} of {MIN_SEEDS} seeds; {_command(claim)}"
    found = {label: estimate(list(each.values())) for label, each in others.items()}
    return Judged(claim, ours, verdict, why, source, found)


def by_profile(claim: Claim, published: Path) -> dict[str, Judged]:
    """The claim judged by figures that were simulated with another engine profile, whose folders
    are called so (`make sensitivity-PAPER`)."""
    folders = [published / name for name in engine_profile.names()]
    return {
        folder.name: judged(claim, folder)
        for folder in folders
        if claim.value is not None and (folder / f"{claim.figure}.csv").is_file()
    }


def invalid(parts: Sequence[pd.DataFrame]) -> str:
    """Which of the runs that a claim rests on were INVALID, for no verdict can be built on them;
    empty: none of those whose figure says so (`valid`)."""
    rows = pd.concat(parts)
    if "valid" not in rows:
        return ""
    found = rows[rows["valid"].eq(False) & ~rows.index.duplicated()]
    if found.empty:
        return ""
    first = found.iloc[0]
    known_as = [
        f"{key} {first[key]}" for key in ("experiment", "system", "seed") if key in found.columns
    ]
    return f"rests on INVALID runs ({len(found)}), the first: {', '.join(known_as)}"


def figure_table(path: Path) -> pd.DataFrame:
    try:
        return pd.read_csv(path)
    except (OSError, ValueError) as error:
        raise UsageError(f"it cannot be read: {first_line(error)}") from error


def provenance(path: Path) -> dict[str, Any]:
    found = read_json(path)
    for key in ("engines", "hardware", "runs_git"):
        if not isinstance(found.get(key), list):
            raise UsageError(f"{path.name} has no list of {key}: draw the figure again")
    return found


def narrowed(source: Mapping[str, Any], rows: pd.DataFrame) -> dict[str, Any]:
    """A figure's provenance, with the engines and the hardware of `rows` alone where they say: a
    figure may hold measured and simulated runs side by side."""
    said = {"engines": "engine", "hardware": "hardware"}
    columns = {key: column for key, column in said.items() if column in rows}
    return dict(source) | {
        key: sorted(map(str, rows[column].dropna().unique())) for key, column in columns.items()
    }


def _command(claim: Claim, *options: str) -> str:
    return (
        f"run `{' '.join(['python -m harness.experiments.figures', str(claim.figure), *options])}`"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    about = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("python -m harness claims", formatter_class=about)
    parser.description = __doc__
    parser.add_argument("papers", nargs="*", metavar="PAPER", help="default: all papers")
    names = parser.parse_args(arguments).papers
    try:
        for name in names:
            load(CLAIMS / f"{name}.yaml")  # a wrong name is told before anything is written
        every = sorted(path.stem for path in CLAIMS.glob("*.yaml"))
        found = {}
        for name in every:
            paper = load(CLAIMS / f"{name}.yaml")
            rows = [judged(claim, PUBLISHED / name, paper.variations) for claim in paper.claims]
            for row in rows:
                row.profiles = by_profile(row.claim, PUBLISHED / name)
            found[name] = (paper, rows)
        for name in names or every:
            rows = found[name][1]
            _tell(name, rows)
            text = json.dumps(as_json(name, rows), indent=1, ensure_ascii=False)
            write_text(CLAIMS / f"{name}.json", text + "\n")
        write_text(CLAIMS / "README.md", as_markdown(found))
    except UsageError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def _tell(name: str, rows: Sequence[Judged]) -> None:
    counts = Counter(row.verdict for row in rows)
    print(f"{name}: {', '.join(f'{counts[word]} {word}' for word in ORDER if counts[word])}")
    for row in rows:
        ours = f"{row.ours.mean:.4g}" if row.ours else "-"
        print(f"  {row.verdict:14} {row.claim.id}: {ours} ({row.claim.published:g})")


if __name__ == "__main__":
    sys.exit(main())
