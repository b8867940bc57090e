"""From the devices that an engine has brought up to the pool of instances on them."""

from __future__ import annotations

from collections.abc import Sequence

from harness.engine_api import Experiment
from harness.model_spec import ModelSpec
from harness.pooled.device import Device
from harness.pooled.host import Host, SharedByPool
from harness.pooled.instance import PooledInstance
from harness.pooled.plan import MemoryPlan, PoolConfig


def make_pool(
    devices: Sequence[Device], plan: MemoryPlan, config: PoolConfig, experiment: Experiment
) -> list[PooledInstance]:
    """Every node's cache begins with the models that fit."""
    hosts = {node: Host(node, config, experiment.loop) for node in {d.node for d in devices}}
    for host in hosts.values():
        host.models.warm(experiment.models.values())
    same: dict[ModelSpec, ModelSpec] = {}  # equal ones become one object, quick to find
    models = {name: same.setdefault(spec, spec) for name, spec in experiment.models.items()}
    shared = SharedByPool(models, plan, experiment.loop, experiment.recorder)
    return [PooledInstance(device, hosts[device.node], shared) for device in devices]
