"""AQUA's tables: what a run paged, latencies by phase of a burst, what lending adds."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

from harness.experiments.points import Point
from plots.aqua import most_paged_bytes, paged_gb
from plots.aqua.bursts import summed_up
from plots.aqua.lending import added
from plots.aqua.rates import steady


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
