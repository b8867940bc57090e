"""An end of a move dies while a batch runs on the KV that it brings."""

from __future__ import annotations

import pytest

from harness.errors import InstanceLost
from harness.request import Batch
from harness.testbed import finish, prefill
from tests.elastic import ENGINES, check, generated, hardware, private, undisturbed
from tests.gated_kv import EVERY, held, on_its_way

pytestmark = [
    pytest.mark.parametrize("engine", ENGINES),
    pytest.mark.usefixtures("forked_workers"),
]


@pytest.mark.parametrize("dies", ["source", "target"])
def test_an_end_that_dies_on_the_way(engine: str, dies: str) -> None:
    """Who awaits the move is told, and who awaits the batch. Nothing is kept; what lives goes on
    and computes the request again."""
    slow = hardware(2, nvlink_copy_bytes_per_s=2e5)  # a page group takes a quarter of a second
    with private(engine, 2, on=slow, paced=True) as made, held(made) as doors:

        async def story() -> None:
            made.cluster.on_lost = lambda instance: None
            source, target = made.instances
            request, other = made.request(40, 6), made.request(30, 6)
            await prefill(source, [request])
            told: list[InstanceLost] = []

            async def move() -> None:
                with pytest.raises(InstanceLost) as found:
                    await made.cluster.move_kv([request], EVERY, source, target, gated=True)
                told.append(found.value)

            async def step() -> None:
                await on_its_way(made, request)
                assert target.kv.grow(request, request.computed_tokens + 1)
                with pytest.raises(InstanceLost) as found:
                    await target.execute(Batch(decodes=[request]))
                told.append(found.value)

            tasks = [made.loop.spawn(each(), name="told") for each in (move, step)]
            await on_its_way(made, request)
            arrival = made.cluster.directory.arrivals[request.request_id]
            while not made.cluster.directory.in_air(request):
                await made.loop.sleep(0.001)
            for door in doors[:3]:
                door.set()
            await made.loop.wait(arrival.groups[0])
            dead, alive = (source, target) if dies == "source" else (target, source)
            made.cluster.kill(dead)
            await made.loop.wait(dead.gone)
            doors[3].set()
            for task in tasks:
                await made.loop.wait(task.finished)
            assert [dead.name in str(error) for error in told] == [True, True]
            assert not source.kv.held
            if alive is target:
                with pytest.raises(InstanceLost):  # what has come is of no use
                    await target.execute(Batch(decodes=[request]))
            target.evict(request)
            assert not alive.kv.held
            assert not made.cluster.directory.arrivals
            await prefill(alive, [request, other])
            await finish(alive, [request, other])

        made.run(story())
        check(made)
        tokens = generated(made) if engine == "torch" else None
    if tokens is not None:
        assert tokens == undisturbed(made)
