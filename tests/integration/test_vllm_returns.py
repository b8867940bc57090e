"""KV of the plug-in that is in host memory goes back once a producer lends again. No engine is
made: the connector's two sides, a coordinator's answers and regions of this process."""

from __future__ import annotations

from typing import Any

import pytest
import torch

pytestmark = [pytest.mark.vllm]  # vLLM is imported, which takes many seconds

BLOCKS, BLOCK_TOKENS = 8, 4


class Coordinated:
    """A `Borrower` in which one lease has room, once there is one."""

    def __init__(self) -> None:
        self.lease: str | None = None
        self.freed: list[Any] = []

    def allocate(self, num_blocks: int) -> Any:
        from systems.aqua.plugin.pages import Slots

        return None if self.lease is None else [Slots(self.lease, "a", list(range(num_blocks)))]

    def unwanted(self, held: Any) -> tuple[set[str], set[str]]:
        return set(), set()

    def next_iteration(self) -> None:
        return

    def free_after_reading(self, slots: Any) -> None:
        self.freed.append(slots)


def connector(borrower: Coordinated) -> Any:
    from systems.aqua.plugin.connector import AquaConnector
    from systems.aqua.plugin.counters import Counts
    from systems.aqua.plugin.pages import Pages
    from systems.aqua.plugin.settings import Settings

    made: Any = object.__new__(AquaConnector)
    made.settings = Settings(slice_iterations=1, migrate_every_iterations=2)
    made._counts, made._tokens, made._slots, made._pages = Counts(), {}, {}, Pages()
    made._block_tokens, made._iterations, made._borrower = BLOCK_TOKENS, 0, borrower
    return made


def test_kv_returns_to_a_lease_and_comes_back_from_there() -> None:
    from systems.aqua.plugin import region
    from systems.aqua.plugin.paged import PagedKv
    from systems.aqua.plugin.pages import Page

    borrower = Coordinated()
    scheduler = connector(borrower)
    caches = [torch.arange(BLOCKS * 6, dtype=torch.int32).reshape(BLOCKS, 2, 3) + k for k in (0, 9)]
    before = [cache.clone() for cache in caches]
    worker = PagedKv(caches, by_block=False)

    scheduler.page_out("r", 7, [5, 2])  # nobody lends: to host memory
    worker.before(scheduler.build_connector_meta(None))
    worker.before(scheduler.build_connector_meta(None))  # it looks, and there is no lease
    assert scheduler.in_dram() == [True]

    borrower.lease = region.lend("test", 4096).lease
    scheduler.build_connector_meta(None)
    assert scheduler.in_dram() == [True]  # every two iterations alone
    worker.before(scheduler.build_connector_meta(None))
    assert scheduler.in_dram() == [False]
    assert worker.counts["blocks/migrate from DRAM to lease"] == 2
    for cache in caches:
        cache.zero_()
    assert worker.page_in(Page("r", [1, 3], 0, scheduler._slots["r"]))
    assert worker.counts["blocks/page in from lease"] == 2
    for cache, was in zip(caches, before, strict=True):
        assert torch.equal(cache[[1, 3]], was[[5, 2]])


def test_kv_that_is_just_being_paged_out_waits_for_the_next_look() -> None:
    borrower = Coordinated()
    scheduler = connector(borrower)
    scheduler.page_out("r", 7, [5, 2])
    borrower.lease, scheduler._iterations = "l.1.1", 1
    assert not scheduler.build_connector_meta(None).returned
    assert scheduler.in_dram() == [True]


def test_kv_stays_in_host_memory_if_the_lease_is_gone_when_it_is_written() -> None:
    from systems.aqua.plugin.paged import PagedKv
    from systems.aqua.plugin.pages import Page, Pages, Slots

    cache = torch.arange(BLOCKS * 6, dtype=torch.int32).reshape(BLOCKS, 2, 3)
    was = cache.clone()
    worker = PagedKv([cache], by_block=True)
    gone = [Slots("test.host.1.999999", "a", [0])]
    worker.before(Pages(out=[Page("r", [4], 0, None)]))
    worker.before(Pages(returned=[Page("r", [], 0, gone)]))
    cache.zero_()
    assert worker.page_in(Page("r", [6], 0, gone))
    assert torch.equal(cache[6], was[4])
