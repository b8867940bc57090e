"""Workloads as the command line composes them, on the public data, without a network."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from harness.schedule import Schedule
from workloads import compose

Make = Callable[..., Schedule]

AS_IT_IS = ("workload.num_requests=null", "workload.scale.to_rate_per_s=null")


@pytest.fixture
def make(data_dir: Path, tmp_path: Path) -> Make:
    """make(NAME, "workload.key=value", …) → the schedule, from the public data."""

    def schedule(name: str, *overrides: str) -> Schedule:
        home = [f"data.dir={data_dir}", f"data.cache_dir={tmp_path}", "data.download=false"]
        return compose.workload(compose.composed(name, [*home, *overrides])).schedule()

    return schedule


@pytest.fixture
def make_bare(tmp_path: Path) -> Make:
    """The same from what the repository carries: a synthetic trace for the rest."""

    def schedule(name: str, *overrides: str) -> Schedule:
        home = ["data.dir=null", f"data.cache_dir={tmp_path}", "data.download=false"]
        return compose.workload(compose.composed(name, [*home, *overrides])).schedule()

    return schedule
