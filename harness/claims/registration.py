"""What of a claim is fixed before its verdict is looked at, and what of it was changed later.

results/claims/lock.json holds a digest of each claim's bounds and expression and of each figure's
settings. A claim whose digest is not the lock's was changed: `python -m harness claims` says which,
and demands a reason (--why), which goes to results/claims/changes.csv with the date and the
verdicts before and after.
"""

from __future__ import annotations

import ast
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from harness.claims.ledger import Claim, Paper

REGISTERED = (
    "published", "unit", "relation", "tolerance", "effect", "figure", "value", "our_reading",
    "exact", "at_rest", "setting", "repeats", "reading_of", "given", "by_construction",
    "headline",
)  # fmt: skip
DIGITS = 12  # of a sha256
HERE = Path(__file__).resolve().parent
IMPORTS = (ast.Import, ast.ImportFrom)
RULE_CODE = ("judging", "kinds", "expressions", "assess")
EXPERIMENTS = HERE.parents[1] / "conf" / "experiment"


@dataclass(slots=True)
class Change:
    """A row of changes.csv."""

    date: str
    paper: str
    claim: str  # or the figure whose settings are others
    what: str
    before: str
    after: str
    verdict_before: str
    verdict_after: str
    why: str


def registered(claim: Claim) -> dict[str, Any]:
    """The claim's fields that a verdict depends on and that are not the default."""
    fields = {name: getattr(claim, name) for name in REGISTERED}
    return {name: value for name, value in fields.items() if value not in (None, False, 0.0)}


def digest(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:DIGITS]


def code() -> str:
    """Digest of the rule as it is programmed, whatever its imports, comments and line breaks."""
    found = []
    for name in RULE_CODE:
        tree = ast.parse((HERE / f"{name}.py").read_text(encoding="utf-8"))
        found += [ast.dump(node) for node in tree.body if not isinstance(node, IMPORTS)]
    return digest(found)


@cache
def settings(experiments: tuple[str, ...]) -> str:
    """Digest of the files of conf/experiment that these experiments are made of: their own, and the
    options of their paper."""
    papers = sorted({name.split("_")[0] for name in experiments})
    paths = [EXPERIMENTS / f"{name}.yaml" for name in sorted(experiments)]
    paths += [path for paper in papers for path in sorted((EXPERIMENTS / paper).rglob("*.yaml"))]
    return digest([yaml.safe_load(path.read_text()) for path in paths if path.is_file()])


def lock(
    rule: int, papers: Mapping[str, Paper], figures: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """`figures`: the provenance of each, with its experiments and its runs by the hashes of their
    configurations."""
    return {
        "rule": f"{rule}, {code()}",
        "settings": {
            name: digest([settings(tuple(of.get("experiments", ()))), sorted(of.get("runs", ()))])
            for name, of in sorted(figures.items())
        },
        "variations": {name: digest(asdict(paper.variations)) for name, paper in papers.items()},
        "claims": {
            name: {claim.id: digest(registered(claim)) for claim in paper.claims}
            for name, paper in papers.items()
        },
    }


def changed(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(paper, claim or figure) whose digests differ, or that only one of the locks has."""
    old, new = _facts(before), _facts(now)
    return [fact for fact in {**old, **new} if old.get(fact) != new.get(fact)]


def _facts(lock: Mapping[str, Any]) -> dict[tuple[str, str], Any]:
    """Every digest of a lock by its paper and what it is of."""
    facts = {("", "rule"): lock.get("rule")}
    facts |= {(paper, "variations"): of for paper, of in lock.get("variations", {}).items()}
    for paper, claims in lock.get("claims", {}).items():
        facts |= {(paper, claim): of for claim, of in claims.items()}
    settings = lock.get("settings", {})
    return facts | {(figure.split("_")[0], figure): of for figure, of in settings.items()}


def differences(
    fact: str, old: Mapping[str, Any] | None, new: Mapping[str, Any] | None
) -> Iterator[tuple[str, str, str]]:
    """(what, before, after) of each registered field that differs; None: there is no such claim,
    both: `fact` is none."""
    if old is None and new is None:
        named = {"rule": "the rule", "variations": "the variations"}
        yield named.get(fact, "settings of its runs"), "", ""
    elif old is None or new is None:
        yield ("added", "", _text(new)) if old is None else ("removed", _text(old), "")
    else:
        for name in REGISTERED:
            if old.get(name) != new.get(name):
                yield name, _text(old.get(name)), _text(new.get(name))


def _text(value: Any) -> str:
    return "" if value is None else json.dumps(value, ensure_ascii=False)


def appended(path: Path, changes: Sequence[Change]) -> str:
    """The content of changes.csv with `changes` at its end."""
    before = [pd.read_csv(path, dtype=str, keep_default_na=False)] if path.is_file() else []
    table = pd.concat([*before, pd.DataFrame(changes)])
    return str(table.to_csv(index=False, lineterminator="\n"))
