"""Sweeps over seeds: intervals, the table of all runs, and the picture made of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.stats import bootstrap

from harness.errors import UsageError
from harness.experiments.sweep import flattened, settings
from harness.records.interval import interval
from plots import sweep
from tests.running import run_here


def test_the_interval_is_students_t() -> None:
    found = interval([1.0, 2.0, 3.0])
    assert (found.mean, found.count) == (2.0, 3)
    assert found.half == pytest.approx(4.303 / 3**0.5, rel=1e-3)
    assert interval([5.0]).half is None


def test_it_is_near_a_bootstraps_where_there_are_many() -> None:
    values = np.random.default_rng(0).exponential(size=200)
    low, high = bootstrap((values,), np.mean, rng=np.random.default_rng(1)).confidence_interval
    assert interval(list(values)).half == pytest.approx((high - low) / 2, rel=0.1)


def test_runs_of_one_setting_differ_in_their_seed_alone() -> None:
    runs = [["a=1", "seed=0"], ["a=2", "seed=0"], ["a=1", "seed=1"]]
    assert settings(runs) == {("a=1",): [0, 2], ("a=2",): [1]}


def test_numbers_have_dotted_names() -> None:
    summary = {"ttft_s": {"mean": 1, "p99": None}, "verdict": {"status": "VALID"}, "ok": True}
    assert flattened(summary) == {"ttft_s.mean": 1.0}


def test_a_sweep_is_drawn_with_a_band(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run_here(run, "+system=vllm", "+workload=burstgpt", "engine=sim", "figure=null")
    rows = [
        {
            "rate": rate, "seed": seed, "system": name, "run": str(run), "verdict": "VALID",
            "ttft_s.mean": rate + seed,
        }
        for rate in (1, 2, 4) for seed in (0, 1, 2) for name in ("a", "b")
    ]  # fmt: skip
    table = tmp_path / "sweep-1.csv"
    pd.DataFrame(rows).to_csv(table, index=False)
    made = sweep.draw(table, "rate", "ttft_s.mean", "system")
    assert made.stat().st_size > 10_000
    with pytest.raises(UsageError, match=r"--y ttft_s.p99 is no column .*; valid: ttft_s.mean$"):
        sweep.draw(table, "rate", "ttft_s.p99", None)
    pd.DataFrame([row | {"verdict": "INVALID"} for row in rows]).to_csv(table, index=False)
    with pytest.raises(UsageError, match=r"no run of .* is VALID"):
        sweep.draw(table, "rate", "ttft_s.mean", None)
    with pytest.raises(UsageError, match="there is no"):
        sweep.draw(tmp_path / "none.csv", "rate", "ttft_s.mean", None)
