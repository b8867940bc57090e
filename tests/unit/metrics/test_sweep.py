"""What a sweep's table says beside its numbers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from harness.experiments.sweep import idle_seeds


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
