"""Figures and claims that were made again, held against the committed ones: what became of each.

Of --tier full whole tables are compared and every claim is judged. Of --tier quick there is one
seed, which judges no claim: rows and values are held against the committed ones of the same seed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pandas as pd

from harness.claims.assess import Judged, conditional, figure_table, judged
from harness.claims.expressions import evaluate
from harness.claims.judging import MIN_SEEDS
from harness.claims.ledger import Claim
from harness.claims.record import committed
from harness.errors import UsageError
from harness.experiments.figures import described, has_live_runs, published
from harness.experiments.lineage import COLUMNS
from harness.experiments.points import Only
from harness.files import read_json
from harness.reproduce.asked import CLAIMS

SAME = "the same"
WITHIN = "within the allowed variation"
DIFFERENT = "different"
FAILED = "failed"
UNTOLD = "not compared"
OUTCOMES = (SAME, WITHIN, DIFFERENT, FAILED, UNTOLD)
DIFFERING = (DIFFERENT, FAILED)
RELATIVE = 1e-6  # of two numbers that are the same; the tables have six digits
FEW = f"fewer than {MIN_SEEDS['simulated']} seeds"


@dataclass(frozen=True, slots=True)
class Row:
    """A run, a figure or a claim. `outcome`: one of OUTCOMES; `told`: values, and the cause of a
    difference where it is known."""

    what: str
    name: str
    outcome: str
    told: str = ""
    made: str = ""  # tier and revision


def figure_held(name: str, out: Path, *, of_one_seed: bool) -> Row:
    """A figure's table in `out` beside the committed one; of one seed its rows, where they rest on
    no other seed."""
    of = described(name)
    fewer = of_one_seed and bool(of.experiments) and _seeds(name, out) != _seeds(name)
    coarse = fewer and bool(of.grid)
    if fewer and of.quick != "rows":
        why = "a coarser grid" if coarse else "its rows rest on several"
        return Row("figure", name, UNTOLD, f"{FEW}, and {why}: its claims are compared")
    paths = [folder / f"{name}.csv" for folder in (out, published(name))]
    few = ""
    if fewer:
        num_held, num_rows = _rows_held(paths[0])
        grid = " on a coarser grid" if coarse else ""
        few = f"; {num_held:,} of {num_rows:,} rows{grid}, of {FEW}"
        if not num_held:
            why = f"{FEW}, and no row says which: its claims are compared"
            return Row("figure", name, UNTOLD, why)
    differs = difference(*paths, of_one_seed=fewer, grid=of.grid if coarse else None)
    if not differs:
        return Row("figure", name, SAME, few.removeprefix("; "))
    if has_live_runs(name):
        return Row("figure", name, UNTOLD, f"live runs differ, its claims tell: {differs}")
    told = [f"{differs}{few}", *why_other(name, out, of_one_seed=fewer)]
    return Row("figure", name, DIFFERENT, "; ".join(told))


def _rows_held(made: Path) -> tuple[int, int]:
    """How many rows of a table of one seed say their seed, and how many there are."""
    table = figure_table(made)
    return (int(table["seed"].notna().sum()) if "seed" in table else 0), len(table)


def _seeds(name: str, folder: Path | None = None) -> Any:
    """The seeds of a figure's runs; None: nothing is committed."""
    path = (folder or published(name)) / f"{name}.json"
    return read_json(path)["seeds"] if path.is_file() else None


def why_other(name: str, out: Path, *, of_one_seed: bool = False) -> list[str]:
    """What two FIGURE.json, that in `out` and the committed one, say of their runs that may be why
    their numbers differ. `of_one_seed`: other seeds are no cause."""
    paths = [folder / f"{name}.json" for folder in (out, published(name))]
    if not all(path.is_file() for path in paths):
        return []
    new, old = map(read_json, paths)
    named = {"synthetic": "inputs", "hardware": "hardware", "engines": "engines"}
    if not of_one_seed:
        named["seeds"] = "seeds"
    found = [
        f"{word}: {_listed(new.get(key))}, committed {_listed(old.get(key))}"
        for key, word in named.items()
        if new.get(key) != old.get(key)
    ]
    if new.get("runs_sources") != old.get("runs_sources"):
        found.append("the code is not that of the committed runs")
    return found


def _listed(values: Sequence[Any] | None) -> str:
    return ", ".join(map(str, values or ())) or "none"


def judged_again(claims: Sequence[Claim], out: Path) -> Iterator[Row]:
    """Judges each claim by its figure's table in `out`, beside its committed verdict. A claim whose
    condition was not asked for is not compared."""
    earlier = committed(CLAIMS)
    known = {claim.id for claim in claims}
    made: list[Judged] = []
    for claim in claims:
        try:
            made.append(judged(claim, out))
        except UsageError as error:
            yield Row("claim", f"{claim.paper}/{claim.id}", FAILED, str(error))
    for paper in dict.fromkeys(claim.paper for claim in claims):
        for found in conditional([each for each in made if each.claim.paper == paper]):
            before = earlier.get((paper, found.claim.id), {"verdict": "none", "ours": []})
            outcome, told = _against(found, before)
            if outcome == DIFFERENT:
                told = "; ".join([told, *why_other(str(found.claim.figure), out)])
            if found.claim.given is not None and found.claim.given not in known:
                outcome, told = UNTOLD, f"{told}, without its condition {found.claim.given}"
            yield Row("claim", f"{paper}/{found.claim.id}", outcome, told)


