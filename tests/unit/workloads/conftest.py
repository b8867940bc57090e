"""Workloads as the command line composes them, on the public data, without a network."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from harness.schedule import Schedule
from tests.unit.workloads.texts import make_tokenizer
from workloads import compose

Make = Callable[..., Schedule]

AS_IT_IS = ("workload.num_requests=null", "workload.scale.to_rate_per_s=null")


@pytest.fixture(scope="session")
def make(data_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Make:
    """make(NAME, "workload.key=value", …) → the schedule, from the public data; made once."""
    home = [f"data.dir={data_dir}", f"data.cache_dir={tmp_path_factory.mktemp('cache')}"]

    @cache
    def schedule(name: str, *overrides: str) -> Schedule:
        words = [*home, "data.download=false", *overrides]
        return compose.workload(compose.composed(name, words)).schedule()

    return schedule


@pytest.fixture
def make_bare(tmp_path: Path) -> Make:
    """The same from what the repository carries: a synthetic trace for the rest."""

    def schedule(name: str, *overrides: str) -> Schedule:
        home = ["data.dir=null", f"data.cache_dir={tmp_path}", "data.download=false"]
        return compose.workload(compose.composed(name, [*home, *overrides])).schedule()

    return schedule


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    return make_tokenizer(tmp_path / "checkpoint")


@pytest.fixture
def make_hf(make_bare: Make, tokenizer: Path) -> Callable[..., Schedule]:
    """make_hf(DATASET, "workload.key=value", …)"""

    def schedule(dataset: object, *overrides: str) -> Schedule:
        return make_bare(
            "hf", f"workload.text.dataset={dataset}", f"workload.text.tokenizer={tokenizer}",
            "workload.num_requests=4", *overrides,
        )  # fmt: skip

    return schedule
