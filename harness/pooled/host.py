"""A node's DRAM as its devices share it: the model cache and the unified CPU KV cache.

Aegaeon §5.2: raw weights of whole models, least recently used first out, and KV blocks of every
shape in slabs. §5.3: blocks that a transfer still reads are in the move list and not given out.
Pure bookkeeping: no byte lies here; engines attach memory to the offsets.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from harness.clock import Event, Loop
from harness.device.location import Location, dram, ssd
from harness.device.memory import OutOfMemory
from harness.model_spec import ModelSpec
from harness.pooled.plan import MemoryPlan, PoolConfig
from harness.pooled.slab import Pool, Run, SlabAllocator
from harness.records.record import Recorder


class SwappedKv:
    """A request's KV in a host cache. `ready` is set once its last byte has arrived (rule ②), or
    once it is `gone`: given up, or lost with the device that it was coming from."""

    def __init__(self, host: Host, ready: Event, num_blocks: int) -> None:
        self.host, self.ready, self.num_blocks, self.gone = host, ready, num_blocks, False
        self.runs: list[Run] = []


@dataclass(slots=True)
class SharedByPool:
    """What all instances of a pool have in common. `swapped`: request_id -> where its KV is while
    it is on no device."""

    models: Mapping[str, ModelSpec]
    plan: MemoryPlan
    loop: Loop
    recorder: Recorder
    swapped: dict[int, SwappedKv] = field(default_factory=dict)


class ModelCache:
    """Which models' weights are in the node's DRAM; the least recently used make room.

    Models are told apart by their specs: names with equal ones (seed or path included) share a
    checkpoint, and one copy of it.
    """

    def __init__(self, node: int, capacity_bytes: int) -> None:
        self.capacity_bytes = capacity_bytes
        self._node = node
        self._held: OrderedDict[ModelSpec, None] = OrderedDict()  # the latest used last
        self._free_bytes = capacity_bytes

    def __contains__(self, model: ModelSpec) -> bool:
        return model in self._held

    def warm(self, models: Iterable[ModelSpec]) -> None:
        """Begins with those of `models` that fit, the first ones first."""
        for model in models:
            if model.weight_bytes <= self._free_bytes:
                self.keep(model)

    def source(self, model: ModelSpec) -> Location:
        """The place from which `model` is read now."""
        try:
            self._held.move_to_end(model)
        except KeyError:
            return ssd(self._node)
        return dram(self._node)

    def keep(self, model: ModelSpec) -> None:
        """`model` has been read to its end: it is cached from now on, if it fits at all."""
        if model in self._held or model.weight_bytes > self.capacity_bytes:
            return
        while model.weight_bytes > self._free_bytes:
            evicted, _ = self._held.popitem(last=False)
            self._free_bytes += evicted.weight_bytes
        self._held[model] = None
        self._free_bytes -= model.weight_bytes


class Host:
    def __init__(self, node: int, config: PoolConfig, loop: Loop) -> None:
        self.node = node
        self.kv_bytes = config.host_kv_bytes
        self.models = ModelCache(node, config.model_cache_bytes)
        self.slabs = SlabAllocator(config.host_kv_bytes, config.host_slab_bytes)
        self.struck = Event(loop)  # set once an instance of this node is known to have died
        self.next_sample_s = 0.0  # when its slabs' use is to be recorded again
        self.move_list: dict[Event, list[Run]] = {}  # transfer under way -> the blocks it reads
        self._loop = loop
        self._waiting: deque[Event] = deque()  # for room, the first one to be served first

    def has_room(self, pool: Pool, num_blocks: int) -> bool:
        """Whether `reserve` would not have to wait."""
        return not self._waiting and self.slabs.room(pool) >= num_blocks

    def check_size(self, pool: Pool, num_blocks: int) -> None:
        """Raises OutOfMemory where the cache could not hold so many even if it were empty."""
        capacity = self.slabs.capacity_blocks(pool.shape)
        if num_blocks > capacity:
            raise OutOfMemory(
                f"the KV cache in the memory of node {self.node} holds "
                f"{capacity} blocks of {pool.block_bytes} bytes, and a "
                f"request needs {num_blocks}: raise engine.pool.host_kv_bytes"
            )

    async def reserve(self, pool: Pool, num_blocks: int) -> list[Run]:
        """Free blocks, none of which a transfer touches (rule ③); waits for room, first come first
        served. Raises OutOfMemory as `check_size`."""
        self.check_size(pool, num_blocks)
        if self.has_room(pool, num_blocks):
            return self.slabs.alloc(pool, num_blocks)
        turn = Event(self._loop)
        self._waiting.append(turn)
        while self._waiting[0] is not turn or self.slabs.room(pool) < num_blocks:
            turn.clear()
            await self._loop.wait(turn)
        self._waiting.popleft()
        runs = self.slabs.alloc(pool, num_blocks)
        self._wake_first()
        return runs

    def release_after(self, transfer: Event, runs: list[Run]) -> None:
        """The blocks belong to nobody, but `transfer` still reads them."""
        self.move_list[transfer] = runs

    def reclaim(self, transfer: Event) -> None:
        """`transfer` is over: what it read can be given out."""
        self.slabs.free(self.move_list.pop(transfer))
        self._wake_first()

    def discard(self, runs: list[Run]) -> None:
        """Gives back blocks that no transfer touches."""
        self.slabs.free(runs)
        self._wake_first()

    def _wake_first(self) -> None:
        if self._waiting:
            self._waiting[0].set()
