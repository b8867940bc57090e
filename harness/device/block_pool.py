"""KV-cache memory as arithmetic: how many fixed-size blocks each request holds.

The same object on every engine. The torch engine attaches tensor block ids to these counts
(`harness/engine/kv_cache.py`); the simulator needs no ids. PagedAttention (SOSP'23) §4.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import MutableMapping, Sequence
from functools import partial

from mypy_extensions import mypyc_attr

from harness.request import Request


@mypyc_attr(allow_interpreted_subclasses=True)
class Prefix:
    """What a prefix cache has of a request: its first `num_blocks` blocks, of which `num_waiting`
    count as free until the request holds them."""

    def __init__(self, num_blocks: int, num_waiting: int) -> None:
        self.num_blocks = num_blocks
        self.num_waiting = num_waiting


@mypyc_attr(allow_interpreted_subclasses=True)
class BlockPool:
    """`num_blocks` blocks of `block_tokens` tokens each, of which requests hold some."""

    def __init__(self, num_blocks: int, block_tokens: int) -> None:
        if num_blocks < 1 or block_tokens < 1:
            raise ValueError(
                f"a KV pool needs a block of a token at least, got {num_blocks} x {block_tokens}"
            )
        self._num_blocks = num_blocks
        self.block_tokens = block_tokens
        self._blocks: dict[int, int] = {}  # request_id -> blocks
        self.held: MutableMapping[int, int] = self._blocks  # the same, or a view of several pools
        self._free = num_blocks

    @property
    def num_blocks(self) -> int:
        return self._num_blocks

    @property
    def free_blocks(self) -> int:
        return self._free

    @property
    def used_blocks(self) -> int:
        return self.num_blocks - self.free_blocks

    def blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.block_tokens)

    def grow(self, request: Request, tokens: int) -> bool:
        """Makes `request` hold blocks for `tokens` tokens in all. False, and no change: no room."""
        held = self._blocks.get(request.request_id, 0)
        if tokens <= held * self.block_tokens:
            return True
        more = self.blocks_for(tokens) - held
        if more > self.free_blocks:
            return False
        self._take(request.request_id, more)
        self._blocks[request.request_id] = held + more
        return True

    def cached_prefix(self, request: Request) -> Prefix | None:
        """What is in memory of a request that holds nothing. None: nothing is known of its prompt,
        or there is no prefix cache (`harness.device.caching_pool`)."""
        return None

    def num_known(self, hashes: Sequence[bytes]) -> int:
        """How many of the first blocks of a prompt, by `block_hashes`, are in memory, for whichever
        request. Changes nothing."""
        return 0

    def admit(self, request: Request, tokens: int, prefix: Prefix) -> bool:
        """Makes `request` hold blocks for `tokens` tokens in all, `prefix` first, which was found
        just now. False, and no change: no room."""
        raise NotImplementedError

    def remember(self, request: Request, tokens: int) -> None:
        """The first `tokens` tokens of a request are scheduled: others may use full blocks."""

    def grow_steps(self, decodes: list[Request], steps: int) -> list[tuple[Request, int]] | None:
        """Grows `decodes`, which hold blocks, for `steps` more tokens each: who got blocks, with
        how many it held before. None, and no change: no room."""
        held, size = self._blocks, self.block_tokens
        grown, more = list[tuple[Request, int]](), 0
        for request in decodes:
            computed = request.computed_tokens
            if steps <= -computed % size:
                continue  # the last block held has room for them
            before = held[request.request_id]
            after = -(-(computed + steps) // size)
            if after > before:
                held[request.request_id] = after
                more += after - before
                grown.append((request, before))
        if more and not self._take_grown(grown, more):
            for request, before in grown:
                held[request.request_id] = before
            return None
        return grown

    def shrink_to_computed(self, grown: Sequence[tuple[Request, int]]) -> None:
        """Gives back what `grow_steps` gave and was not used."""
        held, size = self.held, self.block_tokens
        for request, before in grown:
            computed = -(-request.computed_tokens // size)
            keep = computed if computed > before else before
            less = held[request.request_id] - keep
            if less > 0:
                held[request.request_id] = keep
                self._give_back(request.request_id, less)

    def release(self, request: Request) -> None:
        """Gives back everything that `request` holds."""
        self._give_back(request.request_id, self.held.pop(request.request_id, 0))

    def resize(self, num_blocks: int) -> None:
        """Gives the pool more blocks, or takes free ones away."""
        assert num_blocks >= max(self.used_blocks, 1), (num_blocks, self.used_blocks)
        self._free += num_blocks - self.num_blocks
        self._num_blocks = num_blocks

    def _take(self, request_id: int, num_blocks: int) -> None:
        self._free -= num_blocks

    def _take_grown(self, grown: Sequence[tuple[Request, int]], num_blocks: int) -> bool:
        """Takes what `held` already says that each of `grown` has beyond what it held before,
        `num_blocks` in all. False, and no change: no room."""
        if num_blocks > self._free:
            return False
        self._free -= num_blocks
        return True

    def _give_back(self, request_id: int, num_blocks: int) -> None:
        self._free += num_blocks

    def growth_steps(self, decodes: Sequence[Request], limit: int) -> int:
        """How many decode iterations, at most `limit`, the pool can hold.

        Iteration i needs blocks for `computed_tokens` + i tokens of every request. At least the
        first fits: the caller has grown the pool for it.
        """
        coarse = len(decodes) * -(-limit // self.block_tokens)  # each takes as many more at most
        if limit <= 1 or coarse <= self.free_blocks or not self._lacks_room(decodes, limit):
            return limit
        return 1 + bisect_left(range(2, limit), True, key=partial(self._lacks_room, decodes))

    def _lacks_room(self, decodes: Sequence[Request], steps: int) -> bool:
        """Whether `steps` more tokens of each of `decodes` are more than there is room for."""
        held, size = self.held, self.block_tokens
        more = [
            -(-(r.computed_tokens + steps) // size) - held.get(r.request_id, 0) for r in decodes
        ]
        return sum([blocks for blocks in more if blocks > 0]) > self.free_blocks
