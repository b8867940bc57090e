"""A `BlockPool` with vLLM's prefix cache: full blocks are found again by their hashes.

The rules are those of vLLM's V1 block pool (v0.32, vllm/v1/core/block_pool.py). A full block of a
prompt is known by its hash as soon as its tokens are scheduled. Requests that begin with the same
blocks hold the same ones, each counted once. A block that nobody holds any more is free, and keeps
its contents until it is needed: first go free blocks without a hash, then the one that has been
free for longest; of one request's blocks the last goes first. Equal blocks that two requests
computed side by side stay two. A request's last known token is always computed.

Blocks that only the request itself can have (behind its prompt's shared part, and what it
generated) need no hash: a preempted request finds them by its id. They wait for eviction like all
others. Unlike in vLLM, equal answers to equal prompts share nothing. But the next turn of a session
begins with this one's prompt and answer: a turn that ends names its answer's full blocks. Requests
of whose prompts nothing is known are not looked for and leave nothing.

Eviction is lazy: blocks are taken from the free ones in number, and `settle` says which these were,
before anything is looked up or freed. A simulated decode that reserves blocks for many steps and
gives them back evicts nothing by that.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from harness.device.block_hashes import block_hashes
from harness.device.block_pool import BlockPool, Prefix
from harness.request import Request


@dataclass(slots=True, eq=False)
class Cached:
    """A block with a hash, or the own blocks of a request that has given them up."""

    hash: bytes = b""  # empty: own blocks
    owner: int = -1  # request_id of own blocks
    num_blocks: int = 1  # of own blocks as many as are left, the first ones
    refs: int = 1  # requests that hold it; 0: it waits for eviction
    places: list[int] = field(default_factory=list)  # ids in the KV tensors, of live engines


class Places(Protocol):
    """Knows where blocks lie: `harness.engine.block_tables`."""

    def adopted(self, request: Request, prefix: CachedPrefix) -> None:
        """`request` begins with the blocks of `prefix`."""

    def released(self, request: Request, shared: Sequence[Cached], own: Cached | None) -> None:
        """`request` holds nothing any more: its first blocks are `shared`, and `own` keeps the
        places behind them."""

    def evicted(self, block: Cached, num_blocks: int) -> None:
        """The last `num_blocks` places of `block` are free."""


class CachedPrefix(Prefix):
    """The cached blocks a request begins with: `shared`, and those of `own`, the request's own from
    before its preemption."""

    def __init__(
        self, num_blocks: int, num_waiting: int, shared: list[Cached], own: Cached | None
    ) -> None:
        super().__init__(num_blocks, num_waiting)
        self.shared, self.own = shared, own


class CachingPool(BlockPool):
    def __init__(self, num_blocks: int, block_tokens: int) -> None:
        super().__init__(num_blocks, block_tokens)
        self.places: Places | None = None
        self.shared: dict[int, list[Cached]] = {}  # request_id -> its first blocks, with hashes
        self._hashes: dict[int, list[bytes]] = {}  # request_id -> of its prompt
        self._by_hash: dict[bytes, list[Cached]] = {}  # the first computed first
        self._own: dict[int, Cached] = {}  # request_id -> what a preempted request left
        self._waiting = OrderedDict[Cached, None]()  # for eviction, the next one first
        self._num_waiting = 0  # blocks; until `settle` some of them may have been taken

    def cached_prefix(self, request: Request) -> Prefix | None:
        if request.shared is None and request.prompt is None:
            return None
        self.settle()
        request_id, most = request.request_id, (request.known_tokens - 1) // self.block_tokens
        hashes = self._hashes.get(request_id)
        if hashes is None:
            hashes = self._hashes[request_id] = block_hashes(request, self.block_tokens)
        shared = list[Cached]()
        num_waiting = 0
        for name in hashes[:most]:
            equal = self._by_hash.get(name)
            if equal is None:
                break
            shared.append(equal[0])
            num_waiting += equal[0].refs == 0
        own = self._own.get(request_id)
        num_blocks = len(shared)
        if own is not None and num_blocks == len(hashes):
            assert num_blocks + own.num_blocks <= most, (request_id, own.num_blocks, most)
            num_blocks += own.num_blocks
            num_waiting += own.num_blocks
        else:
            own = None
        return CachedPrefix(num_blocks, num_waiting, shared, own)

    def num_known(self, hashes: Sequence[bytes]) -> int:
        for number, name in enumerate(hashes):
            if name not in self._by_hash:
                return number
        return len(hashes)

    def admit(self, request: Request, tokens: int, prefix: Prefix) -> bool:
        assert isinstance(prefix, CachedPrefix)
        more = self.blocks_for(tokens) - prefix.num_blocks
        if more + prefix.num_waiting > self._free:
            return False
        for block in prefix.shared:
            if not block.refs:
                del self._waiting[block]
            block.refs += 1
        if prefix.own is not None:
            del self._waiting[prefix.own], self._own[request.request_id]
        self._free -= prefix.num_waiting
        self._num_waiting -= prefix.num_waiting
        self.shared[request.request_id] = prefix.shared
        if prefix.num_blocks:
            self.held[request.request_id] = prefix.num_blocks
        if self.places is not None:
            self.places.adopted(request, prefix)
        self.grow(request, tokens)
        self.remember(request, tokens)
        return True

    def remember(self, request: Request, tokens: int) -> None:
        shared = self.shared.get(request.request_id)
        if shared is None:
            return
        for name in self._hashes[request.request_id][len(shared) : tokens // self.block_tokens]:
            block = Cached(name)
            self._by_hash.setdefault(name, []).append(block)
            shared.append(block)

    def release(self, request: Request) -> None:
        request_id = request.request_id
        if request.turn is not None and request_id in self.shared:
            self._hashes[request_id] = block_hashes(request, self.block_tokens)
            held_tokens = self.held.get(request_id, 0) * self.block_tokens
            self.remember(request, min(request.computed_tokens, held_tokens))
        self._hashes.pop(request_id, None)
        shared = self.shared.pop(request_id, None)
        if shared is None:
            super().release(request)
            return
        self.settle()
        held = self.held.pop(request_id, 0)
        num_full = min(request.computed_tokens // self.block_tokens, held)
        own = None
        self._own.pop(request_id, None)
        if num_full > len(shared):
            own = Cached(b"", request_id, num_full - len(shared), 0)
            self._waiting[own] = None
            self._num_waiting += own.num_blocks
            if not request.finished:
                self._own[request_id] = own
        if self.places is not None:
            self.places.released(request, shared, own)
        self._free += held - len(shared)
        for block in reversed(shared):  # the last is evicted first
            block.refs -= 1
            if not block.refs:
                self._waiting[block] = None
                self._num_waiting += 1
                self._free += 1

    def settle(self) -> None:
        """Evicts what has been taken of the blocks that wait for it."""
        while self._num_waiting > self._free:
            block = next(iter(self._waiting))
            gone = min(block.num_blocks, self._num_waiting - self._free)
            block.num_blocks -= gone
            self._num_waiting -= gone
            if not block.num_blocks:
                del self._waiting[block]
                self._forget(block)
            if self.places is not None:
                self.places.evicted(block, gone)

    def _forget(self, block: Cached) -> None:
        if block.hash:
            equal = self._by_hash[block.hash]
            equal.remove(block)
            if not equal:
                del self._by_hash[block.hash]
        elif self._own.get(block.owner) is block:
            del self._own[block.owner]
