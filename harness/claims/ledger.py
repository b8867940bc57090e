"""results/claims/PAPER.yaml: what a paper claims, and how our value of it is computed."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.claims.grammar import check
from harness.claims.plain_yaml import read_plain
from harness.config import typed
from harness.errors import UsageError

FIGURE = re.compile(r"[A-Za-z0-9_]{1,100}")
RELATIONS = ("about", "at_least", "at_most")


@dataclass(kw_only=True, slots=True)
class Claim:
    """One published number. With no `value`, `reason` says why it is not attempted."""

    id: str
    section: str  # of the paper; "slides" where only they have it
    quantity: str
    published: float
    unit: str
    relation: str = "about"  # how ours should stand to it: about, at_least or at_most
    tolerance: float = 0.0  # relative to `published`
    trend: float | None = None  # ours above it shows the direction, where `relation` is missed
    trend_below: float | None = None  # the same for a value that should be low
    figure: str | None = None  # whose CSV holds what `value` is computed from
    value: Any = None  # an expression, see harness.claims.expressions
    our_reading: bool = False  # `published` or its tolerance is ours: the paper gives words
    no_result: bool = False  # the paper sets it, or it is a fact about others; `reason` says which
    arithmetic: bool = False  # no run gives `value`, though its figure also shows runs
    exact: bool = False  # nothing of it is drawn at random: one value will do
    reason: str = ""  # what a reader should know: of inputs, of causes as far as known

    def __post_init__(self) -> None:
        if self.relation not in RELATIONS:
            raise ValueError(
                f"claim {self.id}: relation={self.relation} is not one of {', '.join(RELATIONS)}"
            )
        if self.tolerance < 0:
            raise ValueError(f"claim {self.id}: tolerance={self.tolerance} is below 0")
        if self.figure is not None and not FIGURE.fullmatch(self.figure):
            raise ValueError(f"claim {self.id}: figure={self.figure} is no figure's name")
        if self.value is not None:
            check(self.value)
        if self.value is not None and self.figure is None:
            raise ValueError(f"claim {self.id} has a value and no figure to compute it from")
        if self.value is not None and self.no_result:
            raise ValueError(f"claim {self.id} has a value and no_result: leave out one of them")
        if self.value is None and not self.reason:
            raise ValueError(f"claim {self.id} has no value, and no reason why")


@dataclass(kw_only=True, slots=True)
class Variations:
    """Other settings of a system, with which each claim that compares with it is computed too."""

    figures: list[str]  # that have rows of them
    systems: dict[str, dict[str, str]]  # by the system that a claim names: {what differs: system}

    def of(self, claim: Claim) -> dict[str, Any]:
        """The claim's expression with each of them in the system's place, by what differs."""
        if claim.figure not in self.figures:
            return {}
        return {
            label: found
            for system, others in self.systems.items()
            for label, other in others.items()
            if (found := _with_system(claim.value, system, other)) != claim.value
        }


@dataclass(kw_only=True, slots=True)
class Paper:
    title: str
    venue: str
    note: str = ""  # on all of them
    variations: Variations = field(default_factory=lambda: Variations(figures=[], systems={}))
    claims: list[Claim] = field(default_factory=list)


def _with_system(expression: Any, old: str, new: str) -> Any:
    if isinstance(expression, dict):
        return {
            key: new if (key, value) == ("system", old) else _with_system(value, old, new)
            for key, value in expression.items()
        }
    if isinstance(expression, list):
        return [_with_system(each, old, new) for each in expression]
    return expression


def load(path: Path) -> Paper:
    """Raises UsageError for a file that is no ledger, with the claim and what is wrong with it."""
    if not path.is_file():
        known = ", ".join(sorted(found.stem for found in path.parent.glob("*.yaml")))
        raise UsageError(f"there are no claims of {path.stem}; there are: {known or 'none'}")
    content = read_plain(path)
    if not isinstance(content, dict) or not isinstance(content.get("claims"), list):
        raise UsageError(f"{path.name} has no list of claims")
    for number, row in enumerate(content["claims"], start=1):
        if not isinstance(row, dict):
            raise UsageError(f"{path.name}: claim {number} is no mapping of its fields: {row!r}")
        typed(row, Claim, f"{path.name}, {row.get('id', f'claim {number} without id')}")
    paper: Paper = typed(content, Paper, path.name)
    names = [claim.id for claim in paper.claims]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise UsageError(f"{path.name} has two claims {', '.join(twice)}")
    return paper
