"""The books of block pools and of block tables: what must add up in them, whatever was done."""

from __future__ import annotations

from functools import singledispatch

from harness.device.block_pool import BlockPool
from harness.device.caching_pool import CachingPool
from harness.elastic.page_pool import PagePool
from harness.elastic.page_tables import PageTables
from harness.elastic.staged_kv import StagedKv
from harness.engine.block_tables import FIRST_BLOCK, BlockTables
from harness.pooled.blocks import SlabPool


@singledispatch
def audit(books: object) -> None:
    """Raises AssertionError where a block, a page or an id is lost, or held twice."""
    raise TypeError(f"nothing is known of the books of {books!r}")


@audit.register
def _(pool: BlockPool) -> None:
    assert 0 <= pool.free_blocks <= pool.num_blocks, (pool.free_blocks, pool.num_blocks)
    assert all(blocks > 0 for blocks in pool.held.values()), pool.held
    assert pool.free_blocks + sum(pool.held.values()) == pool.num_blocks


@audit.register
def _(pool: CachingPool) -> None:
    shared = list(pool.shared.values())
    held_by = [block for blocks in shared for block in blocks]
    alone = sum(pool.held.values()) - len(held_by)
    assert pool._free + len(set(held_by)) + alone == pool.num_blocks
    assert pool._num_waiting == sum(block.num_blocks for block in pool._waiting)
    for block in set(held_by):
        assert block.refs == held_by.count(block) > 0
        assert block not in pool._waiting


@audit.register
def _(pool: SlabPool) -> None:
    held = {r: sum(run.num_blocks for run in runs) for r, runs in pool.runs.items()}
    assert held == pool.held, (held, pool.held)


@audit.register
def _(pool: PagePool) -> None:
    assert pool.held.keys() == pool.groups.keys()
    assert pool.split == {r for r, its in pool.groups.items() if its != pool.all_groups}
    used = sum(blocks * len(pool.groups[r]) for r, blocks in pool.held.items())
    assert used == pool.used_pages, (used, pool.used_pages)
    assert pool.free_pages >= 0


@audit.register
def _(pool: StagedKv) -> None:
    for holder, _ in pool.homes:
        audit(holder.kv)


@audit.register
def _(tables: BlockTables) -> None:
    pool, used = tables._pool, [block for ids in tables.ids.values() for block in ids]
    if isinstance(pool, CachingPool):
        shared = [b.places[0] for blocks in tables._shared.values() for b in blocks]
        for place in set(shared):
            assert shared.count(place) == used.count(place)
        waiting = [place for block in pool._waiting for place in block.places]
        used = list(set(used)) + waiting
    last = FIRST_BLOCK + pool.num_blocks
    assert sorted(used + tables._free) == list(range(FIRST_BLOCK, last))


@audit.register
def _(tables: PageTables) -> None:
    used = [p for mine in tables.ids.values() for ids in mine.values() for p in ids]
    assert sorted(used + tables._free) == sorted(tables._pages)
