"""Batches that begin while later layers of their instance are still on their way."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest

from harness.clock import Event
from harness.elastic.instance import ElasticInstance
from harness.errors import InstanceLost, RunError
from harness.request import Batch
from harness.running.testbed import Bed, finish, prefill
from tests.elastic import DEPTH, ON_EVERY_ENGINE, Beds, private, run_exactly

EVERY = range(DEPTH)

pytestmark = ON_EVERY_ENGINE


async def half_loaded(made: Bed, stop: Event | None = None) -> list[ElasticInstance]:
    """Three instances: one has every layer, the next only two of them, the last is being given all
    layers by that one, and has those two."""
    full, middle, late = made.instances
    assert await middle.load(range(2), full)
    came = Event(made.loop)

    def enough(layer: int) -> None:
        if layer == 1:
            came.set()

    async def load() -> None:
        with suppress(InstanceLost):
            await late.load(EVERY, middle, on_layer=enough, stop=stop)

    made.loop.spawn(load(), name="load")
    await made.loop.wait(came)
    return made.instances


@pytest.mark.parametrize("stages", [1, 2])
def test_a_batch_waits_for_each_layer_when_its_turn_comes(
    bed: Beds, engine: str, stages: int
) -> None:
    with bed(engine, 3, resident={1: range(0), 2: range(0)}) as made:

        async def story() -> None:
            full, middle, late = await half_loaded(made)
            executor: Any = late
            if stages == 2:
                executor = made.cluster.pipeline([(late, range(3)), (full, range(3, DEPTH))])
            requests = [made.request(20, 6), made.request(30, 8)]
            first = made.loop.spawn(prefill(executor, requests), name="prefill")
            await made.loop.sleep(0.05)
            assert not first.done
            assert await middle.load(range(2, DEPTH), full)
            await made.loop.wait(first.finished)
            assert all(request.generated_tokens == 1 for request in requests)
            await finish(executor, requests)

        run_exactly(made, story())


def test_decodes_that_waited_take_one_step(bed: Beds, engine: str) -> None:
    with bed(engine, 3, resident={1: range(0), 2: range(0)}) as made:

        async def story() -> None:
            full, middle, late = await half_loaded(made)
            request = made.request(20, 6)
            await prefill(full, [request])
            assert await made.cluster.move_kv([request], EVERY, full, late)
            assert late.kv.grow(request, request.computed_tokens + 1)
            step = made.loop.spawn(late.execute(Batch(decodes=[request])), name="step")
            await made.loop.sleep(0.01)
            assert not step.done
            assert await middle.load(range(2, DEPTH), full)
            await made.loop.wait(step.finished)
            assert (step.result, request.generated_tokens) == (1, 2)
            await finish(late, [request])

        run_exactly(made, story())


def test_a_batch_goes_on_with_the_next_load(bed: Beds, engine: str) -> None:
    """The one that it waited for is broken off; its bytes had been KV's, and are again."""
    with bed(engine, 3) as made:

        async def story() -> None:
            for instance in made.instances[1:]:
                await instance.drop(EVERY)
            stop = Event(made.loop)
            full, _, late = await half_loaded(made, stop)
            request = made.request(20, 6)
            first = made.loop.spawn(prefill(late, [request]), name="prefill")
            await made.loop.sleep(0.01)
            pages = late.kv.num_pages
            stop.set()
            while late.kv.num_pages == pages:
                await made.loop.sleep(0.001)
            with pytest.raises(RunError, match="not here: \\[2, 3\\]"):
                await late.execute(Batch(chunks=[(request, 1)]))
            assert not first.done
            assert await late.load(range(2, DEPTH), full)
            await made.loop.wait(first.finished)
            await finish(late, [request])

        run_exactly(made, story())


def test_the_death_of_one_that_waits_fails_its_batch(engine: str) -> None:
    with private(engine, 3, resident={1: range(0), 2: range(0)}) as made:

        async def story() -> None:
            made.cluster.on_lost = lambda instance: None
            full, _, late = await half_loaded(made)
            pipe = made.cluster.pipeline([(late, range(3)), (full, range(3, DEPTH))])
            device = late if engine == "sim" else pipe

            async def kill() -> None:
                await made.loop.sleep(0.02)
                made.cluster.kill(late)

            made.loop.spawn(kill(), name="kill")
            with pytest.raises(InstanceLost, match=late.name):
                await prefill(device, [made.request(20, 6)])

        made.run(story())


def test_the_death_of_another_stage_fails_a_batch_that_waits(engine: str) -> None:
    """And who waited computes on."""
    with private(engine, 3, resident={1: range(0), 2: range(0)}) as made:

        async def story() -> None:
            made.cluster.on_lost = lambda instance: None
            full, middle, late = await half_loaded(made)
            pipe = made.cluster.pipeline([(late, range(3)), (full, range(3, DEPTH))])

            async def kill() -> None:
                await made.loop.sleep(0.02)
                made.cluster.kill(full)

            made.loop.spawn(kill(), name="kill")
            request = made.request(20, 6)
            with pytest.raises(InstanceLost, match=full.name):
                await prefill(pipe, [request])
            pipe.evict(request)
            disk = made.cluster.hosts[0].disk(made.model.name)
            assert await middle.load(range(2, DEPTH), disk)
            await made.loop.wait(late.arrival(DEPTH - 1))
            await prefill(late, [request])
            await finish(late, [request])

        run_exactly(made, story())
