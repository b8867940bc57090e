"""Forms groups and takes them apart: the steps between two decisions, in order (§4.1–4.3).

`take_down` ends servers at a step boundary. `form` has members drop layers, which is instant, and
load the layers that a dead member held. It lets requests run on where their KV is, and begins the
exchange. If a member dies meanwhile, the groups are recovered and formed again. New requests go to
the group with the least load; they wait here while there is no group.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any

from harness.clock import Event, Loop, Task
from harness.elastic.cluster import ElasticCluster
from harness.elastic.instance import ElasticInstance
from harness.elastic.pipeline import Pipeline
from harness.errors import InstanceLost, RunError
from harness.request import Request
from systems.kunserve.group import Group, Stage, members, names
from systems.kunserve.group_kv import GroupKv, in_pieces
from systems.kunserve.plan import recover
from systems.kunserve.server import Server
from systems.kunserve.weights import EQUAL_RATES, HOST, LayerLoad, Rates, restore_loads
from systems.serving.load import Load

NewServer = Callable[[Group, ElasticInstance | Pipeline], Server]
DispatchLoad = Callable[[Load], Any]  # what compares loads; the least is the best


class GroupManager:
    """Forms the groups of a cluster.

    new_server: makes a group's server. load: by which groups are compared at dispatch. rates: for
    the choice of a source of weights.
    """

    def __init__(
        self, cluster: ElasticCluster, loop: Loop, kv: GroupKv, new_server: NewServer,
        load: DispatchLoad, *, rates: Rates = EQUAL_RATES,
    ) -> None:  # fmt: skip
        self.cluster, self.loop = cluster, loop
        self.kv, self.by_name = kv, kv.by_name
        self.model = cluster.instances[0].model
        self.servers: list[Server] = []  # take new requests
        self.leaving: list[Server] = []  # pipelines whose members have all layers again
        self.jobs: dict[Server, tuple[Event, Task]] = {}  # exchange, restore or migration
        self.rates, self._new_server, self._load = rates, new_server, load
        self._unserved: deque[Request] = deque()  # wait while there is no server

    def dispatch(self, request: Request) -> None:
        """Gives the request to the least loaded server, the first among equals."""
        if self.servers:
            min(self.servers, key=lambda server: self._load(server.load())).submit(request)
        else:
            self._unserved.append(request)

    def members(self, group: Group) -> dict[str, ElasticInstance]:
        """{name: instance} of the group."""
        return {name: self.by_name[name] for name in members(group)}

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

    def begin(self, server: Server, job: Callable[[Event], Coroutine[Any, Any, None]]) -> None:
        """Runs `job` beside the server's batches until it ends or its event is set. A server has
        one job at a time."""
        stop = Event(self.loop)

        async def run() -> None:
            await job(stop)
            if self.jobs.get(server, (None,))[0] is stop:
                del self.jobs[server]

        self.jobs[server] = stop, self.loop.spawn(run(), name=f"job of {server.name}")

    # Taking apart

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

    async def end_left(self) -> None:
        """Ends pipelines that all requests have left: their members' memory is theirs alone."""
        for server in [s for s in self.leaving if s.empty and s not in self.jobs]:
            await self.take_down([server])
            for each in self.overlapping(names([server.group])):
                each.shared = len(each.group) > 1

    # Forming

    async def reform(self, servers: Sequence[Server], groups: Sequence[Group]) -> None:
        """Has `groups` take the place of `servers`, which have the same members."""
        await self.form(groups, *await self.take_down(servers))

    async def recover(self, dead: str) -> None:
        """Forms the groups of a dead instance again, without it (§4.3). Raises RunError if no
        instance is left."""
        if all(instance.lost is not None for instance in self.by_name.values()):
            raise RunError("all instances are lost: no instance is left to serve")
        involved = self.overlapping({dead})
        await self.reform(involved, [s.group for s in involved if s in self.servers])

    async def form(
        self, groups: Sequence[Group], running: list[Request], waiting: list[Request]
    ) -> None:
        """Has `groups` serve `running`, whose KV is at their members. `waiting` is dispatched to
        any group."""
        while True:
            groups, lost = self._survivors(groups, running)
            self._requeue(lost, running, waiting)
            try:
                await self._hold(groups, running, waiting)
            except InstanceLost as error:
                await self._noticed(error.name)
                continue
            break
        for group in groups:
            self.open(group, running)
        for request in in_order(waiting):
            self.dispatch(request)
        while self._unserved and self.servers:
            self.dispatch(self._unserved.popleft())

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
            places = {place.member for h in self.kv.held([request]) for place in h.places}
            if not places or not any(places <= home for home in homes):
                lost.append(request)
        return left, lost

    def _requeue(
        self, requests: Sequence[Request], running: list[Request], waiting: list[Request]
    ) -> None:
        """Has `requests` wait to be computed again: their KV is freed at all instances."""
        for request in requests:
            running.remove(request)
            waiting.append(request)
            for instance in self.by_name.values():
                if request.request_id in instance.kv.groups:
                    instance.evict(request)

    async def _noticed(self, name: str) -> None:
        """Waits until the cluster knows of a death that a user of the instance has noticed."""
        while self.by_name[name].lost is None:
            await self.loop.sleep(0.001)

    async def _hold(
        self, groups: Sequence[Group], running: list[Request], waiting: list[Request]
    ) -> None:
        """Has every member hold the layers of its stage and no others. Requests that have to give
        up their KV for it wait again."""
        every = self.model.num_layers
        wanted: list[tuple[str, int]] = []
        for name, layers in (stage for group in groups for stage in group):
            instance = self.by_name[name]
            lacking = [layer for layer in layers if layer not in instance.resident]
            wanted += [(name, layer) for layer in lacking]
            for extra in (range(layers.start), range(layers.stop, every)):
                if instance.resident.intersection(extra):
                    await instance.drop(extra)
            held, part = instance.kv.held, instance.kv.groups
            pages = {
                r: held[r.request_id] * len(part[r.request_id])
                for r in running
                if r.request_id in held
            }
            short = self.pages_of(instance, lacking) - instance.kv.free_pages
            chosen = preempted(short, pages)
            self._requeue([r for r in pages if r in chosen], running, waiting)
        holding = [
            tuple(
                Stage(name, part)
                for name in members(group)
                for part in in_pieces(tuple(sorted(self.by_name[name].resident)))
            )
            for group in [*groups, *(server.group for server in self.servers)]
        ]
        for load in restore_loads(wanted, holding, self.rates, self.model):
            await self.load(load)

    def pages_of(self, instance: ElasticInstance, layers: Sequence[int]) -> int:
        """How many KV pages the weights of `layers` take when they come back."""
        given = set(range(self.model.num_layers)) - instance.resident
        layout = instance.layout
        return layout.num_pages(given) - layout.num_pages(given - set(layers))

    async def load(self, load: LayerLoad, stop: Event | None = None) -> bool:
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
            r for r in running if any(p.member in mine for h in self.kv.held([r]) for p in h.places)
        ]
        if isinstance(executor, Pipeline):
            for request in ours:
                if not self.cluster.directory.where(request):
                    holder = next(m for m in mine.values() if request.request_id in m.kv.groups)
                    executor.adopt([request], holder)
        for instance in mine.values():
            self.cluster.take(instance, "pipeline" if len(group) > 1 else "serving")
        self.servers.append(server)
        misplaced = self.kv.misplaced(server, ours)
        if misplaced and self.kv.victims:
            server.paused = ours  # until their KV has moved
        else:
            server.join(ours)
        if misplaced:
            self.begin(server, lambda stop: self.kv.exchange(server, stop))
        server.start()
        return server


def preempted(short_pages: int, held: dict[Request, int]) -> list[Request]:
    """The requests that are preempted without standby instances (§4.3): the engine then preempts by
    recompute, as vLLM does (§2.3 (a)) and the published code does.

    held: {running request: its pages}, oldest first. As few as possible give up their KV for
    `short_pages`: the least important first, among equals the newest. If all do not suffice, all
    do.
    """
    chosen: list[Request] = []
    newest_first = list(reversed(held))
    for request in sorted(newest_first, key=lambda request: request.priority):
        if short_pages <= 0:
            break
        short_pages -= held[request]
        chosen.append(request)
    return chosen


def in_order(requests: Iterable[Request]) -> list[Request]:
    return sorted(requests, key=lambda r: (r.arrival_s, r.request_id))


def whole_bytes(instances: Iterable[ElasticInstance]) -> int:
    """Bytes of KV memory of `instances` if they hold all parameters."""
    return sum(each.layout.num_pages() * each.page_bytes * each.model.tp for each in instances)
