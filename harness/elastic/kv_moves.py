"""KV of some layers of some requests, from one holder to another, while they go on decoding.

Full blocks are immutable, so they go first, beside running flights. Then the requests' gates close:
their flights end at a step boundary, what was written meanwhile follows, the directory changes, the
gates open (KunServe §4.2's exchange; Llumnix's migration is the same in stages). A request in a
store is in no flight, so for swaps the second part is empty.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from harness.clock import Event, Loop
from harness.elastic.fabric import Fabric, Span
from harness.elastic.kv_directory import Holder, KvDirectory
from harness.elastic.page_pool import Groups
from harness.elastic.page_uses import PageUses, begin_copy, end_copy
from harness.errors import RunError
from harness.records.record import Recorder
from harness.request import Request

Blocks = tuple[Request, range]


class KvCopy(NamedTuple):
    """`blocks` of the request's KV; at the target they are those of `to`."""

    request: Request
    to: Request
    blocks: range


class KvMover:
    """One for a cluster."""

    def __init__(
        self, directory: KvDirectory, fabric: Fabric, loop: Loop, recorder: Recorder
    ) -> None:
        self._directory, self._fabric = directory, fabric
        self._loop, self._recorder = loop, recorder

    async def move(
        self,
        requests: Sequence[Request],
        groups: Groups,
        source: Holder,
        target: Holder,
        *,
        purpose: str = "kv",
        priority: int = 0,
        chunk_bytes: int | None = None,
        issue_s: float | None = None,
        owner: str = "",
        stop: Event | None = None,
    ) -> bool:
        """Moves the KV of `groups` of each request that `source` holds there. False, and where it
        was it stays: `target` has no room (`owner`: whose reservation may be used), or `stop` was
        set. A request that ends or is evicted meanwhile is left out. `priority`, `chunk_bytes`,
        `issue_s`: of its messages. InstanceLost where an end dies: its KV is lost, the other end's
        is not."""
        size = source.kv.block_tokens
        self._check(requests, groups, source, target)
        asked = self._accept(requests, groups, source, target, owner)
        if asked is None:
            return False
        whole = [(r, range(min(n, r.computed_tokens // size))) for r, n in asked]
        start_s, moved = self._loop.now, 0
        try:
            sent = await self._copy(
                whole, groups, source, target, purpose, priority, chunk_bytes, issue_s, stop
            )
            if not sent:
                return False
            moved += _num_blocks(whole)
            gate = await self._directory.ground([r.request_id for r, _ in asked])
            try:
                rest = self._rest(asked, whole, groups, source, target)
                await self._copy(
                    rest, groups, source, target, purpose, priority + 1,
                    None if issue_s is None else chunk_bytes, issue_s, None,
                )  # fmt: skip
                moved += _num_blocks(rest)
                for request, _ in rest:
                    self._directory.move(request, groups, source, target)
                    source.kv.give_up(request, groups)
                asked = []
            finally:
                self._directory.open(gate)
        finally:
            for request, _ in asked:  # broken off: what was to come does not
                if request.request_id in target.kv.groups:
                    target.kv.give_up(request, groups)
            self._recorder.event(
                "kv_move", source.name, start_s, self._loop.now, to=target.name, purpose=purpose,
                requests=[r.request_id for r in requests], groups=list(groups),
                bytes=moved * len(groups) * source.page_bytes,
            )  # fmt: skip
        return True

    async def copy(
        self, copies: Sequence[KvCopy], groups: Groups, source: Holder, target: Holder, *,
        purpose: str, chunk_bytes: int | None = None, issue_s: float | None = None,
    ) -> int:  # fmt: skip
        """Makes `copies`, which both ends have room for, and moves nothing: bytes."""
        requests = [each.request for each in copies]
        blocks = [(each.request, each.blocks) for each in copies]
        num_bytes = _num_blocks(blocks) * len(groups) * source.page_bytes

        def spans() -> list[Span]:
            assert source.tables is not None
            assert target.tables is not None
            source.tables.reconcile(requests)
            target.tables.reconcile([each.to for each in copies])
            return source.tables.spans(
                blocks, groups, target.tables, source.page_bytes,
                names={each.request.request_id: each.to.request_id for each in copies},
            )  # fmt: skip

        if num_bytes:
            memories = _uses(source, target)
            over = await begin_copy(self._loop, memories)
            try:
                await self._fabric.copy(
                    source.memory, target.memory, num_bytes, spans, purpose=purpose,
                    chunk_bytes=chunk_bytes, issue_s=issue_s,
                )  # fmt: skip
            finally:
                end_copy(over, memories)
        return num_bytes

    def _check(
        self, requests: Sequence[Request], groups: Groups, source: Holder, target: Holder
    ) -> None:
        if source.page_bytes != target.page_bytes:
            raise RunError(
                f"{source.name} has pages of {source.page_bytes} bytes, {target.name} of "
                f"{target.page_bytes}: they hold different models"
            )
        for request in requests:
            here = source.kv.groups.get(request.request_id, ())
            if not set(groups) <= set(here):
                raise RunError(
                    f"{source.name} holds page groups {here} of request {request.request_id}, not "
                    f"{groups}"
                )

    def _accept(
        self, requests: Sequence[Request], groups: Groups, source: Holder, target: Holder,
        owner: str,
    ) -> list[tuple[Request, int]] | None:  # fmt: skip
        """Room at `target` for what `source` holds now, of all requests or of none."""
        taken: list[tuple[Request, int]] = []
        for request in requests:
            held = source.kv.held[request.request_id]
            if not target.kv.accept(request, held, groups, owner):
                for before, _ in taken:
                    target.kv.give_up(before, groups)
                return None
            taken.append((request, held))
        return taken

    def _rest(
        self, asked: list[tuple[Request, int]], whole: Sequence[Blocks], groups: Groups,
        source: Holder, target: Holder,
    ) -> list[Blocks]:  # fmt: skip
        """Of the requests that still are where they were: the blocks that have not gone. Those
        for which `target` lacks room for their growth stay, too."""
        rest: list[Blocks] = []
        for (request, held), (_, gone) in zip(list(asked), whole, strict=True):
            here = source.kv.held.get(request.request_id)
            alive = here is not None and set(groups) <= set(source.kv.groups[request.request_id])
            restarted = alive and request.computed_tokens < len(gone) * source.kv.block_tokens
            if alive and not restarted and here is not None:
                if target.kv.held[request.request_id] == here:
                    rest.append((request, range(len(gone), here)))
                    continue
                target.kv.give_up(request, groups)
                if target.kv.accept(request, here, groups):
                    rest.append((request, range(len(gone), here)))
                    continue
                assert target.kv.accept(request, held, groups)
            target.kv.give_up(request, groups)
            asked.remove((request, held))
        return rest

    async def _copy(
        self, blocks: Sequence[Blocks], groups: Groups, source: Holder, target: Holder,
        purpose: str, priority: int, chunk_bytes: int | None, issue_s: float | None,
        stop: Event | None,
    ) -> bool:  # fmt: skip
        num_bytes = _num_blocks(blocks) * len(groups) * source.page_bytes
        if not num_bytes:
            return True

        def spans() -> list[Span]:
            assert source.tables is not None
            assert target.tables is not None
            requests = [request for request, _ in blocks]
            source.tables.reconcile(requests)
            target.tables.reconcile(requests)
            return source.tables.spans(blocks, groups, target.tables, source.page_bytes)

        memories = _uses(source, target)
        over = await begin_copy(self._loop, memories)
        try:
            return await self._fabric.copy(
                source.memory, target.memory, num_bytes, spans, purpose=purpose, priority=priority,
                chunk_bytes=chunk_bytes, issue_s=issue_s, stop=stop,
            )  # fmt: skip
        finally:
            end_copy(over, memories)


def _uses(source: Holder, target: Holder) -> list[PageUses]:
    return [each.tables.uses for each in (source, target) if each.tables is not None]


def _num_blocks(blocks: Sequence[Blocks]) -> int:
    return sum(len(which) for _, which in blocks)
