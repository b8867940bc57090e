"""A `BlockPool` counted in pages: requests have the KV of some layers here, of others elsewhere.

The same counts on every engine; which page ids they are is a live engine's to know. A block of a
request takes a page for each of its page groups that is here (`DeviceLayout.groups`).
"""

from __future__ import annotations

from collections.abc import Sequence

from harness.device.block_pool import BlockPool
from harness.errors import RunError
from harness.request import Request

Groups = tuple[int, ...]


class PagePool(BlockPool):
    """`free_blocks` counts blocks of the whole model; `num_blocks` too."""

    def __init__(self, num_pages: int, block_tokens: int, num_groups: int) -> None:
        super().__init__(max(1, num_pages // num_groups), block_tokens)
        self.num_pages = num_pages
        self.all_groups: Groups = tuple(range(num_groups))
        self.groups: dict[int, Groups] = {}  # request_id -> those that it has here
        self.split = set[int]()  # requests that have some of all groups here, and not all
        self.free_pages = num_pages
        self.reserved: dict[str, int] = {}  # owner -> pages that nobody else gets

    @property
    def free_blocks(self) -> int:
        return self.free_pages // len(self.all_groups)

    @property
    def used_pages(self) -> int:
        return self.num_pages - self.free_pages - sum(self.reserved.values())

    @property
    def used_blocks(self) -> int:
        return -(-self.used_pages // len(self.all_groups))

    def can_grow(self, request: Request, tokens: int, groups: Groups | None = None) -> int:
        """Pages that `grow` would take; -1: there are not so many."""
        more = self.blocks_for(tokens) - self.held.get(request.request_id, 0)
        pages = max(0, more) * len(self._groups_of(request.request_id, groups))
        return pages if pages <= self.free_pages else -1

    def grow(self, request: Request, tokens: int, groups: Groups | None = None) -> bool:
        """Grows as `BlockPool.grow` does, in the page groups that the request has here; one that
        has none begins with `groups`, or all."""
        if tokens <= self.held.get(request.request_id, 0) * self.block_tokens:
            return True
        if self.can_grow(request, tokens, groups) < 0:
            return False
        request_id = request.request_id
        held, blocks = self.held.get(request_id, 0), self.blocks_for(tokens)
        if blocks > held:
            if request_id not in self.groups:
                self._has(request_id, self._groups_of(request_id, groups))
            self._take(request_id, blocks - held)
            self.held[request_id] = blocks
        return True

    def accept(self, request: Request, num_blocks: int, groups: Groups, owner: str = "") -> bool:
        """Takes room for KV of `groups` that is to come: `num_blocks` blocks as elsewhere. `owner`:
        whose reservation it may use. False, and no change: there is no room."""
        request_id = request.request_id
        here = self.groups.get(request_id, ())
        if here and set(here) & set(groups):
            raise RunError(f"request {request_id} has KV of groups {groups} here already")
        held = self.held.get(request_id, num_blocks)
        if here and held != num_blocks:
            raise RunError(f"request {request_id} has {held} blocks here, {num_blocks} elsewhere")
        pages = num_blocks * len(groups)
        from_own = min(pages, self.reserved.get(owner, 0))
        if pages - from_own > self.free_pages:
            return False
        if from_own:
            self.reserve(-from_own, owner)
        self.free_pages -= pages
        self.held[request_id] = num_blocks
        whole = len(here) + len(groups) == len(self.all_groups)
        self._has(request_id, self.all_groups if whole else tuple(sorted((*here, *groups))))
        return True

    def give_up(self, request: Request, groups: Groups) -> None:
        """Frees the pages of `groups`, those that are here: their KV is elsewhere now, or of no
        use. A request that has been released meanwhile has none."""
        request_id = request.request_id
        if request_id not in self.groups:
            return
        here = self.groups[request_id]
        rest = () if here == groups else tuple(g for g in here if g not in groups)
        self.free_pages += self.held[request_id] * (len(here) - len(rest))
        self._has(request_id, rest)
        if not rest:
            del self.held[request_id]

    def reserve(self, pages: int, owner: str) -> bool:
        """Keeps `pages` more for `owner` alone; fewer, if negative. False, no change: no room."""
        if pages > self.free_pages:
            return False
        self.free_pages -= pages
        left = self.reserved.get(owner, 0) + pages
        assert left >= 0, (owner, left)
        self.reserved[owner] = left
        if not left:
            del self.reserved[owner]
        return True

    def release(self, request: Request) -> None:
        groups = self.groups.get(request.request_id, ())
        self.free_pages += self.held.pop(request.request_id, 0) * len(groups)
        self._has(request.request_id, ())

    def resize_pages(self, num_pages: int) -> bool:
        """Adds pages, or takes some away. False, and no change: those to go are not free."""
        more = num_pages - self.num_pages
        if -more > self.free_pages:
            return False
        self.num_pages, self.free_pages = num_pages, self.free_pages + more
        self._num_blocks = max(1, num_pages // len(self.all_groups))
        return True

    def _groups_of(self, request_id: int, groups: Groups | None) -> Groups:
        return self.groups.get(request_id) or groups or self.all_groups

    def _has(self, request_id: int, groups: Groups) -> None:
        """The request has `groups` here from now on; (): none."""
        if groups:
            self.groups[request_id] = groups
        else:
            self.groups.pop(request_id, None)
        if 0 < len(groups) < len(self.all_groups):
            self.split.add(request_id)
        else:
            self.split.discard(request_id)

    def _take(self, request_id: int, num_blocks: int) -> None:
        self.free_pages -= num_blocks * len(self.groups[request_id])

    def _take_grown(self, grown: Sequence[tuple[Request, int]], num_blocks: int) -> bool:
        held, groups = self.held, self.groups
        pages = sum([(held[r.request_id] - n) * len(groups[r.request_id]) for r, n in grown])
        if pages > self.free_pages:
            return False
        self.free_pages -= pages
        return True

    def _give_back(self, request_id: int, num_blocks: int) -> None:
        self.free_pages += num_blocks * len(self.groups.get(request_id, ()))
        if request_id not in self.held or not self.held[request_id]:
            self.held.pop(request_id, None)
            self._has(request_id, ())

    def _lacks_room(self, decodes: Sequence[Request], steps: int) -> bool:
        held, groups, size = self.held, self.groups, self.block_tokens
        pages = 0
        for request in decodes:
            here = held.get(request.request_id)
            if here is not None:
                more = -(-(request.computed_tokens + steps) // size) - here
                pages += max(0, more) * len(groups[request.request_id])
        return pages > self.free_pages
