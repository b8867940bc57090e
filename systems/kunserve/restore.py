"""Live restore (§4.2): weights come back, then ongoing requests leave the pipeline.

The pipeline serves as before, with new requests, until all weights are there (`weights.py` plans
their loads). Then every member serves by itself, and the pipeline ends with its requests. Each goes
to one member by staged migration (`harness/elastic/kv_moves.py`), and stays in the pipeline until
its KV has moved. Without live restore (the ablation of Fig. 15) it stays until it ends.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from harness.clock import Event
from harness.errors import InstanceLost
from harness.request import Request
from systems.kunserve.exchange import Held, moves_to
from systems.kunserve.group import alone, members
from systems.kunserve.group_manager import GroupManager
from systems.kunserve.moves import Move
from systems.kunserve.server import Server
from systems.kunserve.weights import LayerLoad, missing, restore_loads

OWNER = "restore"


def assign(held: Sequence[Held], free: Mapping[str, int], num_layers: int) -> dict[int, str] | None:
    """{request id: the member that gets all its layers}; None: the restore must wait.

    free: slots of each member's KV region, as if it were empty; slots of the tail do not count,
    since weights come back there. The largest request goes first, to the member with the most room,
    which balances the room that is left.
    """
    room = dict(free)
    goes: dict[int, str] = {}
    for request in sorted(held, key=lambda r: (-r.blocks, r.request_id)):
        slots = request.blocks * num_layers
        member = max(room, key=lambda name: (room[name], name))
        if room[member] < slots:
            return None
        room[member] -= slots
        goes[request.request_id] = member
    return goes


def migration_moves(held: Sequence[Held], goes: Mapping[int, str], num_layers: int) -> list[Move]:
    """The moves of all KV that is not yet at its request's member, not in order.

    goes: from `assign`; requests that it lacks do not move.
    """
    return [
        move
        for request in held
        if request.request_id in goes
        for move in moves_to(request, alone(goes[request.request_id], num_layers))
    ]


async def restore(manager: GroupManager, server: Server, stop: Event, *, live: bool) -> None:
    """Restores one group. `stop` ends it early; the group must then be formed again.

    live: requests migrate; else they stay in the pipeline until they end.
    """
    start_s, names = manager.loop.now, members(server.group)
    if live and _assigned(manager, server) is None:
        return  # the monitor will ask again
    wanted = missing(server.group, manager.model.num_layers)
    groups = [each.group for each in manager.servers]
    loads = restore_loads(wanted, groups, manager.rates, manager.model)
    tasks = [
        manager.loop.spawn(
            _load_all(manager, [load for load in loads if load.member == name], stop),
            name=f"restore {name}",
        )
        for name in names
    ]
    for task in tasks:
        await manager.loop.wait(task.finished)
    if not stop.is_set and all(task.result for task in tasks):
        manager.cluster.note("restore", server.name, start_s, layers=len(loads))
        leave(manager, server, live=live)


def _assigned(manager: GroupManager, server: Server) -> dict[int, str] | None:
    regions = {
        name: instance.layout.num_pages()
        for name, instance in manager.members(server.group).items()
    }
    return assign(manager.kv.held(server.running), regions, manager.model.num_layers)


async def _load_all(manager: GroupManager, loads: Sequence[LayerLoad], stop: Event) -> bool:
    """Loads one member's layers, each once KV has left its memory. False if it was stopped, or if
    an instance died."""
    for load in loads:
        instance = manager.by_name[load.member]
        kv, pages = instance.kv, manager.pages_of(instance, [load.layer])
        while not stop.is_set and instance.lost is None:
            kv.reserve(min(kv.free_pages, pages - kv.reserved.get(OWNER, 0)), OWNER)
            if kv.reserved.get(OWNER, 0) == pages:
                break
            await manager.loop.wait(stop, until=manager.loop.now + manager.kv.retry_s)
        kv.reserve(-kv.reserved.get(OWNER, 0), OWNER)
        try:
            if stop.is_set or not await manager.load(load, stop):
                return False
        except InstanceLost:
            return False
    return True


def leave(manager: GroupManager, server: Server, *, live: bool) -> None:
    """Has every member serve by itself from now on, and `server` until it has no requests."""
    num_layers, waiting = manager.model.num_layers, [*server.waiting]
    server.waiting.clear()
    manager.servers.remove(server)
    manager.leaving.append(server)
    alone_at = {name: manager.open(alone(name, num_layers), []) for name in members(server.group)}
    for each in alone_at.values():
        each.shared = True
    goes = _assigned(manager, server) or {}

    def let_go(request: Request) -> bool:
        """Hands the request, at a step boundary, to the member that has all its KV; one that was
        preempted is dispatched anew. Returns whether it has left."""
        where = manager.kv.held([request])
        if not where:
            manager.dispatch(request)
            return True
        home = {place.member for place in where[0].places}
        if not live or len(home) > 1 or request.request_id in server.moving:
            return False
        alone_at[home.pop()].join([request])
        return True

    def wanted() -> list[Move]:
        return migration_moves(manager.kv.held(server.running), goes, num_layers)

    async def migrate(stop: Event) -> None:
        start_s = manager.loop.now
        moves = await manager.kv.transfer(server, wanted, stop, "migration")
        manager.cluster.note("migration", server.name, start_s, moves=moves)

    server.leaving = let_go
    if live:
        manager.begin(server, migrate)
    server.wake()
    for request in waiting:
        manager.dispatch(request)
