"""What fits on a mesh of devices, by MuxServe's budget, in bytes. A mesh is one large device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.model_spec import ModelSpec


@dataclass(kw_only=True, slots=True)
class MemoryConfig:
    """What a mesh keeps beside weights and KV."""

    process_bytes: float  # of each model: its prefill process and its decode process
    activation_bytes: float  # of each model
    usable_share: float  # of the memory; KV gets what weights and activations leave of it


class Budget:
    """The memory of meshes that are some devices wide."""

    def __init__(self, config: MemoryConfig, memory_bytes: int, weights_share: float) -> None:
        """memory_bytes: of one device. weights_share: how much of it weights, processes and
        activations may take."""
        self._config, self._memory_bytes = config, memory_bytes
        self._weights_share = weights_share
        self.beside_weights_bytes = config.process_bytes + config.activation_bytes  # of each model

    def free_bytes(self, specs: Sequence[ModelSpec], width: int) -> float:
        """Free for the weights of one more model on a mesh of `width` devices that has `specs`."""
        taken = sum(spec.weight_bytes + self.beside_weights_bytes for spec in specs)
        return self._weights_share * self._memory_bytes * width - taken

    def fits(self, specs: Sequence[ModelSpec], width: int, request_tokens: int) -> bool:
        """Whether all of `specs` fit, with the KV of an average request of each.

        request_tokens: of an average request. The last of `specs` is the one that is added.
        """
        kv = sum(spec.held_kv_bytes_per_token * request_tokens for spec in specs)
        last = specs[-1].weight_bytes
        return self.free_bytes(specs[:-1], width) >= last and self.kv_bytes(specs, width) >= kv

    def kv_bytes(self, specs: Sequence[ModelSpec], width: int) -> float:
        """Bytes that are left for the KV of all of `specs` together."""
        weights = sum(spec.weight_bytes for spec in specs)
        activations = len(specs) * self._config.activation_bytes
        return self._config.usable_share * self._memory_bytes * width - weights - activations

    def memory_shares(
        self, specs: Sequence[ModelSpec], weights: Sequence[float], width: int
    ) -> list[float]:
        """The share of the mesh's memory that each of `specs` gets: weights, activations and KV.

        KV is split in proportion to `weights`, but each gets at least half of an equal part.
        """
        floor = 1 / (2 * len(specs))
        total = sum(weights)
        kv = [
            self.kv_bytes(specs, width) * (floor + 0.5 * (weight / total if total else 2 * floor))
            for weight in weights
        ]
        own = [spec.weight_bytes + self._config.activation_bytes for spec in specs]
        memory = self._memory_bytes * width
        return [(mine + part) / memory for mine, part in zip(own, kv, strict=True)]
