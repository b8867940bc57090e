"""results/claims/README.md: first how many claims hold, then each paper's headlines, then all.

And the tables on other pages, between two marks: README.md, and each system's README.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from harness.calibrate.tables import markdown_rows, page
from harness.claims import judging
from harness.claims.assess import BASE_PROFILE, Judged
from harness.claims.data import COLUMNS as DATA
from harness.claims.data import VERSION
from harness.claims.judging import JUDGED, TWICE, VERDICTS, Ours
from harness.claims.kinds import ARITHMETIC, KINDS
from harness.claims.ledger import CAUSES, Claim, Comparison, Paper
from harness.claims.record import share, tally
from harness.errors import UsageError

BEGIN, END = "<!-- claims: written by `python -m harness claims` -->", "<!-- /claims -->"
SIGN = {"about": "", "at_least": "≥ ", "at_most": "≤ ", "up_to": "up to "}
OTHER = "vllm_v1"  # the engine profile beside the base one
NOT_EXERCISED_TOO = "not exercised as failed"
PRINTED = "of printed numbers"  # the share without what the paper has in words alone
COUNTED = VERDICTS[:-2]  # of what has a value, or could have one
Papers = Mapping[str, tuple[Paper, Sequence[Judged]]]


def as_markdown(papers: Papers) -> str:
    return page(
        Path(__file__).with_name("templates") / "README.md",
        counts=counts(papers),
        kinds=_by_kind(papers),
        profiles=(BASE_PROFILE, OTHER),
        papers=list(papers.values()),
        rule=(judging.__doc__ or "").strip("\n"),
        headlines=headlines,
        our_readings=_our_readings,
        comparisons=_comparisons,
        claims=lambda judged: markdown_rows(COLUMNS, map(_columns, judged)),
        data=markdown_rows(
            ["column", "holds", "meaning"], ([f"`{name}`", *told] for name, told in DATA.items())
        ),
        version=VERSION,
    )


# --- how many


def counts(papers: Papers) -> list[str]:
    """A row for each paper and one for all of them."""
    head = ["paper", *VERDICTS, "reproduced or trend", PRINTED, NOT_EXERCISED_TOO]
    every = [each for _, judged in papers.values() for each in judged]
    rows = []
    named = [(paper.short, judged) for paper, judged in papers.values()]
    for name, judged in [*named, ("all", every)]:
        printed = [each for each in judged if not each.claim.our_reading]
        more = share(printed), share(judged, "not exercised")
        rows.append([*_counted(name, judged, VERDICTS), *map(_percent, more)])
    return markdown_rows(head, rows)


def _counted(name: str, judged: Sequence[Judged], verdicts: Sequence[str]) -> list[str]:
    found = tally(judged)
    return [name, *(str(found[each]) for each in verdicts), _percent(share(judged))]


def _by_kind(papers: Papers) -> list[str]:
    """What the verdicts rest on; simulated ones by both engine profiles."""
    every = [each for _, judged in papers.values() for each in judged]
    rows: dict[str, Sequence[Judged]] = {}
    for kind in KINDS:
        of_kind = [each for each in every if each.kind == kind]
        twice = [each for each in of_kind if OTHER in each.profiles]
        rows |= {kind: of_kind} if kind != "simulated" else {
            f"simulated, {BASE_PROFILE}": of_kind,
            f"of these with runs of both, {BASE_PROFILE}": twice,
            f"of these with runs of both, {OTHER}": [each.profiles[OTHER] for each in twice],
        }  # fmt: skip
    head = ["rests on", *COUNTED, "reproduced or trend"]
    return markdown_rows(head, (_counted(name, found, COUNTED) for name, found in rows.items()))


def _our_readings(judged: Sequence[Judged]) -> Iterator[str]:
    found = Counter(each.verdict for each in judged if each.claim.our_reading)
    if found:
        told = ", ".join(f"{found[verdict]} {verdict}" for verdict in VERDICTS if found[verdict])
        words = "the paper gives words only: the number or its tolerance is our reading"
        yield f"In {found.total()} of the claims {words} ({told})."


def _comparisons(comparisons: Mapping[str, Comparison]) -> list[str]:
    head = ["figure", "our regime beside the paper's", "control", "counter"]
    return markdown_rows(
        head, ([name, of.regime, of.control, of.counter] for name, of in comparisons.items())
    )


def _percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.0f} %"


# --- rows


def headlines(judged: Sequence[Judged]) -> list[str]:
    head = ["section", "claim", "paper", f"ours, {BASE_PROFILE}", "verdict", f"{OTHER}", "verdict"]
    return markdown_rows(head, (_headline(each) for each in judged if each.claim.headline))


def _headline(each: Judged) -> list[str]:
    claim, other = each.claim, each.profiles.get(OTHER)
    bold = "**" if differs(each) else ""
    return [
        claim.section,
        claim.quantity,
        published(claim),
        values(claim, each.ours),
        f"{bold}{verdict(each)}{bold}",
        values(claim, other.ours) if other else "",
        f"{bold}{verdict(other)}{bold}" if other else "",
    ]


def differs(each: Judged) -> bool:
    """Whether the other engine profile leads to another conclusion."""
    other = each.profiles.get(OTHER)
    return other is not None and other.verdict != each.verdict


COLUMNS = (
    "section", "quantity", "published", "ours (95 % interval)", "verdict", f"with {OTHER}", "seeds",
    "from", "notes",
)  # fmt: skip


def _columns(each: Judged) -> list[str]:
    claim, other = each.claim, each.profiles.get(OTHER)
    seeds = str(each.ours[0].num_seeds) if each.ours and not claim.exact else ""
    told = f"{values(claim, other.ours)}, {verdict(other)}".lstrip(", ") if other else ""
    return [
        claim.section,
        claim.quantity,
        published(claim),
        values(claim, each.ours),
        verdict(each),
        told,
        seeds,
        _origin(each),
        "; ".join(notes(each)),
    ]


def verdict(each: Judged) -> str:
    """The claim's verdict, with the share of the published effect where the claim compares."""
    if each.claim.repeats:
        return f"repeated: {each.claim.repeats}"
    if each.claim.reading_of:
        return f"{_verdict(each)} (another reading of {each.claim.reading_of})"
    return _verdict(each)


