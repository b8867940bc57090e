"""Workers that models take turns on, started as a run does: whatever breaks, nothing is left
behind."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.clock import Event
from harness.engine_api import Experiment
from harness.errors import RunError, UsageError
from harness.placement import pooled
from harness.pooled.instance import PooledInstance
from tests.forked_workers import workers_alive
from tests.integration.test_torch_pool import MODELS, assert_nothing_left, started

pytestmark = pytest.mark.live

SLOW_LINK = {"pool": {"link_bytes_per_s": 4e6, "stage_buffer_bytes": 1 << 16}}  # seconds a model


def pid_of(instance: PooledInstance) -> int:
    device: Any = instance._device
    pid: int = device.pids()[0]
    return pid


Story = Callable[[PooledInstance, Experiment], Coroutine[Any, Any, None]]


async def while_loading(one: PooledInstance, experiment: Experiment) -> None:
    await one.load("wide")


async def while_prefetching(one: PooledInstance, experiment: Experiment) -> None:
    one._weights.running = "narrow"
    one.prefetch("wide")
    await experiment.loop.wait(Event(experiment.loop))


async def while_restarting(one: PooledInstance, experiment: Experiment) -> None:
    await one.restart()
    await one.restart()


@pytest.mark.parametrize("story", [while_loading, while_prefetching, while_restarting])
def test_a_worker_that_is_killed_ends_the_run_and_leaves_nothing(
    tmp_path: Path, story: Story
) -> None:
    with started(tmp_path, MODELS, pooled, [], **SLOW_LINK) as (experiment, _, cluster):
        loop, one = experiment.loop, cluster.pool[0]

        async def strike() -> None:
            first = pid_of(one)
            await loop.sleep(0.2)
            while story is while_restarting and pid_of(one) == first:
                await loop.sleep(0.01)
            os.kill(pid_of(one), signal.SIGKILL)

        async def main() -> None:
            loop.spawn(strike(), name="strike")
            await story(one, experiment)

        with pytest.raises(RunError, match="killed by SIGKILL") as caught:
            loop.run(main())
        assert "torch-0" in str(caught.value)
        assert "setup" in str(caught.value), "the log's tail is part of the message"
    assert_nothing_left(tmp_path)


def test_a_run_that_ends_during_a_restart_leaves_nothing(tmp_path: Path) -> None:
    with started(tmp_path, MODELS, pooled, []) as (experiment, _, cluster):
        before = pid_of(cluster.pool[0])

        async def main() -> None:
            for one in cluster.pool:
                experiment.loop.spawn(one.restart(), name="restart")
            while pid_of(cluster.pool[0]) == before:
                await experiment.loop.sleep(0.01)

        experiment.loop.run(main())
    assert_nothing_left(tmp_path)


def test_a_slowed_link_is_in_the_devices_name_and_in_estimates(tmp_path: Path) -> None:
    with started(tmp_path, MODELS, pooled, [], **SLOW_LINK) as (_, engine, cluster):
        assert engine.resolved()["devices"] == ["cpu, links slowed to 0.004 GB/s"] * 2
        profile = cluster.profile
        assert profile.pcie_bytes_per_s == profile.pcie_peak_bytes_per_s == 4e6
        assert len(workers_alive()) == 2
    assert_nothing_left(tmp_path)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"pool": {"slab_bytes": 1 << 30}}, "slab_bytes=1073741824 is more than"),
        ({"pool": {"slab_bytes": 4096}}, "slab_bytes=4096 is less than a KV block of 147456"),
        ({"pool": {"host_slab_bytes": 4096}}, "host_slab_bytes=4096 is less than a KV block"),
        ({"pool": {"host_slab_bytes": 1 << 40}}, "is more than host_kv_bytes"),
        ({"pool": {"link_bytes_per_s": 0}}, "link_bytes_per_s=0 must be above 0"),
        ({"pool": {"cpu_device_bytes": 1 << 20}}, "do not fit"),
    ],
)
def test_settings_that_cannot_be_are_told_in_one_sentence(
    tmp_path: Path, changes: dict[str, Any], says: str
) -> None:
    with (
        pytest.raises(UsageError, match=says),
        started(tmp_path, MODELS, pooled, [], **changes),
    ):
        pass
    assert workers_alive() == []


def test_models_of_two_dtypes_cannot_share_instances(tmp_path: Path) -> None:
    models = MODELS | {"half": replace(MODELS["wide"], dtype="bfloat16")}
    with (
        pytest.raises(UsageError, match="dtypes bfloat16 and float32"),
        started(tmp_path, models, pooled, []),
    ):
        pass
