"""Values of claims, from tables small enough to read off."""

from __future__ import annotations

import math

import pandas as pd
import pytest

from harness.claims.expressions import crossing, evaluate
from harness.errors import UsageError

TABLE = pd.DataFrame(
    [
        # system, seed, models, token
        ("a", 0, 10, 1.0), ("a", 0, 20, 0.95), ("a", 0, 30, 0.85),
        ("a", 1, 10, 1.0), ("a", 1, 20, 0.90), ("a", 1, 30, 0.80),
        ("b", 0, 10, 0.95), ("b", 0, 20, 0.85), ("b", 0, 30, 0.1),
        ("b", 1, 10, 0.89), ("b", 1, 20, 0.95), ("b", 1, 30, 0.1),
    ],
    columns=["system", "seed", "models", "token"],
)  # fmt: skip


def of(system: str) -> dict[str, object]:
    return {"crossing": {"x": "models", "y": "token", "where": {"system": system}}}


def test_a_crossing_lies_between_the_points_around_ninety_per_cent() -> None:
    assert evaluate(of("a"), TABLE) == pytest.approx({0: 25.0, 1: 20.0})


def test_a_crossing_that_begins_below_is_undefined() -> None:
    found = evaluate(of("b"), TABLE)
    assert found[0] == pytest.approx(15.0)
    assert math.isnan(found[1])


def test_the_end_of_a_curve_that_never_falls_is_beyond_what_was_tried() -> None:
    rows = pd.DataFrame({"x": [1, 2], "y": [1.0, 0.9]})
    assert crossing(rows, "x", "y") == math.inf


def test_refused_runs_end_a_curve() -> None:
    rows = pd.DataFrame({"x": [16, 32, 48], "y": [1.0, 1.0, None]})
    assert crossing(rows, "x", "y") == 32.0


def test_ratios_go_seed_by_seed_and_constants_with_each() -> None:
    assert evaluate({"ratio": [of("a"), {"constant": 10}]}, TABLE) == pytest.approx(
        {0: 2.5, 1: 2.0}
    )
    assert evaluate({"ratio": [of("a"), of("b")]}, TABLE)[0] == pytest.approx(25 / 15)


def test_the_most_of_several_setups() -> None:
    mean = {"mean": {"column": "token", "where": {"system": "a", "models": 30}}}
    other = {"mean": {"column": "token", "where": {"system": "b", "models": 30}}}
    assert evaluate({"most": [mean, other]}, TABLE) == {0: 0.85, 1: 0.80}


def test_a_cell_is_one_row() -> None:
    where = {"system": "a", "seed": 0, "models": 20}
    assert evaluate({"cell": {"column": "token", "where": where}}, TABLE) == {0: 0.95}
    with pytest.raises(UsageError, match="must be one row, and 3 match"):
        evaluate({"cell": {"column": "token", "where": {"system": "a", "seed": 0}}}, TABLE)


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ({"median": {}}, "no function median .* there are cell, constant, crossing"),
        ({"mean": {"column": "token", "where": {"sytem": "a"}}}, "no column sytem; it has system"),
        ({}, "one function, not none"),
    ],
)
def test_what_is_wrong_with_an_expression_is_told(
    expression: dict[str, object], words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        evaluate(expression, TABLE)
