"""Dropped layers (KunServe §4 in miniature).

Two instances drop half of their layers each. The freed bytes become KV. KV is exchanged while
decoding goes on. Then all layers return.
"""

from __future__ import annotations

from harness.clock import Event
from harness.elastic.instance import ElasticInstance
from harness.request import Request
from harness.running.testbed import Bed, decode, finish, prefill

NUM_INSTANCES = 2
PAGE_LAYERS = 1
RESIDENT: dict[int, range] = {}


async def story(bed: Bed) -> list[Request]:
    first, second = bed.instances
    cluster, depth = bed.cluster, bed.model.num_layers
    halves = {first: range(depth // 2), second: range(depth // 2, depth)}
    requests = {each: [bed.request(40 + 8 * i, 90) for i in range(2)] for each in halves}
    for instance, mine in requests.items():
        await prefill(instance, mine)
        requests[instance] = await decode(instance, mine, max_steps=3)
    pages = {each: each.kv.num_pages for each in halves}
    await first.drop(halves[second])
    await second.drop(halves[first])
    assert all(each.kv.num_pages > pages[each] for each in halves)

    pipeline = cluster.pipeline([(first, halves[first]), (second, halves[second])])
    moved = Event(bed.loop)

    async def exchange(source: ElasticInstance, target: ElasticInstance) -> None:
        """What `target` computes, `source` still has the KV of."""
        assert await cluster.move_kv(requests[source], halves[target], source, target)
        moved.set()

    everyone: list[Request] = []
    for instance, mine in requests.items():
        pipeline.adopt(mine, instance)
        everyone += mine
    everyone = await decode(pipeline, everyone, max_steps=2)  # attention goes to where the KV is
    moves = [
        bed.loop.spawn(exchange(*pair), name="exchange")
        for pair in ((first, second), (second, first))
    ]
    while not all(move.done for move in moves):
        everyone = await decode(pipeline, everyone, max_steps=2)
    new = [bed.request(32, 20)]  # a new request uses the memory that the layers gave up
    await prefill(pipeline, new)
    everyone = await decode(pipeline, everyone + new, max_steps=4)

    for source, target in ((first, second), (second, first)):  # restore: weights, then KV
        lacking = halves[source]
        await target.load(lacking, source)
    at_home = {first: everyone[::2], second: everyone[1::2]}
    for home, other in ((first, second), (second, first)):
        assert await cluster.move_kv(at_home[home], halves[other], other, home)
    assert all(each.kv.num_pages == pages[each] for each in halves)
    for home in halves:
        await finish(home, at_home[home])
    return bed.requests
