"""The KV of requests whose layers lie on several instances, as one `BlockPool`.

A block is there on all of its holders or on none: `grow` asks every one before it takes. So a
scheduler that knows one pool serves a pipeline unchanged.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from harness.device.block_pool import BlockPool
from harness.elastic.kv_directory import Holder, KvDirectory, Where
from harness.elastic.page_pool import Groups
from harness.request import Request


class _Held(Mapping[int, int]):
    """request_id -> blocks, of requests whose KV the directory knows."""

    def __init__(self, wheres: Mapping[int, Where]) -> None:
        self._wheres = wheres

    def __getitem__(self, request_id: int) -> int:
        holder, _ = self._wheres[request_id][0]
        return holder.kv.held[request_id]

    def __iter__(self) -> Iterator[int]:
        return iter(self._wheres)

    def __len__(self) -> int:
        return len(self._wheres)


class StagedKv(BlockPool):
    """The KV of requests, over several holders. `homes`: which instance keeps which page groups of
    a request that comes new."""

    def __init__(
        self, homes: Sequence[tuple[Holder, Groups]], directory: KvDirectory, block_tokens: int
    ) -> None:
        self.block_tokens = block_tokens
        self.homes, self._directory = tuple(homes), directory
        self.held = _Held(directory.wheres)  # type: ignore[assignment]  # holders count

    @property
    def free_blocks(self) -> int:
        """New blocks that all stages have room for."""
        return min(holder.kv.free_pages // len(groups) for holder, groups in self.homes)

    @property
    def num_blocks(self) -> int:  # the holders' memory decides
        return min(holder.kv.num_pages // len(groups) for holder, groups in self.homes)

    def grow(self, request: Request, tokens: int, groups: Groups | None = None) -> bool:
        where = self._directory.where(request)
        new = not where
        where = where or self.homes
        if any(holder.kv.can_grow(request, tokens, its) < 0 for holder, its in where):
            return False
        for holder, its in where:
            holder.kv.grow(request, tokens, its)
        if new:
            self._directory.put(request, where)
        return True

    def grow_steps(self, decodes: list[Request], steps: int) -> list[tuple[Request, int]] | None:
        grown: list[tuple[Request, int]] = []
        for request in decodes:
            if steps <= -request.computed_tokens % self.block_tokens:
                assert request.request_id in self._directory.wheres
                continue  # the last block held has room for them
            held = self.held[request.request_id]
            if request.computed_tokens + steps > held * self.block_tokens:
                if not self.grow(request, request.computed_tokens + steps):
                    self.shrink_to_computed(grown)
                    return None
                grown.append((request, held))
        return grown

    def shrink_to_computed(self, grown: Sequence[tuple[Request, int]]) -> None:
        for holder in {id(h): h for r, _ in grown for h, _ in self._directory.where(r)}.values():
            mine = [(r, before) for r, before in grown if r.request_id in holder.kv.held]
            holder.kv.shrink_to_computed(mine)

    def release(self, request: Request) -> None:
        self._directory.release(request)

    def growth_steps(self, decodes: Sequence[Request], limit: int) -> int:
        """The steps that `BlockPool.growth_steps` gives for the holder that has the least room."""
        if limit <= 1:
            return limit
        holders, homes, wheres = dict(self.homes), self.homes, self._directory.wheres
        for request in decodes:
            where = wheres.get(request.request_id, ())
            if where is not homes:
                holders |= where
        for holder in holders:
            limit = holder.kv.growth_steps(decodes, limit)
        return limit
