"""Makes figures and claims again, beside the committed ones, and says whether they are the same.

    python -m harness reproduce kunserve            all figures and claims of a paper
    python -m harness reproduce 'aqua_fig0*'        figures
    python -m harness reproduce kunserve/fig16-p50  one claim, by its id in results/claims

Tables, pictures and report.md are written to results/reproduced; nothing in results/published
changes. Complete runs are not repeated, so that an interrupted command goes on where it was. A
figure that fails does not stop the others.

A simulated table is the same or it differs. A table of live runs always differs; its claims say
whether that matters. Exit status: 0 every simulated table and every verdict is the same, 1 not.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import filter as matching
from pathlib import Path
from statistics import fmean

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from harness.claims.assess import Judged, judged
from harness.claims.ledger import Claim, load
from harness.configuration.command_line import ends_in_order, parser
from harness.errors import RunError, UsageError
from harness.experiments.batch import Making
from harness.experiments.compose import ROOT
from harness.experiments.figures import (
    described,
    draw_all,
    figures,
    make_runs,
    only_simulated,
    published,
)
from harness.files import make_folder, read_json, write_text
from harness.reproduce.tables import difference
from harness.running import interrupts
from harness.running.prepare import announce

CLAIMS, REPRODUCED = ROOT / "results/claims", ROOT / "results/reproduced"


@dataclass(frozen=True, slots=True)
class Row:
    """What became of a figure or a claim: `same`, or how it differs. `counts`: whether that makes
    the whole differ."""

    what: str
    name: str
    found: str
    same: bool
    counts: bool = True


def asked(words: Sequence[str]) -> tuple[list[str], list[Claim]]:
    """The figures that words name, and the claims that rest on them; of PAPER/CLAIM that claim
    alone. Raises UsageError for a word that names nothing."""
    papers = {path.stem: load(path).claims for path in sorted(CLAIMS.glob("*.yaml"))}
    known, names, chosen = figures(), dict[str, None](), dict[tuple[str, str], Claim]()
    for word in words:
        paper, _, claim = word.partition("/")
        if claim:
            of_paper = {each.id: each for each in papers.get(paper, ())}
            if claim not in of_paper:
                raise UsageError(f"{word} names no claim; results/claims/{paper}.json has them all")
            if of_paper[claim].figure is None:
                raise UsageError(f"{word} rests on no figure: {of_paper[claim].reason}")
            names[str(of_paper[claim].figure)] = None
            chosen[paper, claim] = of_paper[claim]
            continue
        found = matching(known, f"{word}_*" if word in papers else word)
        if not found:
            valid = ", ".join([*papers, *known])
            raise UsageError(f"{word} names no paper, figure or claim; valid: {valid}")
        names |= dict.fromkeys(found)
        every = (each for claims in papers.values() for each in claims)
        chosen |= {(each.paper, each.id): each for each in every if each.figure in found}
    return list(names), list(chosen.values())


def told_beforehand(names: Sequence[str], jobs: int) -> str:
    """How much there is to do, by what the committed figures took; runs of several figures are made
    once and counted for each."""
    abouts = [read_json(published(n) / f"{n}.json") for n in names if described(n).experiments]
    live = sum(each["num_runs"] for each in abouts if each["engines"] != ["sim"])
    runs = sum(each["num_runs"] for each in abouts)
    of_figure = (
        (each, jobs if each["engines"] == ["sim"] else 1) for each in abouts if each["run_s"]
    )
    seconds = sum(
        each["num_runs"] * fmean(each["run_s"].values()) / at_once for each, at_once in of_figure
    )
    return (
        f"{len(names)} figures of {runs:,} runs ({live} with a real engine), at most "
        f"{seconds / 60:.0f} minutes on {jobs} cores like those that they were made on"
    )


def made_again(names: Sequence[str], jobs: int, out: Path) -> Iterator[Row]:
    """Makes each figure into `out`, and says how its table compares."""
    for number, name in enumerate(names, 1):
        announce(f"[{number}/{len(names)}] {name}")
        try:
            make_runs([name], Making(jobs), out)
            (made,) = draw_all([name], jobs, out)
            if isinstance(made, RunError):
                raise made
        except RunError as error:
            yield Row("figure", name, f"failed: {error}", same=False)
            continue
        differs = difference(out / f"{name}.csv", published(name) / f"{name}.csv")
        simulated = only_simulated(name)
        found = f"differs: {differs}" if differs else "the same"
        if differs and not simulated:
            found = f"measured again: {differs}"
        yield Row("figure", name, found, not differs, counts=simulated)


def judged_again(claims: Sequence[Claim], out: Path) -> Iterator[Row]:
    """Judges each claim by the tables in `out`, beside its committed verdict."""
    committed = {
        (path.stem, row["id"]): row["verdict"]
        for path in CLAIMS.glob("*.json") if path.stem != "lock"
        for row in read_json(path)["claims"]
    }  # fmt: skip
    for claim in claims:
        if claim.figure is None or not (out / f"{claim.figure}.csv").is_file():
            continue
        found, before = judged(claim, out), committed.get((claim.paper, claim.id), "none")
        same = found.verdict == before or claim.given is not None  # which another claim decides
        word = found.verdict if same else f"{before} before, now {found.verdict}"
        yield Row("claim", f"{claim.paper}/{claim.id}", f"{word}{_value(found)}", same)


def _value(found: Judged) -> str:
    return f" ({' to '.join(f'{each.mean:.4g}' for each in found.ours)})" if found.ours else ""


def as_page(rows: Sequence[Row]) -> str:
    """report.md."""
    differing = [row for row in rows if not row.same and row.counts]
    head = (
        "Everything is the same." if not differing else f"{len(differing)} of {len(rows)} differ."
    )
    lines = [f"| {row.what} | {row.name} | {row.found} |" for row in rows]
    return "\n".join(["# Reproduced", "", head, "", "| | | |", "| --- | --- | --- |", *lines, ""])


@ends_in_order
def main(arguments: Sequence[str] | None = None) -> int:
    about = parser("reproduce", __doc__)
    about.add_argument("what", nargs="+", metavar="WHAT", help="a paper, a figure, PAPER/CLAIM")
    about.add_argument("--jobs", type=int, default=os.cpu_count(), help="runs at a time")
    chosen = about.parse_args(arguments)
    os.chdir(ROOT)
    interrupts.listen()
    names, claims = asked(chosen.what)
    make_folder(REPRODUCED)
    announce(told_beforehand(names, chosen.jobs))
    rows = list(made_again(names, chosen.jobs, REPRODUCED))
    rows += judged_again(claims, REPRODUCED)
    write_text(REPRODUCED / "report.md", as_page(rows))
    table = Table("", "name", "found", box=SIMPLE_HEAD)
    for row in rows:
        style = None if row.same or not row.counts else "red"
        table.add_row(row.what, row.name, row.found, style=style)
    console = Console()
    console.print(table)
    console.print(str((REPRODUCED / "report.md").relative_to(ROOT)))
    return 1 if any(row.counts and not row.same for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
