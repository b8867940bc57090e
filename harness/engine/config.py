"""`engine` of engine=torch: its keys, each checked."""

from __future__ import annotations

import os
from dataclasses import dataclass

from harness.drivers.limits import require_positive
from harness.errors import UsageError
from harness.pooled.plan import PoolConfig

DEVICES = ("auto", "cpu", "cuda")
WARM_UP_TOKENS = 2048  # of a batch, vLLM's default: larger ones pay when they come
AT_LEAST_ONE = ("block_tokens", "num_kv_blocks", "cpu_kv_bytes", "num_threads")


@dataclass(kw_only=True, slots=True)
class TorchPoolConfig(PoolConfig):
    cpu_device_bytes: int  # memory of a pooled instance on a CPU; on a GPU: its share of the GPU's
    stage_buffer_bytes: int  # of each instance, in host memory
    link_bytes_per_s: float | None  # of each direction of each bus; null: what the machine gives

    def __post_init__(self) -> None:
        PoolConfig.__post_init__(self)
        if self.stage_buffer_bytes < 4096:
            raise ValueError(f"stage_buffer_bytes={self.stage_buffer_bytes} must be at least 4096")
        if self.link_bytes_per_s is not None and not self.link_bytes_per_s > 0:
            raise ValueError(f"link_bytes_per_s={self.link_bytes_per_s} must be above 0, or null")
        if self.host_slab_bytes > self.host_kv_bytes:
            raise ValueError(
                f"host_slab_bytes={self.host_slab_bytes} is more than "
                f"host_kv_bytes={self.host_kv_bytes}"
            )


@dataclass(kw_only=True, slots=True)
class TorchElasticConfig:
    paced: bool  # links take as long as the hardware profile's would; else what this machine takes
    layer_s: float  # a layer's computation takes at least so long
    token_s: float  # and at least so long for each token of the batch
    chunk_bytes: int  # of copies of weights and KV
    host_kv_bytes: int  # of each node's DRAM, for KV

    def __post_init__(self) -> None:
        for name in ("layer_s", "token_s"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name}={getattr(self, name)} must be at least 0")
        for name in ("chunk_bytes", "host_kv_bytes"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} must be at least 1")


@dataclass(kw_only=True, slots=True)
class TorchConfig:
    device: str  # auto, cpu or cuda
    block_tokens: int
    num_kv_blocks: int | None  # per instance; null: as many as the memory below holds
    memory_fraction: float  # of a GPU's memory, for weights and KV of all its instances
    cpu_kv_bytes: int  # KV memory per instance on a CPU
    num_threads: int | None  # CPU threads per instance; null: all cores but one, divided
    start_timeout_s: float
    hang_timeout_s: float  # silence after which a worker counts as hung
    step_timeout_s: float  # the longest that one iteration, load or drop may take
    pool: TorchPoolConfig  # of systems whose models share instances
    elastic: TorchElasticConfig  # of systems whose weights and KV move

    def __post_init__(self) -> None:
        if self.device not in DEVICES:
            raise UsageError(
                f"engine.device={self.device} is not a device; valid: {', '.join(DEVICES)}"
            )
        for name in AT_LEAST_ONE:
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UsageError(f"engine.{name}={value} must be at least 1")
        most = os.cpu_count() or 1
        if self.num_threads is not None and self.num_threads > most:
            raise UsageError(
                f"engine.num_threads={self.num_threads} must be at most {most}, the cores here"
            )
        require_positive(self, "start_timeout_s", "hang_timeout_s", "step_timeout_s")
        if not 0 < self.memory_fraction <= 1:
            raise UsageError(
                f"engine.memory_fraction={self.memory_fraction} must be above 0 and at most 1"
            )
