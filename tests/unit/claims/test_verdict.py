"""The rule that turns a value into a verdict, and the interval that it looks at."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.claims.__main__ import judged
from harness.claims.expressions import Beyond
from harness.claims.judging import Ours, estimate, judge
from harness.claims.ledger import Claim
from harness.claims.render import Judged


def claim(**given_values: Any) -> Claim:
    values: dict[str, Any] = {
        "id": "c", "section": "1", "quantity": "q", "published": 2.0, "unit": "x",
        "tolerance": 0.1, "trend": 1.0, "figure": "f", "value": {"constant": 0},
    }  # fmt: skip
    return Claim(**values | given_values)


def ours(mean: float, low: float | None = None, high: float | None = None, n: int = 3) -> Ours:
    return Ours(mean, mean if low is None else low, mean if high is None else high, n)


@pytest.mark.parametrize(
    ("relation", "mean", "verdict"),
    [
        ("about", 2.19, "reproduced"),
        ("about", 2.21, "trend only"),
        ("about", 1.81, "reproduced"),
        ("about", 1.79, "trend only"),
        ("about", 0.99, "not reproduced"),
        ("at_least", 9.0, "reproduced"),
        ("at_least", 1.79, "trend only"),
        ("at_most", 0.1, "reproduced"),
        ("at_most", 2.21, "trend only"),
    ],
)
def test_a_value_is_held_against_the_claim_and_then_against_its_trend(
    relation: str, mean: float, verdict: str
) -> None:
    assert judge(claim(relation=relation), ours(mean)) == verdict


def test_a_trend_needs_the_whole_interval_on_its_side() -> None:
    assert judge(claim(), ours(1.5, low=1.01)) == "trend only"
    assert judge(claim(), ours(1.5, low=0.99)) == "not reproduced"
    low_is_good = claim(relation="at_most", published=0.2, trend=None, trend_below=0.5)
    assert judge(low_is_good, ours(0.3, high=0.49)) == "trend only"
    assert judge(low_is_good, ours(0.3, high=0.51)) == "not reproduced"


def test_what_lies_beyond_what_was_tried_counts_by_that_and_for_at_least_alone() -> None:
    beyond = claim(relation="at_least", tolerance=0.0)
    assert judge(beyond, estimate([2.1, 2.5, Beyond(2.0)])) == "reproduced"
    assert judge(beyond, estimate([Beyond(1.4)] * 3)) == "trend only"
    assert judge(beyond, estimate([0.5, 2.5, Beyond(2.0)])) == "not reproduced"
    for relation in ("about", "at_most"):
        other = claim(relation=relation, trend=None, trend_below=3.0)
        assert judge(other, estimate([2.0, 2.0, 2.0])) == "reproduced"
        assert judge(other, estimate([2.0, 2.0, Beyond(2.0)])) == "not reproduced"


def test_two_seeds_are_no_attempt_unless_nothing_is_drawn() -> None:
    assert judge(claim(), ours(2.0, n=2)) == "not attempted"
    assert judge(claim(exact=True), ours(2.0, n=1)) == "reproduced"


def test_an_undefined_value_reproduces_nothing() -> None:
    assert judge(claim(), estimate([float("nan"), 2.0, 2.0])) == "not reproduced"


def test_a_value_beyond_what_was_tried_shows_a_trend_but_no_number() -> None:
    beyond = estimate([float("inf"), 3.0, float("inf")])
    assert judge(claim(), beyond) == "trend only"
    assert judge(claim(trend=4.0), beyond) == "not reproduced"
    assert judge(claim(relation="at_least"), beyond) == "reproduced"


@given(st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=8))
def test_the_interval_lies_within_the_range_and_around_the_mean(values: list[float]) -> None:
    found = estimate(values)
    slack = 1e-9 * (1 + abs(found.mean))
    assert min(values) - slack <= found.low <= found.high <= max(values) + slack
    assert found.low - slack <= found.mean <= found.high + slack or len(set(values)) > 1
    assert found.mean == pytest.approx(np.mean(values))


def test_the_interval_of_many_values_is_that_of_a_mean() -> None:
    values = np.random.default_rng(1).normal(5.0, 1.0, 100)
    found = estimate(values.tolist())
    assert found.high - found.low == pytest.approx(2 * 1.96 * values.std() / 10, rel=0.1)


def test_a_claim_that_rests_on_an_invalid_run_has_no_verdict(tmp_path: Path) -> None:
    rows = [
        {"experiment": "e", "system": name, "seed": seed, "token": 2.0, "valid": valid}
        for name, valid in (("ours", True), ("theirs", False))
        for seed in (0, 1, 2)
    ]
    pd.DataFrame(rows).to_csv(tmp_path / "f.csv", index=False)
    (tmp_path / "f.json").write_text('{"engines": [], "hardware": [], "runs_git": []}')

    def of(name: str) -> Judged:
        cell = {"cell": {"column": "token", "where": {"system": name}}}
        return judged(claim(value=cell), tmp_path)

    assert of("ours").verdict == "reproduced"
    found = of("theirs")
    assert (found.verdict, found.ours) == ("not attempted", None)
    assert found.why == (
        "rests on INVALID runs (3), the first: experiment e, system theirs, seed 0; "
        "run `python -m harness.experiments.figures f --again`"
    )
