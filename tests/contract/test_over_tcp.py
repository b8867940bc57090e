"""A few of the contract's tests again, with each live worker on a node of its own: over TCP."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pytest

from harness.engine.clock_offset import ClockOffset
from harness.running.testbed import finish, prefill
from tests import elastic as beds
from tests.agents import on_nodes
from tests.contract import test_elastic as elastic
from tests.contract import test_elastic_deaths as deaths
from tests.contract import test_elastic_kv as kv
from tests.contract import test_instance as instance
from tests.contract import test_pool as pool
from tests.contract import test_pool_links as pool_links
from tests.contract.pool_bench import PoolBench
from tests.elastic import Beds, halves, private

pytestmark = [pytest.mark.live, pytest.mark.usefixtures("forked_workers")]

SHARED: list[Callable[[Beds, str], None]] = [
    elastic.test_a_chain_forwards_each_layer_as_it_comes,
    elastic.test_micro_batches_fly_beside_one_another,
    kv.test_kv_moves_in_mid_decode,
]
DEDICATED: list[Callable[[Any], None]] = [
    instance.test_a_batch_mixes_chunks_and_decodes,
    instance.test_a_stop_in_the_middle_ends_at_a_step_boundary,
]
POOLED: list[Callable[[PoolBench], None]] = [
    pool.test_models_of_one_shape_and_of_others_take_turns,
    pool.test_kv_moves_to_another_instance_and_the_request_goes_on,
    pool.test_rule_2_a_swap_in_waits_for_the_swap_out_that_it_reads,
    pool.test_a_restart_loses_the_weights_and_refuses_to_lose_kv,
]


@pytest.fixture(scope="module", autouse=True)
def each_on_a_node() -> Iterator[None]:
    with on_nodes():
        yield


@pytest.fixture(scope="module")
def bed_on_nodes(each_on_a_node: None) -> Iterator[Beds]:
    with ExitStack() as stack:
        yield Beds(stack)


@pytest.fixture(scope="module")
def bench_on_nodes(each_on_a_node: None) -> Iterator[PoolBench]:
    bench = PoolBench("torch", ("wide", "narrow"), devices_per_node=1)
    yield bench
    bench.close()


@pytest.mark.parametrize("test", SHARED, ids=lambda test: test.__name__)
def test_elastic_instances(bed_on_nodes: Beds, test: Callable[[Beds, str], None]) -> None:
    test(bed_on_nodes, "torch")


@pytest.mark.parametrize("source", ["peer", "dram", "ssd"])
def test_weights_come_from_another_node(bed_on_nodes: Beds, source: str) -> None:
    elastic.test_weights_come_from_anywhere(bed_on_nodes, "torch", source)


NIC = 2e7  # bytes/s: a half of the layers takes 0.4 s


@pytest.mark.parametrize("source", ["peers", "hosts"])
def test_a_nodes_nic_is_shared_by_all_who_use_it(source: str) -> None:
    """Two peers send to one node, or two nodes read from one's DRAM: in all no faster than one."""
    empty = {2: range(0)} if source == "peers" else {1: range(0), 2: range(0)}
    nodes = replace(beds.hardware(), nic_bytes_per_s=NIC)
    with private("torch", 3, on=nodes, paced=True, resident=empty) as made:

        async def story() -> tuple[float, int]:
            first, second, third = made.instances
            host = made.cluster.hosts[0]
            assert await host.fetch(made.model.name, first)
            begin_s, halves = made.loop.now, (range(2), range(2, beds.DEPTH))
            ways: list[tuple[Any, range, Any]]
            if source == "peers":
                ways = [(third, halves[0], first), (third, halves[1], second)]
            else:
                there = host.memory(made.model.name)
                ways = [(second, halves[0], there), (third, halves[1], there)]
            loads = [made.loop.spawn(to.load(layers, of), name="load") for to, layers, of in ways]
            for load in loads:
                await made.loop.wait(load.finished)
                assert load.result
            num_bytes = sum(to.layout.weight_bytes(layers) for to, layers, _ in ways)
            return made.loop.now - begin_s, num_bytes

        took_s, num_bytes = made.run(story())
    assert took_s >= num_bytes / NIC


@pytest.mark.parametrize("struck", [0, 1], ids=["the source", "the target"])
def test_stalled_links_of_a_node_carry_nothing_meanwhile(struck: int) -> None:
    """To the other node or from it; whoever books asks the node itself."""
    stall_s = 0.6  # a load alone takes some 0.1 s
    with private("torch", 2, on=beds.hardware(), paced=True, resident={1: range(0)}) as made:

        async def story() -> tuple[float, bool]:
            source, target = made.instances
            stall = made.loop.spawn(
                made.cluster.stall_links(made.instances[struck], stall_s), name="stall"
            )
            await made.loop.sleep(0.1)  # the node has been asked
            begin_s = made.loop.now
            assert await target.load(range(beds.DEPTH), source)
            took_s = made.loop.now - begin_s
            await made.loop.wait(stall.finished)
            return took_s, bool(stall.result)

        took_s, told = made.run(story())
    assert told
    assert took_s >= stall_s - 0.1


def test_a_source_that_dies() -> None:
    deaths.test_a_source_that_dies_fails_the_load("torch")


def test_a_stage_that_dies() -> None:
    deaths.test_a_death_fails_what_was_under_way_and_nothing_else("torch", 0)


@pytest.mark.parametrize("test", POOLED, ids=lambda test: test.__name__)
def test_pooled_instances(bench_on_nodes: PoolBench, test: Callable[[PoolBench], None]) -> None:
    test(bench_on_nodes)


def test_a_nodes_nic_is_shared_by_all_who_fetch_kv_from_it() -> None:
    pool_links.test_a_nodes_nic_is_shared_by_all_who_fetch_kv_from_it("torch")


@pytest.mark.parametrize("test", DEDICATED, ids=lambda test: test.__name__)
def test_dedicated_instances(test: Callable[[Any], None]) -> None:
    bench = instance.Bench("torch")
    try:
        test(bench)
    finally:
        bench.close()


@pytest.fixture
def clocks_misjudged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each node's clock is thought to be 1 s ahead of where it is."""
    add = ClockOffset.add

    def wrongly(self: ClockOffset, *exchange: float) -> None:
        add(self, *exchange)
        self.offset_s += 1.0

    monkeypatch.setattr(ClockOffset, "add", wrongly)


@pytest.mark.usefixtures("clocks_misjudged")
def test_no_token_of_a_dedicated_instance_is_stamped_by_what_is_thought_of_a_clock() -> None:
    bench = instance.Bench("torch")
    request = bench.request(20, 3)

    async def story() -> tuple[float, float]:
        begin_s = bench.loop.now
        await bench.prefill(request)
        await bench.decode(request)
        return begin_s, bench.loop.now

    try:
        begin_s, end_s = bench.run(story)
    finally:
        bench.close()
    times = bench.times(request)
    assert len(times) == 3
    assert begin_s < times[0] < times[-1] < end_s


@pytest.mark.usefixtures("clocks_misjudged")
def test_no_token_of_a_pipeline_is_stamped_by_what_is_thought_of_a_clock() -> None:
    with private("torch", 2) as made:
        request = made.request(20, 3)

        async def story() -> tuple[float, float]:
            begin_s, pipe = made.loop.now, halves(made)
            await prefill(pipe, [request])
            await finish(pipe, [request])
            return begin_s, made.loop.now

        begin_s, end_s = made.run(story())
        times = made.recorder.records[request.request_id].token_times_s()
    assert len(times) == 3
    assert begin_s < times[0] < times[-1] < end_s
