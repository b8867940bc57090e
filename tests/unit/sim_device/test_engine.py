"""engine=sim brings up what a system's placement asks for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from omegaconf import OmegaConf

from harness.cluster import Cluster
from harness.configuration.config import build
from harness.configuration.options import plain
from harness.cost.hardware import Hardware
from harness.cost.law import Part
from harness.cost.model import CostModel
from harness.errors import UsageError
from harness.model_spec import ModelSpec
from harness.placement import Placement, pooled
from harness.records.record import Recorder
from harness.request import Batch, Request
from harness.running import testbed
from harness.sim.engine import neighbours
from tests.running import hardware_profile, model_spec

LLAMA_7B, LLAMA_13B = model_spec("llama2-7b"), model_spec("llama2-13b")
H800 = hardware_profile("h800x16")


@contextmanager
def started(
    placements: Sequence[Placement],
    models: Mapping[str, ModelSpec],
    hardware: Hardware = H800,
    requests: Sequence[Request] = (),
    contention: float = 0.0,
    **pool: Any,
) -> Iterator[tuple[Cluster, Any, Any]]:
    node = OmegaConf.load("conf/engine/sim.yaml")
    node.pool = OmegaConf.merge(node.pool, pool)
    node.memory_contention = contention
    engine = build(plain(node), "engine")
    recorder = Recorder(requests)
    with testbed.started(engine, models, hardware, placements, recorder) as (cluster, loop):
        yield cluster, engine, loop


def test_a_pool_has_the_memory_that_is_planned_and_its_node_as_host() -> None:
    models = {f"m{i}": (LLAMA_7B, LLAMA_13B)[i % 2] for i in range(10)}
    with started(pooled(models, H800), models) as (cluster, engine, _):
        assert len(cluster.pool) == 16
        assert not cluster.instances
        assert [one.node for one in cluster.pool] == [0] * 8 + [1] * 8
        assert len({one.host for one in cluster.pool}) == 2
        facts = engine.resolved()["pool"]
        assert facts["weights_bytes"] + facts["kv_bytes"] == int(0.9 * H800.memory_bytes)
        assert facts["weights_bytes"] >= 2 * LLAMA_13B.weight_bytes
        assert facts["prefetching"]
        assert all(spec in cluster.pool[0].host.models for spec in models.values())


def test_a_small_device_has_no_room_to_prefetch() -> None:
    models = {"a": LLAMA_7B, "b": LLAMA_7B}
    a10 = hardware_profile("a10x4")
    with started(pooled(models, a10), models, a10) as (_, engine, _):
        facts = engine.resolved()["pool"]
        assert not facts["prefetching"]
        assert LLAMA_7B.weight_bytes <= facts["weights_bytes"] < 2 * LLAMA_7B.weight_bytes


def test_the_caches_of_a_node_fit_into_its_memory() -> None:
    models = {"a": LLAMA_13B}
    small = replace(H800, host_memory_bytes=2**38)
    with started(pooled(models, small), models, small) as (_, engine, _):
        facts = engine.resolved()["pool"]
        assert (facts["host_kv_bytes"], facts["model_cache_bytes"]) == (2**37, 2**37)


def test_a_model_that_the_cache_has_no_room_for_comes_from_ssd() -> None:
    models = {"a": LLAMA_13B, "b": replace(LLAMA_13B, seed=1)}
    ends = []
    with started(
        pooled(models, H800), models, model_cache_bytes=LLAMA_13B.weight_bytes
    ) as (cluster, _, loop):  # fmt: skip

        async def story() -> None:
            for name in ("a", "b", "b", "a"):
                begun_s = loop.now
                await cluster.pool[0].load(name)
                ends.append(loop.now - begun_s)

        loop.run(story())
    cached = LLAMA_13B.weight_bytes / H800.pcie_bytes_per_s
    fetched = LLAMA_13B.weight_bytes / (8 * H800.ssd_bytes_per_s)
    assert ends == pytest.approx([cached, fetched, cached, fetched], rel=1e-2)


def test_names_of_one_checkpoint_share_its_place_in_the_cache() -> None:
    models = {name: replace(LLAMA_13B) for name in ("a", "b")}  # equal, and not the same
    with started(
        pooled(models, H800), models, model_cache_bytes=LLAMA_13B.weight_bytes
    ) as (cluster, _, _):  # fmt: skip
        assert all(spec in cluster.pool[0].host.models for spec in models.values())


def test_shares_of_a_device_slow_an_instance_down_and_shrink_its_kv() -> None:
    whole = Placement(devices=range(1), model="a")
    half = replace(whole, compute_share=0.5, prefill_compute_share=0.5, memory_share=0.5)
    requests = [Request(i, 0.0, "a", 2000, 10) for i in range(2)]
    times: list[list[float]] = []
    with started([whole, half], {"a": LLAMA_7B}, requests=requests) as (cluster, _, loop):
        blocks = [one.kv.num_blocks for one in cluster.instances]

        async def story() -> None:
            for one, request in zip(cluster.instances, requests, strict=True):
                assert one.kv.grow(request, 2001)
                at_s = [loop.now]
                await one.execute(Batch(chunks=[(request, 2000)]))
                at_s.append(loop.now)
                await one.execute(Batch(decodes=[request]))
                times.append([at_s[1] - at_s[0], loop.now - at_s[1]])

        loop.run(story())
    lost = (blocks[0] - blocks[1]) * 16 * LLAMA_7B.kv_bytes_per_token
    assert lost == pytest.approx(0.9 * H800.memory_bytes / 2, rel=1e-3)
    for full_s, half_s in zip(*times, strict=True):
        assert full_s < half_s < 2 * full_s


def test_prompts_and_decodes_have_a_share_each() -> None:
    placement = Placement(
        devices=range(1), model="a", compute_share=0.25, prefill_compute_share=0.75
    )
    request = Request(0, 0.0, "a", 2000, 10)
    with started([placement], {"a": LLAMA_7B}, requests=[request]) as (cluster, _, loop):
        one = cluster.instances[0]
        assert one.kv.grow(request, 2001)
        loop.run(one.execute(Batch(chunks=[(request, 2000)])))
        prefilled_s = loop.now
        loop.run(one.execute(Batch(decodes=[request]), until=0))  # time starts anew
    prefill = CostModel(LLAMA_7B, H800, Part(compute_share=0.75))
    assert prefilled_s == pytest.approx(prefill.mixed_step([(0, 2000)], 0, 0))
    decode = CostModel(LLAMA_7B, H800, Part(compute_share=0.25))
    assert loop.now == pytest.approx(decode.decode_step(1, 2001)[0])


def test_kv_has_what_weights_and_the_activation_reserve_leave() -> None:
    """Of 0.9 x 80 GiB, less 1 GiB of activations and the weights, blocks of 16 x 512 KiB."""
    placement = Placement(devices=range(1), model="a")
    with started([placement], {"a": LLAMA_7B}) as (cluster, _, _):
        blocks = cluster.instances[0].kv.num_blocks
    assert blocks == int((71 * 2**30 - 2 * 6_738_415_616) / (16 * 512 * 2**10))


def test_neighbours_on_a_device_compete_for_its_memory_bandwidth_as_far_as_asked() -> None:
    half = Placement(devices=range(1), model="a", memory_share=0.5)
    alone = replace(half, devices=range(1, 2))
    requests = [Request(i, 0.0, "a", 50, 10, 50, 1) for i in range(6)]
    step_s: dict[float, list[float]] = {}
    for i, contention in enumerate((0.0, 1.0)):
        with started(
            [half, half, alone], {"a": LLAMA_7B}, requests=requests, contention=contention
        ) as (cluster, _, loop):  # fmt: skip
            times = step_s[contention] = []
            for one, request in zip(cluster.instances, requests[3 * i :], strict=False):
                assert one.kv.grow(request, 51)
                loop.run(one.execute(Batch(decodes=[request]), until=0))  # time starts anew
                times.append(loop.now)
    assert step_s[0.0] == pytest.approx([step_s[0.0][0]] * 3)
    assert step_s[1.0][0] == pytest.approx(step_s[1.0][1])
    assert step_s[1.0][0] > 1.2 * step_s[0.0][0]
    assert step_s[1.0][2] == pytest.approx(step_s[0.0][2])


def test_neighbours_are_those_with_a_device_in_common() -> None:
    devices = (range(2), range(1), range(1, 2), range(2, 3))
    placements = [Placement(devices=each, model="a") for each in devices]
    assert [neighbours(one, placements) for one in placements] == [2, 1, 1, 0]


def test_rivals_slow_down_what_is_bound_by_memory_unless_the_share_does_so_more() -> None:
    def decode_s(**how: float) -> float:
        return CostModel(LLAMA_7B, H800, Part(**how), launch=0.0).decode_step(1, 51)[0]

    def prefill_s(**how: float) -> float:
        return CostModel(LLAMA_7B, H800, Part(**how)).mixed_step([(0, 4096)], 0, 0)

    weights_s = LLAMA_7B.weight_bytes / H800.memory_bandwidth_bytes_per_s
    assert decode_s(rivals=2) - decode_s(rivals=1) >= 0.9 * weights_s
    assert decode_s(compute_share=0.3, rivals=0.2) == decode_s(compute_share=0.3)
    assert decode_s(compute_share=0.3, rivals=3) == pytest.approx(decode_s(rivals=3), rel=0.01)
    assert prefill_s(rivals=1) < 1.05 * prefill_s()


def test_a_share_too_small_for_the_weights_is_refused() -> None:
    placement = Placement(devices=range(1), model="a", memory_share=0.2)
    with (
        pytest.raises(UsageError, match="leaves no memory for KV"),
        started([placement], {"a": LLAMA_13B}),
    ):
        pass


# LLaMA-7B on an A100 under CUDA MPS, 32 requests of 128 tokens: MuxServe's profiles, in ms.
SHARES = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3)
PREFILL_MS = (306, 326, 349, 384, 435, 502, 602, 806)
DECODE_MS = (14.4, 14.2, 14.2, 15.2, 16.2, 16.4, 18.5, 19.9)


@pytest.mark.parametrize("i", range(1, len(SHARES)))
def test_a_share_of_the_multiprocessors_costs_what_muxserve_measured(i: int) -> None:
    a100 = hardware_profile("a100x1")
    whole, part = (
        CostModel(LLAMA_7B, a100),
        CostModel(LLAMA_7B, a100, Part(compute_share=SHARES[i])),
    )
    prompts = [(0, 128)] * 32
    prefill = part.mixed_step(prompts, 0, 0) / whole.mixed_step(prompts, 0, 0)
    decode = part.decode_step(32, 32 * 129)[0] / whole.decode_step(32, 32 * 129)[0]
    assert prefill == pytest.approx(PREFILL_MS[i] / PREFILL_MS[0], rel=0.04)
    assert decode == pytest.approx(DECODE_MS[i] / DECODE_MS[0], rel=0.06)
