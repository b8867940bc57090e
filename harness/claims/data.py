"""Claims and verdicts as one CSV: results/claims/claims.csv, and reproductions of others.

One row a claim. COLUMNS says what each column holds. A range has two published numbers, and two
values of ours if each end has its own: `published_to`, `ours_to` and so on hold the second, and are
empty otherwise. `values` are our values, one a seed, from which the verdict can be judged again:
`differences` does so. Other engine profiles are in PAPER.json alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pandas as pd

from harness.calibrate.tables import read_csv
from harness.claims.assess import Judged, conditional, figure_table
from harness.claims.expressions import Beyond, evaluate
from harness.claims.judging import JUDGED, MIN_SEEDS, RULE, VERDICTS, as_evidence, estimate, judge
from harness.claims.kinds import KINDS
from harness.claims.ledger import CAUSES, RELATIONS, Claim
from harness.errors import UsageError

SCHEMA = 1  # of the columns
COLUMNS = {  # name: (type, meaning)
    "paper": ("text", "the ledger's name: results/claims/PAPER.yaml"),
    "id": ("text", "of the claim in the ledger; with `paper` it is unique"),
    "sentence": ("text", "the id that all readings of one sentence share"),
    "section": ("text", "of the paper"),
    "quantity": ("text", "what is claimed"),
    "relation": (f"one of {', '.join(RELATIONS)}", "how ours should stand to it"),
    "published": ("number", "in `unit`; of a range the lowest"),
    "published_to": ("number or empty", "of a range the highest"),
    "unit": ("text or empty", "of all values of the row; x: a ratio; empty: a share or a count"),
    "tolerance": ("number", "relative to the published value (rule: README.md)"),
    "ours": ("number or empty", "the mean over seeds; empty: none, or undefined"),
    "ci95_low": ("number or empty", "the 95 % interval of the mean over seeds (Student's t)"),
    "ci95_high": ("number or empty", "its other end; empty with `ours`: unbounded"),
    "values": ("numbers, by `;`", "one a seed; `>=` before a number: at least so much"),
    "ours_to": ("number or empty", "as `ours`, of a range's highest"),
    "ci95_to_low": ("number or empty", "as `ci95_low`, of a range's highest"),
    "ci95_to_high": ("number or empty", "as `ci95_high`, of a range's highest"),
    "values_to": ("numbers, by `;`", "as `values`, of a range's highest"),
    "verdict": (f"one of {', '.join(VERDICTS)}", "by the rule (README.md)"),
    "effect": ("number or empty", "ours over the published one, where systems are compared"),
    "cause": (f"empty, or one of {', '.join(CAUSES)}", "why it is not reproduced or not attempted"),
    "rests_on": (f"empty, or one of {', '.join(KINDS)}", "what the value is made of"),
    "engine": ("names, by `;`", "of the runs"),
    "hardware": ("names, by `;`", "of the runs: options of conf/hardware"),
    "num_seeds": ("count", "of our value"),
    "code": ("revisions, by `;`", "of the runs, +dirty if it was not committed"),
    "version": ("text", "SCHEMA.RULE: of these columns, and of the rule behind the verdict"),
}  # fmt: skip
UNSEEN = ("not exercised", "not attempted")  # what values alone cannot tell
NEEDED = ("paper", "id", "values", "values_to", "verdict", "rests_on", "version")
VERSION = f"{SCHEMA}.{RULE}"
SEP = ";"


def as_csv(rows: Sequence[tuple[Judged, Path]]) -> str:
    """The CSV of claims, each with the folder of the tables that it was judged by."""
    made = pd.DataFrame([_row(*each) for each in rows], columns=list(COLUMNS))
    return str(made.to_csv(index=False, lineterminator="\n"))


def _row(each: Judged, folder: Path) -> dict[str, object]:
    claim, source = each.claim, each.source or {}
    found: dict[str, object] = {
        "paper": claim.paper, "id": claim.id, "sentence": claim.sentence[1],
        "section": claim.section, "quantity": claim.quantity, "relation": claim.relation,
        "unit": claim.unit, "tolerance": claim.tolerance, "verdict": each.verdict,
        "effect": None if each.effect is None else _number(each.effect), "cause": claim.cause,
        "rests_on": each.kind, "engine": _joined(source.get("engines")),
        "hardware": _joined(source.get("hardware")),
        "num_seeds": min((ours.num_seeds for ours in each.ours), default=0),
        "code": SEP.join(sorted({_revision(git) for git in source.get("runs_git", ()) if git})),
        "version": VERSION,
    }  # fmt: skip
    for suffix, end in zip(("", "_to"), claim.ends, strict=False):
        found[f"published{suffix}"] = end
    values = _values(claim, folder) if each.ours else []
    for suffix, ours, seeds in zip(("", "_to"), each.ours, values, strict=False):
        found[f"ours{suffix}"] = _number(ours.mean)
        found[f"ci95{suffix}_low"] = _number(ours.low)
        found[f"ci95{suffix}_high"] = _number(ours.high)
        found[f"values{suffix}"] = SEP.join(map(_told, seeds))
    return found


def _number(value: float) -> str:
    return f"{value:.6g}" if math.isfinite(value) else ""


def _joined(words: Sequence[str] | None) -> str:
    return SEP.join(map(str, words or ()))


def _revision(git: Mapping[str, object]) -> str:
    return str(git["revision"])[:12] + ("+dirty" if git["dirty"] else "")


def _values(claim: Claim, folder: Path) -> list[list[float]]:
    table = figure_table(folder / f"{claim.figure}.csv")
    return [list(evaluate(each, table).values.values()) for each in claim.expressions]


def _told(value: float) -> str:
    return f"{'>=' if isinstance(value, Beyond) else ''}{float(value)!r}"


# --- read again


def read(path: Path, needed: Sequence[str] = NEEDED) -> pd.DataFrame:
    """Texts. Raises UsageError for a file that lacks columns; NEEDED are those of `differences`."""
    return read_csv(path, needed=needed, dtype=str, keep_default_na=False)


def differences(
    rows: pd.DataFrame, claims: Mapping[tuple[str, str], Claim]
) -> Iterator[tuple[str, str]]:
    """(claim, what is wrong) of each row whose verdict is not what its values give by the rule.
    That a mechanism did not run, or that runs were INVALID, is not seen from values, and believed.
    Raises UsageError for a row of no claim, twice of one, or with what is no number."""
    judged: dict[tuple[str, str], str] = {}
    again: list[Judged] = []
    for row in rows.to_dict("records"):
        key = str(row["paper"]), str(row["id"])
        if key not in claims:
            raise UsageError(f"{'/'.join(key)} is no claim: results/claims/PAPER.yaml has them")
        if key in judged:
            raise UsageError(f"{'/'.join(key)} has two rows")
        if row["verdict"] not in VERDICTS:
            raise UsageError(f"{'/'.join(key)}: {row['verdict']} is none of {', '.join(VERDICTS)}")
        if row["version"] != VERSION:
            raise UsageError(f"{'/'.join(key)} is of version {row['version']}, not {VERSION}")
        judged[key] = str(row["verdict"])
        values = [_numbers(key, row[name]) for name in ("values", "values_to") if row[name]]
        if values and row["verdict"] not in UNSEEN:
            again.append(_judged(claims[key], values, str(row["rests_on"])))
        elif row["verdict"] in JUDGED:
            yield "/".join(key), f"{row['verdict']}, and no value"
    for paper in dict.fromkeys(each.claim.paper for each in again):
        for each in conditional([one for one in again if one.claim.paper == paper]):
            key = paper, each.claim.id
            if each.verdict != judged[key]:
                yield "/".join(key), f"{judged[key]}, its values give {each.verdict}"


def _judged(claim: Claim, values: Sequence[Sequence[float]], rests_on: str) -> Judged:
    live = rests_on.startswith("live")
    random = any(len(set(seeds)) > 1 for seeds in values)
    few = claim.exact and not live and not random
    made = judge(
        claim, [estimate(seeds) for seeds in values],
        1 if few else MIN_SEEDS["live" if live else "simulated"],
    )  # fmt: skip
    made = as_evidence(claim, made, rests_on)
    return Judged(claim, made.verdict, made.why, effect=made.effect)


def _numbers(key: tuple[str, str], told: str) -> list[float]:
    try:
        return [
            Beyond(word.removeprefix(">=")) if word.startswith(">=") else float(word)
            for word in told.split(SEP)
        ]
    except ValueError as error:
        raise UsageError(f"{'/'.join(key)}: {told} are no numbers by {SEP}") from error
