"""A claim judged by the table of its figure: results/published/PAPER/FIGURE.csv and FIGURE.json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from typing import Any

import pandas as pd

from harness.claims.expressions import Found, evaluate
from harness.claims.judging import JUDGED, MIN_SEEDS, Finding, Ours, as_evidence, estimate, judge
from harness.claims.kinds import kind, not_exercised, seldom
from harness.claims.ledger import Claim, Variations
from harness.configuration.resolvers import engine_profiles
from harness.errors import UsageError, first_line
from harness.files import read_json

BASE_PROFILE = "eager_2024"  # of the engine, where a folder does not name another


@dataclass(slots=True)
class Judged:
    claim: Claim
    verdict: str
    why: str = ""  # of what has no verdict by its value: the cause found by code
    ours: Sequence[Ours] = ()  # one value, or of a range one for each end
    effect: float | None = None  # share of the published effect
    kind: str = ""  # one of KINDS; empty: it has no value
    source: Mapping[str, Any] | None = None  # the figure's provenance, of the claim's rows
    varied: Mapping[str, Ours] = field(default_factory=dict)  # ours with a system set otherwise
    runs: Sequence[str] = ()  # hashes of the configurations of the runs that the value is of
    profiles: dict[str, Judged] = field(default_factory=dict)  # with another engine profile


def judged(claim: Claim, published: Path, variations: Variations | None = None) -> Judged:
    """`published`: the folder of the paper's figures."""
    if claim.repeats is not None:
        return Judged(claim, "repeated")
    if claim.setting:
        return Judged(claim, "setting")
    if claim.value is None or claim.figure is None:
        return Judged(claim, "not attempted")
    csv, about = published / f"{claim.figure}.csv", published / f"{claim.figure}.json"
    if not (csv.is_file() and about.is_file()):
        return Judged(claim, "not attempted", _command(claim))
    others = variations.of(claim) if variations else {}
    try:
        about_figure = provenance(about)
        if about_figure.get("table_sha256") not in (None, sha256(csv.read_bytes()).hexdigest()):
            raise UsageError(f"it is not the table that {about.name} is of: draw the figure again")
        table = figure_table(csv)
        found = [evaluate(each, table) for each in claim.expressions]
        varied = {label: evaluate(each, table) for label, each in others.items()}
    except UsageError as error:
        raise UsageError(f"claim {claim.id}, {csv.name}: {error}") from error
    rows = _rows(table, found)
    if why := invalid(_rows(table, [*found, *varied.values()])):
        return Judged(claim, "not attempted", f"{why}; {_command(claim, '--again')}")
    source = narrowed(about_figure, rows)
    ours = [estimate(list(each.values.values())) for each in found]
    rests_on = kind(rows, source)
    made = _finding(claim, ours, found, rests_on, rows)
    varied_ours = {label: estimate(list(each.values.values())) for label, each in varied.items()}
    return Judged(
        claim, made.verdict, made.why, ours, made.effect, rests_on, source, varied_ours,
        runs_of(rows, source),
    )  # fmt: skip


def runs_of(rows: pd.DataFrame, source: Mapping[str, Any]) -> list[str]:
    """The hashes of the runs that `rows` name; all of the figure's, where a row is over more runs
    than its table names."""
    cells = rows["config_hash"].dropna() if "config_hash" in rows else ()
    words, sets = " ".join(map(str, cells)).split(), source.get("sets", {})
    known = source.get("runs", {})
    named = dict.fromkeys(name for word in words for name in sets.get(word, [word]))
    return list(named if set(named) <= set(known) else known)


def conditional(rows: Sequence[Judged]) -> list[Judged]:
    """`rows`, where a claim whose condition (`given`) does not hold is not reproduced."""
    held = {row.claim.id for row in rows if row.verdict in ("reproduced", "trend only")}
    found = []
    for row in rows:
        given = row.claim.given
        if given is not None and given not in held and row.verdict in JUDGED:
            why = f"its condition, {given}, does not hold"
            row = replace(row, verdict="not reproduced", why=why)
        found.append(row)
    return found


def _finding(
    claim: Claim, ours: Sequence[Ours], found: Sequence[Found], rests_on: str, rows: pd.DataFrame
) -> Finding:
    live = rests_on.startswith("live")
    random = any(len(set(each.values.values())) > 1 for each in found)
    few = claim.exact and not live and not random
    made = judge(claim, ours, 1 if few else MIN_SEEDS["live" if live else "simulated"])
    idle = not_exercised(claim, [each.values for each in found], rows)
    if idle and made.verdict != "not attempted":
        return Finding("not exercised", why=idle)
    return as_evidence(claim, replace(made, why=made.why or seldom(claim, rows)), rests_on)


def _rows(table: pd.DataFrame, found: Sequence[Found]) -> pd.DataFrame:
    return table.loc[sorted({row for each in found for row in each.rows})]


def by_profile(claim: Claim, published: Path) -> dict[str, Judged]:
    """The claim judged by figures that were simulated with another engine profile, whose folders
    are called so (`make sensitivity-PAPER`)."""
    folders = [published / name for name in engine_profiles()]
    return {
        folder.name: judged(claim, folder)
        for folder in folders
        if claim.value is not None and (folder / f"{claim.figure}.csv").is_file()
    }


def invalid(rows: pd.DataFrame) -> str:
    """Which of the runs that a claim rests on were INVALID, for no verdict can be built on them;
    empty: none of those whose figure says so (`valid`, or the runs' `verdict`)."""
    wrong = pd.Series(False, index=rows.index)
    if "valid" in rows:
        wrong |= rows["valid"].eq(False)
    if "verdict" in rows:  # of the runs of each row
        wrong |= rows["verdict"].astype(str).str.contains("INVALID")
    found = rows[wrong]
    if found.empty:
        return ""
    first = found.iloc[0]
    known_as = [
        f"{key} {first[key]}" for key in ("experiment", "system", "seed") if key in found.columns
    ]
    return f"rests on INVALID runs ({len(found)}), the first: {', '.join(known_as)}"


def figure_table(path: Path) -> pd.DataFrame:
    """The figure's table, which its claims share: nobody changes it."""
    try:
        return _table(path.read_bytes())
    except (OSError, ValueError) as error:
        raise UsageError(f"it cannot be read: {first_line(error)}") from error


@lru_cache(maxsize=8)
def _table(content: bytes) -> pd.DataFrame:
    return pd.read_csv(BytesIO(content), low_memory=False)


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
    return f"run `{' '.join(['python -m harness figures', str(claim.figure), *options])}`"
