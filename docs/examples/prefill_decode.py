"""Prefill and decode on different instances (DistServe, and BlitzScale's serving).

The KV of a prompt moves when the prompt is computed. The next prompt is computed meanwhile.
"""

from __future__ import annotations

from harness.clock import Queue
from harness.request import Request
from harness.running.testbed import Bed, decode, prefill

NUM_INSTANCES = 2
PAGE_LAYERS: int | None = None
RESIDENT: dict[int, range] = {}
NUM_REQUESTS = 4


async def story(bed: Bed) -> list[Request]:
    prefiller, decoder = bed.instances
    every = range(bed.model.num_layers)
    arrived: Queue[Request] = Queue(bed.loop)

    async def hand_over(request: Request) -> None:
        assert await bed.cluster.move_kv([request], every, prefiller, decoder)
        arrived.put(request)

    async def prefill_all() -> None:
        for i in range(NUM_REQUESTS):
            request = bed.request(40 + 10 * i, 12)
            await prefill(prefiller, [request])
            bed.loop.spawn(hand_over(request), name=f"hand over {request.request_id}")

    bed.loop.spawn(prefill_all(), name="prefill")
    running: list[Request] = []
    left = NUM_REQUESTS
    while left:
        while arrived or not running:
            running.append(await arrived.get())
        before = len(running)
        running = await decode(decoder, running, max_steps=2)
        left -= before - len(running)
    assert not prefiller.kv.held
    return bed.requests
