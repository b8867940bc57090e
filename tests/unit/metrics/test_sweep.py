"""What a sweep's table says beside its numbers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from harness.experiments.sweep import idle_seeds, intervals_table


def run(overrides: str, seed: int, schedule: str) -> Any:
    manifest = {"seeds": {"seed": seed}, "schedule_sha256": schedule}
    return overrides.split(), SimpleNamespace(manifest=manifest)


IDLE = [run("seed=0", 0, "a"), run("seed=1", 1, "a"), run("seed=2", 2, "a")]
DRAWN = [run("seed=0 rate=2", 0, "b"), run("seed=1 rate=2", 1, "c")]


@pytest.mark.parametrize(
    ("runs", "said"),
    [
        (IDLE, "draws nothing of the workload: seeds 0, 1, 2 replay one schedule and are repeats"),
        (DRAWN, None),
        (IDLE + DRAWN, "draws nothing of the workload in 1 of 2 settings: seeds 0, 1, 2 replay"),
        ([run("rate=1", 0, "a"), run("rate=2", 0, "a")], None),  # no seed was swept
        (IDLE[:1], None),
    ],
)
def test_seeds_that_draw_nothing_are_told(runs: list[Any], said: str | None) -> None:
    found = idle_seeds(runs)
    assert len(found) == (said is not None)
    assert said is None or said in found[0]


def repeat(overrides: str, ttft_s: float, status: str = "VALID") -> Any:
    summary = {
        "verdict": {"status": status}, "ttft_s": {"mean": ttft_s}, "tpot_s": {"mean": 0.1},
        "output_throughput_tokens_per_s": 5.0, "goodput_per_s": 1.0,
        "slo_attainment": {"request": 1.0},
    }  # fmt: skip
    return overrides.split(), SimpleNamespace(summary=summary)


def cells(runs: list[Any]) -> list[list[Any]]:
    table = intervals_table(runs)
    assert table is not None
    return [[*column.cells] for column in table.columns]


def test_repeats_of_a_setting_have_a_mean_and_students_interval() -> None:
    runs = [repeat(f"x=1 +repeat={k}", value) for k, value in ((1, 1.0), (2, 2.0), (3, 6.0))]
    invalid = repeat("x=1 +repeat=4", 99.0, "INVALID")
    table = intervals_table([*runs, invalid])
    assert table is not None
    assert table.title == "mean and 95 % interval over repeats, VALID runs"
    # 4.303, t's quantile for three values, times their deviation of 2.646 over the root of 3
    assert [column[0] for column in cells([*runs, invalid])[:2]] == ["all", "3 ± 6.6"]
    other = [repeat(f"x=2 +repeat={k}", 4.0) for k in (1, 2)]
    names, means, *_, counts = cells([*runs, *other])
    assert (names, means, counts) == (["1", "2"], ["3 ± 6.6", "4 ± 0"], ["3", "2"])
    assert intervals_table(runs[:1]) is None
