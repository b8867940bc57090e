"""One copy to many places: a chain, each place forwarding a chunk as soon as it has it.

Links are duplex and every place has its own, so receiving chunk k+1 overlaps with forwarding
chunk k: K chunks reach n places in the time of K + n - 1 chunks, not K·n (BlitzScale §5.1). The
order of the chain is the planner's to choose.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from harness.clock import Loop, Queue
from harness.location import Location
from harness.sim.network import Network


async def multicast(
    loop: Loop,
    network: Network,
    chain: Sequence[Location],
    chunk_bytes: Sequence[int],
    *,
    priority: int = 0,
    on_chunk: Callable[[int, int], None] | None = None,
) -> None:
    """Sends chunks (layers, say) from `chain[0]` along `chain`; returns when all places have all.

    `on_chunk(i, k)` is called as chunk k arrives at `chain[i]`, i ≥ 1. A chunk is one message.
    """
    inboxes: list[Queue[int]] = [Queue(loop) for _ in chain]
    for k in range(len(chunk_bytes)):
        inboxes[0].put(k)

    async def forward(i: int) -> None:
        for _ in chunk_bytes:
            k = await inboxes[i - 1].get()
            await network.transfer(chain[i - 1], chain[i], chunk_bytes[k], priority=priority)
            inboxes[i].put(k)
            if on_chunk is not None:
                on_chunk(i, k)

    hops = [
        loop.spawn(forward(i), name=f"multicast {chain[i - 1]} to {chain[i]}")
        for i in range(1, len(chain))
    ]
    for hop in hops:
        await loop.wait(hop.finished)
