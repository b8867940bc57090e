"""A KV connector that keeps preempted requests' KV by request, in host memory, until they resume.

`kv_connector=AquaConnector`, `kv_connector_module_path=systems.aqua.plugin.connector`,
`kv_role=kv_both`. Whole blocks are copied, the partly filled one too, so that a request resumes at
the very token where it was preempted. Page-outs are done before the forward pass writes into the
blocks that they free (`handle_preemptions`), page-ins right after, both synchronously.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
)


class Page(NamedTuple):
    request_id: str
    block_ids: list[int]
    first: int  # of the saved request's blocks, the one that block_ids[0] is


@dataclass
class Pages(KVConnectorMetadata):
    """One iteration's, from the scheduler to the workers."""

    dropped: list[str] = field(default_factory=list)
    out: list[Page] = field(default_factory=list)
    into: list[Page] = field(default_factory=list)


class AquaConnector(KVConnectorBase_V1):
    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        extra = self._kv_transfer_config.kv_connector_extra_config
        unknown = set(extra) - {"slice_iterations"}
        if unknown:
            raise ValueError(f"unknown key {min(unknown)!r}; valid keys: slice_iterations")
        self.slice_iterations = extra.get("slice_iterations", 0)
        if not isinstance(self.slice_iterations, int) or self.slice_iterations < 1:
            raise ValueError(
                f"slice_iterations={self.slice_iterations!r} in kv_connector_extra_config; valid: "
                "a whole number of at least 1"
            )
        self._block_tokens = vllm_config.cache_config.block_size
        self._tokens: dict[str, int] = {}  # scheduler: saved, by request
        self._pages = Pages()  # scheduler: of the next iteration
        self._caches: list[Any] = []  # worker: of each layer, [blocks, ...]
        self._saved: dict[str, list[Any]] = {}  # worker: of each layer, [blocks, ...]
        self._failed_blocks: set[int] = set()  # worker
        self.num_out = self.num_in = self.blocks_out = self.blocks_in = 0  # scheduler

    @property
    def requires_kv_delivery(self) -> bool:
        """kv_both would mean that another engine waits for our KV."""
        return False

    # --- In the scheduler

    def saved(self, request_id: str) -> int:
        """Tokens of a request whose KV is kept."""
        return self._tokens.get(request_id, 0)

    def page_out(self, request_id: str, num_tokens: int, block_ids: Sequence[int]) -> None:
        """A request is about to lose its blocks, which hold `num_tokens` tokens."""
        blocks = list(block_ids[: -(-num_tokens // self._block_tokens)])
        self._tokens[request_id] = num_tokens
        self._pages.out.append(Page(request_id, blocks, 0))
        self.num_out += 1
        self.blocks_out += len(blocks)

    def get_num_new_matched_tokens(
        self, request: Any, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        return max(0, self.saved(request.request_id) - num_computed_tokens), False

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        tokens = self._tokens.pop(request.request_id, 0)
        if not tokens:
            return
        if not num_external_tokens:  # recomputed, or in vLLM's own prefix cache
            self._pages.dropped.append(request.request_id)
            return
        first = (tokens - num_external_tokens) // self._block_tokens
        (block_ids,) = blocks.get_block_ids()
        into = list(block_ids[first : -(-tokens // self._block_tokens)])
        self._pages.into.append(Page(request.request_id, into, first))
        self.num_in += 1
        self.blocks_in += len(into)

    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:
        pages, self._pages = self._pages, Pages()
        return pages

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, None]:
        """Ended or aborted, perhaps while paged out."""
        if self._tokens.pop(request.request_id, 0):
            self._pages.dropped.append(request.request_id)
        return False, None

    def reset_cache(self) -> bool:
        """The KV is not valid any more, as after new weights."""
        self._pages.dropped += self._tokens
        self._tokens.clear()
        return True

    # --- In a worker

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        self._caches = list(kv_caches.values())

    def handle_preemptions(self, kv_connector_metadata: KVConnectorMetadata) -> None:
        assert isinstance(kv_connector_metadata, Pages)
        for page in kv_connector_metadata.out:
            self._saved[page.request_id] = [
                cache[page.block_ids].to("cpu") for cache in self._caches
            ]
        for request_id in kv_connector_metadata.dropped:
            self._saved.pop(request_id, None)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        pages = self._get_connector_metadata()
        assert isinstance(pages, Pages)
        for page in pages.into:
            saved = self._saved.pop(page.request_id, None)
            if saved is None:
                self._failed_blocks.update(page.block_ids)
                continue
            for cache, blocks in zip(self._caches, saved, strict=True):
                cache[page.block_ids] = blocks[page.first :].to(cache.device)

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
