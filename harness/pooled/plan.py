"""How a pooled device's memory is divided: the weights buffer, the KV region, the rest.

Aegaeon §5.2: one allocation at start-up, from which weights are bumped and KV is slabbed; about a
tenth stays with the tensor library for activations.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

from harness.configuration.checks import at_least, require
from harness.errors import UsageError
from harness.model_spec import ModelSpec

ALIGN_BYTES = 512


@dataclass(kw_only=True, slots=True)
class PoolConfig:
    """`engine.pool`. Bytes are per device or per node, as said."""

    memory_share: float  # of a device, for weights and KV; Aegaeon §5.2: all but about 10 %
    min_kv_share: float  # of that, left to KV where a second model is to fit for prefetching
    slab_bytes: int  # of a device's KV region
    host_slab_bytes: int
    host_kv_bytes: int  # of each node
    model_cache_bytes: int  # of each node

    def __post_init__(self) -> None:
        share, kv = self.memory_share, self.min_kv_share
        require(0 < share <= 1, f"memory_share={share} must be in (0, 1]")
        require(0 < kv < 1, f"min_kv_share={kv} must be in (0, 1)")
        at_least(self, 1, "", "slab_bytes", "host_slab_bytes")


@dataclass(slots=True, frozen=True)
class MemoryPlan:
    """How each device of an instance divides its memory; KV is in slabs, and its blocks hold
    `block_tokens`."""

    weights_bytes: int
    kv_bytes: int
    slab_bytes: int
    block_tokens: int

    def facts(self, config: PoolConfig, specs: Collection[ModelSpec]) -> dict[str, Any]:
        """What a run's manifest says of the pool. Bytes are per device or per node."""
        largest = max(device_weight_bytes(spec) for spec in specs)
        return {
            "weights_bytes": self.weights_bytes,
            "kv_bytes": self.kv_bytes,
            "prefetching": self.weights_bytes > largest or len(specs) == 1,
            "host_kv_bytes": config.host_kv_bytes,
            "model_cache_bytes": config.model_cache_bytes,
        }


def device_weight_bytes(spec: ModelSpec) -> int:
    """The weight bytes of one of the `spec.tp` devices, rounded up to the buffer's alignment."""
    return -(-spec.weight_bytes // (spec.tp * ALIGN_BYTES)) * ALIGN_BYTES


def plan_memory(
    specs: Iterable[ModelSpec], memory_bytes: int, config: PoolConfig, block_tokens: int
) -> MemoryPlan:
    """Room for any two models, so that one can be prefetched beside the other, where that leaves
    KV its share; else for the largest one alone (no prefetching: Aegaeon §7.4, A10)."""
    sizes = sorted((device_weight_bytes(spec) for spec in specs), reverse=True)
    usable = int(memory_bytes * config.memory_share)
    for weights in (sizes[0] + sizes[min(1, len(sizes) - 1)], sizes[0]):
        if usable - weights >= config.min_kv_share * usable:
            return MemoryPlan(weights, usable - weights, config.slab_bytes, block_tokens)
    raise UsageError(
        f"a model's weights ({sizes[0] / 2**30:.2f} GiB a device) and its KV do not fit into "
        f"{usable / 2**30:.2f} GiB, engine.pool.memory_share of a device: use more devices "
        "(model.tp) or another profile"
    )
