"""What the operations of a simulated device take, against bytes over rates."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from harness.clock import Event
from harness.device.location import Location, dram, ssd
from harness.pooled.plan import device_weight_bytes
from harness.sim.device import SimDevice
from tests.unit.sim_device.rig import H800, MODELS, Rig, kv

PCIE = H800.pcie_bytes_per_s
WEIGHTS = {name: device_weight_bytes(spec) for name, spec in MODELS.items()}
BLOCK_BYTES = 16 * MODELS["13b"].kv_bytes_per_token


def load(
    device: SimDevice, model: str, *, source: Location | None = None, staged: bool = True
) -> Callable[[], Coroutine[Any, Any, bool]]:
    where = source or dram(device.node)
    return partial(device.load, model, 0, where, staged=staged, stop=None)


def test_a_staged_load_takes_its_bytes_over_the_link() -> None:
    rig = Rig()
    assert rig.times(load(rig.devices[0], "13b")) == [pytest.approx(WEIGHTS["13b"] / PCIE)]


def test_a_latency_is_paid_once_a_load() -> None:
    rig = Rig(replace(H800, pcie_latency_s=0.5))
    assert rig.times(load(rig.devices[0], "7b")) == [pytest.approx(0.5 + WEIGHTS["7b"] / PCIE)]


def test_the_devices_of_an_instance_load_their_shards_at_once() -> None:
    rig = Rig(tp=4)
    expected = WEIGHTS["13b"] / 4 / PCIE
    assert rig.times(load(rig.devices[0], "13b")) == [pytest.approx(expected, rel=1e-6)]


def test_two_loads_behind_one_pcie_switch_halve_each_other() -> None:
    rig = Rig(replace(H800, gpus_per_pcie_switch=2))
    alone, shared = WEIGHTS["13b"] / PCIE, 2 * WEIGHTS["13b"] / PCIE
    jobs = [load(rig.devices[i], "13b") for i in (0, 1, 2)]
    assert rig.times(*jobs) == pytest.approx([shared, shared, alone])


def test_a_load_from_ssd_goes_at_the_slower_of_ssd_and_link() -> None:
    slow = H800.ssd_bytes_per_s * 8  # of the node
    assert slow < PCIE
    rig = Rig()
    assert rig.times(load(rig.devices[0], "13b", source=ssd(0))) == [
        pytest.approx(WEIGHTS["13b"] / slow)
    ]
    fast = Rig(replace(H800, ssd_bytes_per_s=PCIE))
    assert fast.times(load(fast.devices[0], "13b", source=ssd(0))) == [
        pytest.approx(WEIGHTS["13b"] / PCIE)
    ]


def test_loads_from_one_ssd_share_it_across_the_node() -> None:
    rig = Rig()
    expected = 3 * WEIGHTS["7b"] / (H800.ssd_bytes_per_s * 8)
    jobs = [load(rig.devices[i], "7b", source=ssd(0)) for i in (0, 2, 4)]
    assert rig.times(*jobs) == pytest.approx([expected] * 3)


def test_a_pageable_load_is_as_slow_as_the_paper_measured() -> None:
    rig = Rig(tp=2)
    [end_s] = rig.times(load(rig.devices[0], "13b", staged=False))
    assert end_s == pytest.approx(4.6, rel=0.01)  # Aegaeon §5.1: LLaMA-13B, TP 2
    slow = Rig(replace(H800, pcie_bytes_per_s=1e9))
    assert slow.times(load(slow.devices[0], "13b", staged=False)) == [
        pytest.approx(WEIGHTS["13b"] / 1e9)
    ]


def test_a_pageable_load_leaves_the_rest_of_the_link_to_kv() -> None:
    rig = Rig()
    device = rig.devices[0]
    _, copied_s = rig.times(load(device, "13b", staged=False), rig.copied(device.copy_in, kv(100)))
    assert copied_s == pytest.approx(100 * BLOCK_BYTES / (PCIE - 2.83e9))


def test_kv_shares_the_link_with_a_load_and_does_not_queue_behind_it() -> None:
    rig = Rig()
    device = rig.devices[0]
    loaded_s, copied_s = rig.times(load(device, "13b"), rig.copied(device.copy_in, kv(100)))
    assert copied_s == pytest.approx(2 * 100 * BLOCK_BYTES / PCIE)
    assert loaded_s == pytest.approx((WEIGHTS["13b"] + 100 * BLOCK_BYTES) / PCIE)


def test_kv_copies_of_one_stream_go_one_after_the_other_both_ways_at_once() -> None:
    rig = Rig()
    device = rig.devices[0]
    ends = rig.times(
        rig.copied(device.copy_in, kv(10)),
        rig.copied(device.copy_in, kv(20)),
        rig.copied(device.copy_out, kv(40)),
    )
    assert ends == pytest.approx([blocks * BLOCK_BYTES / PCIE for blocks in (10, 30, 40)])


def test_kv_of_a_parallel_instance_crosses_all_its_links() -> None:
    rig = Rig(tp=4)
    assert rig.times(rig.copied(rig.devices[0].copy_out, kv(40))) == [
        pytest.approx(10 * BLOCK_BYTES / PCIE)
    ]


def test_kv_from_another_node_comes_over_the_network_card() -> None:
    nic = 1e9
    rig = Rig(replace(H800, nic_bytes_per_s=nic))
    assert rig.times(rig.copied(rig.devices[0].copy_in, kv(10, node=1))) == [
        pytest.approx(10 * BLOCK_BYTES / nic)
    ]


def test_a_load_is_broken_off_at_a_chunk_boundary() -> None:
    rig = Rig(chunk_bytes=10**9)
    stop = Event(rig.loop)
    outcome: list[bool] = []

    async def prefetch() -> None:
        device = rig.devices[0]
        outcome.append(await device.load("13b", 0, dram(0), staged=True, stop=stop))

    async def stopper() -> None:
        await rig.loop.sleep(4.5e9 / PCIE)
        stop.set()

    assert rig.times(prefetch, stopper)[0] == pytest.approx(5e9 / PCIE)
    assert outcome == [False]


def test_a_load_that_can_be_broken_off_pays_its_latency_once() -> None:
    rig = Rig(replace(H800, pcie_latency_s=0.5), chunk_bytes=10**9)
    device, never = rig.devices[0], Event(rig.loop)
    stoppable = partial(device.load, "13b", 0, dram(0), staged=True, stop=never)
    assert rig.times(stoppable) == [pytest.approx(0.5 + WEIGHTS["13b"] / PCIE)]


def test_a_load_that_nothing_stops_is_as_long_in_chunks_as_whole() -> None:
    rig = Rig(chunk_bytes=10**8)
    device, never = rig.devices[0], Event(rig.loop)
    chunked = partial(device.load, "13b", 0, dram(0), staged=True, stop=never)
    assert rig.times(chunked) == [pytest.approx(WEIGHTS["13b"] / PCIE)]


def test_relocation_reads_and_writes_at_the_achieved_bandwidth() -> None:
    rig = Rig()
    rate = H800.memory_bandwidth_bytes_per_s * H800.calibration.memory_efficiency
    assert rig.times(partial(rig.devices[0].relocate, "13b", 2**30, 0)) == [
        pytest.approx(2 * WEIGHTS["13b"] / rate)
    ]


def test_restarts_and_collections_take_what_the_configuration_says() -> None:
    rig = Rig(restart_s=7.0, collect_s=3.0)
    device = rig.devices[0]
    assert rig.times(device.restart, device.collect_garbage) == [7.0, 3.0]
