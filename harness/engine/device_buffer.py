"""One device's memory as tensors: KV pages from the front, weights at the back, one buffer.

`harness.elastic.device_layout` says where what lies. The flat bytes are the weights; on a CPU each
layer has a shadow beside them, packed for oneDNN when it comes and gone when it goes.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from math import prod

import torch

from harness.elastic.device_layout import DeviceLayout, layer_weight_bytes
from harness.engine.kv_cache import KvCache
from harness.engine.layout import as_bytes
from harness.engine.linear import MATRICES, Ends, Layer, Linear
from harness.engine.weights import ENDS, HostWeights, Weights, fused_shapes, torch_dtype
from harness.model_spec import ModelSpec


def layer_shapes(spec: ModelSpec, layer: int) -> dict[str, tuple[int, ...]]:
    """Of the tensors that go with `layer`, in the order of their bytes."""
    shapes = dict(fused_shapes(spec, layer))
    ends = fused_shapes(spec, ENDS)
    if layer == 0:
        shapes["embed"] = ends["embed"]
    if layer == spec.num_layers - 1:
        shapes["norm"] = ends["norm"]
        if layer or not spec.tie_embeddings:
            shapes["lm_head"] = ends.get("lm_head", ends["embed"])
    return shapes


def layer_tensors(source: HostWeights, spec: ModelSpec, layer: int) -> Weights:
    """The tensors of `layer_shapes`, drawn or read from a checkpoint."""
    tensors = dict(source.layer(layer))
    if layer in (0, spec.num_layers - 1):
        tensors |= source.ends()
    return {name: tensors[name] for name in layer_shapes(spec, layer)}


def write_layers(spec: ModelSpec, files: Iterable[int]) -> None:
    """The whole model to every one of `files`, layer after layer."""
    source, at = HostWeights(spec), 0
    for layer in range(spec.num_layers):
        begin = at
        for tensor in layer_tensors(source, spec, layer).values():
            content = as_bytes(tensor).numpy().data
            for file in files:
                written = 0
                while written < len(content):  # the kernel takes at most 2 GiB at a time
                    written += os.pwrite(file, content[written:], at + written)
            at += len(content)
        assert at - begin == layer_weight_bytes(spec, layer)


class MovingEnds(Ends):
    """Embeddings that come and go with the first layer, norm and head with the last."""

    def __init__(self) -> None:
        pass

    def adopt(self, weights: Weights) -> None:
        if "embed" in weights:
            self.embed = weights["embed"]
        if "norm" in weights:
            self.norm = weights["norm"]
            self.lm_head = Linear(weights.get("lm_head", weights.get("embed", weights["norm"])))


class DeviceBuffer:
    """`layers`: those on the device now, as `Runner` takes them."""

    def __init__(self, layout: DeviceLayout, device: torch.device) -> None:
        self.layout, self.device = layout, device
        self.bytes = torch.zeros(layout.memory_bytes, dtype=torch.uint8, device=device)
        self.layers: dict[int, Layer] = {}
        self.ends = MovingEnds()
        self.cache = self._cache()

    def fill(self, layers: Iterable[int]) -> None:
        """Draws or reads the weights of `layers` themselves, as at the start."""
        spec = self.layout.spec
        source = HostWeights(spec)
        for layer in layers:
            views = self._views(layer)
            for name, tensor in layer_tensors(source, spec, layer).items():
                views[name].copy_(tensor)
            self.adopt(layer)

    def adopt(self, layer: int) -> None:
        """The bytes of `layer` are there: has batches use them."""
        weights = {name: self._shadow(name, view) for name, view in self._views(layer).items()}
        self.layers[layer] = Layer(weights)
        self.ends.adopt(weights)

    def forget(self, layer: int) -> None:
        """Batches do not use `layer` any more; zeros, so that its bytes read as KV are numbers."""
        self.layers.pop(layer, None)
        at = self.layout.layer_at[layer]
        self.bytes[at.start : at.stop].zero_()

    def _views(self, layer: int) -> Weights:
        spec, at = self.layout.spec, self.layout.layer_at[layer].start
        views: Weights = {}
        for name, shape in layer_shapes(spec, layer).items():
            size = prod(shape) * spec.dtype_bytes
            views[name] = self.bytes[at : at + size].view(torch_dtype(spec)).view(shape)
            at += size
        return views

    def _shadow(self, name: str, view: torch.Tensor) -> torch.Tensor:
        if name in MATRICES and self.device.type == "cpu" and view.dtype == torch.float32:
            packed: torch.Tensor = torch.ops.mkldnn._reorder_linear_weight(view)
            return packed
        return view

    def _cache(self) -> KvCache:
        """Pages [kv_heads, page_layers, 2, block_tokens, head_dim] over the whole buffer, by id."""
        layout, spec = self.layout, self.layout.spec
        flat = self.bytes.view(torch_dtype(spec))
        head = layout.block_tokens * spec.head_dim
        page = layout.page_bytes // spec.dtype_bytes

        def blocks(index: int) -> torch.Tensor:
            return flat[index * head :].as_strided(
                (layout.memory_bytes // layout.page_bytes, spec.num_kv_heads,
                 layout.block_tokens, spec.head_dim),
                (page, 2 * layout.page_layers * head, spec.head_dim, 1),
            )  # fmt: skip

        within = [layer % layout.page_layers for layer in range(spec.num_layers)]
        return KvCache([blocks(2 * k) for k in within], [blocks(2 * k + 1) for k in within])
