"""Brings up the pooled instances of engine=torch: memory, workers and the pool over them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from math import inf, lcm
from typing import Any

from harness.cluster import Cluster
from harness.cost.hardware import Hardware
from harness.cost.profile import HardwareProfile, TimeScale
from harness.device.location import dram, hbm
from harness.device.topology import Topology
from harness.engine.config import TorchConfig, TorchPoolConfig
from harness.engine.device import TorchDevice
from harness.engine.fabric import LinkTable, check_leaves
from harness.engine.host_memory import HostMemory
from harness.engine.paced_links import LinkPath
from harness.engine.transport import Header
from harness.engine.warm_speed import time_scale
from harness.engine.worker_process import WorkerProcess, side_by_side
from harness.engine.workers import Workers
from harness.engine_api import Experiment
from harness.errors import UsageError
from harness.model_spec import ModelSpec
from harness.pooled.blocks import device_shape
from harness.pooled.build import make_pool
from harness.pooled.plan import MemoryPlan, PoolConfig, plan_memory


class TorchPool:
    """A pool that its constructor starts; it ends with `workers`."""

    def __init__(self, workers: Workers, config: TorchConfig, experiment: Experiment) -> None:
        self._workers, self._config, self._experiment = workers, config, experiment
        self._models = experiment.models
        share = workers.share_bytes()
        memory_bytes = config.pool.cpu_device_bytes if share is None else share
        specs = list(self._models.values())
        self._plan = divided(config.pool, specs, config.block_tokens, memory_bytes)
        hardware = experiment.hardware
        self._memory = HostMemory(workers.launcher, hardware.num_nodes, self._models, config.pool)
        self._links = between_nodes(hardware, config.pool, one_host=workers.launcher.one_host)
        self._tables = self._links.open(workers.launcher, hardware.num_nodes)
        book = workers.book
        self._devices: list[TorchDevice] = []
        for index in range(workers.num_workers):
            spawn = partial(self._spawn, index)
            device = TorchDevice(
                workers.nodes[index], spawn, config.start_timeout_s, experiment, self._memory,
                self._plan, book,
            )  # fmt: skip
            self._devices.append(device)
            workers.stack.callback(device.close)

    def ready(self) -> tuple[Cluster, dict[str, Any]]:
        """Waits for the workers. The cluster, and what the engine's `resolved` says of it."""
        devices = self._devices
        ready = side_by_side([d.handshake for d in devices], [d.kill for d in devices])
        pool = make_pool(self._devices, self._plan, self._config.pool, self._experiment)
        hardware = self._experiment.hardware
        paced = self._config.pool.link_bytes_per_s or inf
        hardware = replace(
            hardware,
            pcie_peak_bytes_per_s=min(paced, hardware.pcie_peak_bytes_per_s),
            pcie_bytes_per_s=min(paced, hardware.pcie_bytes_per_s),
        )
        profile = HardwareProfile(hardware)
        found = time_scale([answer["speeds"] for answer in ready], self._models.values(), profile)
        cluster = replace(self._experiment, hardware=hardware).cluster(
            pool=pool,
            profile=HardwareProfile(hardware, found),
            victims=[
                self._workers.victim(index, each.name, each.pids, each.may_fail)
                for index, each in enumerate(devices)
            ],
        )
        return cluster, self._resolved(ready, found)

    def _spawn(self, index: int, anew: bool) -> WorkerProcess:
        """Each worker writes some of the models, the first time."""
        mine = [] if anew else list(self._models)[index :: self._workers.num_workers]
        setup = {
            "memory": "pooled", "models": dict(self._models), "plan": self._plan,
            "write": {name: self._memory.first_copies(name) for name in mine},
            "kv_file": dram(self._workers.nodes[index]).file("kv"), "time": not anew,
            "tables": self._tables, "far": self._far(index),
        }  # fmt: skip
        return self._workers.start(index, setup)

    def _far(self, index: int) -> dict[str, LinkPath]:
        """How a worker reaches the KV of each other node, by its file; not paced: none."""
        if not self._links.paced:
            return {}
        per_node = self._experiment.hardware.devices_per_node
        place = hbm(*divmod(self._experiment.placements[index].devices.start, per_node))
        others = [node for node in range(self._experiment.hardware.num_nodes) if node != place.node]
        return {dram(node).file("kv"): self._links.path(dram(node), place) for node in others}

    def _resolved(self, ready: Sequence[Header], times: Mapping[str, TimeScale]) -> dict[str, Any]:
        pool, rate = self._config.pool, self._config.pool.link_bytes_per_s
        paced = "" if rate is None else f", links slowed to {rate / 1e9:g} GB/s"
        facts = self._plan.facts(pool, list(self._models.values()))
        return self._workers.resolved(ready) | {
            "devices": [answer["device"] + paced for answer in ready],
            "num_threads": [answer["num_threads"] for answer in ready],
            "time_scale": {name: asdict(found) for name, found in times.items()},
            "speeds": [answer["speeds"] for answer in ready],
            "pool": facts | {"slab_bytes": self._plan.slab_bytes, "link_bytes_per_s": rate},
        }


def between_nodes(hardware: Hardware, config: TorchPoolConfig, *, one_host: bool) -> LinkTable:
    """The links over which instances fetch KV from other nodes, as the simulator has them: each
    NIC is shared by all who use it. Paced where buses are; without NICs as slow as these."""
    rate, nodes = config.link_bytes_per_s, range(hardware.num_nodes)
    if rate is None or len(nodes) == 1:
        return LinkTable(Topology(hardware), [], paced=False, one_host=one_host)
    check_leaves(hardware, paced=True, one_host=one_host)
    nic = hardware.nic_bytes_per_s or rate
    paced = replace(hardware, pcie_bytes_per_s=rate, nic_bytes_per_s=nic)
    devices = [
        hbm(*divmod(each, hardware.devices_per_node)) for each in range(hardware.num_devices)
    ]
    return LinkTable(Topology(paced), [*map(dram, nodes), *devices], paced=True, one_host=one_host)


def divided(
    config: PoolConfig, specs: Sequence[ModelSpec], block_tokens: int, memory_bytes: int
) -> MemoryPlan:
    """Divides `memory_bytes`. Slabs are of the configured size or a little more: a multiple of
    every model's head, so that tensors can be laid over any block."""
    dtypes = sorted({spec.dtype for spec in specs})
    if len(dtypes) > 1:
        raise UsageError(
            f"models of dtypes {' and '.join(dtypes)} cannot share instances of engine=torch: "
            "give every model the same dtype"
        )
    plan = plan_memory(specs, memory_bytes, config, block_tokens)
    head_bytes = lcm(*(spec.head_dim * spec.dtype_bytes for spec in specs))
    slab_bytes = -(-config.slab_bytes // head_bytes) * head_bytes
    if slab_bytes > plan.kv_bytes:
        raise UsageError(
            f"engine.pool.slab_bytes={config.slab_bytes} is more than the {plan.kv_bytes} bytes "
            "that weights leave for KV: give smaller slabs, or more memory "
            "(engine.pool.cpu_device_bytes)"
        )
    block_bytes = max(device_shape(spec, block_tokens).block_bytes for spec in specs)
    for name in ("slab_bytes", "host_slab_bytes"):
        if block_bytes > getattr(config, name):
            raise UsageError(
                f"engine.pool.{name}={getattr(config, name)} is less than a KV block of "
                f"{block_bytes} bytes"
            )
    return replace(plan, slab_bytes=slab_bytes)
