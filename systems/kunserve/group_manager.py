"""Forms groups and takes them apart: the steps between two decisions, in order (§4.1–4.3).

`take_down` ends servers at a step boundary. `form` has members drop layers, which is instant, and
load the layers that a dead member held. It lets requests run on where their KV is, and begins the
exchange. If a member dies meanwhile, the groups are recovered and formed again.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from harness.clock import Event, Loop, Task
from harness.elastic.cluster import ElasticCluster
from harness.elastic.instance import ElasticInstance
from harness.elastic.pipeline import Pipeline
from harness.errors import InstanceLost
from harness.request import Request
from systems.kunserve.accounts import held_by, in_pieces, names
from systems.kunserve.exchange import Held, exchange_moves, victim_batches
from systems.kunserve.fallback import Candidate, fall_back
from systems.kunserve.group import Group, members
from systems.kunserve.moves import Move
from systems.kunserve.recovery import recover
from systems.kunserve.restore import HOST, Load, Rates, restore_loads
from systems.kunserve.server import Server
from systems.kunserve.transfers import Transfers

NewServer = Callable[[Group, ElasticInstance | Pipeline], Server]


class GroupManager:
    """Forms the groups of a cluster.

    new_server: makes a group's server. dispatch: takes requests that wait. victims: how many
    requests are exchanged at a time while they stand still; 0: all requests run meanwhile, by
    remote attention. chunk_bytes: of KV on a link. rates: for the choice of a source of weights.
    retry_s: how long to wait before looking again.
    """

    def __init__(
        self,
        cluster: ElasticCluster,
        loop: Loop,
        new_server: NewServer,
        dispatch: Callable[[Request], None],
        *,
        victims: int,
        chunk_bytes: int | None,
        rates: Rates,
        retry_s: float,
    ) -> None:
        self.cluster, self.loop = cluster, loop
        self.by_name = {instance.name: instance for instance in cluster.instances}
        self.model = cluster.instances[0].model
        self.servers: list[Server] = []  # take new requests
        self.leaving: list[Server] = []  # pipelines whose members have all layers again
        self.jobs: dict[Server, tuple[Event, Task]] = {}  # exchange, restore or migration
        self._new_server, self.dispatch = new_server, dispatch
        self._victims, self._chunk_bytes = victims, chunk_bytes
        self.rates, self.retry_s = rates, retry_s

    def members(self, group: Group) -> dict[str, ElasticInstance]:
        """{name: instance} of the group."""
        return {name: self.by_name[name] for name in members(group)}

    def held(self, requests: Sequence[Request]) -> list[Held]:
        """Where the KV of `requests` is."""
        return held_by(requests, self.by_name, self.cluster.directory)

    def overlapping(self, wanted: set[str]) -> list[Server]:
        """Servers that share a member with `wanted`, directly or through other servers."""
        found: list[Server] = []
        while more := [
            s
            for s in [*self.servers, *self.leaving]
            if s not in found and wanted & names([s.group])
        ]:
            found += more
            wanted = wanted | names(server.group for server in more)
        return found

    async def take_down(self, servers: Sequence[Server]) -> tuple[list[Request], list[Request]]:
        """Ends `servers`. Returns (requests with KV, waiting requests), both in order of
        arrival."""
        running: list[Request] = []
        waiting: list[Request] = []
        for server in servers:
            if server in self.jobs:
                stop, task = self.jobs.pop(server)
                stop.set()
                await self.loop.wait(task.finished)
        for server in servers:
            server.stop()
        for server in servers:
            first, second = await server.close()
            running, waiting = running + first, waiting + second
            (self.servers if server in self.servers else self.leaving).remove(server)
        return in_order(running), in_order(waiting)

    def begin(self, server: Server, job: Callable[[Event], Coroutine[Any, Any, None]]) -> None:
        """Runs `job` beside the server's batches until it ends or its event is set. A server has
        one job at a time."""
        stop = Event(self.loop)

        async def run() -> None:
            await job(stop)
            if self.jobs.get(server, (None,))[0] is stop:
                del self.jobs[server]

        self.jobs[server] = stop, self.loop.spawn(run(), name=f"job of {server.name}")

    async def form(
        self, groups: Sequence[Group], running: list[Request], waiting: list[Request]
    ) -> None:
        """Has `groups` serve `running`, whose KV is at their members. `waiting` is dispatched to
        any group."""
        while True:
            groups, lost = self._survivors(groups, running)
            for request in lost:
                running.remove(request)
                self._forget(request)
            waiting = in_order(lost + waiting)
            try:
                short = await self._hold(groups, running)
            except InstanceLost as error:
                await self._noticed(error.name)
                continue
            waiting = in_order(short + waiting)
            break
        for group in groups:
            self.open(group, running)
        for request in waiting:
            self.dispatch(request)

    def _survivors(
        self, groups: Sequence[Group], running: Sequence[Request]
    ) -> tuple[list[Group], list[Request]]:
        """(groups without dead members, requests that no group can continue)."""
        left = list(groups)
        for name, instance in self.by_name.items():
            if instance.lost is not None and name in names(left):
                left = recover(left, name)
        homes = [set(members(group)) for group in left]
        lost = []
        for request in running:
            places = {place.member for h in self.held([request]) for place in h.places}
            if not places or not any(places <= home for home in homes):
                lost.append(request)
        return left, lost

    def _forget(self, request: Request) -> None:
        """Frees the request's KV at all instances."""
        for instance in self.by_name.values():
            if request.request_id in instance.kv.groups:
                instance.evict(request)

    async def _noticed(self, name: str) -> None:
        """Waits until the cluster knows of a death that a user of the instance has noticed."""
        while self.by_name[name].lost is None:
            await self.loop.sleep(0.001)

    async def _hold(self, groups: Sequence[Group], running: list[Request]) -> list[Request]:
        """Has every member hold the layers of its stage and no others. Returns the requests that
        had to give up their KV for it."""
        every = self.model.num_layers
        short: list[Request] = []
        wanted: list[tuple[str, int]] = []
        for group in groups:
            for name, layers in group:
                instance = self.by_name[name]
                lacking = [layer for layer in layers if layer not in instance.resident]
                wanted += [(name, layer) for layer in lacking]
                for extra in (range(layers.start), range(layers.stop, every)):
                    if instance.resident.intersection(extra):
                        await instance.drop(extra)
                short += self._make_room(instance, lacking, running)
        holding = [
            tuple(stage._replace(layers=run) for stage in group for run in self._runs(stage.member))
            for group in [*groups, *(server.group for server in self.servers)]
        ]
        for load in restore_loads(wanted, holding, self.rates, self.model):
            await self.load(load)
        return short

    def _runs(self, name: str) -> list[range]:
        return in_pieces(sorted(self.by_name[name].resident))

    def _make_room(
        self, instance: ElasticInstance, layers: Sequence[int], running: list[Request]
    ) -> list[Request]:
        """Preempts requests (recompute, §4.3) until the weights of `layers` have room: the least
        important first, among equals the newest. Returns them."""
        short = self.pages_of(instance, layers) - instance.kv.free_pages
        kv, gone = instance.kv, list[Request]()
        here = [r for r in running if r.request_id in kv.held]
        candidates = [
            Candidate(
                request.request_id,
                kv.held[request.request_id] * len(kv.groups[request.request_id]),
                request.priority,
            )
            for request in here
        ]
        chosen = fall_back(short, 0, 1, candidates).preempted
        for request in [r for r in here if r.request_id in chosen]:
            running.remove(request)
            self._forget(request)
            gone.append(request)
        return gone

    def pages_of(self, instance: ElasticInstance, layers: Sequence[int]) -> int:
        """How many KV pages the weights of `layers` take when they come back."""
        given = set(range(self.model.num_layers)) - instance.resident
        layout = instance.layout
        return layout.num_pages(given) - layout.num_pages(given - set(layers))

    async def load(self, load: Load, stop: Event | None = None) -> bool:
        """Loads one layer from a peer, or from the copy in the member's own host. False if
        stopped."""
        instance = self.by_name[load.member]
        layers = range(load.layer, load.layer + 1)
        if load.source == HOST:
            copy = self.cluster.hosts[instance.memory.node].source(self.model.name)
            return await instance.load(layers, copy, stop=stop)
        return await instance.load(layers, self.by_name[load.source], stop=stop)

    def open(self, group: Group, running: Sequence[Request]) -> Server:
        """Starts a server of the group with the `running` requests whose KV is at its members."""
        mine = self.members(group)
        executor: ElasticInstance | Pipeline = next(iter(mine.values()))
        if len(group) > 1:
            executor = self.cluster.pipeline([(mine[name], layers) for name, layers in group])
        server = self._new_server(group, executor)
        ours = [
            r for r in running if any(p.member in mine for h in self.held([r]) for p in h.places)
        ]
        if isinstance(executor, Pipeline):
            for request in ours:
                if not self.cluster.directory.where(request):
                    holder = next(m for m in mine.values() if request.request_id in m.kv.groups)
                    executor.adopt([request], holder)
        for name in mine:
            self.cluster.take(mine[name], "pipeline" if len(group) > 1 else "serving")
        self.servers.append(server)
        self._admit(server, ours)
        server.start()
        return server

    def _admit(self, server: Server, requests: Sequence[Request]) -> None:
        """Has `requests` run; their KV is exchanged meanwhile, or before if there are `victims`."""
        if not self._exchange_of(server, requests):
            server.join(requests)
        elif not self._victims:
            server.join(requests)
            self.begin(server, lambda stop: self._exchange_live(server, stop))
        else:
            server.paused = list(requests)
            self.begin(server, lambda stop: self._exchange_blocking(server, stop))

    def _exchange_of(self, server: Server, requests: Sequence[Request]) -> list[Move]:
        held = self.held([request for request in requests if not request.finished])
        return exchange_moves(held, [server.group], self.model.num_layers)

    async def _exchange_live(self, server: Server, stop: Event) -> None:
        start_s = self.loop.now
        moves = await self.transfer(
            server, lambda: self._exchange_of(server, server.running), stop, "exchange"
        )
        self.cluster.note("exchange", server.name, start_s, moves=moves, live=True)

    async def _exchange_blocking(self, server: Server, stop: Event) -> None:
        """Exchanges batch by batch. Requests without room are computed again."""
        start_s, moves = self.loop.now, 0
        for batch in victim_batches(self.held(server.paused), self._victims):
            ids = {held.request_id for held in batch}
            victims = [r for r in server.paused if r.request_id in ids]

            def wanted(victims: list[Request] = victims) -> list[Move]:
                return self._exchange_of(server, victims)

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
        self.cluster.note("exchange", server.name, start_s, moves=moves, live=False)

    async def transfer(
        self, server: Server, wanted: Callable[[], list[Move]], stop: Event, purpose: str,
        *, patient: bool = True,
    ) -> int:  # fmt: skip
        """Moves what is `wanted` between the server's members; returns the number of moves."""
        return await Transfers(
            server, self.members(server.group), self.cluster, self.loop, wanted, stop,
            purpose=purpose, chunk_bytes=self._chunk_bytes, retry_s=self.retry_s, patient=patient,
        ).run()  # fmt: skip


def in_order(requests: Sequence[Request]) -> list[Request]:
    return sorted(requests, key=lambda r: (r.arrival_s, r.request_id))
