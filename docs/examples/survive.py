"""An instance dies. Its work fails by name, and the system decides what to do.

Here a second instance, which was receiving the layers of the first one, computes the lost requests
again.
"""

from __future__ import annotations

from harness.elastic.instance import ElasticInstance
from harness.errors import InstanceLost
from harness.request import Request
from harness.running.testbed import Bed, decode, finish, prefill

NUM_INSTANCES = 3
PAGE_LAYERS = 1
RESIDENT = {2: range(0)}


async def story(bed: Bed) -> list[Request]:
    first, second, spare = bed.instances
    cluster, depth = bed.cluster, bed.model.num_layers
    lost: list[ElasticInstance] = []
    cluster.on_lost = lost.append  # without a policy, a death ends the run
    requests = [bed.request(40 + 8 * i, 40) for i in range(3)]
    pipeline = cluster.pipeline([(first, range(depth // 2)), (second, range(depth // 2, depth))])
    await prefill(pipeline, requests)
    running = await decode(pipeline, requests, max_steps=5)

    async def load() -> None:
        """Loads the spare from the first instance, and, where that dies, from the SSD."""
        try:
            await spare.load(range(depth), first)
        except InstanceLost:
            await spare.load(range(depth), cluster.hosts[0].disk(bed.model.name))

    loading = bed.loop.spawn(load(), name="load")
    await bed.loop.sleep(0.0)
    cluster.kill(first)
    try:
        while running:
            running = await decode(pipeline, running, max_steps=3)
    except InstanceLost:
        pass
    while not lost:
        await bed.loop.sleep(0.001)
    assert lost == [first]
    left = [request for request in requests if not request.finished]
    for request in left:  # the KV of half of their layers is gone
        pipeline.evict(request)
    await bed.loop.wait(loading.finished)
    assert spare.resident == frozenset(range(depth))
    await prefill(spare, left)
    await finish(spare, left)
    return bed.requests
