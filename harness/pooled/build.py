"""From the devices that an engine has brought up to the pool of instances on them."""

from __future__ import annotations

from collections.abc import Sequence

from harness.engine_api import Experiment
from harness.pooled.device import Device
from harness.pooled.host import Host, SwappedKv
from harness.pooled.instance import PooledInstance
from harness.pooled.plan import MemoryPlan, PoolConfig


def make_pool(
    devices: Sequence[Device],
    plan: MemoryPlan,
    config: PoolConfig,
    block_tokens: int,
    experiment: Experiment,
) -> list[PooledInstance]:
    hosts = {
        node: Host(
            node,
            kv_bytes=config.host_kv_bytes,
            slab_bytes=config.host_slab_bytes,
            model_cache_bytes=config.model_cache_bytes,
            loop=experiment.loop,
        )
        for node in sorted({device.node for device in devices})
    }
    swapped: dict[int, SwappedKv] = {}
    return [
        PooledInstance(
            device, hosts[device.node], experiment.models, plan, swapped,
            slab_bytes=config.slab_bytes, block_tokens=block_tokens,
            loop=experiment.loop, recorder=experiment.recorder,
        )
        for device in devices
    ]  # fmt: skip
