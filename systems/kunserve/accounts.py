"""Reads from servers and instances what the pure decisions need: KV held, demand, loads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from harness.elastic.instance import ElasticInstance
from harness.elastic.kv_directory import KvDirectory
from harness.request import Request
from systems.kunserve.artifact_monitor import GroupLoad
from systems.kunserve.dispatcher import Load
from systems.kunserve.exchange import Held
from systems.kunserve.group import Group, Stage
from systems.kunserve.instance_load import InstanceLoad, Running
from systems.kunserve.monitor import Sample, demand_bytes
from systems.kunserve.server import Server


def held_by(
    requests: Iterable[Request], members: Mapping[str, ElasticInstance], directory: KvDirectory
) -> list[Held]:
    """Where the KV of `requests` is; a request without KV is left out. Pages are of one layer.

    members: {name: instance}. They are asked about requests that are not in the directory: those
    that have run on one instance only.
    """
    found = []
    for request in requests:
        number = request.request_id
        where = [(holder.name, groups) for holder, groups in directory.where(request)]
        if not where:
            where = [(n, m.kv.groups[number]) for n, m in members.items() if number in m.kv.groups]
        places = [Stage(name, layers) for name, groups in where for layers in in_pieces(groups)]
        if places:
            blocks = members[places[0].member].kv.held[number]
            found.append(Held(number, blocks, tuple(sorted(places, key=lambda p: p.layers.start))))
    return found


def in_pieces(layers: Sequence[int]) -> list[range]:
    """Sorted `layers` as ranges."""
    pieces: list[range] = []
    for layer in layers:
        if pieces and pieces[-1].stop == layer:
            pieces[-1] = range(pieces[-1].start, layer + 1)
        else:
            pieces.append(range(layer, layer + 1))
    return pieces


def blocks_wanted(server: Server, request: Request) -> int:
    """KV blocks for all tokens of the request that are known so far."""
    return server.executor.kv.blocks_for(request.known_tokens)


def load_of(server: Server) -> InstanceLoad:
    """The server's load, of which the other loads here are made."""
    running = [*server.running, *server.paused]
    return InstanceLoad(
        server.name,
        server.executor.kv.num_blocks,
        [Running(r.request_id, blocks_wanted(server, r), r.priority) for r in running],
        [blocks_wanted(server, request) for request in [*server.aside, *server.waiting]],
    )


def dispatch_load(server: Server) -> Load:
    """The server's load for KunServe's dispatcher."""
    load = load_of(server)
    wanted = load.used_blocks + sum(load.queued_blocks)
    requests = len(load.running) + len(load.queued_blocks)
    return Load(
        server.name, len(server.group), load.total_blocks, wanted, requests,
        server.lacking_tokens, server.batch_tokens,
    )  # fmt: skip


def block_bytes(member: ElasticInstance) -> int:
    """Bytes of one KV block: all layers, on all of the instance's devices."""
    return member.page_bytes * len(member.kv.all_groups) * member.model.tp


def sample(
    server: Server, members: Sequence[ElasticInstance], guests: Sequence[Request], now_s: float
) -> Sample:
    """Demand and capacity of a group now.

    Demand is of all running and waiting requests, since a plan must hold all of it (§4.1). guests:
    requests of pipelines that are being left, whose KV is at `members` too.
    """
    load, size = load_of(server), block_bytes(members[0])
    used = sum(running.blocks for running in load.running) * size
    for member in members:
        kv = member.kv
        for request in guests:
            pages = kv.held.get(request.request_id, 0) * len(kv.groups.get(request.request_id, ()))
            used += pages * member.page_bytes * member.model.tp
    queued = [blocks * size for blocks in load.queued_blocks]
    wanted = demand_bytes(used, queued, head_of_line_only=False)
    return Sample(now_s, wanted, server.executor.kv.num_blocks * size)


def whole_bytes(members: Iterable[ElasticInstance]) -> int:
    """Bytes of KV memory of `members` if they hold all parameters."""
    return sum(
        member.layout.num_pages() * member.page_bytes * member.model.tp for member in members
    )


def group_load(server: Server) -> GroupLoad:
    """The server's load for the published code's thresholds."""
    load = load_of(server)
    free = max(0, load.total_blocks - load.used_blocks)
    return GroupLoad(load.total_blocks, free, sum(load.queued_blocks))


def names(groups: Iterable[Group]) -> set[str]:
    """All members of `groups`."""
    return {stage.member for group in groups for stage in group}
