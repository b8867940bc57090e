"""Sweeps over seeds: intervals, the table of all runs, and the picture made of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.stats import bootstrap

from harness.errors import UsageError
from harness.experiments.sweep import flattened, settings
from harness.records.interval import interval
from harness.records.run_folder import FinishedRun
from harness.records.simulator_band import bands, regime
from plots import sweep
from plots.style import figure
from tests.running import run_here
from tests.unit.metrics.service import steady, write_run


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


def test_means_over_a_number_have_the_simulators_band_or_the_caption_says_that_there_is_none(
    tmp_path: Path,
) -> None:
    def simulated(name: str, device: str) -> Path:
        file = (path := write_run(tmp_path / name, steady(80))) / "manifest.json"
        manifest = json.loads(file.read_text())
        manifest["hardware"] |= {"device": device, "name": "local"}
        manifest["engine"] |= {"step_times": {"m": "measured"}}
        file.write_text(json.dumps(manifest))
        return path

    known, unknown = simulated("a", "cpu"), simulated("b", "A10")
    rows = pd.DataFrame({"rate": [1, 1, 2], "ttft_s.p50": [1.0, 3.0, 4.0], "verdict": "VALID"})
    run = FinishedRun.load(known)
    band = bands(run.manifest, run.summary)["ttft_s.p50"]
    _, (axes,) = figure(1, 1, width=3, height=2)
    (said,) = sweep._bands(axes, rows, [run] * 3, "rate", "ttft_s.p50", None, None)
    drawn: list[Any] = list(axes.collections)
    bars = [each.get_segments()[0] for each in drawn]
    assert [bar[:, 0].tolist() for bar in bars] == [[1, 1], [2, 2]]
    assert [tuple(bar[:, 1]) for bar in bars] == [
        (min(low, mean), max(high, mean)) for mean in (2.0, 4.0) for low, high in [band.real(mean)]
    ]
    assert said == "bars: the simulator's band"
    rows.assign(run=str(unknown)).to_csv(table := tmp_path / "sweep-1.csv", index=False)
    text = sweep.draw(table, "rate", "ttft_s.p50", None, tmp_path / "sweep.svg").read_text()
    load = regime(run.summary)
    assert f"no simulator's band of ttft_s.p50 for runs that are {load}" in text
    assert "bars: the" not in text
