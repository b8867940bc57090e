"""Routers on plain data, and what they find in prefix caches, simulated."""

from __future__ import annotations

from pathlib import Path

import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import UsageError
from harness.records.run_folder import FinishedRun
from systems.baselines.routers import PrefixConfig, least_loaded, prefix_aware
from tests.running import run_here

CONFIG = PrefixConfig(cache_threshold=0.3, balance_abs_threshold=4, balance_rel_threshold=1.5)
counts = st.integers(0, 50)


@given(st.lists(st.tuples(counts, counts), min_size=1, max_size=8))
def test_least_loaded_weighs_one_that_waits_as_four_that_run(pairs: list[tuple[int, int]]) -> None:
    chosen = least_loaded([w for w, _ in pairs], [r for _, r in pairs])
    scores = [4 * w + r for w, r in pairs]
    assert scores[chosen] == min(scores)
    assert min(scores) not in scores[:chosen]


@pytest.mark.parametrize(
    ("cached", "requests", "chosen"),
    [
        ([0, 80, 40], [1, 3, 0], 1),  # most of the prompt is there
        ([80, 80, 40], [3, 1, 0], 1),  # of equals the one with fewer requests
        ([0, 30, 0], [2, 1, 0], 2),  # 30 % is not more than the threshold
        ([0, 80, 0], [1, 6, 1], 0),  # five requests more, and over 1.5 times: out of balance
        ([0, 80, 0], [10, 15, 10], 1),  # five more, but not over 1.5 times
        ([0, 80, 0], [0, 4, 0], 1),  # not more than four more
    ],
)
def test_prefix_aware_prefers_what_is_cached_unless_out_of_balance(
    cached: list[int], requests: list[int], chosen: int
) -> None:
    assert prefix_aware(100, cached, requests, CONFIG) == chosen


@pytest.mark.parametrize(
    ("key", "value"),
    [("cache_threshold", 1.5), ("cache_threshold", -0.1), ("balance_rel_threshold", 0.5)],
)
def test_thresholds_out_of_range_are_refused(key: str, value: float) -> None:
    values = {"cache_threshold": 0.3, "balance_abs_threshold": 4, "balance_rel_threshold": 1.5}
    with pytest.raises(UsageError, match=f"system.prefix.{key}"):
        PrefixConfig(**values | {key: value})  # type: ignore[arg-type]


def cached_tokens(path: Path, router: str) -> int:
    """Tokens of prompts found in prefix caches: seven prompts by turns, on four
    instances, so that round robin sends each to all four."""
    run_here(
        path, "+system=vllm", "+workload=azure_code", "engine=sim", "hardware=a100x16",
        "model=llama2-7b", "hardware.num_devices=4", "workload.num_requests=200", "figure=null",
        "workload.prefixes.distinct_prompts=7", "workload.window.seconds=[0,600]",
        f"system.router={router}",
    )  # fmt: skip
    run = FinishedRun.load(path)
    assert run.summary["num_completed"] == 200
    return int(pc.sum(run.requests["cached_tokens"]).as_py())


def test_prefix_aware_finds_more_than_round_robin_and_each_request_once(tmp_path: Path) -> None:
    by_turns = cached_tokens(tmp_path / "round_robin", "round_robin")
    aware = cached_tokens(tmp_path / "prefix_aware", "prefix_aware")
    assert aware > by_turns > 0


def test_least_loaded_serves_all(tmp_path: Path) -> None:
    assert cached_tokens(tmp_path / "least_loaded", "least_loaded") > 0


def test_an_unknown_router_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"system\.router=best is unknown; valid: round_robin, "):
        cached_tokens(tmp_path / "best", "best")
