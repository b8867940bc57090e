"""A batch's passage through the layers piece by piece, simulated and live (BlitzScale §5.2)."""

from __future__ import annotations

import pytest

from harness.errors import InstanceLost, RunError
from harness.running.testbed import finish, prefill
from tests.elastic import DEPTH, ON_EVERY_ENGINE, Beds, private, run_exactly

pytestmark = ON_EVERY_ENGINE


def test_batches_go_to_and_fro_between_a_loading_and_a_full_instance(
    bed: Beds, engine: str
) -> None:
    """The zigzag: both batches' first layer, then the second one's second, the rest elsewhere."""
    with bed(engine, 2, resident={1: range(0)}) as made:

        async def story() -> None:
            full, new = made.instances
            assert await new.load(range(1), full)
            first, second = [made.request(40, 1), made.request(9, 5)], [made.request(33, 6)]
            passages = [made.cluster.layerwise(batch) for batch in (first, second)]
            for passage in passages:
                assert passage.reserve(new, range(1))
                await passage.run(new, range(1))
            passages[0].send(full)
            assert passages[0].reserve(full, range(1, DEPTH))
            rest = made.loop.spawn(passages[0].run(full, range(1, DEPTH)), name="rest")
            passages[1].send(full)  # ahead, and then not needed: another layer comes
            with pytest.raises(RunError, match="layers that are not here: \\[1\\]"):
                await passages[1].run(new, range(1, 2))
            assert await new.load(range(1, 2), full)
            assert passages[1].reserve(new, range(1, 2))
            await passages[1].run(new, range(1, 2))
            with pytest.raises(RunError, match="the next one is 2"):
                await passages[1].run(full, range(1, DEPTH))
            assert passages[1].executed == 2
            assert passages[1].reserve(full, range(2, DEPTH))
            await passages[1].run(full, range(2, DEPTH))
            await made.loop.wait(rest.finished)
            assert first[0].finished
            assert not made.cluster.directory.where(first[0])
            for batch, layers in ((first[1:], 1), (second, 2)):
                assert await made.cluster.move_kv(batch, range(layers), new, full)
            assert not new.kv.held
            await finish(full, [first[1], *second])
            await new.drop(range(DEPTH))

        run_exactly(made, story())


def test_the_loading_instance_can_end_what_it_began(bed: Beds, engine: str) -> None:
    with bed(engine, 2) as made:

        async def story() -> None:
            new = made.instances[1]
            request = made.request(40, 6)
            passage = made.cluster.layerwise([request])
            for layers in (range(1), range(1, DEPTH)):
                assert passage.reserve(new, layers)
                await passage.run(new, layers)
            await finish(new, [request])

        run_exactly(made, story())


def test_without_room_nothing_is_taken(bed: Beds, engine: str) -> None:
    with bed(engine, 2, kv_blocks=4) as made:
        new = made.instances[1]
        free = new.kv.free_pages
        batch = [made.request(free * 16 // DEPTH - 20, 4), made.request(60, 4)]
        passage = made.cluster.layerwise(batch)
        assert not passage.reserve(new, range(DEPTH))
        assert new.kv.free_pages == free
        assert passage.reserve(new, range(1))
        passage.give_up()
        for request in batch:
            new.evict(request)


@pytest.mark.parametrize("victim", ["full", "new"])
def test_a_death_fails_the_piece_and_the_batch_is_computed_again(engine: str, victim: str) -> None:
    with private(engine, 3) as made:

        async def story() -> None:
            lost: list[str] = []
            made.cluster.on_lost = lambda instance: lost.append(instance.name)
            full, new, spare = made.instances
            request = made.request(400, 3)
            passage = made.cluster.layerwise([request])
            assert passage.reserve(new, range(2))
            await passage.run(new, range(2))
            assert passage.reserve(full, range(2, DEPTH))
            made.cluster.kill(full if victim == "full" else new)
            with pytest.raises(InstanceLost):
                await passage.run(full, range(2, DEPTH))
            passage.give_up()
            while not lost:
                await made.loop.sleep(0.01)
            full.evict(request)
            assert not any(each.kv.held for each in made.instances if each.lost is None)
            await prefill(spare, [request])
            await finish(spare, [request])

        run_exactly(made, story())
