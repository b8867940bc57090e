"""One device's memory as tensors: KV pages from the front, weights at the back, one buffer.

`harness.elastic.device_layout` says where what lies. The flat bytes are the weights; on a CPU each
layer has a shadow beside them, packed for oneDNN when it comes and gone when it goes.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from harness.elastic.device_layout import DeviceLayout
from harness.engine.kv_cache import KvCache, cache_over
from harness.engine.layout import layer_shapes, layer_tensors, views
from harness.engine.linear import Ends, Layer, packed
from harness.engine.weights import HostWeights, Weights, torch_dtype


class DeviceBuffer:
    """`layers`: those on the device now, as `Runner` takes them."""

    def __init__(self, layout: DeviceLayout, device: torch.device) -> None:
        self.layout, self.device = layout, device
        self.bytes = torch.zeros(layout.memory_bytes, dtype=torch.uint8, device=device)
        self.layers: dict[int, Layer] = {}
        self.ends = Ends()
        self.cache = self._cache()

    def fill(self, layers: Iterable[int]) -> None:
        """Draws or reads the weights of `layers` themselves, as at the start."""
        spec = self.layout.spec
        source = HostWeights(spec)
        for layer in layers:
            into = self._views(layer)
            for name, tensor in layer_tensors(source, spec, layer, alone=True).items():
                into[name].copy_(tensor)
            self.adopt(layer)

    def adopt(self, layer: int) -> None:
        """The bytes of `layer` are there: has batches use them."""
        weights = {name: packed(name, view) for name, view in self._views(layer).items()}
        self.layers[layer] = Layer(weights)
        self.ends.adopt(weights)

    def forget(self, layer: int) -> None:
        """Batches do not use `layer` any more; zeros, so that its bytes read as KV are numbers."""
        self.layers.pop(layer, None)
        at = self.layout.layer_at[layer]
        self.bytes[at.start : at.stop].zero_()

    def _views(self, layer: int) -> Weights:
        spec, at = self.layout.spec, self.layout.layer_at[layer]
        found, end = views(self.bytes, spec, layer_shapes(spec, layer, alone=True), at.start)
        assert end == at.stop, "the layout and the tensors say the same"
        return found

    def _cache(self) -> KvCache:
        """Pages [kv_heads, page_layers, 2, block_tokens, head_dim] over the whole buffer, by id."""
        layout, spec = self.layout, self.layout.spec
        head = layout.block_tokens * spec.head_dim
        strides = layout.page_bytes // spec.dtype_bytes, head, 2 * layout.page_layers * head
        counts = layout.memory_bytes // layout.page_bytes, layout.block_tokens, layout.page_layers
        return cache_over(self.bytes.view(torch_dtype(spec)), spec, counts, strides)
