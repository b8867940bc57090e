"""How large a request may be, before any is sent."""

from __future__ import annotations

from harness.elastic.instance import ElasticInstance
from harness.running.capacity_check import room_across
from tests.elastic import private


def test_two_instances_that_drop_half_of_their_layers_each_have_the_room_that_is_promised() -> None:
    with private("sim", 2, kv_blocks=8) as made:
        first, second = made.instances
        depth = made.model.num_layers

        async def story() -> None:
            await first.drop(range(depth // 2, depth))
            await second.drop(range(depth // 2))

        promised = room_across([first, second])
        made.run(story())
        pages = min(first.kv.num_pages, second.kv.num_pages) // (depth // 2)  # of half a block
        there = pages * first.kv.block_tokens
        assert 16 * 8 < there <= promised
        lost = 6 * first.kv.block_tokens  # page 0 of both, ends of extents, uneven halves
        assert promised - there <= lost + _uneven(first, depth)


def _uneven(instance: ElasticInstance, depth: int) -> int:
    """Tokens that the halves differ in: one has the embeddings."""
    layout = instance.layout
    halves = [layout.weight_bytes(range(depth // 2)), layout.weight_bytes(range(depth // 2, depth))]
    return int(abs(halves[0] - halves[1]) // layout.page_bytes * layout.block_tokens)
