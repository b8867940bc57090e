"""A member dies before, during and after each mechanism of docs/examples, simulated and live: what
was under way on it fails by its name, nobody's pages are lost, and who is left serves everything.

In simulation every cell; live, where each death costs a process, every mechanism once, in mid-way.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

import pytest

from harness.elastic.instance import ElasticInstance
from harness.errors import InstanceLost
from harness.request import Request
from harness.running.testbed import Bed, decode, finish, prefill
from tests.accounts import audit
from tests.elastic import DEPTH, generated, hardware, private, undisturbed

EVERY = range(DEPTH)
SLOW_LINKS = hardware(6, nvlink_copy_bytes_per_s=5e5, pcie_bytes_per_s=1e8)


class Kill:
    """Called at each moment of a story; kills at `moment`."""

    def __init__(self, bed: Bed, victim: ElasticInstance, moment: str, after_s: float) -> None:
        self.failures = 0  # operations that the death has failed
        self.lost: list[ElasticInstance] = []
        self._bed, self._victim = bed, victim
        self._moment, self._after_s = moment, after_s
        bed.cluster.on_lost = self.lost.append

    async def __call__(self, moment: str) -> None:
        if moment != self._moment:
            return
        await self._bed.loop.sleep(self._after_s if moment == "during" else 0.0)
        self._bed.cluster.kill(self._victim)
        if moment != "during":
            await self.noticed()

    async def noticed(self) -> None:
        while not self.lost:
            await self._bed.loop.sleep(0.01)


Story = Callable[[Bed, Kill], Awaitable[None]]


async def lost_or_done(bed: Bed, kill: Kill, *operations: Awaitable[object]) -> None:
    """Awaits all of them, beside one another; those that a death fails have failed."""

    async def absorbed(operation: Awaitable[object]) -> None:
        try:
            await operation
        except InstanceLost as error:
            if error.name not in {one.name for one in bed.instances if one.lost is not None}:
                raise
            kill.failures += 1

    tasks = [bed.loop.spawn(absorbed(each), name="operation") for each in operations]
    for task in tasks:
        await bed.loop.wait(task.finished)


async def scale_up(bed: Bed, kill: Kill) -> None:
    """(a) Layers stream from an instance that serves to an empty one."""
    old, new = bed.instances
    await new.drop(EVERY)
    requests = [bed.request(40, 30)]
    await prefill(old, requests)
    await kill("before")
    await lost_or_done(bed, kill, new.load(EVERY, old), finish(old, requests), kill("during"))
    await kill("after")


async def exchange(bed: Bed, kill: Kill) -> None:
    """(b) Both have dropped half of their layers and give each other KV while decoding."""
    first, second = bed.instances
    halves = {first: range(DEPTH // 2), second: range(DEPTH // 2, DEPTH)}
    requests = {each: [bed.request(60, 40), bed.request(50, 40)] for each in halves}
    for instance, mine in requests.items():
        await prefill(instance, mine)
    await first.drop(halves[second])
    await second.drop(halves[first])
    pipeline = bed.cluster.pipeline(list(halves.items()))
    for instance, mine in requests.items():
        pipeline.adopt(mine, instance)
    await kill("before")
    await lost_or_done(
        bed,
        kill,
        bed.cluster.move_kv(requests[first], halves[second], first, second),
        bed.cluster.move_kv(requests[second], halves[first], second, first),
        decode(pipeline, requests[first] + requests[second], max_steps=8),
        kill("during"),
    )
    await kill("after")
    await lost_or_done(bed, kill, finish(pipeline, requests[first] + requests[second]))


async def page_out(bed: Bed, kill: Kill) -> None:
    """(c) KV goes to memory that a neighbour lends, and back."""
    consumer, lender = bed.instances
    requests = [bed.request(60, 30), bed.request(50, 30)]
    await prefill(consumer, requests)
    lent = await bed.cluster.lend(lender, 60 * lender.page_bytes, consumer.layout)
    await kill("before")
    out = bed.cluster.move_kv(requests, EVERY, consumer, lent)
    await lost_or_done(bed, kill, out, kill("during"))
    await kill("after")
    if lent.kv.held:
        await lost_or_done(bed, kill, bed.cluster.move_kv(requests, EVERY, lent, consumer))


async def hand_over(bed: Bed, kill: Kill) -> None:
    """(d) A prompt's KV goes to the instance that decodes."""
    prefiller, decoder = bed.instances
    requests = [bed.request(60, 20), bed.request(50, 20)]
    await prefill(prefiller, requests)
    await kill("before")
    over = bed.cluster.move_kv(requests, EVERY, prefiller, decoder)
    await lost_or_done(bed, kill, over, kill("during"))
    await kill("after")
    if decoder.kv.held and decoder.lost is None:
        await finish(decoder, requests)


MECHANISMS: tuple[Story, ...] = (scale_up, exchange, page_out, hand_over)


async def told(bed: Bed, story: Story, victim: int, moment: str, after_s: float) -> None:
    """`story`, in which `victim` dies at `moment`; then the other one serves what is left."""
    dying, survivor = bed.instances[victim], bed.instances[1 - victim]
    pages = survivor.kv.num_pages
    kill = Kill(bed, dying, moment, after_s)
    await lost_or_done(bed, kill, story(bed, kill))
    await kill.noticed()
    assert kill.lost == [dying]
    assert moment == "after" or kill.failures
    await recover(bed, survivor, [r for r in bed.requests if not r.finished])
    assert all(request.finished for request in bed.requests)
    assert survivor.kv.num_pages == survivor.kv.free_pages == pages
    audit(survivor.kv)


async def recover(bed: Bed, survivor: ElasticInstance, left: Sequence[Request]) -> None:
    for request in left:
        survivor.evict(request)
    for store in list(bed.cluster._leases):
        bed.cluster.reclaim(store)
    await survivor.load(EVERY, bed.cluster.hosts[0].disk(bed.model.name))
    if left:
        await prefill(survivor, left)
        await finish(survivor, left)


@pytest.mark.parametrize("moment", ["before", "during", "after"])
@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.parametrize("story", MECHANISMS, ids=lambda story: story.__name__)
def test_who_is_left_serves_everything(story: Story, victim: int, moment: str) -> None:
    with private("sim", 2, on=SLOW_LINKS) as made:
        made.run(told(made, story, victim, moment, 0.01))


@pytest.mark.live
@pytest.mark.usefixtures("forked_workers")
def test_who_is_left_serves_everything_live() -> None:
    """One worker dies in each mechanism; who is left goes on with the next worker."""
    with private("torch", len(MECHANISMS) + 1, on=SLOW_LINKS, paced=True) as made:
        every = list(made.instances)
        here = every.pop(0)
        for number, story in enumerate(MECHANISMS):
            victim = number % 2
            pair = [every.pop(0), here] if victim == 0 else [here, every.pop(0)]
            made.cluster.instances[:] = pair
            shown = replace(made, first=made.made)
            made.run(told(shown, story, victim, "during", 0.03))
            made.made = shown.made
        made.first = 0
        tokens = generated(made)
    assert len(tokens) > 8
    assert tokens == undisturbed(made)
