"""A KV connector for vLLM that keeps the KV of preempted requests until they resume.

KV goes to a producer's memory if the configuration names a coordinator, and to host memory if no
lease has room. `kv_connector=AquaConnector`, `kv_role=kv_both`,
`kv_connector_module_path=systems.aqua.plugin.connector`. Whole blocks are copied, also the partly
filled one, so that a request resumes at the token where it was preempted. Page-outs happen before
the forward pass writes into the blocks that they free (`handle_preemptions`), page-ins right after.
Both are synchronous.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vllm.distributed import get_tensor_model_parallel_rank
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
)

from systems.aqua.plugin.borrower import Borrower
from systems.aqua.plugin.counters import Counters, Counts
from systems.aqua.plugin.paged import PagedKv
from systems.aqua.plugin.pages import Page, Pages, Slots
from systems.aqua.plugin.settings import Settings, of_ranks


class AquaConnector(KVConnectorBase_V1):
    """AQUA's KV connector: one object in vLLM's scheduler process, and one in each worker. The
    scheduler's decides for all ranks, and each worker copies its own shard."""

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        self.settings = Settings.of(self._kv_transfer_config.kv_connector_extra_config)
        self._counts = Counts()
        self._block_tokens = vllm_config.cache_config.block_size
        # In the scheduler
        self._tokens: dict[str, int] = {}  # {request: saved tokens}
        # {request whose KV is in leases: its blocks there, of each rank}
        self._slots: dict[str, list[Slots]] = {}
        self._pages = Pages()  # pages of the next iteration
        self._iterations = 0
        self._borrower: Borrower | None = None
        if role == KVConnectorRole.SCHEDULER and self.settings.coordinator is not None:
            size = sum(each.size for each in kv_cache_config.kv_cache_tensors)
            block_bytes = size // kv_cache_config.num_blocks
            num_ranks = vllm_config.parallel_config.tensor_parallel_size
            devices = of_ranks(self.settings.device, num_ranks)
            self._borrower = Borrower(self.settings.coordinator, devices, block_bytes)
        # In a worker
        self._paged: PagedKv | None = None
        self._failed_blocks: set[int] = set()

    @property
    def requires_kv_delivery(self) -> bool:
        """Returns False: no other engine waits for this KV, as kv_both would mean."""
        return False

    # --- In the scheduler

    def saved(self, request_id: str) -> int:
        """The number of the request's tokens whose KV is kept."""
        return self._tokens.get(request_id, 0)

    def in_dram(self) -> list[bool]:
        """Whether the KV of each request that is paged out is in DRAM."""
        return [request_id not in self._slots for request_id in self._tokens]

    def count(self, name: str, number: int = 1) -> None:
        """Adds to a counter (`counters.py`)."""
        self._counts.aggregate(Counts({name: number}))

    def page_out(self, request_id: str, num_tokens: int, block_ids: Sequence[int]) -> None:
        """Saves the KV of a request that is about to lose its blocks, which hold `num_tokens`."""
        blocks = list(block_ids[: -(-num_tokens // self._block_tokens)])
        slots = None if self._borrower is None else self._borrower.allocate(len(blocks))
        self._tokens[request_id] = num_tokens
        if slots is not None:
            self._slots[request_id] = slots
        self._pages.out.append(Page(request_id, blocks, 0, slots))

    def get_num_new_matched_tokens(
        self, request: Any, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        return max(0, self.saved(request.request_id) - num_computed_tokens), False

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        tokens = self.saved(request.request_id)
        if not tokens:
            return
        if not num_external_tokens:  # recomputed, or in vLLM's own prefix cache
            self._drop(request.request_id)
            return
        del self._tokens[request.request_id]
        slots = self._slots.pop(request.request_id, None)
        if slots is not None:
            assert self._borrower is not None
            self._borrower.free_after_reading(slots)
        first = (tokens - num_external_tokens) // self._block_tokens
        (block_ids,) = blocks.get_block_ids()
        into = list(block_ids[first : -(-tokens // self._block_tokens)])
        self._pages.into.append(Page(request.request_id, into, first, slots))

    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:
        if self._borrower is not None:
            self._borrower.next_iteration()
            self._iterations += 1
            if self._tokens and self._iterations % self.settings.migrate_every_iterations == 0:
                self._obey(self._borrower)
                self._return(self._borrower)
        pages, self._pages = self._pages, Pages()
        pages.leases = self._leases()
        return pages

    def _leases(self) -> set[str]:
        return {each.lease for slots in self._slots.values() for each in slots}

    def _obey(self, borrower: Borrower) -> None:
        """Runs section 6's control loop: KV in leases that are asked back goes to host memory. KV
        that is gone with its producer will be computed again. One rank's lease decides for all."""
        fresh = {page.request_id for page in self._pages.out}
        asked, gone = borrower.unwanted(self._leases())
        for request_id, slots in list(self._slots.items()):
            leases = {each.lease for each in slots}
            if leases & gone:
                self.count("lost_blocks", len(slots[0].blocks))
                self._drop(request_id)
            elif leases & asked and request_id not in fresh:  # else the next time
                del self._slots[request_id]
                borrower.free_after_reading(slots)
                self._pages.migrated.append(Page(request_id, [], 0, slots))

    def _return(self, borrower: Borrower) -> None:
        """The other half of the control loop (section 9.4): KV in host memory goes back to a lease
        that has room, oldest first, once a producer lends again."""
        moving = {page.request_id for page in (*self._pages.out, *self._pages.migrated)}
        for request_id in [each for each in self._tokens if each not in self._slots]:
            if request_id in moving:
                continue
            blocks = -(-self._tokens[request_id] // self._block_tokens)
            if (slots := borrower.allocate(blocks)) is None:
                return
            self._slots[request_id] = slots
            self._pages.returned.append(Page(request_id, [], 0, slots))

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, None]:
        """Forgets a request that has ended or was aborted, perhaps while paged out."""
        self._drop(request.request_id)
        return False, None

    def reset_cache(self) -> bool:
        """Forgets all KV: it is not valid any more, e.g. after new weights."""
        for request_id in list(self._tokens):
            self._drop(request_id)
        return True

    def _drop(self, request_id: str) -> None:
        if not self._tokens.pop(request_id, 0):
            return
        self._pages.dropped.append(request_id)
        if (slots := self._slots.pop(request_id, None)) is not None:
            assert self._borrower is not None
            self._borrower.free(slots)

    # --- In a worker

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        num_blocks = self._kv_cache_config.num_blocks
        for name, cache in kv_caches.items():
            if cache.shape[0] != num_blocks:
                raise ValueError(
                    f"KV of {name} is {tuple(cache.shape)}; valid: blocks first, {num_blocks} of "
                    "them"
                )
        by_block = self.settings.copies == "by_block"
        self._paged = PagedKv(
            list(kv_caches.values()), by_block=by_block, rank=get_tensor_model_parallel_rank()
        )

    def handle_preemptions(self, kv_connector_metadata: KVConnectorMetadata) -> None:
        assert isinstance(kv_connector_metadata, Pages)
        assert self._paged is not None
        self._paged.before(kv_connector_metadata)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        pages = self._get_connector_metadata()
        assert isinstance(pages, Pages)
        assert self._paged is not None
        for page in pages.into:
            if not self._paged.page_in(page):
                self._failed_blocks.update(page.block_ids)
                self.count("lost_blocks", len(page.block_ids))
        self._paged.close_all_but(pages.leases)

    def get_block_ids_with_load_errors(self) -> set[int]:
        failed, self._failed_blocks = self._failed_blocks, set()
        return failed

    def wait_for_layer_load(self, layer_name: str) -> None:
        return

    def save_kv_layer(
        self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any
    ) -> None:
        return

    def wait_for_save(self) -> None:
        return

    # --- Counters (counters.py), in scheduler and workers

    def get_kv_connector_stats(self) -> Counts | None:
        if self._paged is not None:
            self._counts.aggregate(Counts(self._paged.counts))
            self._paged.counts = {}
        counts, self._counts = self._counts, Counts()
        return None if counts.is_empty() else counts

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> Counts:
        return Counts(data or {})

    @classmethod
    def build_prom_metrics(
        cls, vllm_config: Any, metric_types: Any, labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> Counters:  # fmt: skip
        return Counters(vllm_config, metric_types, labelnames, per_engine_labelvalues)
