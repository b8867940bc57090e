"""One device's memory as tensors: KV pages from the front, weights at the back, one buffer.

`harness.elastic.device_layout` says where what lies. The flat bytes are the weights; on a CPU each
layer has a shadow beside them, packed for its products when it comes and gone when it goes.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from harness.elastic.device_layout import DeviceLayout
from harness.engine.kernels import MakeLinear
from harness.engine.kv_cache import KvCache
from harness.engine.layout import elastic_shapes, elastic_tensors, views
from harness.engine.linear import Ends, Layer
from harness.engine.weights import HostWeights, Weights, torch_dtype


class DeviceBuffer:
    """`layers`: those on the device now, as `Runner` takes them."""

    def __init__(self, layout: DeviceLayout, device: torch.device, linear: MakeLinear) -> None:
        self.layout, self.device, self._linear = layout, device, linear
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
            for name, tensor in elastic_tensors(source, spec, layer).items():
                into[name].copy_(tensor)
            self.adopt(layer)

    def adopt(self, layer: int) -> None:
        """The bytes of `layer` are there: has batches use them."""
        weights = self._views(layer)
        self.layers[layer] = Layer(self.layout.spec, weights, self._linear)
        self.ends.adopt(weights, self._linear)

    def forget(self, layer: int) -> None:
        """Batches do not use `layer` any more; zeros, so that its bytes read as KV are numbers."""
        self.layers.pop(layer, None)
        at = self.layout.layer_at[layer]
        self.bytes[at.start : at.stop].zero_()

    def _views(self, layer: int) -> Weights:
        spec, at = self.layout.spec, self.layout.layer_at[layer]
        found, end = views(self.bytes, spec, elastic_shapes(spec, layer), at.start)
        assert end == at.stop, "the layout and the tensors say the same"
        return found

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
