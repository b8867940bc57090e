"""Claims and verdicts as results/claims/README.md and as one JSON file for each paper."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from harness.claims import judging
from harness.claims.judging import Ours
from harness.claims.ledger import Claim, Paper

SIGN = {"about": "", "at_least": "≥ ", "at_most": "≤ "}
COLUMNS = (
    "section", "quantity", "published", "ours (95 % interval)", "seeds", "verdict", "from", "notes",
)  # fmt: skip
KINDS = {
    "arithmetic": "arithmetic: no run of ours",
    "simulated": "simulated",
    "live": "live: on a real engine",
}
ORDER = ("reproduced", "trend only", "not reproduced", "not attempted", "no result")
JUDGED = ORDER[:3]


@dataclass(slots=True)
class Judged:
    claim: Claim
    ours: Ours | None
    verdict: str
    why: str  # of a claim that was not attempted, how to; else the claim's own remark
    source: Mapping[str, Any] | None  # the figure's provenance, as far as it can be of its own rows
    varied: Mapping[str, Ours] = field(default_factory=dict)  # ours with a system set otherwise
    profiles: Mapping[str, Judged] = field(default_factory=dict)  # by another engine profile


def as_json(paper: str, judged: Sequence[Judged]) -> dict[str, Any]:
    return {"paper": paper, "claims": [_row(each) for each in judged]}


def _row(each: Judged) -> dict[str, Any]:
    claim, ours, source = each.claim, each.ours, each.source or {}
    return {
        "id": claim.id,
        "section": claim.section,
        "quantity": claim.quantity,
        "published": claim.published,
        "unit": claim.unit,
        "relation": claim.relation,
        "tolerance": claim.tolerance,
        "our_reading": claim.our_reading,
        "ours": _finite(ours.mean) if ours else None,
        "ci95": [_finite(ours.low), _finite(ours.high)] if ours else None,
        "num_seeds": ours.num_seeds if ours else 0,
        "verdict": each.verdict,
        "varied": {label: _finite(ours.mean) for label, ours in each.varied.items()},
        "profiles": {
            name: {
                "ours": _finite(other.ours.mean) if other.ours else None,
                "verdict": other.verdict,
            }
            for name, other in each.profiles.items()
        },
        "why": each.why,
        "figure": claim.figure,
        "engines": _engines(each) if each.source else None,
        "hardware": source.get("hardware"),
        "synthetic": source.get("synthetic"),
        "git": source.get("runs_git"),
    }


def as_markdown(papers: Mapping[str, tuple[Paper, Sequence[Judged]]]) -> str:
    lines = ["# Do the papers' claims reproduce?", "", *_summary(papers), ""]
    lines += ["Written by `python -m harness claims`. The rule behind a verdict:", "", "```"]
    lines += (judging.__doc__ or "").partition("\n\n")[2].strip("\n").splitlines()
    lines += ["```"]
    for paper, judged in papers.values():
        counts = Counter(each.verdict for each in judged)
        tally = ", ".join(f"{counts[name]} {name}" for name in ORDER if counts[name])
        lines += ["", f"## {paper.title} ({paper.venue})", "", f"{len(judged)} claims: {tally}."]
        lines += _by_kind(judged)
        lines += _by_profile(judged)
        lines += ["", paper.note.strip()] if paper.note else []
        lines += ["", _cells(COLUMNS), _cells(["---"] * len(COLUMNS))]
        lines += [_cells(_columns(each)) for each in judged]
    return "\n".join(lines) + "\n"


def _summary(papers: Mapping[str, tuple[Paper, Sequence[Judged]]]) -> list[str]:
    """One row for each paper: how many of its claims have which verdict."""
    lines = [_cells(["paper", "claims", *ORDER]), _cells(["---"] * (len(ORDER) + 2))]
    for paper, judged in papers.values():
        counts = Counter(each.verdict for each in judged)
        name = paper.title.partition(":")[0]
        numbers = [len(judged), *(counts[verdict] for verdict in ORDER)]
        lines.append(_cells([name, *map(str, numbers)]))
    return lines


def _by_kind(judged: Sequence[Judged]) -> list[str]:
    """What the attempted claims rest on, as a table if there are any, and whose the claims' numbers
    are."""
    attempted = [each for each in judged if each.verdict in JUDGED]
    kinds = {name: [each for each in attempted if _kind(each) == name] for name in KINDS}
    head = ["", _cells(["from", "claims", *JUDGED]), _cells(["---"] * (len(JUDGED) + 2))]
    lines = head if attempted else []
    for name, found in kinds.items() if attempted else ():
        counts = Counter(each.verdict for each in found)
        numbers = [len(found), *(counts[verdict] for verdict in JUDGED)]
        lines.append(_cells([KINDS[name], *map(str, numbers)]))
    read = [each for each in judged if each.claim.our_reading]
    counts = Counter(each.verdict for each in read)
    tally = ", ".join(f"{counts[name]} {name}" for name in ORDER if counts[name])
    if read:
        words = "the paper gives words only: the number or its tolerance is our reading"
        lines += ["", f"In {len(read)} of the claims {words} ({tally})."]
    return lines


def _by_profile(judged: Sequence[Judged]) -> list[str]:
    """How many verdicts another engine profile changes."""
    lines = []
    for name in sorted({name for each in judged for name in each.profiles}):
        pairs = [(each, each.profiles[name]) for each in judged if name in each.profiles]
        moved = Counter(
            f"{each.verdict} to {other.verdict}"
            for each, other in pairs
            if each.verdict != other.verdict
        )
        tally = ", ".join(f"{count} from {change}" for change, count in moved.most_common())
        lines += [
            "",
            f"Simulated once more with `engine.profile={name}`: of {len(pairs)} claims "
            f"{moved.total()} get another verdict{f' ({tally})' if tally else ''}.",
        ]
    return lines


def _other_profiles(each: Judged) -> str:
    """Where the verdict is another one."""
    found = []
    for name, other in each.profiles.items():
        if other.verdict != each.verdict:
            value = f" {_mean(other.ours, each.claim.unit)}," if other.ours else ""
            found.append(f"with {name}:{value} {other.verdict}")
    return ", ".join(found)


def _kind(each: Judged) -> str:
    engines = set(_engines(each))
    if not engines:
        return "arithmetic"
    return "simulated" if engines == {"sim"} else "live"


def _engines(each: Judged) -> list[str]:
    """None where the value is arithmetic."""
    if each.claim.arithmetic or each.source is None:
        return []
    return list(each.source["engines"] or ())


def _columns(each: Judged) -> list[str]:
    claim, ours = each.claim, each.ours
    return [
        claim.section,
        claim.quantity,
        _published(claim),
        _interval(ours, claim.unit) if ours else "",
        str(ours.num_seeds) if ours and not claim.exact else "",
        each.verdict,
        _origin(each),
        "; ".join(filter(None, [_varied(each), _other_profiles(each), each.why])),
    ]


def _varied(each: Judged) -> str:
    unit = each.claim.unit
    return ", ".join(f"{label}: {_mean(ours, unit)}" for label, ours in each.varied.items())


def _mean(ours: Ours, unit: str) -> str:
    if math.isnan(ours.mean):
        return "undefined"
    return f"{'≥ ' if ours.beyond else ''}{_number(ours.mean)} {unit}".strip()


def _published(claim: Claim) -> str:
    number = f"{SIGN[claim.relation]}{_number(claim.published)} {claim.unit}".strip()
    return f"{number} (our reading)" if claim.our_reading else number


def _interval(ours: Ours, unit: str) -> str:
    if ours.beyond:
        return _mean(ours, unit) + ", beyond what was tried"
    if math.isnan(ours.mean) or ours.num_seeds == 1 or ours.low == ours.high:
        return _mean(ours, unit)
    return f"{_number(ours.mean)} {unit} ({_number(ours.low)} to {_number(ours.high)})"


def _origin(each: Judged) -> str:
    if each.source is None:
        return ""
    engines = ["simulated" if engine == "sim" else engine for engine in _engines(each)]
    parts = [*(engines or ["arithmetic"]), *each.source["hardware"]]
    revisions = {
        git["revision"][:7] + ("+dirty" if git["dirty"] else "")
        for git in each.source["runs_git"]
        if git
    }
    return f"[{each.claim.figure}](../published/{_path(each.claim)}): " + ", ".join(
        [*parts, *sorted(revisions)]
    )


def _path(claim: Claim) -> str:
    assert claim.figure is not None
    return f"{claim.figure.partition('_')[0]}/{claim.figure}.png"


def _number(value: float) -> str:
    return f"{value:,.4g}" if abs(value) < 10_000 else f"{value:,.0f}"


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _cells(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