def _against(found: Judged, before: dict[str, Any]) -> tuple[str, str]:
    now = [each.mean for each in found.ours]
    told = f"{found.verdict} ({' to '.join(f'{each:.4g}' for each in now)})" if now else ""
    if found.verdict != before["verdict"]:
        return DIFFERENT, f"{before['verdict']} before, now {told or found.verdict}"
    was = [np.nan if each is None else each for each in before["ours"]]
    if len(now) == len(was) and np.allclose(now, was, rtol=RELATIVE, atol=0, equal_nan=True):
        return SAME, told or found.verdict
    earlier = " to ".join(f"{each:.4g}" for each in was)
    # Only what was measured may vary.
    outcome = WITHIN if found.kind.startswith("live") else DIFFERENT
    return outcome, f"{told}, the same verdict; {earlier} before"


def of_the_same_seeds(claims: Sequence[Claim], out: Path) -> Iterator[Row]:
    """Each claim's value by its figure's table in `out`, beside the committed table's with the same
    seeds. A value may rest on other seeds, too, as one over an SLO that is taken of all of them:
    what differs by no more than the committed seeds do is within the allowed variation."""
    for claim in claims:
        if claim.value is None or claim.setting or claim.repeats is not None:
            continue
        name = f"{claim.paper}/{claim.id}"
        folders = (out, published(str(claim.figure)))
        try:
            made, committed = (figure_table(folder / f"{claim.figure}.csv") for folder in folders)
            alike, few = committed, ""
            if "seed" in made and "seed" in committed:
                few = f"; {FEW}"
                alike = committed[committed["seed"].isin(made["seed"]) | committed["seed"].isna()]
            now, before, every = (
                [list(evaluate(each, table).values.values()) for each in claim.expressions]
                for table in (made, alike, committed)
            )
        except UsageError as error:
            yield Row("claim", name, UNTOLD, f"not told by one seed: {error}")
            continue
        a, b = (np.array(list(map(fmean, values))) for values in (now, before))
        value, earlier = (" to ".join(f"{each:.4g}" for each in of) for of in (a, b))
        if np.allclose(a, b, rtol=RELATIVE, atol=0, equal_nan=True):
            yield Row("claim", name, SAME, f"{value}{few}")
        elif np.all(np.abs(a - b) <= [np.ptp(values) for values in every]):
            yield Row("claim", name, WITHIN, f"{earlier} before, now {value}, as seeds differ{few}")
        else:
            cause = why_other(str(claim.figure), out, of_one_seed=True)
            told = f"{earlier} before, now {value}{few}"
            yield Row("claim", name, DIFFERENT, "; ".join([told, *cause]))


def difference(
    made: Path, committed: Path, *, of_one_seed: bool = False, grid: Only | None = None
) -> str:
    """How two CSVs of one figure differ, in a few words; empty: they do not. `of_one_seed`: in rows
    with the seeds of `made`. `grid`: `made` has of `committed` those rows that its values name, and
    may have others.

    Which runs a row is of is not compared: configurations and schedules have other hashes after a
    change of code that changes no number.
    """
    if not committed.is_file():
        return "nothing is committed"
    new, old = (figure_table(path).drop(columns=list(COLUMNS), errors="ignore") for path in
                (made, committed))  # fmt: skip
    if of_one_seed:
        new, old = (table[table["seed"].isin(new["seed"].dropna())] for table in (new, old))
    if list(new.columns) != list(old.columns):
        return f"columns {', '.join(sorted(set(new.columns) ^ set(old.columns)))}"
    if grid:
        other = len(_words(new) - _words(old))
        missing = len(_words(_of_grid(old, grid)) - _words(new))
        if other:
            return f"{other} rows that are not among the committed ones"
        return f"{missing} committed rows of the grid are missing" if missing else ""
    if len(new) != len(old):
        return f"{len(new)} rows, {len(old)} committed"
    found = {name: _column(new[name], old[name]) for name in new.columns}
    worst = sorted(((value, name) for name, value in found.items() if value), reverse=True)
    if not worst:
        return ""
    value, name = worst[0]
    more = f" and {len(worst) - 1} other columns" if len(worst) > 1 else ""
    return f"{name}{more}, " + (f"by up to {value:.1%}" if np.isfinite(value) else "in words")


def _of_grid(table: pd.DataFrame, grid: Only) -> pd.DataFrame:
    """Its rows with values of `grid`, whose keys end in the names of columns."""
    for key, values in grid.items():
        column = re.split("[./]", key.partition("@")[0])[-1]
        if column in table:
            table = table[table[column].astype(str).isin(values)]
    return table


def _words(table: pd.DataFrame) -> set[tuple[str, ...]]:
    """Its rows, numbers to six digits."""
    return {
        tuple(f"{each:.6g}" if isinstance(each, Real) else str(each) for each in row)
        for row in table.itertuples(index=False, name=None)
    }


def _column(new: pd.Series, old: pd.Series) -> float:
    """The largest relative difference of a column; 0: none, infinite: words differ."""
    a, b = (pd.to_numeric(each, errors="coerce").to_numpy(np.float64) for each in (new, old))
    words = [each.astype(object).fillna("").astype(str).to_numpy() for each in (new, old)]
    if (words[0] != words[1])[np.isnan(a) | np.isnan(b)].any():
        return float("inf")
    scale = np.maximum(np.abs(a), np.abs(b))
    with np.errstate(invalid="ignore", divide="ignore"):
        relative = np.where(scale > 0, np.abs(a - b) / scale, 0.0)
    largest = float(np.nanmax(relative, initial=0.0))
    return largest if largest > RELATIVE else 0.0
