"""Live scaling (BlitzScale §5.2 in miniature).

A second instance streams the layers of the first one, while both serve, and then takes over.
Prompts that arrive meanwhile run layers [0, k) on the new instance, as far as it has them, and the
rest on the old one. So the split moves with each batch, until the new instance has all layers.
"""

from __future__ import annotations

from harness.clock import Event
from harness.request import Request
from harness.running.testbed import Bed, decode, finish, prefill

NUM_INSTANCES = 2
PAGE_LAYERS = 1  # the split may be at any layer
RESIDENT = {1: range(0)}  # the second instance is an empty slot


async def story(bed: Bed) -> list[Request]:
    old, new = bed.instances
    cluster, depth = bed.cluster, bed.model.num_layers
    cluster.take(old, "serving")
    ongoing = [bed.request(40, 60) for _ in range(2)]
    await prefill(old, ongoing)
    came = Event(bed.loop)  # set as each layer comes
    cluster.take(new, "loading")
    load = bed.loop.spawn(
        new.load(range(depth), old, on_layer=lambda layer: came.set()), name="load"
    )
    split_batches: list[list[Request]] = []
    while not load.finished.is_set:
        await bed.loop.wait(came, load.finished)
        came.clear()
        here = len(new.resident)
        if 0 < here < depth:  # a prompt of its own for each split
            batch = [bed.request(24, 6)]
            pipeline = cluster.pipeline([(new, range(here)), (old, range(here, depth))])
            await prefill(pipeline, batch)
            split_batches.append(batch)
            ongoing = await decode(old, ongoing, max_steps=2)
    cluster.take(new, "serving")
    for batch in split_batches:  # their KV is in two places: the new instance gets the old one's
        for holder, groups in cluster.directory.where(batch[0]):
            if holder is old:
                layers = range(groups[0] * PAGE_LAYERS, (groups[-1] + 1) * PAGE_LAYERS)
                assert await cluster.move_kv(batch, layers, old, new)
    taken_over = [request for batch in split_batches for request in batch]
    await finish(new, taken_over)
    assert await cluster.move_kv(ongoing, range(depth), old, new)
    cluster.release(old)
    await finish(new, ongoing)
    return bed.requests
