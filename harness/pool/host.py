"""A node's DRAM as its devices share it: the model cache and the unified CPU KV cache.

Aegaeon §5.2: raw weights of whole models, least recently used first out, and KV blocks of every
shape in slabs. §5.3: blocks that a transfer still reads are in the move list and not given out.
Pure bookkeeping: no byte lies here; worlds attach memory to the offsets.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Mapping
from dataclasses import dataclass

from harness.clock import Event, Loop
from harness.location import Location, dram, ssd
from harness.memory import KvShape, OutOfMemory
from harness.slab import SlabAllocator


@dataclass(slots=True)
class SwappedKv:
    """A request's KV in a host cache. `ready` is set once its last byte has arrived (rule ②)."""

    host: Host
    offsets: list[int]
    ready: Event


class ModelCache:
    """Which models' weights are in the node's DRAM; the least recently used make room."""

    def __init__(self, node: int, capacity_bytes: int) -> None:
        self.capacity_bytes = capacity_bytes
        self._node = node
        self._models: OrderedDict[str, int] = OrderedDict()  # name -> bytes

    def __contains__(self, model: str) -> bool:
        return model in self._models

    def warm(self, models: Mapping[str, int]) -> None:
        """Begins with those of `models` (name -> bytes) that fit, the first ones first."""
        free_bytes = self.capacity_bytes
        for model, num_bytes in models.items():
            if num_bytes <= free_bytes:
                self._models[model] = num_bytes
                free_bytes -= num_bytes

    def source(self, model: str) -> Location:
        """Where `model` is read from now."""
        if model not in self._models:
            return ssd(self._node)
        self._models.move_to_end(model)
        return dram(self._node)

    def keep(self, model: str, num_bytes: int) -> None:
        """`model` has been read to its end: it is cached from now on, if it fits at all."""
        if model in self._models or num_bytes > self.capacity_bytes:
            return
        while sum(self._models.values()) + num_bytes > self.capacity_bytes:
            self._models.popitem(last=False)
        self._models[model] = num_bytes


class Host:
    def __init__(
        self, node: int, *, kv_bytes: int, slab_bytes: int, model_cache_bytes: int, loop: Loop
    ) -> None:
        self.node = node
        self.models = ModelCache(node, model_cache_bytes)
        self.slabs = SlabAllocator(kv_bytes, slab_bytes)
        self.next_sample_s = 0.0  # when its slabs' use is to be recorded again
        self.move_list: dict[Event, list[int]] = {}  # transfer under way -> the blocks it reads
        self._loop = loop
        self._waiting: deque[Event] = deque()  # for room, the first one to be served first

    async def reserve(self, shape: KvShape, num_blocks: int) -> list[int]:
        """Offsets of free blocks, none of which a transfer touches (rule ③); waits for room, first
        come first served.

        Raises OutOfMemory where the cache could not hold them even if it were empty.
        """
        if num_blocks > self.slabs.capacity_blocks(shape):
            raise OutOfMemory(
                f"the KV cache in the memory of node {self.node} holds "
                f"{self.slabs.capacity_blocks(shape)} blocks of {shape.block_bytes} bytes, and a "
                f"request needs {num_blocks}: raise engine.pool.host_kv_bytes"
            )
        turn = Event(self._loop)
        self._waiting.append(turn)
        while self._waiting[0] is not turn or self.slabs.room(shape) < num_blocks:
            turn.clear()
            await self._loop.wait(turn)
        self._waiting.popleft()
        offsets = self.slabs.alloc(shape, num_blocks)
        self._wake_first()
        return offsets

    def release_after(self, transfer: Event, offsets: list[int]) -> None:
        """The blocks belong to nobody, but `transfer` still reads them."""
        self.move_list[transfer] = offsets

    def reclaim(self, transfer: Event) -> None:
        """`transfer` is over: what it read can be given out."""
        self.slabs.free(self.move_list.pop(transfer))
        self._wake_first()

    def discard(self, offsets: list[int]) -> None:
        """Gives back blocks that no transfer touches."""
        self.slabs.free(offsets)
        self._wake_first()

    def _wake_first(self) -> None:
        if self._waiting:
            self._waiting[0].set()
