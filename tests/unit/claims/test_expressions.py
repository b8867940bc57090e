"""Values of claims, from tables small enough to read off."""

from __future__ import annotations

import math

import pandas as pd
import pytest

from harness.claims.expressions import PAIRS, Beyond, Found, crossing, evaluate, ratio
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


def values(expression: dict[str, object], table: pd.DataFrame) -> dict[int, float]:
    return evaluate(expression, table).values


def of(system: str) -> dict[str, object]:
    return {"crossing": {"x": "models", "y": "token", "where": {"system": system}}}


def test_a_crossing_lies_between_the_points_around_ninety_per_cent() -> None:
    assert values(of("a"), TABLE) == pytest.approx({0: 25.0, 1: 20.0})


def test_a_crossing_that_begins_below_is_undefined() -> None:
    found = values(of("b"), TABLE)
    assert found[0] == pytest.approx(15.0)
    assert math.isnan(found[1])


def test_the_end_of_a_curve_that_never_falls_is_beyond_what_was_tried() -> None:
    rows = pd.DataFrame({"x": [1, 2], "y": [1.0, 0.9]})
    end = crossing(rows, "x", "y")
    assert (end, type(end)) == (2.0, Beyond)


def found(*values: float) -> Found:
    return Found(dict(enumerate(values)), frozenset())


def test_what_is_known_of_values_beyond_what_was_tried() -> None:
    bound = ratio([Beyond(3.0), 2.0])
    assert (bound, type(bound)) == (1.5, Beyond)
    assert math.isnan(ratio([3.0, Beyond(2.0)]))  # it may be any smaller
    assert type(ratio([3.0, 2.0])) is float
    largest = PAIRS["most"]([found(Beyond(1.0)), found(2.0)]).values[0]
    assert (largest, type(largest)) == (2.0, Beyond)
    assert type(PAIRS["least"]([found(Beyond(3.0)), found(2.0)]).values[0]) is float
    assert type(PAIRS["least"]([found(Beyond(1.0)), found(2.0)]).values[0]) is Beyond
    assert math.isnan(PAIRS["least"]([found(math.nan), found(2.0)]).values[0])


def test_one_setup_is_chosen_for_all_seeds_by_the_mean() -> None:
    """The best of each seed would be 9 and 8, which no setup reaches."""
    setups = [found(9.0, 1.0), found(2.0, 8.5), found(5.0, 5.1)]
    assert PAIRS["most"](setups).values == {0: 2.0, 1: 8.5}
    assert PAIRS["least"](setups).values == {0: 9.0, 1: 1.0}


def test_one_rate_is_chosen_for_all_seeds_by_the_mean() -> None:
    table = pd.DataFrame(
        [(1, 0, 9.0), (1, 1, 1.0), (2, 0, 2.0), (2, 1, 8.5), (3, 0, 99.0), (3, 1, math.nan)],
        columns=["rate", "seed", "y"],
    )
    asked = {"column": "y", "over": ["rate"]}
    best = evaluate({"highest": asked}, table)
    assert best.values == {0: 2.0, 1: 8.5}, "the third has no value of one seed"
    assert table.loc[sorted(best.rows)].rate.tolist() == [2, 2]
    assert values({"lowest": asked}, table) == {0: 9.0, 1: 1.0}
    assert values({"highest": {"column": "y", "where": {"rate": 1}}}, table) == {0: 9.0, 1: 1.0}


def test_a_choice_whose_end_was_not_found_counts_with_its_bound() -> None:
    """Rate 3 is at least 7, or at least 1: then the lowest may be any higher than that bound."""
    rows = [(1, 0, 5.0, 5.0), (2, 0, 2.0, 2.0), (3, 0, math.nan, 7.0)]
    table = pd.DataFrame(rows, columns=["rate", "seed", "y", "y_at_least"])
    asked = {"column": "y", "at_least": "y_at_least", "over": ["rate"]}

    def known(name: str, bound: float) -> tuple[float, type[float]]:
        table.loc[2, "y_at_least"] = bound
        value = values({name: asked}, table)[0]
        return value, type(value)

    assert known("highest", 7.0) == (7.0, Beyond)
    assert known("highest", 3.0) == (5.0, Beyond), "rate 3 may be above 5"
    assert known("lowest", 7.0) == (2.0, float)
    assert known("lowest", 1.0) == (1.0, Beyond)
    with pytest.raises(UsageError, match=r"at_least goes with highest\.over"):
        evaluate({"highest": {"column": "y", "at_least": "y_at_least"}}, table)


