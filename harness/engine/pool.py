"""Brings up the pooled instances of engine=torch: memory, workers and the pool over them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from math import inf, lcm
from typing import Any

from harness.cluster import Cluster
from harness.cost.profile import HardwareProfile, TimeScale
from harness.engine.config import TorchConfig
from harness.engine.device import TorchDevice
from harness.engine.host_memory import HostMemory
from harness.engine.tokens import TokenBook
from harness.engine.transport import Header
from harness.engine.warm_speed import time_scale
from harness.engine.worker_process import WorkerProcess, side_by_side
from harness.engine_api import Experiment
from harness.errors import UsageError
from harness.model_spec import ModelSpec
from harness.pooled.blocks import device_shape
from harness.pooled.build import make_pool
from harness.pooled.plan import MemoryPlan, PoolConfig, device_weight_bytes, plan_memory
from harness.records import gpu_monitor

NewProcess = Callable[[int, Sequence[int]], WorkerProcess]  # index, files


@dataclass(slots=True, frozen=True)
class Division:
    """How a worker's memory is divided. `pad_bytes` lie before the KV region."""

    plan: MemoryPlan
    slab_bytes: int
    pad_bytes: int


class TorchPool:
    """Started by its constructor, in processes from `new_process`; ended by `stack`."""

    def __init__(
        self, stack: ExitStack, config: TorchConfig, num_threads: int,
        experiment: Experiment, new_process: NewProcess,
    ) -> None:  # fmt: skip
        self._config, self._num_threads = config, num_threads
        self._experiment, self._new_process = experiment, new_process
        self._models = experiment.models
        num_devices = len(experiment.placements)
        memory_bytes = device_memory_bytes(config, num_devices)
        specs = list(self._models.values())
        self._division = divided(config.pool, specs, config.block_tokens, memory_bytes)
        self._memory = HostMemory(
            stack, self._models, config.pool.host_kv_bytes, config.pool.model_cache_bytes,
            experiment.run_dir,
        )  # fmt: skip
        book = TokenBook(experiment.seed)
        self._devices: list[TorchDevice] = []
        for index in range(num_devices):
            self._devices.append(self._device(index, num_devices, book))
            stack.callback(self._devices[-1].close)

    def ready(self) -> tuple[Cluster, dict[str, Any]]:
        """Waits for the workers. The cluster, and what the engine's `resolved` says of it."""
        devices = self._devices
        ready = side_by_side([d.handshake for d in devices], [d.kill for d in devices])
        config = replace(self._config.pool, slab_bytes=self._division.slab_bytes)
        pool = make_pool(
            self._devices, self._division.plan, config, self._config.block_tokens, self._experiment
        )
        pool[0].host.models.warm(self._models.values())
        hardware = self._experiment.hardware
        paced = config.link_bytes_per_s or inf
        hardware = replace(
            hardware,
            pcie_peak_bytes_per_s=min(paced, hardware.pcie_peak_bytes_per_s),
            pcie_bytes_per_s=min(paced, hardware.pcie_bytes_per_s),
        )
        profile = HardwareProfile(hardware)
        found = time_scale([answer["speeds"] for answer in ready], self._models.values(), profile)
        cluster = replace(self._experiment, hardware=hardware).cluster(
            pool=pool, profile=HardwareProfile(hardware, found)
        )
        return cluster, self._resolved(ready, found)

    def _device(self, index: int, num_devices: int, book: TokenBook) -> TorchDevice:
        def spawn(anew: bool) -> WorkerProcess:
            """Each worker writes some of the models, the first time."""
            worker = self._new_process(index, self._memory.files)
            mine = [] if anew else list(self._models)[index::num_devices]
            worker.send({**self._setup(index, mine), "time": not anew})
            return worker

        return TorchDevice(
            spawn, self._config.start_timeout_s, self._experiment, self._memory, book,
            slab_bytes=self._division.slab_bytes, block_tokens=self._config.block_tokens,
        )  # fmt: skip

    def _setup(self, index: int, write: Sequence[str]) -> Header:
        config, plan = self._config, self._division.plan
        return {
            "op": "setup",
            "memory": "pooled",
            "models": dict(self._models),
            "write": {name: self._memory.first_copies(name) for name in write},
            "device": config.device,
            "index": index,
            "num_threads": self._num_threads,
            "block_tokens": config.block_tokens,
            "weights_bytes": plan.weights_bytes,
            "kv_bytes": plan.kv_bytes // self._division.slab_bytes * self._division.slab_bytes,
            "slab_bytes": self._division.slab_bytes,
            "pad_bytes": self._division.pad_bytes,
            "kv_file": self._memory.kv_file,
            "host_kv_bytes": self._memory.kv_bytes,
            "stage_buffer_bytes": config.pool.stage_buffer_bytes,
            "link_bytes_per_s": config.pool.link_bytes_per_s,
        }

    def _resolved(self, ready: Sequence[Header], times: Mapping[str, TimeScale]) -> dict[str, Any]:
        pool, plan = self._config.pool, self._division.plan
        rate = pool.link_bytes_per_s
        paced = "" if rate is None else f", links slowed to {rate / 1e9:g} GB/s"
        largest = max(device_weight_bytes(spec) for spec in self._models.values())
        return {
            "devices": [answer["device"] + paced for answer in ready],
            "num_threads": [answer["num_threads"] for answer in ready],
            "block_tokens": self._config.block_tokens,
            "torch": ready[0]["torch"],
            "time_scale": {name: asdict(found) for name, found in times.items()},
            "speeds": [answer["speeds"] for answer in ready],
            "pool": {
                "weights_bytes": plan.weights_bytes,
                "kv_bytes": plan.kv_bytes,
                "prefetching": plan.weights_bytes > largest or len(self._models) == 1,
                "slab_bytes": self._division.slab_bytes,
                "host_kv_bytes": pool.host_kv_bytes,
                "model_cache_bytes": pool.model_cache_bytes,
                "link_bytes_per_s": rate,
            },
        }


def device_memory_bytes(config: TorchConfig, num_devices: int) -> int:
    """Of one instance; those on one GPU share it equally."""
    gpus = [] if config.device == "cpu" else gpu_monitor.devices()
    if not gpus:
        return config.pool.cpu_device_bytes
    sharing = -(-num_devices // len(gpus))
    return int(min(gpu["memory_bytes"] for gpu in gpus)) // sharing


def divided(
    config: PoolConfig, specs: Sequence[ModelSpec], block_tokens: int, memory_bytes: int
) -> Division:
    """Divides `memory_bytes`. Slabs are of the configured size or a little more: a multiple of
    every model's head, so that tensors can be laid over any block."""
    dtypes = sorted({spec.dtype for spec in specs})
    if len(dtypes) > 1:
        raise UsageError(
            f"models of dtypes {' and '.join(dtypes)} cannot share instances of engine=torch: "
            "give every model the same dtype"
        )
    plan = plan_memory(specs, memory_bytes, config)
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
    return Division(plan, slab_bytes, block_bytes)
