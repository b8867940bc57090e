"""A layer's weights where they run: plain tensors, or on a CPU packed for the matmul.

Knows nothing of what a layer computes; `model.py` does.
"""

from __future__ import annotations

import torch
from torch.nn.functional import linear

from harness.engine.cuda import staged
from harness.engine.kernels import Linear, MakeLinear
from harness.engine.mlp import MLPS
from harness.engine.shards import ShardedWeights, rank_spec
from harness.engine.weights import Weights
from harness.model_family import family_of
from harness.model_spec import ModelSpec


class TorchLinear:
    """Answers `Linear`. W is a plain tensor, or one from `packed`.

    Float32 on a CPU goes to oneDNN: measured with 64 rows on an AVX-512 AMD, its product is 2 to 4
    times as fast as MKL's behind `linear`, and equals it up to the order of the sums. It is as
    fast with a plain matrix as with a packed one from 64 rows on, and half as fast with a few; one
    row is MKL's. Half precision goes to oneDNN anyway.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        self._weight, self._bias = weight, bias
        self._packed = weight.is_mkldnn
        self._plain_float = weight.device.type == "cpu" and weight.dtype == torch.float32

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if not self._by_onednn(x):
            return linear(x, self._weight, self._bias)
        out: torch.Tensor = torch.ops.mkldnn._linear_pointwise(
            x, self._weight, self._bias, "none", [], ""
        )
        return out

    def plus(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        """residual + x Wᵀ + bias; without a bias in one kernel."""
        if not self._by_onednn(x):
            added = residual if self._bias is None else residual + self._bias
            return torch.addmm(added, x, self._weight.t())
        out: torch.Tensor = torch.ops.mkldnn._linear_pointwise(
            x, residual, self._weight, self._bias, "add"
        )
        return out

    def _by_onednn(self, x: torch.Tensor) -> bool:
        return self._packed or (self._plain_float and len(x) > 1)


class Layer:
    """One decoder layer, of weights that are on their device. `linear` makes its products."""

    def __init__(self, spec: ModelSpec, weights: Weights, linear: MakeLinear) -> None:
        self.input_norm = weights["input_norm"]
        self.qkv = linear(weights["qkv"], weights.get("qkv_bias"))
        self.qk_norm = weights.get("qk_norm")
        self.o = linear(weights["o"], weights.get("o_bias"))
        self.post_norm = weights["post_norm"]
        self.mlp = MLPS[family_of(spec.family).mlp](spec, weights, linear)


class Ends:
    """What stands before the first layer, embeddings, and after the last one, norm and head. On an
    elastic device they come and go with that layer."""

    embed: torch.Tensor
    positions: torch.Tensor  # where they are learned
    norm: torch.Tensor
    lm_head: Linear

    def adopt(self, weights: Weights, linear: MakeLinear) -> None:
        """Takes over those of `weights` that are there. Without a head of its own the model has its
        embeddings'."""
        if "embed" in weights:
            self.embed = weights["embed"]
        if "positions" in weights:
            self.positions = weights["positions"]
        if "norm" in weights:
            self.norm = weights["norm"]
            self.lm_head = linear(weights["lm_head" if "lm_head" in weights else "embed"], None)


class LoadedLayers:
    """A model, or the part of it that `rank` has, on its device, with copies of its layers in host
    memory."""

    def __init__(
        self, spec: ModelSpec, device: torch.device, linear: MakeLinear, rank: int = 0
    ) -> None:
        source = ShardedWeights(spec, rank)
        self._spec, self._device, self._linear = rank_spec(spec), device, linear
        self._host = [
            {name: staged(tensor, device) for name, tensor in source.tensors(index).items()}
            for index in range(spec.num_layers)
        ]  # page-locked where a GPU will fetch them
        self.ends = Ends()
        self.ends.adopt(placed(source.ends(), device), linear)
        self.on_device: dict[int, Layer] = {}
        self.load()

    def load(self) -> None:
        """Copies the layers to the device, anew where they are there; on a CPU too, to memory of
        their own."""
        self.on_device.clear()
        for layer, weights in enumerate(self._host):
            here = placed(weights, self._device)
            self.on_device[layer] = Layer(self._spec, here, self._linear)


def placed(host: Weights, device: torch.device) -> Weights:
    """A copy on `device`; of a CPU's, what products do not pack stays where it is."""
    if device.type == "cpu":
        return host
    return {name: tensor.to(device, copy=True) for name, tensor in host.items()}


def packed(matrix: torch.Tensor) -> torch.Tensor:
    """A float32 matrix in a CPU's memory as a copy that is packed for oneDNN, as torch's own
    compiler does; any other matrix itself."""
    if matrix.device.type == "cpu" and matrix.dtype == torch.float32:
        copy: torch.Tensor = torch.ops.mkldnn._reorder_linear_weight(matrix)
        return copy
    return matrix
