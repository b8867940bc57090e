"""Moves KV between the members of a group: the exchange, and migration out of a pipeline (§4.2).

`wanted` is asked again and again what is left to move. `moves.py` decides the order, and how much
memory other requests may take meanwhile. Full blocks follow one another on a link without a pause.
Only the last block of a move waits for a step boundary of its request; other moves use the link
meanwhile. A request has one move at a time. If there is no room, KV and its attention stay where
they are, and the move is tried again later.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping

from harness.clock import Event, Loop
from harness.elastic.cluster import ElasticCluster
from harness.elastic.fabric import Sending
from harness.elastic.instance import ElasticInstance
from harness.errors import InstanceLost
from harness.request import Request
from systems.kunserve.moves import Move, certain_to_end, grantable_slots, ordered
from systems.kunserve.server import Server

OWNER = "exchange"


class Transfers:
    """Runs the moves between `members` until none is left, or until `stop` is set.

    wanted: the moves that are left; slots are pages of one layer. patient: wait if there is no
    room; else end.
    """

    def __init__(
        self,
        server: Server,
        members: Mapping[str, ElasticInstance],
        cluster: ElasticCluster,
        loop: Loop,
        wanted: Callable[[], list[Move]],
        stop: Event,
        *,
        purpose: str,
        chunk_bytes: int | None,
        retry_s: float,
        patient: bool,
    ) -> None:
        self._server, self._members, self._cluster, self._loop = server, members, cluster, loop
        self._wanted, self._purpose, self._chunk_bytes = wanted, purpose, chunk_bytes
        self._retry_s, self._patient, self._stop = retry_s, patient, stop
        self._ended = Event(loop)  # set as moves end
        self._waiting: list[Move] = []
        self._flying: list[Move] = []

    async def run(self) -> int:
        """Runs until nothing is left to move; returns the number of moves."""
        done = 0
        while not self._stop.is_set and (moves := self._wanted()):
            order = ordered(moves, self._free())
            if not order.first:
                if not self._patient:
                    break
                await self._loop.wait(self._stop, until=self._loop.now + self._retry_s)
                continue
            self._waiting = list(order.first)
            self._keep()
            links: dict[tuple[str, str], deque[Move]] = {}
            for move in order.first:
                links.setdefault((move.source, move.target), deque()).append(move)
            before = done
            tasks = [
                self._loop.spawn(self._send(queue), name=f"{self._purpose} {source} to {target}")
                for (source, target), queue in links.items()
            ]
            for task in tasks:
                await self._loop.wait(task.finished)
                done += task.result
            self._waiting = []
            self._keep()
            if done == before:
                await self._loop.wait(self._stop, until=self._loop.now + self._retry_s)
        return done

    async def _send(self, queue: deque[Move]) -> int:
        """Starts the moves of one link in order, each once there is room for it; earlier moves may
        still wait for a step boundary. Returns how many moved."""
        tasks = []
        while queue and not self._stop.is_set:
            move = next((m for m in queue if m.request_id not in self._server.moving), None)
            request = None if move is None else self._request(move)
            if move is not None and request is None:
                queue.remove(move)
                self._waiting.remove(move)
            elif move is None or request is None or not self._has_room(move):
                if not self._flying:
                    break
                self._ended.clear()
                await self._loop.wait(self._ended, self._stop)
            else:
                queue.remove(move)
                self._waiting.remove(move)
                self._flying.append(move)
                self._server.moving.add(move.request_id)
                name = f"{self._purpose} of request {move.request_id}"
                tasks.append(self._loop.spawn(self._move(move, request), name=name))
                await self._loop.sleep(0)  # it takes its room
        for task in tasks:
            await self._loop.wait(task.finished)
        return sum(task.result for task in tasks)

    async def _move(self, move: Move, request: Request) -> bool:
        source, target = self._members[move.source], self._members[move.target]
        try:
            sending = Sending(self._purpose, chunk_bytes=self._chunk_bytes, stop=self._stop)
            moved = await self._cluster.move_kv(
                [request], move.layers, source, target, sending, owner=OWNER
            )
        except InstanceLost:
            self._stop.set()
            moved = False
        finally:
            self._flying.remove(move)
            self._server.moving.discard(move.request_id)
            self._ended.set()
        if not self._stop.is_set:
            self._keep()
        self._server.moved(request)
        return moved

    def _has_room(self, move: Move) -> bool:
        held = self._members[move.source].kv.held[move.request_id]
        return held * len(move.layers) <= self._free()[move.target]

    def _request(self, move: Move) -> Request | None:
        """The request, if its KV is still at the move's source; else None."""
        source = self._members[move.source]
        here = source.kv.groups.get(move.request_id, ())
        target = self._members[move.target].kv.groups.get(move.request_id, ())
        if not set(move.layers) <= set(here) or set(move.layers) & set(target):
            return None
        requests = [*self._server.running, *self._server.paused]
        return next((r for r in requests if r.request_id == move.request_id), None)

    def _free(self) -> dict[str, int]:
        """Pages of each member that moves may take."""
        return {
            name: member.kv.free_pages + member.kv.reserved.get(OWNER, 0)
            for name, member in self._members.items()
        }

    def _keep(self) -> None:
        """Reserves the pages that waiting moves need, so that new requests do not take them."""
        free = self._free()
        certain = certain_to_end(self._waiting, free, self._flying)
        for name, member in self._members.items():
            if member.lost is not None:
                continue
            kept = 0
            if self._waiting and certain:
                kept = free[name] - grantable_slots(name, self._waiting, free, self._flying)
            member.kv.reserve(kept - member.kv.reserved.get(OWNER, 0), OWNER)
