"""A pool of two small instances of one node, on any engine, and requests to try on it."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import pytest
from omegaconf import OmegaConf

from harness.clock import Event
from harness.configuration.config import build
from harness.configuration.options import plain
from harness.placement import pooled
from harness.pooled.instance import PooledInstance
from harness.pooled.plan import device_weight_bytes
from harness.records.record import Recorder
from harness.request import Batch, Request
from harness.running.testbed import started
from tests.accounts import audit
from tests.running import hardware_profile, model_spec

KINDS = ["sim", pytest.param("torch", marks=pytest.mark.live)]
BLOCK_TOKENS = 16
SLAB_BYTES = 262144  # of a device's KV: 4 blocks of narrow and same, 8 of wide, 1 of deep
NUM_SLABS = 24  # on each device
HOST_SLABS = 12  # of the same size
FAST = 1e9  # bytes/s of a bus
NAMES = {
    "narrow": "tiny-llama",
    "wide": "tiny-llama-wide",
    "deep": "tiny-llama-deep",
    "same": "tiny-llama",  # other weights under another name, the same shape as narrow
}


class PoolBench:
    """With `weights_of`, the weights buffer has room for these models together. `nic_bytes_per_s`:
    that slow, and buses fast; None: as the profile has it, and live ones as fast as they are."""

    def __init__(
        self, kind: str, weights_of: tuple[str, ...], attention: str = "auto",
        devices_per_node: int = 2, num_devices: int = 2, nic_bytes_per_s: float | None = None,
    ) -> None:  # fmt: skip
        self.models = {name: model_spec(model) for name, model in NAMES.items()}
        weights = sum(device_weight_bytes(self.models[name]) for name in weights_of)
        hardware = replace(
            hardware_profile("local"), num_devices=num_devices,
            devices_per_node=devices_per_node,
            memory_bytes=weights + NUM_SLABS * SLAB_BYTES,
        )  # fmt: skip
        if nic_bytes_per_s is not None:
            hardware = replace(hardware, nic_bytes_per_s=nic_bytes_per_s)
        node = OmegaConf.load(f"conf/engine/{kind}.yaml")
        assert node.block_tokens == BLOCK_TOKENS
        node.pool.memory_share = 1.0
        node.pool.min_kv_share = 0.1
        node.pool.slab_bytes = node.pool.host_slab_bytes = SLAB_BYTES
        node.pool.host_kv_bytes = HOST_SLABS * SLAB_BYTES
        node.pool.model_cache_bytes = 2**30
        if kind == "torch":
            node.pool.cpu_device_bytes = hardware.memory_bytes
            node.attention = attention
            node.pool.link_bytes_per_s = None if nic_bytes_per_s is None else FAST
        engine = build(plain(node), "engine")
        self.recorder = Recorder([])
        self._started = started(
            engine, self.models, hardware, pooled(self.models, hardware), self.recorder
        )
        cluster, self.loop = self._started.__enter__()
        self.pool: list[PooledInstance] = list(cluster.pool)
        self.victims = cluster.victims
        self._next_id = 0

    def close(self) -> None:
        self._started.__exit__(None, None, None)

    def request(self, model: str, prompt: int = 20, output: int = 6) -> Request:
        request = Request(self._next_id, 0.0, model, prompt, output)
        self._next_id += 1
        self.recorder.add([request])
        return request

    def times(self, request: Request) -> list[float]:
        return list(self.recorder.records[request.request_id].token_times_s())

    def events(self, kind: str, request: Request | None = None) -> list[dict[str, Any]]:
        """The latest is the last; of one request where it is given."""
        return [
            event
            for event in self.recorder.events
            if event["kind"] == kind
            and (request is None or event["fields"]["request_id"] == request.request_id)
        ]

    def run(self, story: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        """Runs `story`, after which nothing may be held anywhere."""
        result = self.loop.run(story())
        self.assert_empty()
        return result

    def assert_empty(self) -> None:
        for host in {instance.host for instance in self.pool}:
            assert not host.move_list
            assert host.slabs.allocated_bytes() == 0
        for instance in self.pool:
            for model in self.models:
                kv = instance.kv(model)
                audit(kv)
                assert not kv.held
                assert kv.used_blocks == 0, "slabs of this or another shape are still taken"

    async def ensure(self, instance: PooledInstance, model: str) -> None:
        if instance.model != model:
            await instance.load(model)

    async def prefill(self, instance: PooledInstance, *requests: Request) -> None:
        """Loads the model if need be."""
        await self.ensure(instance, requests[0].model)
        for request in requests:
            assert instance.kv(request.model).grow(request, request.known_tokens)
        chunks = [(request, request.known_tokens) for request in requests]
        assert await instance.execute(Batch(chunks=chunks)) == 1

    async def decode(self, instance: PooledInstance, *requests: Request, **how: Any) -> int:
        """Loads the model if need be."""
        await self.ensure(instance, requests[0].model)
        for request in requests:
            assert instance.kv(request.model).grow(request, request.computed_tokens + 1)
        return await instance.execute(Batch(decodes=list(requests)), **how)

    async def swap_in(self, instance: PooledInstance, request: Request) -> None:
        arrived = instance.swap_in(request, lambda: None)
        assert isinstance(arrived, Event), "no room"
        await self.loop.wait(arrived)
