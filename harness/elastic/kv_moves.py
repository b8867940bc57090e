"""KV of some layers of some requests, from one holder to another, while they go on decoding.

Full blocks are immutable, so they go first, beside running batches. Then the requests' gates close:
their batches end at a step boundary, what was written meanwhile follows, the directory changes, the
gates open (KunServe §4.2's exchange; Llumnix's migration is the same in stages). A request in a
store is in no batch, so for swaps the second part is empty.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import NamedTuple

from harness.elastic.fabric import Sending
from harness.elastic.kv_directory import Holder
from harness.elastic.page_pool import Groups
from harness.elastic.page_tables import KvCopy, PageTables, copying
from harness.elastic.shared import Shared
from harness.errors import RunError
from harness.request import Request


class KvRoute(NamedTuple):
    """KV of `groups` goes from `source` to `target`."""

    source: Holder
    target: Holder
    groups: Groups

    def num_bytes(self, copies: Sequence[KvCopy]) -> int:
        blocks = sum([len(each.blocks) for each in copies])
        return blocks * len(self.groups) * self.source.page_bytes


class KvMover:
    """Moves and copies KV between its holders; a cluster has one."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared

    async def move(
        self, requests: Sequence[Request], route: KvRoute, sending: Sending, owner: str = ""
    ) -> bool:
        """Moves the KV of each request that the source holds there. False, and where it was it
        stays: the target has no room (`owner`: whose reservation may be used), or it was broken
        off. A request that ends or is evicted meanwhile is left out. InstanceLost where an end
        dies: its KV is lost, the other end's is not."""
        (source, target, groups), directory = route, self._shared.directory
        _check(requests, route)
        asked = _accept(requests, route, owner)
        if asked is None:
            return False
        size = source.kv.block_tokens
        whole = [KvCopy(r, r, range(min(n, r.computed_tokens // size))) for r, n in asked.items()]
        start_s, sent = self._shared.loop.now, list[KvCopy]()
        try:
            if not await self.copy(whole, route, sending):
                return False
            sent += whole
            gate = await directory.close_gates([r.request_id for r in asked])
            try:
                rest = _rest(asked, whole, route)
                chunk_bytes = sending.chunk_bytes
                if chunk_bytes is not None and sending.issue_s is None:  # in one message
                    chunk_bytes = max(chunk_bytes, route.num_bytes(rest))
                urgent = Sending(sending.purpose, 1, chunk_bytes, sending.issue_s)
                await self.copy(rest, route, urgent)
                sent += rest
                for request, _, _ in rest:
                    directory.move(request, groups, source, target)
                    source.kv.give_up(request, groups)
                asked.clear()
            finally:
                directory.open_gates(gate)
        finally:
            for request in asked:  # broken off: what was to come does not
                target.kv.give_up(request, groups)
            self.record(requests, route, start_s, sending.purpose, route.num_bytes(sent))
        return True

    def copy(self, copies: Sequence[KvCopy], route: KvRoute, sending: Sending) -> Awaitable[bool]:
        """Makes `copies`, which both ends have room for, and moves nothing. False: broken off."""
        (source, target, groups), fabric = route, self._shared.fabric
        num_bytes = route.num_bytes(copies)
        if not num_bytes:
            return _done()
        if source.tables is None or target.tables is None:  # places do not matter
            return fabric.copy(source.memory, target.memory, num_bytes, list, sending)
        spans = partial(source.tables.spans, copies, groups, target.tables, source.page_bytes)
        copy = partial(fabric.copy, source.memory, target.memory, num_bytes, spans, sending)
        return self._uncompacted(copy, [source.tables, target.tables])

    async def _uncompacted(
        self, copy: Callable[[], Awaitable[bool]], tables: Sequence[PageTables]
    ) -> bool:
        async with copying(self._shared.loop, tables):
            return await copy()

    def record(
        self, requests: Sequence[Request], route: KvRoute, start_s: float, purpose: str,
        num_bytes: int,
    ) -> None:  # fmt: skip
        """KV of `requests` was under way from `start_s` to now."""
        self._shared.recorder.event(
            "kv_move", route.source.name, start_s, self._shared.loop.now, to=route.target.name,
            purpose=purpose, requests=[request.request_id for request in requests],
            groups=list(route.groups), bytes=num_bytes,
        )  # fmt: skip


async def _done() -> bool:
    return True


def _check(requests: Sequence[Request], route: KvRoute) -> None:
    source, target, groups = route
    if source.page_bytes != target.page_bytes:
        raise RunError(
            f"{source.name} has pages of {source.page_bytes} bytes, {target.name} of "
            f"{target.page_bytes}: they hold different models"
        )
    for request in requests:
        here = source.kv.groups.get(request.request_id, ())
        if here != groups and not set(groups) <= set(here):
            raise RunError(
                f"{source.name} holds page groups {here} of request {request.request_id}, not "
                f"{groups}"
            )


def _accept(requests: Sequence[Request], route: KvRoute, owner: str) -> dict[Request, int] | None:
    """Takes room at the target for the blocks that the source holds now, of all requests or of
    none."""
    source, target, groups = route
    taken: dict[Request, int] = {}
    for request in requests:
        held = source.kv.held[request.request_id]
        if not target.kv.accept(request, held, groups, owner):
            for before in taken:
                target.kv.give_up(before, groups)
            return None
        taken[request] = held
    return taken


def _rest(asked: dict[Request, int], whole: Sequence[KvCopy], route: KvRoute) -> list[KvCopy]:
    """The blocks that have not gone, of the requests that still are where they were. Requests for
    which the target lacks room for their growth stay, too, and are no longer `asked`."""
    source, target, groups = route
    rest: list[KvCopy] = []
    for request, _, gone in whole:
        here = source.kv.held.get(request.request_id)
        alive = here is not None and (
            source.kv.groups[request.request_id] == groups
            or set(groups) <= set(source.kv.groups[request.request_id])
        )
        restarted = alive and request.computed_tokens < len(gone) * source.kv.block_tokens
        if alive and not restarted and here is not None:
            fits = target.kv.held[request.request_id] == here
            if not fits:
                target.kv.give_up(request, groups)
                fits = target.kv.accept(request, here, groups)
            if fits:
                rest.append(KvCopy(request, request, range(len(gone), here)))
                continue
        target.kv.give_up(request, groups)
        del asked[request]
    return rest
