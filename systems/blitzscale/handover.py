"""From prefill to decode: a request's KV goes to a decode instance with room for all of it.

There is one flow from each instance that computed layers of the request. The room is for prompt and
output, as the published code reserves it, so that no decode is ever preempted. Requests are served
first come first served. Of decodes with room, the one with the least KV on its way is taken, since
many prefills share its NICs; among equals the emptiest. The paper does not say which.

A colocated instance (§5.4) is its own decode. KV that a live pair has split is collected on one of
the two: a request decodes once all of its KV is on one instance.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence

from harness.elastic.instance import ElasticInstance
from harness.elastic.page_pool import Groups
from harness.errors import InstanceLost
from harness.request import Request
from systems.blitzscale.instances import Fleet, Role, Slot, State

Parts = list[tuple[ElasticInstance, Groups]]  # (instance, page groups) of a request's KV


class Handover:
    """Sends KV to decodes. recompute: takes requests whose KV is lost, and their slot."""

    def __init__(self, fleet: Fleet, recompute: Callable[[Sequence[Request], Slot], None]) -> None:
        self._fleet, self._recompute = fleet, recompute
        self._waiting: deque[tuple[Request, Slot]] = deque()
        self.waiting_tokens = 0  # of KV for which requests wait for room
        self._waiting_prompt_tokens = 0
        self._coming: Counter[str] = Counter()  # tokens on their way, by decode

    @property
    def moving_tokens(self) -> int:
        """Tokens of computed prompts whose KV is not at a decode yet."""
        return self._waiting_prompt_tokens + self._coming.total()

    def offer(self, request: Request, slot: Slot) -> None:
        """Takes a request whose prompt has been computed. slot: has its KV, or a part of it."""
        self._waiting.append((request, slot))
        self._count(request, 1)
        self.dispatch()

    def _count(self, request: Request, sign: int) -> None:
        self.waiting_tokens += sign * kv_tokens(request)
        self._waiting_prompt_tokens += sign * request.prompt_tokens

    def dispatch(self) -> None:
        """Sends waiting requests to decodes with room. Call it whenever a decode may have room."""
        while self._waiting:
            request, slot = self._waiting[0]
            if request.failed:
                self._waiting.popleft()
                self._count(request, -1)
                slot.instance.evict(request)
                continue
            parts = self._parts(request, slot)
            target = self._room(request, slot, parts)
            if target is None:
                return
            self._waiting.popleft()
            self._count(request, -1)
            if all(holder is target.instance for holder, _ in parts):
                self._arrived(request, slot, target)
            else:
                self._fleet.loop.spawn(self._send(request, slot, target), name="KV to decode")

    def lost(self, instance: ElasticInstance) -> None:
        """Has waiting requests with KV on the dead instance computed again."""
        kept: deque[tuple[Request, Slot]] = deque()
        for request, slot in self._waiting:
            if any(holder is instance for holder, _ in self._parts(request, slot)):
                self._count(request, -1)
                self._recompute([request], slot)
            else:
                kept.append((request, slot))
        self._waiting = kept
        self.dispatch()

    def _parts(self, request: Request, slot: Slot) -> Parts:
        where = self._fleet.cluster.directory.where(request)
        if not where:
            return [(slot.instance, slot.instance.kv.all_groups)]
        return [(self._fleet.named(holder.name).instance, groups) for holder, groups in where]

    def _room(self, request: Request, slot: Slot, parts: Parts) -> Slot | None:
        """Reserves room at a decode and returns it; None if no decode has room. Decodes that
        already hold KV of the request come first. parts: of its KV."""
        holders = [holder for holder, _ in parts]
        decodes = self._fleet.of(Role.DECODE, State.SERVING)
        if slot.is_at(Role.DECODE, State.SHUTTING):  # what it has it serves to the end
            decodes = (*decodes, slot)

        def rank(decode: Slot) -> tuple[bool, int, int]:
            return decode.instance not in holders, self._coming[decode.name], decode.tokens

        owner, tokens = owner_of(request), kv_tokens(request)
        for target in sorted(decodes, key=rank):
            kv = target.instance.kv
            here = kv.held.get(request.request_id, 0) * len(kv.groups.get(request.request_id, ()))
            here += kv.reserved.get(owner, 0)
            pages = kv.blocks_for(tokens) * len(kv.all_groups) - here
            if kv.reserve(max(0, pages), owner):
                return target
        return None

    async def _send(self, request: Request, slot: Slot, target: Slot) -> None:
        """If an instance dies meanwhile and all KV is left, the request goes to another decode;
        else it is computed again."""
        owner, size = owner_of(request), target.instance.layout.page_layers
        self._coming[target.name] += request.prompt_tokens
        try:
            for holder, groups in self._parts(request, slot):
                if holder is not target.instance:
                    end = min((groups[-1] + 1) * size, target.instance.model.num_layers)
                    layers = range(groups[0] * size, end)
                    moved = await self._fleet.cluster.move_kv(
                        [request], layers, holder, target.instance, owner=owner
                    )
                    assert moved or request.failed, "its room was reserved"
        except InstanceLost:
            self.free(request)
            if any(holder.lost is not None for holder, _ in self._parts(request, slot)):
                self._recompute([request], slot)
            else:
                self.offer(request, slot)
        else:
            self._arrived(request, slot, target)
        finally:
            self._coming[target.name] -= request.prompt_tokens

    def _arrived(self, request: Request, slot: Slot, target: Slot) -> None:
        self.free(request)
        if request.failed:
            target.instance.evict(request)
        elif target.lost:
            self._recompute([request], slot)
        else:
            grown = target.instance.kv.grow(request, kv_tokens(request))
            assert grown, "its room was reserved"
            target.running.append(request)
            target.notify()
        self._fleet.wake(Role.PREFILL)  # there is room for prompts

    def free(self, request: Request) -> None:
        """Gives back the request's reserved room that is not in use."""
        owner = owner_of(request)
        for slot in self._fleet.slots:
            left = slot.instance.kv.reserved.get(owner, 0)
            if left:
                slot.instance.kv.reserve(-left, owner)


def kv_tokens(request: Request) -> int:
    """Tokens of KV at the request's end. The KV of the last token is never computed."""
    return request.prompt_tokens + request.output_tokens - 1


def owner_of(request: Request) -> str:
    """The owner's name of room that is reserved for the request."""
    return f"request {request.request_id}"
