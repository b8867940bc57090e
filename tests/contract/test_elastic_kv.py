"""The contract of elastic instances, simulated and live: KV that moves."""

from __future__ import annotations

from harness.running.testbed import decode, finish, prefill
from tests.elastic import DEPTH, ON_EVERY_ENGINE, Beds, halves, run_exactly

pytestmark = ON_EVERY_ENGINE


def test_kv_moves_in_mid_decode(bed: Beds, engine: str) -> None:
    """Again and again from one instance to the other, while the pipeline decodes."""
    with bed(engine, 2) as made:

        async def story() -> None:
            first, second = made.instances
            pipe = halves(made)
            requests = [made.request(40, 120), made.request(30, 120)]
            await prefill(pipe, requests)
            moves = []

            async def shuffle() -> None:
                here, there = first, second
                while not requests[0].finished and requests[0].remaining_tokens > 20:
                    moved = await made.cluster.move_kv(requests, range(2), here, there)
                    assert moved
                    moves.append(there.name)
                    here, there = there, here
                    await made.loop.sleep(0.002)

            shuffling = made.loop.spawn(shuffle(), name="shuffle")
            await finish(pipe, requests)
            await made.loop.wait(shuffling.finished)
            assert len(moves) >= 2

        run_exactly(made, story())


def test_a_target_without_room_refuses_and_nothing_changes(bed: Beds, engine: str) -> None:
    with bed(engine, 2, kv_blocks=6) as made:

        async def story() -> None:
            first, second = made.instances
            mine, others = made.request(60, 10), made.request(60, 10)
            await prefill(first, [mine])
            await prefill(second, [others])
            before = dict(first.kv.held), second.kv.free_pages
            assert not await made.cluster.move_kv([mine], range(DEPTH), first, second)
            assert (dict(first.kv.held), second.kv.free_pages) == before
            await finish(first, [mine])
            await finish(second, [others])

        made.run(story())


def test_reserved_pages_are_kept_for_their_owner(bed: Beds, engine: str) -> None:
    with bed(engine, 2, kv_blocks=8) as made:

        async def story() -> None:
            first, second = made.instances
            request = made.request(60, 10)
            await prefill(first, [request])
            assert second.kv.reserve(second.kv.free_pages, "exchange")
            assert not second.kv.grow(made.request(16, 1), 16)
            assert not await made.cluster.move_kv([request], range(DEPTH), first, second)
            assert await made.cluster.move_kv(
                [request], range(DEPTH), first, second, owner="exchange"
            )
            second.kv.reserve(-second.kv.reserved["exchange"], "exchange")
            await finish(second, [request])

        made.run(story())


def test_a_request_that_ends_while_its_kv_moves_is_left_out(bed: Beds, engine: str) -> None:
    with bed(engine, 2) as made:

        async def story() -> None:
            first, second = made.instances
            short, long = made.request(20, 2), made.request(40, 60)
            await prefill(first, [short, long])
            move = made.loop.spawn(
                made.cluster.move_kv([short, long], range(DEPTH), first, second), name="move"
            )
            await decode(first, [short, long])  # `short` ends with this step
            await made.loop.wait(move.finished)
            assert move.result is True
            assert short.request_id not in second.kv.held
            await finish(second if long.request_id in second.kv.held else first, [long])

        run_exactly(made, story())
