"""Aegaeon where the host's KV cache is full: requests wait, and each of them ends."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.contract.test_pooled_deaths import (
    FOUR,
    SLOW,
    TWO,
    UNIFIED,
    assert_all_served,
    assert_tidy,
    reasons,
    struck,
)
from tests.contract.test_system import serve
from tests.running import run_here

pytestmark = pytest.mark.usefixtures("forked_workers")

TIGHT = (
    "engine.pool.slab_bytes=262144", "engine.pool.host_slab_bytes=262144",
    "engine.pool.host_kv_bytes=2500000",
)  # fmt: skip
AT_ONCE = "workload.scale.to_rate_per_s=1000"


@pytest.mark.parametrize("engine", ["sim", pytest.param("torch", marks=pytest.mark.live)])
def test_a_full_host_cache_leaves_nobody_waiting(engine: str) -> None:
    served = serve("aegaeon", engine, *TWO, *TIGHT, AT_ONCE)
    assert_all_served(served, engine)
    assert_tidy(served)
    assert any(event["kind"] == "host_full" for event in served.recorder.events)


def test_a_host_slab_that_holds_no_block_hurts_nobody_who_moves_none() -> None:
    small = ("engine.pool.host_slab_bytes=4096", "engine.pool.host_kv_bytes=4194304")
    assert set(reasons(serve("serverlessllm", "sim", *small))) == {"completed"}


@pytest.mark.parametrize("moment", range(0, 20, 3))
@pytest.mark.parametrize("system", [(), ("system.variant=artifact",), UNIFIED[1:]])
def test_no_moment_of_death_leaves_nobody_waiting_either(
    system: tuple[str, ...], moment: int
) -> None:
    at_s = 0.1 + 0.09 * moment
    more = (*system, *SLOW, *FOUR, *TIGHT)
    served = struck("aegaeon", "sim", *more, kill=(moment % 4,), at_s=at_s)
    assert set(reasons(served)) == {"completed"}


def test_a_prefill_that_filled_the_host_has_its_turn_before_anybody_is_computed_again(
    tmp_path: Path,
) -> None:
    """Its batch is new in the round. Else it was computed again for each of its tokens."""
    words = (
        "+system=aegaeon", "+workload=aegaeon", "engine=sim", "hardware=h800x8",
        "model_set=aegaeon",
        "workload.dataset.parameters.rate_per_s=0.1", "workload.dataset.parameters.num_models=16",
        "workload.num_requests=40", "hardware.num_devices=1", "hardware.devices_per_node=1",
        "system.schedule=prefill_first", "client.drain_s=4000",
        "engine.pool.host_slab_bytes=67108864", "engine.pool.host_kv_bytes=4294967296",
        "figure=null",
    )  # fmt: skip
    run_here(tmp_path / "run", *words)
    table = pq.read_table(tmp_path / "run/requests.parquet")
    assert set(table["status"].to_pylist()) == {"completed"}
    assert max(table["num_preemptions"].to_pylist()) <= 1
