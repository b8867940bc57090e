"""results/claims/PAPER.yaml: what a paper claims, and how our value of it is computed."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from harness.claims.expressions import check
from harness.configuration.checks import require
from harness.configuration.config import typed
from harness.errors import UsageError, first_line
from harness.files import YamlLoader

MAX_DEPTH = 30  # of a ledger: an expression has 5; Python's own limit comes much later
FIGURE = re.compile(r"[A-Za-z0-9_]{1,100}")
RELATIONS = ("about", "at_least", "at_most", "up_to")
EFFECTS = ("ratio", "saving")
CAUSES = {
    "inputs": "inputs are not published",
    "contradiction": "the paper contradicts itself",
    "model": "a limit of our model",
    "hardware": "other hardware",
    "unknown": "unknown",
}


@dataclass(kw_only=True, slots=True)
class Claim:
    """One published number, or a range of two. With no `value`, `reason` says why it is not
    attempted."""

    id: str
    section: str  # of the paper; "slides" where only they have it
    quantity: str
    published: Any  # a number, or [lowest, highest]
    unit: str
    relation: str = "about"  # how ours should stand to it: about, at_least, at_most or up_to
    tolerance: float = 0.0  # relative to `published`; of a share to its small side
    effect: str | None = None  # ratio or saving: what of two systems it compares; None: nothing
    figure: str | None = None  # whose CSV holds what `value` is computed from
    value: Any = None  # an expression (harness.claims.expressions), or one for each end of a range
    our_reading: bool = False  # `published` or its tolerance is ours: the paper gives words
    setting: bool = False  # the paper sets it, or it is a fact about others; `reason` says which
    exact: bool = False  # nothing of it is drawn at random: one value will do
    at_rest: bool = False  # it is about a mechanism that does not run: that is no fault
    repeats: str | None = None  # the id of the same claim, which is judged
    reading_of: str | None = None  # the id of the claim that this reads otherwise
    given: str | None = None  # the id of a claim that says a condition of this one
    by_construction: str | None = None  # why no run could show it false: it is no evidence
    headline: bool = False  # one of the paper's ten
    cause: str = ""  # one of CAUSES: why it is not reproduced or not attempted
    reason: str = ""  # what a reader should know: of inputs, of causes as far as known
    paper: str = ""  # whose it is; set when its ledger is read

    def __post_init__(self) -> None:
        this = f"claim {self.id}"
        effects, causes = (None, *EFFECTS), ("", *CAUSES)
        for key, valid in (("relation", RELATIONS), ("effect", effects), ("cause", causes)):
            given, named = getattr(self, key), ", ".join(filter(None, valid))
            require(given in valid, f"{this}: {key}={given} is not one of {named}")
        ends = _listed(self.published)
        numbers = len(ends) in (1, 2) and all(_is_number(end) for end in ends)
        require(numbers, f"{this}: published={self.published} is no number or two")
        require(ends == sorted(ends), f"{this}: published={self.published} is no range")
        require(self.tolerance >= 0, f"{this}: tolerance={self.tolerance} is below 0")
        known = self.figure is None or FIGURE.fullmatch(self.figure)
        require(known, f"{this}: figure={self.figure} is no figure's name")
        for expression in self.expressions:
            check(expression)
        some = self.value is None or self.expressions
        require(some, f"{this}: value={self.value} is no expression")
        one_each = len(self.expressions) <= len(ends)
        require(one_each, f"{this} has two values and no range to compare them with")
        if self.value is None:
            told = self.reason or self.repeats is not None
            require(told, f"{this} has no value, and no reason why")
        else:
            computed = self.figure is not None
            require(computed, f"{this} has a value and no figure to compute it from")
            judged = not self.setting and self.repeats is None
            require(judged, f"{this} has a value, and is a setting or repeated")

    @property
    def sentence(self) -> tuple[str, str]:
        """The same for all readings of one sentence of a paper."""
        return self.paper, self.reading_of or self.id

    @property
    def ends(self) -> tuple[float, ...]:
        """The published number, or the two of a range."""
        return tuple(map(float, _listed(self.published)))

    @property
    def expressions(self) -> list[Any]:
        """The expressions that give our value, or both of them."""
        return [] if self.value is None else _listed(self.value)


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


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
class Comparison:
    """Of what a figure compares. Each is a sentence."""

    regime: str  # where our runs are outside of the paper's regime; "the paper's" where nowhere
    control: str  # what stands on the other side, and what both have alike
    counter: str  # what would have shown the claims false, and whether it came


@dataclass(kw_only=True, slots=True)
class Paper:
    title: str
    venue: str
    short: str = ""  # its system's name
    note: str = ""  # on all of them
    variations: Variations = field(default_factory=lambda: Variations(figures=[], systems={}))
    comparisons: dict[str, Comparison] = field(default_factory=dict)  # by figure
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


def read_plain(path: Path) -> Any:
    """A YAML file as plain data: texts, numbers, truth values, lists, and mappings by text. Raises
    UsageError for anything else, aliases included, for they can make a small file large or a value
    part of itself."""
    try:
        text = path.read_text(encoding="utf-8")
        _check_shape(text)
        content = yaml.load(text, YamlLoader)
    except (OSError, ValueError, yaml.YAMLError) as error:
        words = " ".join(str(error).split()) or first_line(error)
        raise UsageError(f"{path.name} cannot be read as YAML: {words}") from error
    _check_plain(content, path.name)
    return content


def _check_shape(text: str) -> None:
    depth = 0
    for event in yaml.parse(text, YamlLoader):
        if isinstance(event, yaml.AliasEvent):
            raise ValueError(f"the alias *{event.anchor} is not read: write out what it stands for")
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_DEPTH:
            raise ValueError(f"it is nested more than {MAX_DEPTH} levels deep")


def _check_plain(value: Any, where: str) -> None:
    if isinstance(value, dict):
        for key, each in value.items():
            require(isinstance(key, str), f"{where} has the key {key!r}, which is no text")
            _check_plain(each, f"{where}, {key}")
    elif isinstance(value, list):
        for each in value:
            _check_plain(each, where)
    elif not isinstance(value, str | int | float | bool | None):
        raise UsageError(f"{where}: {value!r} is neither a text nor a number")


def load(path: Path) -> Paper:
    """Raises UsageError for a file that is no ledger, with the claim and what is wrong with it."""
    if not path.is_file():
        known = ", ".join(sorted(found.stem for found in path.parent.glob("*.yaml")))
        raise UsageError(f"there are no claims of {path.stem}; there are: {known or 'none'}")
    content = read_plain(path)
    if not isinstance(content, dict) or not isinstance(content.get("claims"), list):
        raise UsageError(f"{path.name} has no list of claims")
    claims = list[Claim]()
    for number, row in enumerate(content["claims"], start=1):
        if not isinstance(row, dict):
            raise UsageError(f"{path.name}: claim {number} is no mapping of its fields: {row!r}")
        where = f"{path.name}, {row.get('id', f'claim {number} without id')}"
        claims.append(typed(row, Claim, where))
        claims[-1].paper = path.stem
    paper = typed(content | {"claims": []}, Paper, path.name)
    paper.claims = claims
    names = [claim.id for claim in paper.claims]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise UsageError(f"{path.name} has two claims {', '.join(twice)}")
    _check_repeats(path.name, paper.claims)
    return paper


def _check_repeats(name: str, claims: list[Claim]) -> None:
    """One expression under one published number is judged once."""
    judged = {claim.id for claim in claims if claim.repeats is None}
    first: dict[str, str] = {}
    for claim in claims:
        for key in ("repeats", "reading_of", "given"):
            other = getattr(claim, key)
            known = other is None or other in judged
            require(known, f"{name}: claim {claim.id}: {key}={other} is no claim")
        if claim.value is not None:
            same = repr((claim.figure, claim.value, claim.published, claim.relation, claim.exact))
            of = first.setdefault(same, claim.id)
            one = f"{name}: claims {of} and {claim.id} are one: write repeats: {of}"
            require(of == claim.id, one)
