"""The contract of elastic instances, simulated and live: each operation, its refusals."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, pairwise

import pytest

from harness.clock import Event
from harness.errors import RunError, UsageError
from harness.request import Batch, Request
from harness.running.testbed import decode, finish, prefill
from tests.elastic import (
    DEPTH,
    KV_SHAPES,
    ON_EVERY_ENGINE,
    Beds,
    halves,
    run_exactly,
    spec,
)

pytestmark = ON_EVERY_ENGINE


def test_the_model_of_these_tests_has_four_layers(bed: Beds, engine: str) -> None:
    assert spec().num_layers == DEPTH


def test_a_layer_that_is_dropped_is_kv_and_comes_back(bed: Beds, engine: str) -> None:
    with bed(engine, 2) as made:

        async def story() -> None:
            first, second = made.instances
            pages, weights = first.kv.num_pages, first.layout.weight_bytes([2, 3])
            await first.drop(range(2, DEPTH))
            assert first.resident == {0, 1}
            gained = first.kv.num_pages - pages
            assert 0 <= weights - gained * first.page_bytes < 3 * first.page_bytes
            with pytest.raises(RunError, match="needs layers that are not here: \\[2, 3\\]"):
                await first.execute(Batch(chunks=[(made.request(8, 1), 8)]))
            came: list[int] = []
            assert await first.load(range(DEPTH), second, on_layer=came.append)
            assert came == [2, 3]
            assert first.kv.num_pages == pages
            request = made.request(20, 6)
            await prefill(first, [request])
            await finish(first, [request])

        run_exactly(made, story())


def test_a_layer_cannot_come_back_where_kv_lies(bed: Beds, engine: str) -> None:
    with bed(engine, 2, kv_blocks=4) as made:

        async def story() -> None:
            first, second = made.instances
            await first.drop(range(3, DEPTH))
            await second.drop(range(3))
            request = made.request(16 * (first.kv.free_pages // 3) - 1, 2)
            pipe = made.cluster.pipeline([(first, range(3)), (second, range(3, DEPTH))])
            await prefill(pipe, [request])
            with pytest.raises(RunError, match=r"layers \[3\] needs \d+ pages that are KV's now"):
                await first.load(range(3, DEPTH), second)
            await finish(pipe, [request])
            assert await first.load(range(3, DEPTH), second)

        made.run(story())


@pytest.mark.parametrize("source", ["peer", "dram", "ssd"])
def test_weights_come_from_anywhere(bed: Beds, engine: str, source: str) -> None:
    with bed(engine, 2, resident={1: range(0)}) as made:

        async def story() -> None:
            full, empty = made.instances
            host = made.cluster.hosts[0]
            name = made.model.name
            if source == "dram":
                with pytest.raises(UsageError, match="no copy of tiny-llama in its DRAM"):
                    host.source(name)
                assert await host.fetch(name, full)
            places = {"peer": full, "ssd": host.disk(name), "dram": host.memory(name)}
            assert await empty.load(range(DEPTH), places[source])
            request = made.request(20, 6)
            await prefill(empty, [request])
            await finish(empty, [request])

        run_exactly(made, story())


def test_a_chain_forwards_each_layer_as_it_comes(bed: Beds, engine: str) -> None:
    with bed(engine, 3, resident={1: range(0), 2: range(0)}) as made:

        async def story() -> None:
            head, middle, tail = made.instances
            order: list[tuple[str, int]] = []
            loads = [
                made.loop.spawn(
                    to.load(range(DEPTH), of, on_layer=lambda k, to=to: order.append((to.name, k))),
                    name=to.name,
                )
                for of, to in ((head, middle), (middle, tail))
            ]
            for load in loads:
                await made.loop.wait(load.finished)
                assert load.result is True
            assert len(order) == 2 * DEPTH
            if engine == "sim":  # live, two workers tell it; `make bench-elastic` paces them
                for layer in range(DEPTH):
                    assert order.index((middle.name, layer)) < order.index((tail.name, layer))
                assert order.index((tail.name, 0)) < order.index((middle.name, DEPTH - 1))
            request = made.request(20, 6)
            await prefill(tail, [request])
            await finish(tail, [request])

        run_exactly(made, story())


def test_a_load_that_is_stopped_keeps_the_layers_that_have_come(bed: Beds, engine: str) -> None:
    """Here while its source has no more of them."""
    with bed(engine, 3, resident={1: range(0), 2: range(0)}) as made:

        async def story() -> None:
            full, half, empty = made.instances
            assert await half.load(range(2), full)
            stop, came = Event(made.loop), list[int]()

            def enough(layer: int) -> None:
                came.append(layer)
                if layer == 1:
                    stop.set()

            assert not await empty.load(range(DEPTH), half, on_layer=enough, stop=stop)
            assert came == [0, 1]
            assert empty.resident == {0, 1}
            assert not await empty.load(range(DEPTH), full, stop=stop)
            assert empty.resident == {0, 1}
            assert await empty.load(range(DEPTH), full)
            request = made.request(20, 6)
            await prefill(empty, [request])
            await finish(empty, [request])

        run_exactly(made, story())


def test_a_source_may_get_its_layers_later(bed: Beds, engine: str) -> None:
    """A load waits for them, while KV goes the same way."""
    with bed(engine, 3, resident={1: range(0), 2: range(0)}) as made:

        async def story() -> None:
            full, middle, half = made.instances
            load = made.loop.spawn(half.load(range(DEPTH), middle), name="load")
            request = made.request(20, 6)
            await prefill(full, [request])
            assert await made.cluster.move_kv([request], range(DEPTH), full, middle)
            assert await made.cluster.move_kv([request], range(DEPTH), middle, half)
            assert not load.done
            assert await middle.load(range(DEPTH), full)
            await made.loop.wait(load.finished)
            assert load.result is True
            await finish(half, [request])

        run_exactly(made, story())


@pytest.mark.parametrize(
    ("model", "num_stages"),
    [*((KV_SHAPES[0], n) for n in (1, 2, 4)), *((m, 3) for m in (*KV_SHAPES[1:], "tiny-opt"))],
)
def test_a_pipeline_computes_what_one_instance_does(
    bed: Beds, engine: str, model: str, num_stages: int
) -> None:
    """At every split."""
    depth = spec(model).num_layers
    with bed(engine, num_stages, model=model) as made:

        async def story(ranges: Sequence[range]) -> None:
            pipe = made.cluster.pipeline(list(zip(made.instances, ranges, strict=True)))
            requests = [made.request(17 + 9 * i, 5 + i) for i in range(3)]
            await prefill(pipe, requests[:2])
            running = await decode(pipe, requests[:2], max_steps=2)
            await prefill(pipe, requests[2:])
            await finish(pipe, [*running, requests[2]])
            assert not any(instance.kv.held for instance in made.instances)

        for inner in combinations(range(1, depth), num_stages - 1):
            run_exactly(made, story([range(a, b) for a, b in pairwise([0, *inner, depth])]))


def test_micro_batches_fly_beside_one_another(bed: Beds, engine: str) -> None:
    with bed(engine, 2) as made:

        async def story() -> None:
            pipe = halves(made)
            batches = [[made.request(20 + i, 15)] for i in range(3)]

            async def serve(batch: list[Request]) -> None:
                await prefill(pipe, batch)
                await finish(pipe, batch)

            tasks = [made.loop.spawn(serve(batch), name="batch") for batch in batches]
            for task in tasks:
                await made.loop.wait(task.finished)

        run_exactly(made, story())
        records = made.recorder.records
        times = [records[request.request_id].token_times_s() for request in made.requests]
        assert all(each[0] < times[0][-1] for each in times[1:])


def test_wrong_calls_are_one_sentence(bed: Beds, engine: str) -> None:
    with bed(engine, 2) as made:
        first, second = made.instances
        cluster = made.cluster
        bad = [
            (lambda: first.model.layer_range(range(2, 9)), r"\[2, 9\) are out of range"),
            (lambda: first.layout.groups(range(3, 3)), "no pages"),
            (lambda: cluster.dram_store(7, 2**20, first.layout), "valid: \\[0\\]"),
            (lambda: cluster.dram_store(0, 10, first.layout), "hold no KV block"),
        ]
        for call, message in bad:
            with pytest.raises(UsageError, match=message):
                call()

        async def story() -> None:
            request = made.request(20, 4)
            with pytest.raises(RunError, match="holds page groups"):
                await cluster.move_kv([request], range(DEPTH), first, second)
            with pytest.raises(RunError, match="pages that are KV's now"):
                await cluster.lend(first, 2**40, second.layout)
            await prefill(first, [request])
            with pytest.raises(RunError, match="is released with KV of 1 requests"):
                cluster.release(first)
            await finish(first, [request])

        made.run(story())
