"""Leases of a consumer with two tensor-parallel ranks. Without an engine: the connector's scheduler
side, the real ledger, and a worker for each rank. In a real vLLM with two processes: the tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from systems.aqua.coordinator.coordinator import Coordinator
from systems.aqua.coordinator.requests import Join, Leave, Offer, Reclaim
from systems.aqua.coordinator.topology import Device, Topology
from systems.aqua.plugin.region import Lent, lend
from systems.aqua.plugin.settings import of_ranks
from tests.integration.test_vllm_aqua import JOBS, REQUESTS, TIGHT, job, lent, run_jobs, total
from tests.integration.test_vllm_returns import BLOCK_TOKENS, BLOCKS, connector
from tests.running import ROOT, model_spec

pytestmark = [pytest.mark.vllm]  # vLLM is imported, which takes many seconds

CONSUMERS, LENDERS = of_ranks("consumer", 2), of_ranks("lender", 2)
BLOCK_BYTES = 2 * 6 * 4  # layers, numbers of a rank's part of a block, bytes


class Ranks:
    """A consumer's scheduler and its two workers, whose shards differ, and their two producers."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, lent_blocks: tuple[int, int]) -> None:
        from systems.aqua.plugin import borrower
        from systems.aqua.plugin.paged import PagedKv

        device = Device(node=0, memory_bytes=1 << 20)
        devices = dict.fromkeys([*CONSUMERS, *LENDERS], device)
        topology = Topology(devices, dict(zip(CONSUMERS, LENDERS, strict=True)))
        self.coordinator = Coordinator(topology, None, lambda: 0.0, heartbeat_timeout_s=10)
        monkeypatch.setattr(borrower, "coordinator_at", lambda *_: self.coordinator)
        self.lent: list[Lent] = []
        for name, blocks in zip(LENDERS, lent_blocks, strict=True):
            self.lent.append(lend(name, blocks * BLOCK_BYTES))
            self.coordinator.make(Join(name, name))
            self.coordinator.make(Offer(self.lent[-1].lease, name, blocks * BLOCK_BYTES))
        own = borrower.Borrower("http://127.0.0.1:1", CONSUMERS, BLOCK_BYTES)
        self.scheduler = connector(own)  # looks at leases every two iterations
        numbers = torch.arange(BLOCKS * 6, dtype=torch.int32).reshape(BLOCKS, 2, 3)
        self.caches = [[numbers + 1000 * rank + k for k in (0, 9)] for rank in range(2)]
        self.was = [[cache.clone() for cache in caches] for caches in self.caches]
        self.workers = [
            PagedKv(caches, by_block=False, rank=rank) for rank, caches in enumerate(self.caches)
        ]

    def iterate(self) -> Any:
        """An iteration without requests on the device."""
        pages = self.scheduler.build_connector_meta(None)
        for worker in self.workers:
            worker.before(pages)
            worker.close_all_but(pages.leases)
        return pages

    def page_in(self, block_ids: list[int]) -> list[bool]:
        """Whether each rank finds request r's KV, and puts it into these blocks."""
        from systems.aqua.plugin.pages import Page

        page = Page("r", block_ids, 0, self.scheduler._slots.get("r"))
        return [worker.page_in(page) for worker in self.workers]

    def allocated(self) -> list[int]:
        leases = self.coordinator.leases()
        return [leases[each.lease]["allocated_bytes"] for each in self.lent if each.lease in leases]


def test_each_rank_pages_its_own_shard_to_its_own_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = Ranks(monkeypatch, (4, 4))
    ranks.scheduler.page_out("r", BLOCK_TOKENS + 3, [5, 2])
    pages = ranks.iterate()
    assert pages.leases == {each.lease for each in ranks.lent}
    assert ranks.scheduler.in_dram() == [False]
    assert ranks.allocated() == [2 * BLOCK_BYTES] * 2
    assert ranks.page_in([1, 3]) == [True, True]
    for caches, was in zip(ranks.caches, ranks.was, strict=True):
        for cache, before in zip(caches, was, strict=True):
            assert torch.equal(cache[[1, 3]], before[[5, 2]])
    assert [w.counts["blocks/page in from lease"] for w in ranks.workers] == [2, 2]


def test_a_request_is_in_leases_of_all_ranks_or_of_none(monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = Ranks(monkeypatch, (4, 1))
    ranks.scheduler.page_out("r", BLOCK_TOKENS + 3, [5, 2])
    pages = ranks.iterate()
    assert (pages.out[0].slots, pages.leases) == (None, set())
    assert ranks.scheduler.in_dram() == [True]
    assert ranks.allocated() == [0, 0]  # what the first rank had is given back
    assert ranks.page_in([1, 3]) == [True, True]
    assert [w.counts["blocks/page in from DRAM"] for w in ranks.workers] == [2, 2]


def test_a_lease_that_is_asked_back_moves_the_parts_of_all_ranks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ranks = Ranks(monkeypatch, (4, 4))
    ranks.scheduler.page_out("r", BLOCK_TOKENS + 3, [5, 2])
    ranks.iterate()
    ranks.coordinator.make(Reclaim(ranks.lent[1].lease, LENDERS[1], 0))
    pages = ranks.iterate()
    assert [page.request_id for page in pages.migrated] == ["r"]
    assert pages.leases == set()  # closed at once ...
    assert ranks.allocated() == [2 * BLOCK_BYTES] * 2
    for _ in range(2):
        ranks.iterate()
    assert ranks.allocated() == [0]  # ... and given back, by which the second lease ends
    assert ranks.page_in([1, 3]) == [True, True]


def test_what_one_rank_lost_is_lost_on_all(monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = Ranks(monkeypatch, (4, 4))
    ranks.scheduler.page_out("r", BLOCK_TOKENS + 3, [5, 2])
    ranks.iterate()
    ranks.lent[1].end()
    assert ranks.page_in([1, 3]) == [True, False]  # vLLM computes what any rank has not
    ranks.coordinator.make(Leave(LENDERS[1]))
    ranks.iterate()
    assert ranks.scheduler.saved("r") == 0
    assert ranks.allocated() == [0]  # of the lender that lives


def test_two_ranks_tokens_are_stocks_until_a_lender_dies_and_after(tmp_path: Path) -> None:
    """Forced preemption at tensor_parallel_size=2. The second rank's lender is killed while KV lies
    there."""
    from tests.checkpoints import save_checkpoint

    model = tmp_path / "checkpoint"
    save_checkpoint(model_spec("tiny-llama"), model)
    ranks = {"engine": {"tensor_parallel_size": 2}}
    with lent(num_ranks=2) as (url, processes):
        jobs = {
            "stock": job(model, {**JOBS["stock"], **ranks}),
            "aqua": job(model, {"kill_lender_at": 40, **ranks, "extra": {"coordinator": url}}),
        }
        jobs["aqua"]["lender"] = processes[1]
        found = run_jobs(jobs, ROOT, tmp_path)
    aqua, counts = found["aqua"], found["aqua"]["counts"]
    assert aqua["tokens"] == found["stock"]["tokens"]
    assert len({str(tokens) for tokens in aqua["tokens"].values()}) == len(REQUESTS)
    assert counts["pages/page in from lease"] >= 4
    assert total(counts, "pages/page out to") == 2 * counts["preemptions"]  # of each rank
    assert counts["lost_blocks"] > 0
    assert (aqua["left"], aqua["free_blocks"]) == (0, TIGHT - 1)
