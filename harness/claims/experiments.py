"""results/claims/experiments.md: of each figure its claims, experiments, command, time and disk."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import ceil
from pathlib import Path
from statistics import fmean

from harness.calibrate.tables import markdown_rows, page
from harness.claims.assess import Judged
from harness.claims.page import Papers
from harness.files import read_json

RUN_MB = 0.6  # the mean over all runs of the four papers, which take 5 GB
HEAD = ["figure", "claims", "experiments", "command", "runs", "minutes", "MB"]


def as_markdown(papers: Papers, published: Path) -> str:
    return page(
        Path(__file__).with_name("templates") / "experiments.md",
        papers=[
            (paper.short, markdown_rows(HEAD, _rows(published / name, rows)))
            for name, (paper, rows) in papers.items()
        ],
    )


def _rows(published: Path, rows: Sequence[Judged]) -> Iterator[list[str]]:
    """A row for each figure, and one for the claims that rest on none."""
    claims: dict[str | None, list[str]] = {}
    for row in rows:
        claims.setdefault(row.claim.figure, []).append(row.claim.id)
    for path in sorted(published.glob("*.json")):
        about = read_json(path)
        count, live = about["num_runs"], set(about["engines"]) - {"sim"}
        minutes = ceil(count * fmean(about["run_s"].values()) / 60) if count else 0
        yield [
            path.stem, ", ".join(claims.pop(path.stem, ["none"])),
            ", ".join(about["experiments"]) or "none",
            f"`make reproduce FIGURE={path.stem} TIER=full`",
            f"{count}{', live' if live else ''}", str(minutes), str(ceil(count * RUN_MB)),
        ]  # fmt: skip
    for figure, left in claims.items():
        yield [figure or "none", ", ".join(left), *["none"] * 5]
