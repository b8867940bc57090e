"""A neighbour's memory (AQUA §4 in miniature).

Preempted KV goes to memory that another instance lends, and returns. Then the lender wants its
memory back, and the KV that lies there goes to DRAM.
"""

from __future__ import annotations

from harness.elastic.fabric import Sending
from harness.request import Request
from harness.running.testbed import Bed, decode, finish, prefill

NUM_INSTANCES = 2
PAGE_LAYERS: int | None = None  # whole blocks
RESIDENT: dict[int, range] = {}


async def story(bed: Bed) -> list[Request]:
    consumer, lender = bed.instances
    cluster, every = bed.cluster, range(bed.model.num_layers)
    served = [bed.request(30, 25)]  # the lender serves, too
    await prefill(lender, served)
    paged, kept = [bed.request(50, 40), bed.request(45, 40)], [bed.request(35, 30)]
    await prefill(consumer, paged + kept)
    paged = await decode(consumer, paged, max_steps=5)

    pages = lender.kv.num_pages
    lent = await cluster.lend(lender, 12 * lender.page_bytes, consumer.layout)
    assert lender.kv.num_pages < pages
    assert await cluster.move_kv(paged, every, consumer, lent, Sending("page out"))
    assert not consumer.kv.held.keys() & {request.request_id for request in paged}
    kept = await decode(consumer, kept, max_steps=10)
    served = await decode(lender, served, max_steps=8)

    assert await cluster.move_kv(paged[:1], every, lent, consumer, Sending("page in"))
    await decode(consumer, paged[:1], max_steps=6)
    dram = cluster.dram_store(0, 2**20, consumer.layout)  # the lender reclaims
    assert await cluster.move_kv(paged[1:], every, lent, dram, Sending("reclaim"))
    cluster.reclaim(lent)
    assert lender.kv.num_pages == pages
    await finish(lender, served)
    assert await cluster.move_kv(paged[1:], every, dram, consumer, Sending("page in"))
    await finish(consumer, paged + kept)
    return bed.requests
