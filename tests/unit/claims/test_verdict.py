"""Rule 3: from a value, and the interval around it, to a verdict."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import stdtrit

from harness.claims.expressions import Beyond
from harness.claims.judging import Ours, as_evidence, bounds, effect_share, estimate, judge
from harness.claims.kinds import kind, not_exercised, seldom
from harness.claims.ledger import Claim


def claim(**given_values: Any) -> Claim:
    values: dict[str, Any] = {
        "id": "c", "section": "1", "quantity": "q", "published": 2.0, "unit": "x",
        "tolerance": 0.1, "effect": "ratio", "figure": "f", "value": {"constant": 0},
    }  # fmt: skip
    return Claim(**values | given_values)


def ours(mean: float, low: float | None = None, high: float | None = None, n: int = 5) -> Ours:
    return Ours(mean, mean if low is None else low, mean if high is None else high, n)


def verdict(of: Claim, *found: Ours) -> str:
    return judge(of, found, 5).verdict


@pytest.mark.parametrize(
    ("relation", "low", "high", "expected"),
    [
        ("about", 1.91, 2.09, "reproduced"),
        ("about", 1.89, 2.05, "trend only"),  # the mean is within the tolerance
        ("about", 1.95, 2.11, "trend only"),
        ("up_to", 1.91, 2.09, "reproduced"),
        ("up_to", 2.11, 3.0, "trend only"),
        ("up_to", 2.11, 9.0, "weak"),
        ("at_least", 1.91, 9.0, "reproduced"),
        ("at_least", 1.89, 3.0, "trend only"),
        ("at_most", 0.1, 2.09, "reproduced"),
        ("at_most", 1.5, 2.11, "trend only"),
    ],
)
def test_the_whole_interval_must_satisfy_the_claim(
    relation: str, low: float, high: float, expected: str
) -> None:
    assert verdict(claim(relation=relation), ours((low + high) / 2, low, high)) == expected


@pytest.mark.parametrize(
    ("mean", "low", "expected"),
    [
        (1.5, 1.01, "trend only"),  # half of the effect
        (1.49, 1.2, "weak"),
        (2.99, 2.9, "trend only"),
        (3.01, 2.9, "weak"),  # more than twice the effect
        (1.5, 0.99, "not reproduced"),  # no effect is within the interval
        (0.8, 0.7, "not reproduced"),
    ],
)
def test_a_trend_needs_the_interval_on_its_side_and_half_of_the_effect(
    mean: float, low: float, expected: str
) -> None:
    assert verdict(claim(), ours(mean, low, mean + 0.01)) == expected


def test_the_effect_of_small_ratios_savings_and_large_ratios() -> None:
    assert effect_share(claim(), 1.5, [2.0]) == pytest.approx(0.5)
    assert effect_share(claim(), 0.5, [2.0]) == pytest.approx(-0.5)
    assert effect_share(claim(), 5.0, [25.0]) == pytest.approx(0.5)  # by logarithms
    assert effect_share(claim(), 0.5, [0.25]) == pytest.approx(0.5)
    assert effect_share(claim(), -1.0, [25.0]) == -math.inf
    saving = claim(effect="saving", unit="", published=0.8)
    assert effect_share(saving, 0.2, [0.8]) == pytest.approx(0.25)
    assert effect_share(claim(), 2.0, [1.0]) is None  # the claim says: no effect
    assert effect_share(claim(effect=None), 2.0, [2.0]) is None


def test_what_saves_less_than_published_below_one() -> None:
    low = claim(published=0.5)
    assert verdict(low, ours(0.6, 0.55, 0.65)) == "trend only"
    assert verdict(low, ours(0.9, 0.85, 0.95)) == "weak"
    assert verdict(low, ours(0.9, 0.85, 1.05)) == "not reproduced"


@pytest.mark.parametrize(
    ("published", "expected"),
    [
        (0.94, (0.931, 0.949)),  # 15 % of 0.06
        (0.06, (0.051, 0.069)),
        (0.5, (0.425, 0.575)),
        (1.0, (0.995, 1.005)),  # half of the last printed digit, of a hundredth at least
        (0.0, (-0.005, 0.005)),
        (0.9995, (0.99945 - 2.5e-5, 0.99955 + 2.5e-5)),
    ],
)
def test_a_share_is_compared_by_its_small_side(
    published: float, expected: tuple[float, float]
) -> None:
    share = claim(unit="", effect=None, published=published, tolerance=0.15)
    assert bounds(share, [published]) == pytest.approx(expected)
    percent = claim(unit="%", effect=None, published=100 * published, tolerance=0.15)
    assert bounds(percent, [100 * published]) == pytest.approx([100 * end for end in expected])


def test_a_number_beyond_one_is_no_share() -> None:
    number = claim(unit="", effect=None, published=2.0)
    assert bounds(number, [2.0]) == pytest.approx((1.8, 2.2))


@pytest.mark.parametrize(
    ("published", "expected"),
    [(1.2, (1.18, 1.22)), (2.0, (1.9, 2.1)), (9.0, (8.2, 9.8)), (0.25, (0.225, 0.275))],
)
def test_the_tolerance_of_a_ratio_of_systems_does_not_swallow_its_effect(
    published: float, expected: tuple[float, float]
) -> None:
    assert bounds(claim(published=published), [published]) == pytest.approx(expected)


def test_what_no_run_could_have_shown_false_is_no_evidence() -> None:
    put_in = claim(by_construction="a link's rate is put in, and read out")

    def found(mean: float, rests_on: str) -> str:
        return as_evidence(put_in, judge(put_in, [ours(mean)], 5), rests_on).verdict

    assert found(2.0, "simulated") == "by construction"
    assert found(2.5, "simulated") == "trend only", "what does not fit is told all the same"
    assert found(2.0, "live, GPU") == "reproduced"
    free = judge(claim(), [ours(2.0)], 5)
    assert as_evidence(claim(), free, "simulated") is free


def test_one_value_of_a_range_lies_between_its_ends() -> None:
    between = claim(published=[2, 4])
    assert verdict(between, ours(3.0, 1.91, 4.29)) == "reproduced"
    assert verdict(between, ours(3.0, 1.89, 4.0)) == "trend only"
    assert verdict(between, ours(1.2, 1.1, 1.3)) == "weak"
    assert verdict(between, ours(6.9)) == "trend only", "less than twice the stronger end's"
    assert verdict(between, ours(16.1)) == "weak"


def test_both_ends_of_a_range_must_be_reproduced() -> None:
    ends = claim(published=[2, 4], value=[{"constant": 1}, {"constant": 2}])
    assert verdict(ends, ours(2.0), ours(4.0)) == "reproduced"
    assert verdict(ends, ours(2.0), ours(2.5)) == "trend only"
    assert verdict(ends, ours(0.5), ours(4.0)) == "not reproduced"
    assert verdict(ends, ours(2.0), estimate([math.nan] * 5)) == "not attempted"
    assert judge(ends, [ours(2.0), ours(2.5)], 5).effect == pytest.approx(math.log(2.5, 4))


def test_beyond_what_was_tried_counts_where_it_decides() -> None:
    beyond = estimate([Beyond(2.0), 2.1, 2.5, 2.5, 2.5])
    assert (beyond.mean, beyond.high) == (2.0, math.inf)
    assert verdict(claim(relation="at_least"), beyond) == "reproduced"
    assert verdict(claim(relation="at_least", published=3.0), beyond) == "not attempted"
    assert verdict(claim(), beyond) == "not attempted"
    assert verdict(claim(published=1.5), beyond) == "trend only"  # at least twice the effect
    assert verdict(claim(published=1.4), beyond) == "weak"
    assert verdict(claim(relation="at_most", published=1.5), beyond) == "trend only"


def test_what_is_undefined_is_no_attempt() -> None:
    found = judge(claim(), [estimate([math.nan, 2.0, 2.0, 2.0, 2.0])], 5)
    assert (found.verdict, found.why) == ("not attempted", "undefined for 1 of 5 seeds")
    assert verdict(claim(), estimate([math.inf] * 5)) == "not attempted"


def test_few_seeds_are_no_attempt_unless_nothing_is_drawn() -> None:
    assert judge(claim(), [ours(2.0, n=4)], 5).why == "4 of 5 seeds"
    assert judge(claim(), [ours(2.0, n=1)], 1).verdict == "reproduced"


def test_what_comes_out_the_other_way_is_not_reproduced_however_near_it_is() -> None:
    near = claim(published=1.1, tolerance=0.85)
    assert verdict(near, ours(1.05, 1.02, 1.08)) == "reproduced"
    assert verdict(near, ours(0.95, 0.94, 0.96)) == "not reproduced"
    assert verdict(claim(published=1.1, relation="at_most"), ours(0.95, 0.9, 1.0)) == "reproduced"


def test_a_bound_has_no_slack_for_its_last_digit() -> None:
    share = claim(unit="", effect=None, published=0.02, relation="at_most", tolerance=0)
    assert bounds(share, [0.02])[1] == pytest.approx(0.02)


@given(st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=8))
def test_the_interval_is_students_t(values: list[float]) -> None:
    found = estimate(values)
    error = np.std(values, ddof=1) / len(values) ** 0.5
    reach = stdtrit(len(values) - 1, 0.975) * error
    assert found.mean == pytest.approx(np.mean(values), abs=1e-9)
    assert found.high - found.mean == pytest.approx(reach, abs=1e-9)
    assert found.mean - found.low == pytest.approx(reach, abs=1e-9)


def test_the_interval_holds_the_mean_as_often_as_it_says() -> None:
    """With five seeds of a normal law; min to max would hold it in 94 of 100, of three in 75."""
    drawn = np.random.default_rng(0).normal(size=(2000, 5))
    held = [found.low <= 0 <= found.high for found in map(estimate, drawn.tolist())]
    assert np.mean(held) == pytest.approx(0.95, abs=0.015)


# --- what the rows tell


def rows(**columns: list[Any]) -> pd.DataFrame:
    return pd.DataFrame({"config_hash": ["h"] * len(next(iter(columns.values())))} | columns)


def test_equal_sides_are_no_comparison() -> None:
    same = [{0: 1.0, 1: 1.0}]
    assert "equal to the last digit" in not_exercised(claim(), same, rows(y=[1, 1]))
    assert not_exercised(claim(), [{0: 1.0, 1: 1.0000001}], rows(y=[1, 1])) == ""
    ends = [{0: 2.0, 1: 3.0}, {0: 2.0, 1: 3.0}]
    assert "both ends" in not_exercised(claim(), ends, rows(y=[1, 1]))
    assert not_exercised(claim(), [ends[0], {0: 2.0, 1: 3.1}], rows(y=[1, 1])) == ""
    saving = claim(effect="saving", unit="")
    assert "equal" in not_exercised(saving, [{0: 0.0}], rows(y=[1]))
    assert not_exercised(claim(effect=None, unit="s"), same, rows(y=[1, 1])) == ""
    arithmetic = pd.DataFrame({"y": [1]})
    assert not_exercised(claim(), same, arithmetic) == "", "no run could have made it differ"


def test_a_mechanism_that_never_ran_is_not_exercised() -> None:
    counts = rows(system=["ours", "ours", "theirs", "plain"], mechanism=[0, 3, 0, None])
    told = not_exercised(claim(), [{0: 2.0}], counts)
    assert told == "the mechanism of theirs never ran"
    assert not_exercised(claim(at_rest=True), [{0: 2.0}], counts) == ""
    told = seldom(claim(), pd.DataFrame({"system": "s", "seed": [0, 1, 2], "mechanism": [3, 0, 0]}))
    assert told == "the mechanism did not always run: that of s in 1 of 3 seeds"
    assert seldom(claim(), counts[counts.system != "theirs"]) == ""
    assert not_exercised(claim(), [{0: 2.0}], counts[counts.system != "theirs"]) == ""


@pytest.mark.parametrize(
    ("engines", "hardware", "expected"),
    [
        (["sim"], ["h800x16"], "simulated"),
        (["torch"], ["local_x2"], "live, CPU"),
        (["sim", "torch"], ["h800x16", "local_x2"], "live, CPU"),
        (["vllm"], ["h100_shared"], "live, GPU"),
    ],
)
def test_the_kind_of_runs(engines: list[str], hardware: list[str], expected: str) -> None:
    assert kind(rows(y=[1]), {"engines": engines, "hardware": hardware}) == expected


@pytest.mark.parametrize(
    ("inputs", "expected"),
    [
        (["paper", "paper"], "arithmetic on the paper's numbers"),
        (["paper", "ours"], "arithmetic on ours"),
        (["drawn", "drawn"], "simulated"),
    ],
)
def test_the_kind_of_what_no_run_gives(inputs: list[str], expected: str) -> None:
    about = {"engines": ["sim"], "hardware": []}  # other rows of the figure have runs
    table = pd.DataFrame({"inputs": inputs, "config_hash": [None, None]})
    assert kind(table, about) == expected
    assert kind(table.drop(columns="inputs"), about) == "arithmetic on ours"
