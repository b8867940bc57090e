"""The tables of claims on other pages, between two marks: README.md, and each system's README."""

from __future__ import annotations

from pathlib import Path

from harness.claims.page import Papers, counts, differs, published, table, values, verdict
from harness.errors import UsageError

BEGIN, END = "<!-- claims: written by `python -m harness claims` -->", "<!-- /claims -->"


def written(papers: Papers, root: Path) -> dict[Path, str]:
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
    return ["Headlines whose verdict depends on the simulated engine:", "", *table(head, rows)]


def _between(path: Path, text: str) -> str:
    page = path.read_text(encoding="utf-8")
    before, begun, rest = page.partition(BEGIN)
    _, ended, after = rest.partition(END)
    if not (begun and ended):
        raise UsageError(f"{path.name} has no place for the claims between {BEGIN} and {END}")
    return f"{before}{BEGIN}\n{text}\n{END}{after}"
