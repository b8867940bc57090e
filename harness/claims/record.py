"""Claims and verdicts as results/claims/PAPER.json, and how many there are of each."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from harness.claims.assess import Judged
from harness.claims.judging import JUDGED, RULE, VERDICTS
from harness.claims.registration import registered
from harness.files import read_json


def as_json(paper: str, judged: Sequence[Judged]) -> dict[str, Any]:
    return {"paper": paper, "rule": RULE, "claims": [_row(each) for each in judged]}


def _row(each: Judged) -> dict[str, Any]:
    claim, source = each.claim, each.source or {}
    return {
        "id": claim.id, "section": claim.section, "quantity": claim.quantity, "unit": claim.unit,
        "headline": claim.headline, "registered": registered(claim), **_value(each),
        "kind": each.kind,
        "varied": {label: _finite(ours.mean) for label, ours in each.varied.items()},
        "profiles": {name: _value(other) for name, other in each.profiles.items()},
        "cause": claim.cause,
        "reason": claim.reason,
        "engines": source.get("engines"),
        "hardware": source.get("hardware"),
        "synthetic": source.get("synthetic"),
        "git": source.get("runs_git"),
    }  # fmt: skip


def _value(each: Judged) -> dict[str, Any]:
    return {
        "verdict": each.verdict,
        "ours": [_finite(ours.mean) for ours in each.ours],
        "ci95": [[_finite(ours.low), _finite(ours.high)] for ours in each.ours],
        "beyond": any(ours.beyond for ours in each.ours),
        "num_seeds": min((ours.num_seeds for ours in each.ours), default=0),
        "effect": None if each.effect is None else _finite(each.effect),
        "why": each.why,
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def committed(ledgers: Path) -> dict[tuple[str, str], dict[str, Any]]:
    """The rows of every PAPER.json in `ledgers`, by paper and claim."""
    papers = {path.stem: path for path in ledgers.glob("*.json") if path.stem != "lock"}
    return {
        (name, row["id"]): row for name, path in papers.items() for row in read_json(path)["claims"]
    }


def tally(judged: Iterable[Judged]) -> Counter[str]:
    """Counts verdicts by sentence: of several readings of one, the worst that is judged counts."""
    by_sentence: dict[tuple[str, str], list[str]] = {}
    for each in judged:
        by_sentence.setdefault(each.claim.sentence, []).append(each.verdict)
    return Counter(_worst(verdicts) for verdicts in by_sentence.values())


def _worst(verdicts: Sequence[str]) -> str:
    found = [verdict for verdict in verdicts if verdict in JUDGED] or verdicts
    return max(found, key=VERDICTS.index)


def share(judged: Iterable[Judged], *more: str) -> float | None:
    """The share of the judged claims that are reproduced or show the trend; None: none is judged.
    more: verdicts that count as judged, too."""
    counts = tally(judged)
    total = sum(counts[verdict] for verdict in (*JUDGED, *more))
    return (counts["reproduced"] + counts["trend only"]) / total if total else None
