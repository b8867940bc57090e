"""Prefill caching (section 8): the KV of long common prefixes, in the swap space.

A request's prefix is the first segment that its prompt shares with others. The first request of a
prefix that is prefilled leaves a copy of its KV: an AQUA TENSOR whose name is the prefix. A later
request with the same prefix need not compute these tokens. When it is chosen, it is paged in from
the copy, like a preempted prompt. Copies are kept until the consumer dies: the paper names no rule
of eviction, and uses one prefix. If a copy is lost with its lender, the next request makes another.
"""

from __future__ import annotations

from harness.request import Request
from systems.aqua.swap_space import SwapSpace
from systems.aqua.tensors import Tensor

Prefix = tuple[int, int]  # (number of a stream of random text, tokens from its beginning)


class CachedPrefixes:
    """The cached prefixes of one consumer, in its swap space. `enabled` false: it has none."""

    def __init__(self, swap: SwapSpace, *, enabled: bool) -> None:
        self._swap, self._enabled = swap, enabled
        self._coming: dict[int, Prefix] = {}  # {id of a request that waits for KV: its prefix}

    def _prefix_of(self, request: Request) -> Prefix | None:
        """The prefix that the request shares; None if it shares none, or its prompt is shorter than
        the prefix."""
        first = request.shared[0] if self._enabled and request.shared else None
        return first if first is not None and first[1] <= request.prompt_tokens else None

    def expect(self, request: Request) -> None:
        """Takes a new request: tokens of a cached prefix count as computed. The last token of a
        prompt is always computed, for its output."""
        prefix = self._prefix_of(request)
        if prefix is None:
            return
        cached = prefix in self._swap.tensors
        tokens = min(prefix[1], request.prompt_tokens - 1) if cached else 0
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
        prefix, swap = self._coming.pop(request.request_id), self._swap
        if prefix in swap.tensors:
            kv = swap.consumer.kv
            grown = kv.grow(request, request.computed_tokens)
            assert grown, "who is chosen has room"
            blocks = range(kv.held[request.request_id])
            if await swap.copies.prefix(swap.tensors[prefix], request, blocks, out=False):
                return
        request.computed_tokens = request.cached_tokens = 0

    async def keep(self, request: Request) -> None:
        """Leaves a copy of the request's prefix, if the prefix is computed and has no copy, and if
        there is room for it. The request's KV is on the device."""
        prefix, swap = self._prefix_of(request), self._swap
        if prefix is None or request.computed_tokens < prefix[1] or request.finished:
            return
        if prefix not in swap.tensors:
            blocks = range(swap.consumer.kv.blocks_for(prefix[1]))
            size = swap.num_bytes(len(blocks))
            tensor = Tensor(prefix, size, swap.copy_owner(request, prefix[1]))
            if await swap.lay(tensor):
                await swap.copies.prefix(tensor, request, blocks, out=True)
