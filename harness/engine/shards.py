"""A rank's part of a model that several devices share: tensor parallelism as in Megatron-LM (§3).

A rank has some of the heads and of the MLP's columns: rows of q, k, v, gate and up, columns of o
and down, whose products are then a part of a sum (`ranks.py`). Norms, embeddings and head are whole
on every rank.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import torch

from harness.engine.weights import HostWeights, Weights
from harness.errors import UsageError
from harness.model_spec import ModelSpec

WHOLE = ("input_norm", "qk_norm", "post_norm", "embed", "norm", "lm_head")


def rank_spec(spec: ModelSpec) -> ModelSpec:
    """What one of the `spec.tp` ranks computes and holds, as a model of one device."""
    return replace(
        spec, tp=1, num_heads=spec.num_heads // spec.tp, num_kv_heads=spec.num_kv_heads // spec.tp,
        intermediate_size=spec.intermediate_size // spec.tp,
    )  # fmt: skip


class ShardedWeights(HostWeights):
    """The weights of one rank. A whole layer is read for them, and the rest forgotten."""

    def __init__(self, spec: ModelSpec, rank: int) -> None:
        super().__init__(spec)
        self._rank = rank

    def tensors(self, layer: int) -> Weights:
        return shard(super().tensors(layer), self._spec, self._rank)


def shard(weights: Weights, spec: ModelSpec, rank: int) -> Weights:
    """The part of a layer's fused tensors, or of the ends', that `rank` has. UsageError for a
    tensor of which it is not known how ranks share it."""
    if spec.tp == 1:
        return weights
    q, kv = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    rows = {"qkv": [q, kv, kv], "qkv_bias": [q, kv, kv], "gate_up": [spec.intermediate_size] * 2}
    found = {}
    for name, tensor in weights.items():
        if name in rows:
            parts: Iterable[torch.Tensor] = tensor.split(rows[name])
            found[name] = torch.cat([part.chunk(spec.tp)[rank] for part in parts])
        elif name in ("o", "down"):
            found[name] = tensor.chunk(spec.tp, 1)[rank].contiguous()
        elif name in WHOLE:
            found[name] = tensor
        else:
            raise UsageError(f"model.tp={spec.tp} cannot divide {name}; valid for {spec.name}: 1")
    return found
