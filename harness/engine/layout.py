"""A model as one flat piece of memory: where each of its tensors lies, and the model as views.

Aegaeon §5.2: parameters are backed by a buffer that we manage, so that a switch copies bytes and
does nothing else. The model cache and the files on SSD hold the same bytes in the same order.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from math import prod

import torch

from harness.engine.linear import Ends, Layer
from harness.engine.weights import ENDS, HostWeights, Weights, fused_shapes, torch_dtype
from harness.model_spec import ModelSpec


@dataclass(slots=True, frozen=True)
class Piece:
    """One tensor. `layer`: ENDS for what stands before the first layer and after the last."""

    layer: int
    name: str
    shape: tuple[int, ...]
    offset_bytes: int
    num_bytes: int


def pieces(spec: ModelSpec) -> list[Piece]:
    """In the order of their offsets, without gaps: `spec.weight_bytes` in all."""
    found: list[Piece] = []
    offset = 0
    for layer in (ENDS, *range(spec.num_layers)):
        for name, shape in fused_shapes(spec, layer).items():
            num_bytes = prod(shape) * spec.dtype_bytes
            found.append(Piece(layer, name, shape, offset, num_bytes))
            offset += num_bytes
    return found


def write_model(spec: ModelSpec, files: list[int]) -> None:
    """Writes the weights, drawn or read from a checkpoint, to every one of `files`."""
    source, layer, weights = HostWeights(spec), ENDS, dict[str, torch.Tensor]()
    for piece in pieces(spec):
        if piece.layer != layer or not weights:
            layer = piece.layer
            weights = source.ends() if layer == ENDS else source.layer(layer)
        content = as_bytes(weights[piece.name]).numpy().data
        for file in files:
            written = 0
            while written < len(content):  # the kernel takes at most 2 GiB at a time
                written += os.pwrite(file, content[written:], piece.offset_bytes + written)


def model_in(buffer: torch.Tensor, spec: ModelSpec, at_bytes: int) -> tuple[Ends, dict[int, Layer]]:
    """The model whose bytes lie in `buffer` from `at_bytes` on, now or later: views, no copies."""
    by_layer: dict[int, Weights] = {}
    for piece in pieces(spec):
        start = at_bytes + piece.offset_bytes
        flat = buffer[start : start + piece.num_bytes].view(torch_dtype(spec))
        by_layer.setdefault(piece.layer, {})[piece.name] = flat.view(piece.shape)
    ends = by_layer.pop(ENDS)
    ends.setdefault("lm_head", ends["embed"])
    return Ends(ends), {index: Layer(weights) for index, weights in by_layer.items()}


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().flatten().view(torch.uint8)