def test_refused_runs_end_a_curve() -> None:
    rows = pd.DataFrame({"x": [16, 32, 48], "y": [1.0, 1.0, None]})
    assert crossing(rows, "x", "y") == 32.0


def test_ratios_go_seed_by_seed_and_constants_with_each() -> None:
    assert values({"ratio": [of("a"), {"constant": 10}]}, TABLE) == pytest.approx({0: 2.5, 1: 2.0})
    assert values({"ratio": [of("a"), of("b")]}, TABLE)[0] == pytest.approx(25 / 15)


def test_the_most_of_several_setups() -> None:
    mean = {"mean": {"column": "token", "where": {"system": "a", "models": 30}}}
    other = {"mean": {"column": "token", "where": {"system": "b", "models": 30}}}
    assert values({"most": [mean, other]}, TABLE) == {0: 0.85, 1: 0.80}


def test_means_are_compared_where_both_have_points() -> None:
    rows = pd.DataFrame(
        [("a", 0, 10, 0.8), ("a", 0, 20, 0.6), ("a", 0, 25, 0.1), ("a", 1, 10, 0.9),
         ("b", 0, 10, 0.4), ("b", 0, 20, 0.6), ("b", 0, 90, 0.0), ("b", 0, 95, None),
         ("b", 1, 10, 0.3), ("b", 2, 10, 0.3)],
        columns=["system", "seed", "models", "token"],
    )  # fmt: skip
    where = [{"system": "a"}, {"system": "b"}]
    expression = {"ratio_of_means": {"x": "models", "column": "token", "where": where}}
    assert values(expression, rows) == pytest.approx({0: 1.4, 1: 3.0})
    apart = [{"system": "a", "models": 25}, {"system": "b"}]
    with pytest.raises(UsageError, match="two means have no models in common"):
        evaluate({"ratio_of_means": {"x": "models", "column": "token", "where": apart}}, rows)


def test_points_that_lie_close_do_not_count_more_in_a_ratio_of_means() -> None:
    def ratio(models: list[int]) -> float:
        curves = {"a": [2.0 - n / 100 for n in models], "b": [1.0] * len(models)}
        parts = [pd.DataFrame({"system": s, "x": models, "y": y}) for s, y in curves.items()]
        where = [{"system": "a"}, {"system": "b"}]
        table = pd.concat(parts, ignore_index=True)
        return values({"ratio_of_means": {"x": "x", "column": "y", "where": where}}, table)[0]

    assert ratio([0, 100]) == pytest.approx(1.5)
    assert ratio([0, 90, 92, 94, 96, 100]) == pytest.approx(1.5)
    assert ratio([100]) == pytest.approx(1.0)


def test_the_rows_that_a_value_comes_from() -> None:
    def rows(expression: dict[str, object]) -> list[int]:
        return sorted(evaluate(expression, TABLE).rows)

    first, last = ({"system": "a", "models": 30}, {"system": "b", "models": 30})
    means = {"ratio_of_means": {"x": "models", "column": "token", "where": [first, last]}}
    mean = {"mean": {"column": "token", "where": first}}
    assert rows(means) == [2, 5, 8, 11]
    assert rows({"most": [mean, {"constant": 0}]}) == [2, 5], "of the one that is chosen"
    assert rows({"ratio": [mean, {"constant": 1}]}) == [2, 5]
    assert rows({"mean": {"column": "token"}}) == list(range(12))


def test_a_cell_is_one_row() -> None:
    where = {"system": "a", "seed": 0, "models": 20}
    assert values({"cell": {"column": "token", "where": where}}, TABLE) == {0: 0.95}
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
