"""Moves KV between the members of a group: the exchange, and migration out of a pipeline (§4.2).

`wanted` is asked again and again what is left to move. `moves.py` decides the order, and how much
memory other requests may take meanwhile. Full blocks follow one another on a link without a pause.
Only the last block of a move waits for a step boundary of its request; other moves use the link
meanwhile. A request has one move at a time. If there is no room, KV and its attention stay where
they are, and the move is tried again later.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from harness.clock import Event, Loop
from harness.elastic.cluster import ElasticCluster
from harness.elastic.fabric import Sending
from harness.elastic.instance import ElasticInstance
from harness.errors import InstanceLost
from harness.request import Request
from systems.kunserve.moves import LinkName, Move, grantable_slots, ordered
from systems.kunserve.server import Server

OWNER = "exchange"


@dataclass(slots=True, kw_only=True)
class Transfers:
    """Runs the moves between `members` until none is left, or until `stop` is set."""

    server: Server  # of the requests
    members: Mapping[str, ElasticInstance]
    cluster: ElasticCluster
    loop: Loop
    wanted: Callable[[], list[Move]]  # the moves that are left; slots are pages of one layer
    stop: Event
    purpose: str
    chunk_bytes: int | None
    retry_s: float
    patient: bool  # waits if there is no room; else ends
    _waiting: dict[LinkName, list[Move]] = field(default_factory=dict, init=False)  # in order
    _flying: list[Move] = field(default_factory=list, init=False)
    _ended: Event = field(init=False)  # set as moves end

    def __post_init__(self) -> None:
        self._ended = Event(self.loop)

    async def run(self) -> int:
        """Runs until nothing is left to move; returns the number of moves."""
        done = 0
        while not self.stop.is_set and (moves := self.wanted()):
            for move in ordered(moves, self._free()):
                self._waiting.setdefault(move.link, []).append(move)
            if not self._waiting and not self.patient:
                break
            self._keep()
            tasks = [
                self.loop.spawn(self._send(queue), name=f"{self.purpose} {link[0]} to {link[1]}")
                for link, queue in self._waiting.items()
            ]
            for task in tasks:
                await self.loop.wait(task.finished)
            self._waiting.clear()
            self._keep()
            moved = sum(task.result for task in tasks)
            done += moved
            if not moved:
                await self.loop.wait(self.stop, until=self.loop.now + self.retry_s)
        return done

    async def _send(self, queue: list[Move]) -> int:
        """Starts the moves of one link in order, each once there is room for it; earlier moves may
        still wait for a step boundary. Returns how many moved."""
        tasks = []
        while queue and not self.stop.is_set:
            move = next((m for m in queue if m.request_id not in self.server.moving), None)
            request = None if move is None else self._request(move)
            if move is not None and request is None:
                queue.remove(move)
            elif move is not None and request is not None and self._has_room(move):
                queue.remove(move)
                self._flying.append(move)
                self.server.moving.add(move.request_id)
                name = f"{self.purpose} of request {move.request_id}"
                tasks.append(self.loop.spawn(self._move(move, request), name=name))
                await self.loop.sleep(0)  # it takes its room
            elif self._flying:
                self._ended.clear()
                await self.loop.wait(self._ended, self.stop)
            else:
                break
        for task in tasks:
            await self.loop.wait(task.finished)
        return sum(task.result for task in tasks)

    async def _move(self, move: Move, request: Request) -> bool:
        source, target = self.members[move.source], self.members[move.target]
        try:
            sending = Sending(self.purpose, chunk_bytes=self.chunk_bytes, stop=self.stop)
            moved = await self.cluster.move_kv(
                [request], move.layers, source, target, sending, owner=OWNER
            )
        except InstanceLost:
            self.stop.set()
            moved = False
        finally:
            self._flying.remove(move)
            self.server.moving.discard(move.request_id)
            self._ended.set()
        if not self.stop.is_set:
            self._keep()
        self.server.moved(request)
        return moved

    def _has_room(self, move: Move) -> bool:
        held = self.members[move.source].kv.held[move.request_id]
        return held * len(move.layers) <= self._free()[move.target]

    def _request(self, move: Move) -> Request | None:
        """The request, if its KV is still at the move's source; else None."""
        source = self.members[move.source]
        here = source.kv.groups.get(move.request_id, ())
        target = self.members[move.target].kv.groups.get(move.request_id, ())
        if not set(move.layers) <= set(here) or set(move.layers) & set(target):
            return None
        requests = [*self.server.running, *self.server.paused]
        return next((r for r in requests if r.request_id == move.request_id), None)

    def _free(self) -> dict[str, int]:
        """Pages of each member that moves may take."""
        return {
            name: member.kv.free_pages + member.kv.reserved.get(OWNER, 0)
            for name, member in self.members.items()
        }

    def _keep(self) -> None:
        """Reserves the pages that waiting moves need, so that new requests do not take them."""
        free = self._free()
        waiting = [move for queue in self._waiting.values() for move in queue]
        grantable = grantable_slots(waiting, free, self._flying) if waiting else free
        for name, member in self.members.items():
            if member.lost is not None:
                continue
            kept = 0 if grantable is None else free[name] - grantable[name]
            member.kv.reserve(kept - member.kv.reserved.get(OWNER, 0), OWNER)
