"""Prefill caching on devices (section 8): KV of common prefixes, in the swap space with what is
paged.

A request names its prefix by the first segment that its prompt shares with others. The first one to
be prefilled leaves a copy there. Whoever comes later with the same has as much computed already,
and is paged in like a preempted prompt, from the copy, when it is chosen. A copy that is lost with
its lender is made again by the next.
"""

from __future__ import annotations

from harness.device.elastic import ElasticInstance
from harness.request import Request
from systems.aqua.prefix_cache import PrefixCache
from systems.aqua.swap_space import SwapSpace

PrefixId = tuple[int, int]  # a stream of random text, and how many of its first tokens


def prefix_of(request: Request) -> PrefixId | None:
    """None: it shares nothing, or is shorter than what others share."""
    first = request.shared[0] if request.shared else None
    return first if first is not None and first[1] <= request.prompt_tokens else None


class CachedPrefixes:
    def __init__(self, swap: SwapSpace, consumer: ElasticInstance) -> None:
        self._swap, self._consumer = swap, consumer
        self._ledger = PrefixCache(swap.tensors)
        self._copies: dict[PrefixId, Request] = {}  # whose blocks a copy's are, by prefix
        self._coming: dict[int, PrefixId] = {}  # by request_id, of those that wait for KV

    def expect(self, request: Request) -> None:
        """Of a request that has come: what is cached need not be computed."""
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
        """Whether its KV is to be brought before it can run."""
        return request.request_id in self._coming

    async def bring(self, request: Request) -> None:
        """The KV that `request` waits for, in blocks of its own; it is computed where the copy was
        lost meanwhile."""
        prefix = self._coming.pop(request.request_id)
        name, found = self._ledger.tensor(prefix), False
        if self._ledger.reusable_tokens(prefix, request.prompt_tokens):
            found = await self._swap.copy_in(name, self._copies[prefix], request)
        if not found:
            request.computed_tokens = request.cached_tokens = 0

    async def keep(self, request: Request) -> None:
        """Leaves a copy of its prefix, if that is computed and there is none. Its KV is here."""
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
        """All of them: the consumer is dead."""
        self._coming.clear()
        for prefix, copy in self._copies.items():
            await self._swap.drop_copy(self._ledger.tensor(prefix), copy)
