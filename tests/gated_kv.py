"""Gated moves of which a test says when each page group comes, and pages filled with poison."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from harness.clock import Event
from harness.device.elastic import ElasticInstance
from harness.device.fabric import Memory, Span
from harness.location import dram
from harness.request import Batch, Request
from harness.testbed import Bed

DEPTH = 4  # layers of tiny-llama, and page groups
EVERY = range(DEPTH)
POISON = 777.0  # finite: rows past a sequence's end have no weight, and are read all the same


class Held:
    """A fabric whose numbered copies begin once `doors` says so, by page group."""

    def __init__(self, fabric: Any, doors: list[Event], made: Bed) -> None:
        self._fabric, self._doors, self._made, self.num_begun = fabric, doors, made, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._fabric, name)

    async def copy(self, *given: Any, number: int | None, **named: Any) -> bool:
        if number is not None:
            door = self._doors[self.num_begun]
            self.num_begun += 1
            await self._made.loop.wait(door)
        done: bool = await self._fabric.copy(*given, number=number, **named)
        return done


@contextmanager
def held(made: Bed) -> Iterator[list[Event]]:
    """For each page group of the next gated move, what its copy waits for."""
    doors = [Event(made.loop) for _ in EVERY]
    mover: Any = made.cluster._mover
    mover._fabric = Held(made.cluster._fabric, doors, made)
    try:
        yield doors
    finally:
        mover._fabric = made.cluster._fabric


async def on_its_way(made: Bed, request: Request) -> None:
    while request.request_id not in made.cluster.directory.arrivals:
        await made.loop.sleep(0.001)


def begun(made: Bed, request: Request, source: Any, target: ElasticInstance) -> tuple[Any, Any]:
    """A gated move of the request, and a step of it at the target."""
    move = made.loop.spawn(
        made.cluster.move_kv([request], EVERY, source, target, gated=True), name="move"
    )

    async def step() -> int:
        await on_its_way(made, request)
        assert target.kv.grow(request, request.computed_tokens + 1)
        return await target.execute(Batch(decodes=[request]))

    return move, made.loop.spawn(step(), name="step")


async def poison(made: Bed, target: ElasticInstance) -> None:
    """Fills the KV memory of a live instance."""
    if target.tables is None:
        return
    fabric: Any = made.cluster._fabric
    file, size = Memory("dram0:kv", dram(0)), target.page_bytes
    os.pwrite(fabric._files[file.name], np.full(size // 4, POISON, np.float32).tobytes(), 0)
    at = target.tables.base_bytes
    spans = [Span(0, at + page * size, size) for page in target.tables._pages]
    await fabric.copy(
        file, target.memory, size * len(spans), lambda: spans, purpose="test", number=None
    )


async def page(made: Bed, holder: ElasticInstance, request: Request, group: int) -> bytes:
    """The last page of the request's KV in a page group of a live instance."""
    assert holder.tables is not None
    fabric: Any = made.cluster._fabric
    file, size = Memory("dram0:kv", dram(0)), holder.page_bytes
    at = holder.tables.base_bytes + holder.tables.ids[request.request_id][group][-1] * size
    await fabric.copy(
        holder.memory, file, size, lambda: [Span(at, 0, size)], purpose="test", number=None
    )
    return os.pread(fabric._files[file.name], size, 0)
