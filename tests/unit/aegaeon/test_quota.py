"""Equations 2 and 3 against what §4.3 says that they achieve."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from systems.aegaeon.quota import quotas

step_times = st.lists(st.floats(0.001, 0.5), min_size=1, max_size=12)
limits = st.fixed_dictionaries(
    {
        "switching_s": st.floats(0.001, 20),
        "tbt_s": st.floats(0.01, 0.5),
        "max_quota_s": st.floats(0.1, 10),
        "min_alpha": st.sampled_from([0.25, 0.5, 1.0]),
    }
)


def test_the_worked_example_of_section_4_3() -> None:
    found = quotas([0.025] * 3, switching_s=3, tbt_s=0.1, max_quota_s=3, min_alpha=0.5)
    assert found.alpha == pytest.approx(1)
    assert found.turns_s == pytest.approx([3, 3, 3])
    round_s = 3 + sum(found.turns_s)
    assert round_s == pytest.approx(12)
    tokens = 3 / 0.025
    assert tokens * 0.1 == pytest.approx(round_s)  # 120 tokens at the target TBT


@given(step_s=step_times, limit=limits)
def test_every_batch_buffers_the_rounds_time_over_alpha(
    step_s: list[float], limit: dict[str, float]
) -> None:
    found = quotas(step_s, **limit)
    round_s = limit["switching_s"] + sum(found.turns_s)
    for t, quota_s in zip(step_s, found.turns_s, strict=True):
        buffered_s = quota_s / t * limit["tbt_s"]  # what the turn's tokens last at the target TBT
        assert buffered_s == pytest.approx(round_s / found.alpha, rel=1e-6)


@given(step_s=step_times, limit=limits)
def test_no_smaller_alpha_keeps_every_quota_within_the_maximum(
    step_s: list[float], limit: dict[str, float]
) -> None:
    """By search: the least α ≥ min_alpha, found by trying, is the one of eq. 3."""

    def allowed(alpha: float) -> bool:
        n = [limit["tbt_s"] / t for t in step_s]
        slack = alpha - sum(1 / n_k for n_k in n)
        if slack <= 0:
            return False  # the turns alone take longer than what they buffer
        return all(
            limit["switching_s"] / (n_i * slack) <= limit["max_quota_s"] * (1 + 1e-6) for n_i in n
        )

    found = quotas(step_s, **limit)
    assert found.alpha >= limit["min_alpha"]
    assert allowed(found.alpha)
    smaller = found.alpha * (1 - 1e-4)
    assert smaller < limit["min_alpha"] or not allowed(smaller)


@given(step_s=st.lists(st.floats(0.001, 0.5), min_size=1, max_size=3), limit=limits)
def test_no_quotas_within_the_maximum_give_the_worst_batch_more(
    step_s: list[float], limit: dict[str, float]
) -> None:
    """By brute force over a grid of all quotas from 0 to Q_MAX: its SLO attainment is the share of
    the round's time that its turn's tokens last at the target TBT, and it cannot be raised."""
    n = limit["tbt_s"] / np.array(step_s)
    levels = np.linspace(0, limit["max_quota_s"], 13)

    def worst(turns_s: np.ndarray) -> np.ndarray:
        round_s = limit["switching_s"] + turns_s.sum(axis=-1)
        return np.asarray(np.minimum((n * turns_s).min(axis=-1) / round_s, 1 / limit["min_alpha"]))

    found = quotas(step_s, **limit)
    assert max(found.turns_s) <= limit["max_quota_s"] * (1 + 1e-6)
    best = worst(np.array(list(product(levels, repeat=len(n))))).max()
    assert worst(np.array(found.turns_s)) >= best * (1 - 1e-6)
    assert worst(np.array(found.turns_s)) == pytest.approx(1 / found.alpha, rel=1e-6)
