"""An iteration over layers of which some are still on their way: each is waited for when its turn
comes, and takes its share of the time. Layer k begins at the later of the end of
layer k - 1 and its own arrival. An event for each that is late, none for the others."""

from __future__ import annotations

from harness.clock import Loop
from harness.elastic.arriving import Arriving


async def through(loop: Loop, arriving: Arriving, time_s: float) -> None:
    """Computes the layers, which take `time_s` without waiting; returns at once where something
    that they need is gone."""
    share_s, over_s, gone = time_s / len(arriving.layers), loop.now, arriving.gone
    for here in arriving.layers:
        if not here.is_set:
            if await loop.wait(*gone, until=over_s):
                return
            if not here.is_set:
                await loop.wait(here, *gone)
                if not here.is_set:
                    return
                over_s = loop.now
        over_s += share_s
    await loop.wait(*gone, until=over_s)
