"""Live restore, step by step (§4.2): weights come back, then requests leave the pipeline.

The pipeline serves as before, with new requests, until all weights are there. Then every member
serves by itself, and the pipeline ends with its requests. Each request goes to one member by staged
migration. Without live restore (the ablation of Fig. 15) it stays in the pipeline until it ends.
"""

from __future__ import annotations

from collections import deque

from harness.clock import Event
from harness.errors import InstanceLost
from harness.request import Request
from systems.kunserve.group import alone, members
from systems.kunserve.group_manager import GroupManager
from systems.kunserve.moves import Move
from systems.kunserve.restore import Load, assign, migration_moves, missing, restore_loads
from systems.kunserve.server import Server

OWNER = "restore"


async def restore(shaper: GroupManager, server: Server, stop: Event, *, live: bool) -> None:
    """Restores one group. `stop` ends it early; the group must then be formed again.

    live: requests migrate; else they stay in the pipeline until they end.
    """
    start_s = shaper.loop.now
    names = members(server.group)
    base = {name: shaper.by_name[name].layout.num_pages() for name in names}
    held = shaper.held(server.running)
    if live and assign(held, base, shaper.model.num_layers) is None:
        return  # the monitor will ask again
    groups = [each.group for each in shaper.servers]
    wanted = missing(server.group, shaper.model.num_layers)
    loads = restore_loads(wanted, groups, shaper.rates, shaper.model)
    tasks = [
        shaper.loop.spawn(
            _load_all(shaper, [load for load in loads if load.member == name], stop),
            name=f"restore {name}",
        )
        for name in names
    ]
    for task in tasks:
        await shaper.loop.wait(task.finished)
    if stop.is_set or not all(task.result for task in tasks):
        return
    shaper.cluster.note("restore", server.name, start_s, layers=len(loads))
    leave(shaper, server, live=live)


async def _load_all(shaper: GroupManager, loads: list[Load], stop: Event) -> bool:
    """Loads one member's layers, each once KV has left its memory. False if it was stopped, or if
    an instance died."""
    for load in loads:
        instance = shaper.by_name[load.member]
        kv = instance.kv
        pages = shaper.pages_of(instance, [load.layer])
        while not stop.is_set and instance.lost is None:
            kv.reserve(min(kv.free_pages, pages - kv.reserved.get(OWNER, 0)), OWNER)
            if kv.reserved.get(OWNER, 0) == pages:
                break
            await shaper.loop.wait(stop, until=shaper.loop.now + shaper.retry_s)
        kv.reserve(-kv.reserved.get(OWNER, 0), OWNER)
        if stop.is_set:
            return False
        try:
            if not await shaper.load(load, stop):
                return False
        except InstanceLost:
            return False
    return True


def leave(shaper: GroupManager, server: Server, *, live: bool) -> None:
    """From now on every member serves by itself, and `server` serves until it has no requests."""
    waiting = [*server.waiting]
    server.waiting.clear()
    shaper.servers.remove(server)
    shaper.leaving.append(server)
    alone_at = {
        name: shaper.open((alone(name, shaper.model.num_layers)), [])
        for name in members(server.group)
    }
    for each in alone_at.values():
        each.shared = True
    goes = assign(
        shaper.held(server.running),
        {name: shaper.by_name[name].layout.num_pages() for name in alone_at},
        shaper.model.num_layers,
    )

    def let_go(request: Request) -> bool:
        """At a step boundary: hands the request to the member that has all its KV; a request that
        was preempted is dispatched anew. Whether it has left."""
        where = shaper.held([request])
        if not where:
            shaper.dispatch(request)
            return True
        home = {place.member for place in where[0].places}
        if not live or len(home) > 1 or request.request_id in server.moving:
            return False
        alone_at[home.pop()].join([request])
        return True

    def wanted() -> list[Move]:
        held = [h for h in shaper.held(server.running) if goes and h.request_id in goes]
        return migration_moves(held, goes or {}, shaper.model.num_layers)

    async def migrate(stop: Event) -> None:
        start_s = shaper.loop.now
        moves = await shaper.transfer(server, wanted, stop, "migration")
        shaper.cluster.note("migration", server.name, start_s, moves=moves)

    server.leaving = let_go
    if live:
        shaper.begin(server, migrate)
    server.wake()
    for request in deque(waiting):
        shaper.dispatch(request)
