"""A model as flat bytes: its tensors one behind the other, without gaps, and the model as views.

Aegaeon §5.2: parameters are backed by a buffer that we manage, so that a switch copies bytes and
does nothing else. The files that stand for DRAM and SSD hold the same bytes in the same order. A
pooled device has the embeddings, the norm and the head first; on an elastic one they go with the
first and the last layer, so that any layer comes and goes by itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

import torch

from harness.engine.linear import Ends, Layer, TorchLinear
from harness.engine.node_files import NodeFile
from harness.engine.weights import ENDS, HostWeights, Weights, torch_dtype
from harness.model_spec import ModelSpec, Shapes, end_shapes, layer_shapes


def tensor_places(spec: ModelSpec) -> list[range]:
    """The bytes of each tensor of a pooled model: `spec.weight_bytes` in all."""
    found, at = [], 0
    for shapes in (end_shapes(spec), *[layer_shapes(spec)] * spec.num_layers):
        for shape in shapes.values():
            found.append(range(at, at + prod(shape) * spec.dtype_bytes))
            at = found[-1].stop
    return found


def write_model(spec: ModelSpec, files: Iterable[NodeFile]) -> None:
    """Writes a pooled model, drawn or read from a checkpoint, to every one of `files`."""
    source, at = HostWeights(spec), 0
    for layer in (ENDS, *range(spec.num_layers)):
        at = _write(source.tensors(layer), files, at)


def model_in(buffer: torch.Tensor, spec: ModelSpec, at_bytes: int) -> tuple[Ends, dict[int, Layer]]:
    """The pooled model whose bytes lie in `buffer` from `at_bytes` on, now or later: views, no
    copies, hence torch's products, which take them as they are."""
    ends, layers = Ends(), {}
    weights, at = views(buffer, spec, end_shapes(spec), at_bytes)
    ends.adopt(weights, TorchLinear)
    for layer in range(spec.num_layers):
        weights, at = views(buffer, spec, layer_shapes(spec), at)
        layers[layer] = Layer(spec, weights, TorchLinear)
    return ends, layers


def elastic_shapes(spec: ModelSpec, layer: int) -> Shapes:
    """Shapes of the tensors that go with `layer` of an elastic model, in the order of their
    bytes."""
    first, last = layer == 0, layer == spec.num_layers - 1
    return layer_shapes(spec) | end_shapes(spec, first=first, last=last)


def elastic_tensors(source: HostWeights, spec: ModelSpec, layer: int) -> Weights:
    """The tensors of `elastic_shapes`, drawn or read from a checkpoint."""
    tensors = source.tensors(layer)
    if layer in (0, spec.num_layers - 1):
        tensors |= source.ends()
    return {name: tensors[name] for name in elastic_shapes(spec, layer)}


def write_elastic(spec: ModelSpec, files: Iterable[NodeFile]) -> None:
    """Writes an elastic model to every one of `files`."""
    source, at = HostWeights(spec), 0
    for layer in range(spec.num_layers):
        at = _write(elastic_tensors(source, spec, layer), files, at)


def views(buffer: torch.Tensor, spec: ModelSpec, shapes: Shapes, at: int) -> tuple[Weights, int]:
    """Tensors of `shapes`, one behind the other in `buffer` from `at` on; where they end."""
    found: Weights = {}
    for name, shape in shapes.items():
        size = prod(shape) * spec.dtype_bytes
        found[name] = buffer[at : at + size].view(torch_dtype(spec)).view(shape)
        at += size
    return found, at


def _write(tensors: Weights, files: Iterable[NodeFile], at: int) -> int:
    """Writes `tensors` to every one of `files` from `at` on; where they end."""
    for tensor in tensors.values():
        content = tensor.contiguous().flatten().view(torch.uint8).numpy().data
        for file in files:
            file.write(content, at)
        at += len(content)
    return at
