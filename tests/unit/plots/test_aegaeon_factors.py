"""Ends of curves by factor and SLO, and waits for a first turn, on numbers worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest

from harness.experiments.compose import conf
from harness.experiments.points import Point
from harness.records.token_log import TokenLog
from plots.aegaeon.attainment import judged
from plots.aegaeon.goodput import FEWER, MORE, UNTOLD, ends, no_dot
from plots.aegaeon.numbers import models_7b
from plots.aegaeon.rounds import at_once, first_waits_s, on_time


def curve(system: str, factor: float, *token: float) -> pd.DataFrame:
    rows = pd.DataFrame({"num_models": 10 * np.arange(1, len(token) + 1), "token": token})
    return rows.assign(time=rows.token, system=system, factor=factor, seed=0, mechanism=5)


def test_ends_are_of_each_system_under_each_slo_and_set_against_aegaeons() -> None:
    found = ends(
        pd.concat(
            [
                curve("aegaeon", 1.0, 1.0, 1.0, 0.8),
                curve("aegaeon", 0.5, 1.0, 0.8, 0.6),
                curve("serverlessllm", 1.0, 1.0, 0.8, 0.6),
                curve("serverlessllm", 0.5, 0.8, 0.7, 0.6),
                curve("aegaeon_quota_1", 1.0, 1.0, 1.0, 1.0),
            ]
        )
    )
    token = found[found.metric == "token"].set_index(["system", "factor"])
    assert token.goodput["aegaeon", 1.0] == pytest.approx(25.0)
    assert token.over["serverlessllm", 1.0] == pytest.approx(25.0 / 15.0)
    assert math.isnan(token.goodput["serverlessllm", 0.5])  # below 90 % from the first point on
    assert math.isnan(token.goodput["aegaeon_quota_1", 1.0])  # never below it
    assert token.mechanism["aegaeon", 0.5] == 15
    why = {
        each: no_dot(found, *each, "token")
        for each in (("serverlessllm", 0.5), ("muxserve", 1.0), ("aegaeon_quota_1", 1.0))
    }
    assert list(why.values()) == [FEWER, "not run", UNTOLD]
    assert (
        no_dot(found.assign(goodput=found.goodput.where(found.factor < 1)), "aegaeon", 1.0, "token")
        == MORE
    )


def test_aegaeon_is_judged_by_the_slo_that_it_was_told_and_the_baselines_by_all() -> None:
    refused = "in this test"
    points = [Point(name, {}, 0, None, refused) for name in ("aegaeon_fig13", "aegaeon_fig11a")]
    rows = pd.DataFrame(
        {"system": ["aegaeon", "serverlessllm"], "slo": ["aegaeon_strict_30", None], "token": 0.5}
    )
    found = judged(points, rows)
    assert found[found.system == "aegaeon"].factor.tolist() == [0.3]
    assert found[found.system == "serverlessllm"].factor.tolist() == [1.0, 0.5, 0.3, 0.2]


def log(*times_s: list[float]) -> TokenLog:
    counts = np.array([len(times) for times in times_s])
    return TokenLog(
        arrival_s=np.zeros(len(times_s)), sent_s=np.zeros(len(times_s)), asked_tokens=counts,
        num_tokens=counts, start=np.cumsum(counts) - counts, times_s=np.concatenate(times_s),
        chunk_tokens=counts, status=np.array(["completed"] * len(times_s)),
        models=["m"], of_model=np.zeros(len(times_s), int),
    )  # fmt: skip


def test_the_wait_for_a_first_turn_is_between_the_first_two_tokens() -> None:
    three = log([1.0, 14.0, 14.1], [1.0, 1.05, 20.0], [2.0])
    waits_s = first_waits_s(three)
    assert waits_s.tolist() == pytest.approx([12.9, 0.0, 0.0])
    assert on_time(three) == pytest.approx(4 / 7)
    without = at_once(three, waits_s)
    assert without.times_s.tolist() == pytest.approx([1.0, 1.1, 1.2, 1.0, 1.05, 20.0, 2.0])
    assert on_time(without) == pytest.approx(6 / 7)  # a later wait stays


def test_muxserves_code_places_two_7b_models_on_each_gpu() -> None:
    conf()
    assert models_7b() == 2 * 16
