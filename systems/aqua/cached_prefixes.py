"""Prefill caching on devices (section 8): the KV of common prefixes, in the swap space.

A request's prefix is the first segment that its prompt shares with others. The first request of a
prefix that is prefilled leaves a copy of its KV. A later request with the same prefix need not
compute these tokens. When it is chosen, it is paged in from the copy, like a preempted prompt. If a
copy is lost with its lender, the next request makes it again.
"""

from __future__ import annotations

from harness.elastic.instance import ElasticInstance
from harness.request import Request
from systems.aqua.prefix_cache import PrefixCache
from systems.aqua.swap_space import SwapSpace

PrefixId = tuple[int, int]  # (number of a stream of random text, tokens from its beginning)


def prefix_of(request: Request) -> PrefixId | None:
    """The prefix that the request shares; None: none, or the prompt is shorter than the prefix."""
    first = request.shared[0] if request.shared else None
    return first if first is not None and first[1] <= request.prompt_tokens else None


class CachedPrefixes:
    """The cached prefixes of one consumer, in its swap space."""

    def __init__(self, swap: SwapSpace, consumer: ElasticInstance) -> None:
        self._swap, self._consumer = swap, consumer
        self._ledger = PrefixCache(swap.tensors)
        self._copies: dict[PrefixId, Request] = {}  # {prefix: request that owns the copy's blocks}
        self._coming: dict[int, PrefixId] = {}  # {id of a request that waits for KV: its prefix}

    def expect(self, request: Request) -> None:
        """Takes a new request: tokens of a cached prefix count as computed."""
        prefix = prefix_of(request)
        if prefix is None:
            return
        tokens = self._ledger.reusable_tokens(prefix, request.prompt_tokens)
        if request.cached_tokens is None:
            request.cached_tokens = tokens
        if tokens:
            request.computed_tokens = tokens
            self._coming[request.request_id] = prefix

    def awaited_by(self, request: Request) -> bool:
        """Whether the request needs `bring` before it can run."""
        return request.request_id in self._coming

    async def bring(self, request: Request) -> None:
        """Copies the prefix's KV into blocks of the request. If the copy was lost meanwhile, the
        request computes its prefix."""
        prefix = self._coming.pop(request.request_id)
        name, found = self._ledger.tensor(prefix), False
        if self._ledger.reusable_tokens(prefix, request.prompt_tokens):
            found = await self._swap.copy_in(name, self._copies[prefix], request)
        if not found:
            request.computed_tokens = request.cached_tokens = 0

    async def keep(self, request: Request) -> None:
        """Leaves a copy of the request's prefix, if the prefix is computed and has no copy. The
        request's KV is on the device."""
        prefix = prefix_of(request)
        if prefix is None or request.computed_tokens < prefix[1] or request.finished:
            return
        if self._ledger.reusable_tokens(prefix, prefix[1] + 1):
            return
        copy = self._copies.setdefault(prefix, self._swap.stand_in(request, prefix[1]))
        blocks = self._consumer.kv.blocks_for(prefix[1])
        found, rooms = await self._swap.room_for(blocks)
        places = self._ledger.store(prefix, prefix[1], [self._swap.num_bytes(blocks)], rooms)
        if places is not None:
            name = self._ledger.tensor(prefix)
            await self._swap.copy_out(name, copy, request, blocks, places[0], found)

    async def drop(self) -> None:
        """Drops all copies, since the consumer is dead."""
        self._coming.clear()
        for prefix, copy in self._copies.items():
            await self._swap.drop_copy(self._ledger.tensor(prefix), copy)
