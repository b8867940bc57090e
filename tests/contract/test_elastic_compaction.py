"""Blocks that are moved away within a memory (it is lent, or weights come) while a copy of KV that
knows where they were is under way.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from harness.clock import Event
from harness.device.location import dram
from harness.elastic.fabric import Memory, Sending, Span
from harness.running.testbed import Bed, finish, prefill
from tests.elastic import Beds, check, generated, host_file, undisturbed

pytestmark = [pytest.mark.usefixtures("forked_workers"), pytest.mark.live]

EVERY = range(4)  # layers of tiny-llama
POISON = 777.0  # finite: rows past a sequence's end have no weight, and are read all the same
PROMPT = 40  # tokens: two full blocks, which go while flights go on, and a half


class Slow:
    """A fabric whose copies of KV know their places at once, and end once `door` is set."""

    def __init__(self, made: Bed) -> None:
        self._made: Any = made.cluster._fabric
        self.begun, self.door = Event(made.loop), Event(made.loop)
        self._loop = made.loop

    def __getattr__(self, name: str) -> Any:
        return getattr(self._made, name)

    async def copy(
        self, source: Memory, target: Memory, size: int, spans: Any, sending: Sending
    ) -> Any:
        found = spans()
        self.begun.set()
        await self._loop.wait(self.door)
        return await self._made.copy(source, target, size, lambda: found, sending)


@pytest.mark.parametrize("end", ["source", "target"])
def test_memory_that_is_lent_waits_for_a_copy_of_its_blocks(bed: Beds, end: str) -> None:
    """As much is lent as leaves room for the moved request alone, and what was lent is written
    over, so that blocks which were read or written at their old places show in the tokens."""
    with bed("torch", 2) as made:

        async def story() -> None:
            source, target = made.instances
            at = source if end == "source" else target
            before, moved = made.request(PROMPT, 2), made.request(PROMPT, 6)
            await prefill(at, [before])  # on the first pages, which are free then
            await prefill(source, [moved])
            slow = Slow(made)
            mover: Any = made.cluster._mover
            shared = mover._shared
            mover._shared = replace(shared, fabric=slow)
            move = made.loop.spawn(
                made.cluster.move_kv([moved], EVERY, source, target), name="move"
            )
            await made.loop.wait(slow.begun)
            await finish(at, [before])
            pages = at.kv.free_pages
            lending = made.loop.spawn(lend(made, at, pages), name="lend")
            await made.loop.sleep(0.05)
            assert not lending.done
            slow.door.set()
            mover._shared = shared
            await made.loop.wait(move.finished)
            await made.loop.wait(lending.finished)
            assert move.result is True
            await finish(target, [moved])
            at.take_home(lending.result)

        made.run(story())
        check(made)
        assert generated(made) == undisturbed(made)


async def lend(made: Bed, lender: Any, pages: int) -> range:
    """Writes over what is lent."""
    lent: range = await lender.lend(pages)
    fabric: Any = made.cluster._fabric
    file = Memory("dram0:kv", dram(0))

    poison = np.full(len(lent) // 4, POISON, np.float32).tobytes()
    os.pwrite(host_file(made.cluster, file.name), poison, 0)
    span = Span(0, lent.start, len(lent))
    await fabric.copy(file, lender.memory, len(lent), lambda: [span], Sending("test"))
    return lent
