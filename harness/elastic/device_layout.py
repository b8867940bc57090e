"""Where the bytes of one device lie: KV pages from the front, each layer's weights at its own place
at the back. Dropping a layer turns its bytes into pages; nothing else ever moves.

A page is `page_layers` consecutive layers of one KV block. All pages are equal and count from 0 at
the front of the memory, also those where weights lie now: the end of the KV moves by adding page
ids (KunServe §4.1: dropped parameters become KV at the tail, the KV's base address unchanged).
Page 0 is never given out: attention reads it as padding. Pure arithmetic, the same on every engine.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from harness.errors import UsageError
from harness.model_spec import ModelSpec

ALIGN_BYTES = 64  # of the weights, for any dtype


def layer_weight_bytes(spec: ModelSpec, layer: int) -> int:
    """The bytes of a layer's weights on each of the spec.tp devices: the embeddings go with the
    first layer, the last norm and the head with the last one (with tied embeddings both have the
    table)."""
    ends = spec.end_params(first=layer == 0, last=layer == spec.num_layers - 1)
    return -(-(spec.layer_params + ends) * spec.dtype_bytes // spec.tp)


def weight_bytes(spec: ModelSpec) -> int:
    """The bytes of all layers' weights on each of the spec.tp devices."""
    return sum(layer_weight_bytes(spec, layer) for layer in range(spec.num_layers))


def page_bytes(spec: ModelSpec, block_tokens: int, page_layers: int) -> int:
    """Bytes of keys and values of `page_layers` layers of a block on each of the spec.tp
    devices."""
    heads = -(-spec.num_kv_heads // spec.tp)
    return page_layers * 2 * heads * block_tokens * spec.head_dim * spec.dtype_bytes


def memory_for_blocks(spec: ModelSpec, block_tokens: int, num_blocks: int) -> int:
    """Bytes of each device that hold the weights and `num_blocks` KV blocks."""
    kv_bytes = (num_blocks + 1) * page_bytes(spec, block_tokens, spec.num_layers)
    return memory_for_kv(spec, kv_bytes)


def memory_for_kv(spec: ModelSpec, kv_bytes: int) -> int:
    """Bytes of each device that hold the weights and as much KV."""
    return weight_bytes(spec) + kv_bytes + ALIGN_BYTES


class DeviceLayout:
    """The places of weights and KV on each device. `memory_bytes`: for both, on each device."""

    def __init__(
        self, spec: ModelSpec, memory_bytes: int, block_tokens: int, page_layers: int | None = None
    ) -> None:
        self.spec, self.block_tokens = spec, block_tokens
        self.page_layers = page_layers or spec.num_layers
        if not 1 <= self.page_layers <= spec.num_layers:
            raise UsageError(
                f"page_layers={page_layers} is out of range: model {spec.name} has "
                f"{spec.num_layers} layers"
            )
        self.page_bytes = page_bytes(spec, block_tokens, self.page_layers)
        self.num_groups = -(-spec.num_layers // self.page_layers)
        self.memory_bytes = memory_bytes // self.page_bytes * self.page_bytes
        sizes = [layer_weight_bytes(spec, layer) for layer in range(spec.num_layers)]
        start = (self.memory_bytes - sum(sizes)) // ALIGN_BYTES * ALIGN_BYTES
        if start < 2 * self.page_bytes:
            raise UsageError(
                f"model={spec.name} (weights {sum(sizes) / 2**30:.2f} GiB on each of {spec.tp} "
                f"devices) leaves no memory for KV in {memory_bytes / 2**30:.2f} GiB a device; use "
                "more devices (model.tp) or another profile"
            )
        self._groups: dict[range, tuple[int, ...]] = {}  # of layers that were asked for
        self.layer_at: list[range] = []  # each layer's bytes
        for size in sizes:
            self.layer_at.append(range(start, start + size))
            start += size

    def groups(self, layers: range) -> tuple[int, ...]:
        """The page groups of `layers`; UsageError where they cut a page or are none."""
        known = self._groups.get(layers)
        if known is not None:
            return known
        last = self.spec.num_layers
        whole = layers.start % self.page_layers == 0 and (
            layers.stop % self.page_layers == 0 or layers.stop == last
        )
        if not (0 <= layers.start < layers.stop <= last and layers.step == 1 and whole):
            raise UsageError(
                f"layers [{layers.start}, {layers.stop}) are no pages of {self.page_layers} layers "
                f"of the {last} of model {self.spec.name}"
            )
        groups = range(layers.start // self.page_layers, -(-layers.stop // self.page_layers))
        return self._groups.setdefault(layers, tuple(groups))

    def weight_bytes(self, layers: Iterable[int]) -> int:
        return sum(len(self.layer_at[layer]) for layer in layers)

    def extents(self, given: Collection[int]) -> list[range]:
        """Bytes that are KV's where the layers in `given` have given up theirs, in order."""
        found = [range(self.layer_at[0].start)]
        for layer in sorted(given):
            at = self.layer_at[layer]
            if found[-1].stop == at.start:
                found[-1] = range(found[-1].start, at.stop)
            else:
                found.append(at)
        if found[-1].stop == self.layer_at[-1].stop:
            found[-1] = range(found[-1].start, self.memory_bytes)
        return found

    def pages(self, given: Collection[int]) -> list[range]:
        """Page ids that lie whole within `extents(given)`, but for page 0."""
        size, found = self.page_bytes, []
        for extent in self.extents(given):
            ids = range(max(1, -(-extent.start // size)), extent.stop // size)
            if ids:
                found.append(ids)
        return found

    def num_pages(self, given: Collection[int] = ()) -> int:
        return sum(map(len, self.pages(given)))
