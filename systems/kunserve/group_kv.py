"""The KV of groups: at which members it lies, and the exchange that brings it to the weights
(§4.2).

`exchange.py` says which KV moves where, `transfers.py` carries moves out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache

from harness.clock import Event, Loop
from harness.elastic.cluster import ElasticCluster
from harness.request import Request
from systems.kunserve.exchange import Held, exchange_moves
from systems.kunserve.group import Stage, members
from systems.kunserve.moves import Move
from systems.kunserve.server import Server
from systems.kunserve.transfers import Transfers


class GroupKv:
    """The KV of all groups of a cluster.

    retry_s: how long to wait before looking for room again. victims: how
    many requests are exchanged at a time while they stand still; 0: all requests run meanwhile, by
    remote attention. chunk_bytes: of one message on a link.
    """

    def __init__(
        self, cluster: ElasticCluster, loop: Loop, *, retry_s: float, victims: int = 0,
        chunk_bytes: int | None = None,
    ) -> None:  # fmt: skip
        self.by_name = {instance.name: instance for instance in cluster.instances}
        self._cluster, self._loop, self.retry_s = cluster, loop, retry_s
        self.victims, self._chunk_bytes = victims, chunk_bytes

    def held(self, requests: Iterable[Request]) -> list[Held]:
        """The places of the KV of `requests`; a request without KV is left out. Pages are of one
        layer.

        Requests that have run on one instance only are not in the cluster's directory.
        """
        found = []
        for request in requests:
            number = request.request_id
            where = [(at.name, groups) for at, groups in self._cluster.directory.where(request)]
            if not where:
                every = self.by_name.items()
                where = [(n, m.kv.groups[number]) for n, m in every if number in m.kv.groups]
            places = [Stage(name, part) for name, groups in where for part in in_pieces(groups)]
            if places:
                blocks = self.by_name[places[0].member].kv.held[number]
                places.sort(key=lambda place: place.layers.start)
                found.append(Held(number, blocks, tuple(places)))
        return found

    def misplaced(self, server: Server, requests: Iterable[Request]) -> list[Move]:
        """The moves of KV that is not at the member with its layer's weights."""
        held = self.held(request for request in requests if not request.finished)
        return exchange_moves(held, server.group)

    async def exchange(self, server: Server, stop: Event) -> None:
        """Brings the KV of the server's requests to the members with the weights."""
        if self.victims:
            await self._blocking(server, stop)
        else:
            await self._live(server, stop)

    async def _live(self, server: Server, stop: Event) -> None:
        """Exchanges KV while the requests run."""
        start_s = self._loop.now
        moves = await self.transfer(
            server, lambda: self.misplaced(server, server.running), stop, "exchange"
        )
        self._note(server, start_s, moves)

    async def _blocking(self, server: Server, stop: Event) -> None:
        """Exchanges KV as the published code does it: a number of victims at a time, in order of
        service; none decodes before all KV of its batch has moved. Requests without room are
        computed again."""
        start_s, moves = self._loop.now, 0
        left = [r for r in server.paused if self.held([r])]
        while left:
            victims, left = left[: self.victims], left[self.victims :]

            def wanted(victims: list[Request] = victims) -> list[Move]:
                return self.misplaced(server, victims)

            moves += await self.transfer(server, wanted, stop, "exchange", patient=False)
            if stop.is_set:
                return
            stuck = {move.request_id for move in wanted()}
            for request in reversed(victims):
                if request.request_id in stuck:
                    server.preempt(request)
                else:
                    server.paused.remove(request)
            server.join([r for r in victims if r.request_id not in stuck])
        self._note(server, start_s, moves)

    def _note(self, server: Server, start_s: float, moves: int) -> None:
        self._cluster.note(
            "exchange", server.name, start_s, moves=moves, live=not self.victims,
            chunk_bytes=self._chunk_bytes,
        )  # fmt: skip

    async def transfer(
        self, server: Server, wanted: Callable[[], list[Move]], stop: Event, purpose: str,
        *, patient: bool = True,
    ) -> int:  # fmt: skip
        """Moves what is `wanted` between the server's members; returns the number of moves."""
        transfers = Transfers(
            server=server,
            members={name: self.by_name[name] for name in members(server.group)},
            cluster=self._cluster,
            loop=self._loop,
            wanted=wanted,
            stop=stop,
            purpose=purpose,
            chunk_bytes=self._chunk_bytes,
            retry_s=self.retry_s,
            patient=patient,
        )
        return await transfers.run()


@lru_cache(4096)  # it is asked for each request of a pipeline, and few answers differ
def in_pieces(layers: tuple[int, ...]) -> tuple[range, ...]:
    """The sorted `layers` as ranges."""
    pieces: list[range] = []
    for layer in layers:
        if pieces and pieces[-1].stop == layer:
            pieces[-1] = range(pieces[-1].start, layer + 1)
        else:
            pieces.append(range(layer, layer + 1))
    return tuple(pieces)
