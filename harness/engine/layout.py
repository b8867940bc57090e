"""A model as flat bytes: its tensors one behind the other, without gaps, and the model as views.

Aegaeon §5.2: parameters are backed by a buffer that we manage, so that a switch copies bytes and
does nothing else. The files that stand for DRAM and SSD hold the same bytes in the same order:
layer by layer, the embeddings with the first one, the norm and the head with the last one. On an
elastic device any layer comes and goes by itself, so that a head tied to the embeddings is there a
second time, with the last layer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import prod

import torch

from harness.engine.host_memory import write_all
from harness.engine.linear import Ends, Layer
from harness.engine.weights import ENDS, HostWeights, Weights, fused_shapes, torch_dtype
from harness.model_spec import ModelSpec

Shapes = Mapping[str, tuple[int, ...]]


def layer_shapes(spec: ModelSpec, layer: int, *, alone: bool) -> Shapes:
    """Shapes of the tensors that go with `layer`, in the order of their bytes. `alone`: the layer
    comes and goes by itself."""
    shapes, ends = fused_shapes(spec, layer), fused_shapes(spec, ENDS)
    if layer == 0:
        shapes["embed"] = ends["embed"]
    if layer == spec.num_layers - 1:
        shapes["norm"] = ends["norm"]
        if not spec.tie_embeddings or (alone and layer):
            shapes["lm_head"] = ends.get("lm_head", ends["embed"])
    return shapes


def layer_tensors(source: HostWeights, spec: ModelSpec, layer: int, *, alone: bool) -> Weights:
    """The tensors of `layer_shapes`, drawn or read from a checkpoint."""
    tensors = source.tensors(layer)
    if layer in (0, spec.num_layers - 1):
        tensors |= source.ends()
    return {name: tensors[name] for name in layer_shapes(spec, layer, alone=alone)}


def tensor_places(spec: ModelSpec) -> list[range]:
    """The bytes of each tensor of a pooled model: `spec.weight_bytes` in all."""
    found, at = [], 0
    for layer in range(spec.num_layers):
        for shape in layer_shapes(spec, layer, alone=False).values():
            found.append(range(at, at + prod(shape) * spec.dtype_bytes))
            at = found[-1].stop
    return found


def write_model(spec: ModelSpec, files: Iterable[int], *, alone: bool = False) -> None:
    """Writes a model, drawn or read from a checkpoint, to every one of `files`; `alone`: whose
    layers come and go by themselves."""
    source, at = HostWeights(spec), 0
    for layer in range(spec.num_layers):
        for tensor in layer_tensors(source, spec, layer, alone=alone).values():
            content = tensor.contiguous().flatten().view(torch.uint8).numpy().data
            for file in files:
                write_all(file, content, at)
            at += len(content)


def model_in(buffer: torch.Tensor, spec: ModelSpec, at_bytes: int) -> tuple[Ends, dict[int, Layer]]:
    """The pooled model whose bytes lie in `buffer` from `at_bytes` on, now or later: views, no
    copies."""
    ends, layers, at = Ends(), {}, at_bytes
    for layer in range(spec.num_layers):
        weights, at = views(buffer, spec, layer_shapes(spec, layer, alone=False), at)
        ends.adopt(weights)
        layers[layer] = Layer(weights)
    return ends, layers


def views(buffer: torch.Tensor, spec: ModelSpec, shapes: Shapes, at: int) -> tuple[Weights, int]:
    """Tensors of `shapes`, one behind the other in `buffer` from `at` on; where they end."""
    found: Weights = {}
    for name, shape in shapes.items():
        size = prod(shape) * spec.dtype_bytes
        found[name] = buffer[at : at + size].view(torch_dtype(spec)).view(shape)
        at += size
    return found, at