def _verdict(each: Judged) -> str:
    if each.effect is None or each.verdict not in JUDGED or not math.isfinite(each.effect):
        return each.verdict
    if each.effect > TWICE:
        return f"{each.verdict}, overshoots: {each.effect:.2g} x the effect"
    return f"{each.verdict}, {100 * each.effect:.0f} % of the effect"


def notes(each: Judged) -> Iterator[str]:
    """Other settings' values, why the verdict is what it is, and the ledger's reason."""
    claim = each.claim
    if each.varied:
        yield ", ".join(f"{name}: {_mean(ours, claim.unit)}" for name, ours in each.varied.items())
    if each.why:
        yield each.why
    if claim.by_construction:
        yield f"by construction: {claim.by_construction}"
    if claim.cause:
        yield f"*{CAUSES[claim.cause]}*"
    if claim.reason:
        yield claim.reason


def published(claim: Claim) -> str:
    ends = " to ".join(number(end) for end in claim.ends)
    told = f"{SIGN[claim.relation]}{ends} {claim.unit}".strip()
    return f"{told} (our reading)" if claim.our_reading else told


def values(claim: Claim, ours: Sequence[Ours]) -> str:
    return " to ".join(_interval(each, claim.unit) for each in ours)


def _interval(ours: Ours, unit: str) -> str:
    if ours.num_seeds < 2 or not ours.low < ours.high or ours.beyond or not ours.defined:
        return _mean(ours, unit)
    told = f"{number(ours.mean)} {unit} ({number(ours.low)}, {number(ours.high)})"
    return told.replace("  ", " ")


def _mean(ours: Ours, unit: str) -> str:
    if not ours.defined:
        return "undefined"
    return f"{'≥ ' if ours.beyond else ''}{number(ours.mean)} {unit}".strip()


def _origin(each: Judged) -> str:
    if each.source is None:
        return ""
    figure = str(each.claim.figure)
    link = f"[{figure}](../published/{figure.partition('_')[0]}/{figure}.png)"
    if each.kind in ARITHMETIC:
        return f"{link}: {each.kind}"
    git = [revision for revision in each.source["runs_git"] if revision]
    revisions = {one["revision"][:7] + ("+dirty" if one["dirty"] else "") for one in git}
    return f"{link}: {', '.join([each.kind, *each.source['hardware'], *sorted(revisions)])}"


# --- on other pages


def on_other_pages(papers: Papers, root: Path) -> dict[Path, str]:
    """The pages that have the marks, with the tables of today between them."""
    made = {root / "README.md": [*counts(papers), "", *_by_profile(papers)]}
    for name, each in papers.items():
        made[root / "systems" / name / "README.md"] = counts({name: each})[:3]
    return {path: _between(path, "\n".join(lines)) for path, lines in made.items()}


def _by_profile(papers: Papers) -> list[str]:
    """Headlines whose verdict depends on the engine profile."""
    head = ["paper", "headline", "published", "ours, eager_2024", "ours, vllm_v1"]
    rows = [
        [
            paper.short, each.claim.quantity, published(each.claim),
            f"{values(each.claim, each.ours)}: {verdict(each)}",
            f"{values(each.claim, other.ours)}: {verdict(other)}",
        ]
        for paper, judged in papers.values()
        for each in judged
        for other in each.profiles.values()
        if each.claim.headline and differs(each)
    ]  # fmt: skip
    if not rows:
        return ["No headline's verdict depends on the engine profile."]
    return [
        "Headlines whose verdict depends on the simulated engine:",
        "",
        *markdown_rows(head, rows),
    ]


def _between(path: Path, text: str) -> str:
    page = path.read_text(encoding="utf-8")
    before, begun, rest = page.partition(BEGIN)
    _, ended, after = rest.partition(END)
    if not (begun and ended):
        raise UsageError(f"{path.name} has no place for the claims between {BEGIN} and {END}")
    return f"{before}{BEGIN}\n{text}\n{END}{after}"


# --- cells


def number(value: float) -> str:
    return f"{value:,.4g}" if abs(value) < 10_000 else f"{value:,.0f}"
