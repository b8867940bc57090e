"""An iteration over layers of which some are still on their way: each is waited for when its turn
comes, and takes its share of the time. An event for each of those, none for the others."""

from __future__ import annotations

from harness.clock import Loop
from harness.device.arriving import Arriving


async def through(loop: Loop, arriving: Arriving, time_s: float) -> None:
    """Computes the layers, which take `time_s` without waiting; returns at once where an instance
    is gone."""
    share_s, over_s, gone = time_s / len(arriving.layers), loop.now, arriving.gone
    for layer in arriving.layers:
        if not layer.is_set:
            if await loop.wait(*gone, until=over_s):
                return
            if not layer.is_set:
                await loop.wait(layer, *gone)
                if not layer.is_set:
                    return
                over_s = loop.now
        over_s += share_s
    await loop.wait(*gone, until=over_s)
