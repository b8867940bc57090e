"""Makes figures and claims again, beside the committed ones, and says whether they are the same.

    python -m harness reproduce kunserve                all figures and claims of a paper
    python -m harness reproduce 'aqua_fig0*'            figures
    python -m harness reproduce kunserve/abstract-tail  one claim, by its id in results/claims

Tables, pictures and report.md are written to results/reproduced; nothing in results/published
changes. Complete runs are not repeated, so that an interrupted command goes on where it was. A
figure that fails does not stop the others.

--tier quick makes the simulated runs of each sweep's first seed alone. One seed judges no claim:
each claim's value is held against the committed table's with the same seed, and may differ by what
the committed seeds do where it rests on several, as an SLO may. --tier full makes all
runs, judges all claims, and holds whole tables against the committed ones. A table of simulated
runs is the same or it differs. Tables of live runs and of measured times differ each time; their
claims say whether that matters. Claims of a figure that failed are not judged.

Exit status: 0 all that is simulated is the same, and of --tier full every verdict; 1 not.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import filter as matching
from math import ceil
from pathlib import Path
from statistics import fmean

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from harness.claims.assess import Judged, conditional, figure_table, judged
from harness.claims.expressions import evaluate
from harness.claims.ledger import Claim, load
from harness.configuration.command_line import ends_in_order, parser
from harness.errors import RunError, UsageError
from harness.experiments.batch import Making
from harness.experiments.compose import ROOT
from harness.experiments.figures import (
    described,
    draw_all,
    figures,
    has_live_runs,
    make_runs,
    only_simulated,
    published,
)
from harness.files import make_folder, read_json, write_text
from harness.reproduce.tables import SAME, difference
from harness.running import interrupts
from harness.running.prepare import announce

FAILED = "failed"
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


def told_beforehand(names: Sequence[str], jobs: int, *, quick: bool = False) -> str:
    """How much there is to do, by what the committed figures took; runs of several figures are made
    once and counted for each."""
    paths = (published(name) / f"{name}.json" for name in names if described(name).experiments)
    live = runs = 0
    seconds = 0.0
    for path in paths:
        about = read_json(path) if path.is_file() else {"run_s": {}}
        if not about["run_s"]:
            continue
        simulated = about["engines"] == ["sim"]
        count = ceil(about["num_runs"] / len(about["seeds"])) if quick else about["num_runs"]
        runs, live = runs + count, live + (0 if simulated else count)
        seconds += count * fmean(about["run_s"].values()) / (jobs if simulated else 1)
    return (
        f"{len(names)} figures of {runs:,} runs ({live} with a real engine), at most "
        f"{seconds / 60:.0f} minutes on {jobs} cores like those that they were made on"
    )


def made_again(names: Sequence[str], making: Making, out: Path) -> Iterator[Row]:
    """Makes each figure into `out`, and says how its table compares, unless it is of the first
    seeds alone."""
    jobs = making.jobs
    for number, name in enumerate(names, 1):
        announce(f"[{number}/{len(names)}] {name}")
        try:
            make_runs([name], making, out)
            (made,) = draw_all([name], jobs, out)
            if isinstance(made, RunError):
                raise made
        except RunError as error:
            yield Row("figure", name, f"{FAILED}: {error}", same=False)
            continue
        if making.seeds is not None and described(name).experiments:
            yield Row("figure", name, "of the first seed", same=True)
            continue
        differs = difference(out / f"{name}.csv", published(name) / f"{name}.csv")
        simulated = only_simulated(name)
        word = "differs" if simulated else "made without simulated runs alone, and differs"
        found = f"{word}: {differs}" if differs else "the same"
        yield Row("figure", name, found, not differs, counts=simulated)


def judged_again(claims: Sequence[Claim], out: Path) -> Iterator[Row]:
    """Judges each claim by its figure's table in `out`, beside its committed verdict. A claim whose
    condition was not asked for is told, and does not count."""
    committed = {
        (path.stem, row["id"]): row["verdict"]
        for path in CLAIMS.glob("*.json") if path.stem != "lock"
        for row in read_json(path)["claims"]
    }  # fmt: skip
    known = {claim.id for claim in claims}
    for paper in dict.fromkeys(claim.paper for claim in claims):
        for found in conditional([judged(each, out) for each in claims if each.paper == paper]):
            name, before = found.claim.id, committed.get((paper, found.claim.id), "none")
            same = found.verdict == before
            word = found.verdict if same else f"{before} before, now {found.verdict}"
            decided = found.claim.given is None or found.claim.given in known
            if not decided:
                word += f", without its condition {found.claim.given}"
            yield Row("claim", f"{paper}/{name}", f"{word}{_value(found)}", same, counts=decided)


def of_the_same_seeds(claims: Sequence[Claim], out: Path) -> Iterator[Row]:
    """Each claim's value by its figure's table in `out`, beside the committed table's with the same
    seeds. A value may rest on other seeds, too, as one over an SLO that is taken of all of them:
    what differs by no more than the committed seeds do is told, and does not count."""
    for claim in claims:
        if claim.value is None or claim.setting or claim.repeats is not None:
            continue
        name = f"{claim.paper}/{claim.id}"
        folders = (out, published(str(claim.figure)))
        try:
            made, committed = (figure_table(folder / f"{claim.figure}.csv") for folder in folders)
            alike = committed
            if "seed" in made and "seed" in committed:
                alike = committed[committed["seed"].isin(made["seed"]) | committed["seed"].isna()]
            now, before, every = (
                [list(evaluate(each, table).values.values()) for each in claim.expressions]
                for table in (made, alike, committed)
            )
        except UsageError as error:
            yield Row("claim", name, f"not told by one seed: {error}", same=False, counts=False)
            continue
        a, b = (np.array(list(map(fmean, values))) for values in (now, before))
        same = bool(np.allclose(a, b, rtol=SAME, atol=0, equal_nan=True))
        near = bool(np.all(np.abs(a - b) <= [np.ptp(values) for values in every]))
        value, earlier = (" to ".join(f"{each:.4g}" for each in of) for of in (a, b))
        told = value if same else f"{earlier} before, now {value}"
        yield Row("claim", name, told + (", as seeds differ" if near and not same else ""), same,
                  counts=same or not near)  # fmt: skip


def _value(found: Judged) -> str:
    return f" ({' to '.join(f'{each.mean:.4g}' for each in found.ours)})" if found.ours else ""


def as_page(rows: Sequence[Row], *, quick: bool) -> str:
    """report.md."""
    differing = [row for row in rows if not row.same and row.counts]
    held = sum(row.same and (row.what == "claim" or not quick) for row in rows)
    every = f"All {held} claims that one seed tells are" if quick else "Everything is"
    head = f"{every} the same." if held else "Nothing was held against what is committed."
    if differing:
        head = f"{len(differing)} of {len(rows)} differ."
    lines = [f"| {row.what} | {row.name} | {row.found} |" for row in rows]
    return "\n".join(["# Reproduced", "", head, "", "| | | |", "| --- | --- | --- |", *lines, ""])


@ends_in_order
def main(arguments: Sequence[str] | None = None) -> int:
    about = parser("reproduce", __doc__)
    about.add_argument("what", nargs="+", metavar="WHAT", help="a paper, a figure, PAPER/CLAIM")
    tier = "quick: one seed, simulated; full: all runs (%(default)s)"
    about.add_argument("--tier", choices=("quick", "full"), default="quick", help=tier)
    about.add_argument("--jobs", type=int, default=os.cpu_count(), help="runs at a time")
    chosen = about.parse_args(arguments)
    quick = chosen.tier == "quick"
    os.chdir(ROOT)
    interrupts.listen()
    names, claims = asked(chosen.what)
    make_folder(REPRODUCED)
    left_out = [name for name in names if quick and has_live_runs(name)]
    names = [name for name in names if name not in left_out]
    announce(told_beforehand(names, chosen.jobs, quick=quick))
    rows = list(made_again(names, Making(chosen.jobs, seeds=1 if quick else None), REPRODUCED))
    made = {row.name for row in rows if not row.found.startswith(FAILED)}
    of_made = [claim for claim in claims if claim.figure in made]
    rows += (of_the_same_seeds if quick else judged_again)(of_made, REPRODUCED)
    needs = "needs a real engine: --tier full"
    rows += [Row("figure", name, needs, same=False, counts=False) for name in left_out]
    write_text(REPRODUCED / "report.md", as_page(rows, quick=quick))
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
