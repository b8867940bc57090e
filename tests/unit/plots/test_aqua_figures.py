"""AQUA's tables: what a run paged, latencies by phase of a burst, what lending adds."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

from harness.experiments.points import Point
from plots.aqua import most_paged_bytes, paged_gb
from plots.aqua.bursts import summed_up
from plots.aqua.elastic import summed_up as elastic
from plots.aqua.lending import added
from plots.aqua.pressure import ratios
from plots.aqua.rates import profiled, steady


def point(folder: Path, *copies: tuple[str, str, int]) -> Point:
    """A run whose events are these copies, one a second: kind, purpose and GB."""
    pd.DataFrame(
        {
            "kind": kind, "instance": "i", "start_s": second, "end_s": second + 1.0,
            "fields": json.dumps({"purpose": purpose, "bytes": gb * 10**9}),
        }
        for second, (kind, purpose, gb) in enumerate(copies)
    ).to_parquet(folder / "events.parquet")  # fmt: skip
    return Point("e", {}, 0, folder, "")


def test_what_was_paged_is_counted_by_where_it_went(tmp_path: Path) -> None:
    made = point(
        tmp_path, ("kv_move", "page out to lease", 2), ("kv_move", "page out to DRAM", 4),
        ("kv_move", "page in from lease", 2), ("transfer", "stream out, lease", 8),
        ("transfer", "stream in, lease", 16), ("transfer", "gather", 32),
    )  # fmt: skip
    assert paged_gb(made, "aqua") == paged_gb(made, "flexgen_aqua") == 2 + 8
    assert paged_gb(made, "cfs_dram") == 4
    assert pd.isna(paged_gb(made, "fcfs"))
    assert most_paged_bytes(made) == 6e9


def test_a_run_that_copies_nothing_paged_nothing(tmp_path: Path) -> None:
    made = point(tmp_path, ("slot", "", 0))
    assert paged_gb(made, "aqua") == most_paged_bytes(made) == 0


def test_a_burst_is_summed_up_by_phase() -> None:
    run = pd.DataFrame(
        {
            "order": [1, 2, 3, 4], "phase": ["before", "before", "burst", "after"],
            "ttft_s": [1.0, 3.0, 9.0, 2.0], "tpot_s": [0.1, 0.1, 0.3, 0.12],
            "rct_s": [5.0, 5.0, 8.0, 6.0], "status": "completed",
        }
    )  # fmt: skip
    found = summed_up(run)
    assert (found["peak_ttft_s"], found["before_ttft_s"], found["burst_rct_s"]) == (9, 2, 8)
    assert (found["high_from"], found["high_until"]) == (3, 3)


def test_what_sharing_adds_is_by_seed() -> None:
    rows = pd.DataFrame(
        {
            "experiment": "e", "system": ["flexgen_aqua", "flexgen_aqua", "flexgen", "flexgen"],
            "seed": [0, 1, 1, 0], "mean_tpot_ms": [11.0, 30.0, 20.0, 10.0],
            "mechanism": [7.0, 8.0, 1.0, 1.0],
        }
    )  # fmt: skip
    found = added(rows)
    assert found.seed.tolist() == [0, 1]
    assert found.tpot_share.tolist() == pytest.approx([0.1, 0.5])
    assert found.tpot_ms.tolist() == [1.0, 10.0]
    assert found.mechanism.tolist() == [7.0, 8.0]


def test_a_queue_is_steady_until_ttft_doubles() -> None:
    rows = pd.DataFrame({"rate_per_s": [0.3, 0.1, 0.2], "ttft_s": [1.5, 1.0, 2.5]})
    assert steady(rows) == 0.1


def test_a_profile_is_the_median_of_the_seeds() -> None:
    """Three seeds meet the SLA up to 0.2, 0.1 and 0.2 requests/s."""
    rows = pd.DataFrame(
        {"seed": seed, "rate_per_s": rate, "ttft_s": 0.5 if rate <= last else 2.0,
         "tbt_p99_s": 0.05, "free_gb": 10 * seed + rate}
        for seed, last in enumerate((0.2, 0.1, 0.2)) for rate in (0.1, 0.15, 0.2, 0.25)
    )  # fmt: skip
    found = profiled(rows, "m")
    assert (found["rate_per_s"], found["free_gb"]) == pytest.approx((0.2, 10.2))
    assert (found["rule"], found["role"]) == ("SLA", "producer")


def test_ratios_are_by_rate_and_seed() -> None:
    runs = pd.DataFrame(
        {"system": system, "rate_per_s": rate, "seed": seed, "peak_ttft_s": peak * rate + seed,
         "burst_tpot_s": 1.0, "burst_rct_s": 1.0}
        for system, peak in (("fcfs", 20), ("aqua", 2), ("cfs_dram", 4), ("cfs_dram_gathered", 3))
        for rate in (1.0, 2.0) for seed in (0, 1)
    )  # fmt: skip
    found = pd.concat(ratios(runs)).set_index(["row", "rate_per_s", "seed"]).ratio
    assert found["peak_ttft", 1.0, 0] == 10
    assert found["peak_ttft", 2.0, 1] == 41 / 5
    assert found["peak_ttft_dram", 1.0, 0] == 5


def test_what_comes_back_is_measured_once_all_is_lent_again() -> None:
    at_s = pd.Series(range(0, 300, 2))
    lent = pd.Series(30.0, at_s.index).where(~at_s.between(122, 240), 0.0)
    tokens = pd.Series(18.0, at_s.index).where(~at_s.between(122, 248), 2.0)
    run = {"at_s": at_s, "lent_gb": lent, "waiting": 0, "tokens_per_s": tokens}
    found = elastic(pd.DataFrame(run))
    assert found["back_s"] == 242
    assert found["before_tokens_per_s"] == found["after_tokens_per_s"] == 18
    assert found["during_tokens_per_s"] == 2
