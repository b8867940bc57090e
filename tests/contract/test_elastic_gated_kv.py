"""KV that comes page group by page group while the batch that needs it already runs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from harness.clock import Event
from harness.errors import RunError
from harness.request import Batch
from harness.testbed import finish, prefill
from tests.elastic import ENGINES, Beds, check, generated, hardware, private, undisturbed
from tests.gated_kv import DEPTH, EVERY, POISON, begun, held, on_its_way, page, poison

PROMPT = 40  # tokens: two blocks and a half
BLOCKS = 3

pytestmark = pytest.mark.usefixtures("forked_workers")

both = pytest.mark.parametrize("engine", ENGINES)


@both
def test_a_batch_runs_while_its_kv_comes(bed: Beds, engine: str) -> None:
    """What was in the pages before is not attended to."""
    with bed(engine, 2) as made, held(made) as doors:

        async def story() -> None:
            source, target = made.instances
            request = made.request(PROMPT, 6)
            await prefill(source, [request])
            await poison(made, target)
            move, step = begun(made, request, source, target)
            for door in doors:
                await made.loop.sleep(0.02)
                assert not any(task.done for task in (move, step))
                assert source.kv.held[request.request_id] == BLOCKS
                door.set()
            await made.loop.wait(step.finished)
            assert (step.result, request.generated_tokens) == (1, 2)
            await made.loop.wait(move.finished)
            assert move.result is True
            assert not source.kv.held
            assert not made.cluster.directory.arrivals
            await finish(target, [request])

        made.run(story())
        tokens = generated(made) if engine == "torch" else None
    if tokens is not None:
        assert tokens == undisturbed(made)


@pytest.mark.live
def test_layers_whose_kv_is_there_are_computed_before_the_rest_comes(bed: Beds) -> None:
    """They write their token's KV to their pages, when others' are still the poison."""
    with bed("torch", 2) as made, held(made) as doors:

        async def story() -> None:
            source, target = made.instances
            request = made.request(PROMPT, 6)
            await prefill(source, [request])
            await poison(made, target)
            before = [await page(made, source, request, group) for group in EVERY]
            doors[0].set()
            doors[1].set()
            _, step = begun(made, request, source, target)
            while True:  # until the second layer's page is more than what has come
                tables = target.tables
                assert tables is not None
                if request.request_id in tables.ids:
                    come = await page(made, target, request, 1)
                    numbers = np.frombuffer(come, np.float32)
                    if come != before[1] and not (numbers == POISON).all():
                        break
                await made.loop.sleep(0.005)
            assert not step.done
            for group in (2, 3):
                numbers = np.frombuffer(await page(made, target, request, group), np.float32)
                assert (numbers == POISON).all()
            doors[2].set()
            doors[3].set()
            await made.loop.wait(step.finished)
            await finish(target, [request])

        made.run(story())
        assert generated(made) == undisturbed(made)


@pytest.mark.parametrize("from_dram", [False, True])
@pytest.mark.live
def test_paced_links_end_with_the_same_tokens(from_dram: bool) -> None:
    """From a neighbour, and from DRAM, of two requests that decode beside a third one."""
    slow = hardware(2, nvlink_copy_bytes_per_s=1e6, pcie_bytes_per_s=1e6)
    with private("torch", 2, on=slow, paced=True) as made:

        async def story() -> None:
            source, target = made.instances
            moved = [made.request(PROMPT, 6), made.request(20, 8)]
            other = made.request(30, 6)
            await prefill(target, [other])
            await prefill(source, moved)
            store: Any = source
            if from_dram:
                store = made.cluster.dram_store(0, 2**20, source.layout)
                assert await made.cluster.move_kv(moved, EVERY, source, store)
            move = made.loop.spawn(
                made.cluster.move_kv(moved, EVERY, store, target, gated=True), name="move"
            )
            await on_its_way(made, moved[0])
            await finish(target, [*moved, other])
            await made.loop.wait(move.finished)
            assert not store.kv.held

        made.run(story())
        check(made)
        assert generated(made) == undisturbed(made)


def simulated_step_s(bytes_per_s: float | None) -> tuple[float, float]:
    """Of one decode step, from the start of its KV's move; None: it is there. And what the copy of
    one page group takes."""
    on = hardware(2, nvlink_copy_bytes_per_s=bytes_per_s or 1e9)
    with private("sim", 2, on=on) as made:

        async def story() -> tuple[float, float]:
            source, target = made.instances
            request = made.request(PROMPT, 6)
            await prefill(target if bytes_per_s is None else source, [request])
            start_s = made.loop.now
            if bytes_per_s is not None:
                made.loop.spawn(
                    made.cluster.move_kv([request], EVERY, source, target, gated=True), name="move"
                )
                await made.loop.sleep(0)
            assert target.kv.grow(request, request.computed_tokens + 1)
            await target.execute(Batch(decodes=[request]), max_steps=1)
            size = BLOCKS * source.page_bytes
            one_s = made.cluster.copy_s(source.memory, target.memory, size)
            return made.loop.now - start_s, one_s

        found: tuple[float, float] = made.run(story())
        return found


@pytest.mark.parametrize("bytes_per_s", [1e6, 2e7, 5e7, 1e9])
def test_a_simulated_step_takes_what_the_closed_form_says(bytes_per_s: float) -> None:
    """Layer k begins at the later of the end of layer k - 1 and the arrival of its KV."""
    computing_s, _ = simulated_step_s(None)
    took_s, copy_s = simulated_step_s(bytes_per_s)
    over_s = 0.0
    for layer in EVERY:
        over_s = max(over_s, (layer + 1) * copy_s) + computing_s / DEPTH
    assert took_s == pytest.approx(over_s, rel=1e-9)
    assert took_s < DEPTH * copy_s + computing_s


@both
def test_what_cannot_wait_by_layer_waits_for_all(bed: Beds, engine: str) -> None:
    """A pipeline, the next move, and an eviction, which is refused."""
    with bed(engine, 2) as made, held(made) as doors:

        async def story() -> None:
            first, second = made.instances
            request = made.request(PROMPT, 6)
            await prefill(first, [request])
            move = made.loop.spawn(
                made.cluster.move_kv([request], EVERY, first, second, gated=True), name="there"
            )
            await on_its_way(made, request)
            with pytest.raises(RunError, match="while its KV is on its way"):
                second.evict(request)
            back = made.loop.spawn(made.cluster.move_kv([request], EVERY, second, first), name="b")
            pipe = made.cluster.pipeline([(first, range(2)), (second, range(2, DEPTH))])
            step = made.loop.spawn(pipe.execute(Batch(decodes=[request])), name="step")
            await made.loop.sleep(0.02)
            assert not any(task.done for task in (move, back, step))
            for door in doors:
                door.set()
            for task in (move, back, step):
                await made.loop.wait(task.finished)
            await finish(first, [request])

        made.run(story())
        tokens = generated(made) if engine == "torch" else None
    if tokens is not None:
        assert tokens == undisturbed(made)


@both
def test_no_room_and_what_no_gated_move_is(bed: Beds, engine: str) -> None:
    with bed(engine, 2, kv_blocks=6) as made:

        async def story() -> None:
            first, second = made.instances
            mine, others = made.request(60, 4), made.request(60, 4)
            await prefill(first, [mine])
            await prefill(second, [others])
            before = dict(first.kv.held), second.kv.free_pages
            move = made.cluster.move_kv
            assert not await move([mine], EVERY, first, second, gated=True)
            assert (dict(first.kv.held), second.kv.free_pages) == before
            with pytest.raises(RunError, match="cannot be broken off"):
                await move([mine], EVERY, first, second, gated=True, stop=Event(made.loop))
            store = made.cluster.dram_store(0, 2**20, first.layout)
            with pytest.raises(RunError, match="goes to an instance, not to DRAM of node 0"):
                await move([mine], EVERY, first, store, gated=True)
            await finish(first, [mine])
            await finish(second, [others])

        made.run(story())
