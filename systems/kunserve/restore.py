"""Live restore (§4.2): weights come back, and ongoing requests leave the pipeline.

Two steps are plans over plain data. `restore_loads` brings the weights "from peer instances or from
the host memory". `migration_moves` takes each ongoing request to one member, by staged migration
(`harness/elastic/kv_moves.py`). A request stays in the pipeline until its KV has moved. Without
live restore (Fig. 15) there is no second step. `returning.py` runs both, and first has KV leave the
memory where weights go.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from harness.model_spec import ModelSpec
from systems.kunserve.exchange import Held, pieces
from systems.kunserve.group import Group, Stage, shard_bytes
from systems.kunserve.moves import Move

HOST = "host"  # the copy in the member's own host memory (§4.3, fault tolerance)


class Load(NamedTuple):
    """One layer's weights come to one member."""

    member: str
    layer: int
    source: str  # an instance's name, or HOST


class Rates(NamedTuple):
    """Bytes per second to or from one instance."""

    peer: float  # over the network
    host: float  # over PCIe


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


def migration_moves(
    held: Iterable[Held], goes: Mapping[int, str], layers_per_move: int
) -> list[Move]:
    """The moves of all KV that is not yet at its request's member, not in order.

    goes: from `assign`. `ordered` puts the moves in order, with the members' KV regions as room.
    """
    return [
        Move(request.request_id, layers, place.member, target, request.blocks * len(layers))
        for request in held
        for target in [goes[request.request_id]]
        for place in request.places
        if place.member != target
        for layers in pieces(place.layers, layers_per_move)
    ]


def missing(group: Group, num_layers: int) -> list[tuple[str, int]]:
    """(member, layer) pairs whose weights a restore of `group` loads, in the order of layers."""
    return [
        (stage.member, layer)
        for layer in range(num_layers)
        for stage in group
        if layer not in stage.layers
    ]


def restore_loads(
    wanted: Iterable[tuple[str, int]],
    groups: Sequence[Group],
    rates: Rates,
    model: ModelSpec,
) -> list[Load]:
    """Where the weights `wanted` come from, in the order to ask for them.

    groups: who holds which layers. Each load takes the source from which it ends first, after the
    loads before it. A peer sends one layer at a time. A member takes one layer at a time over the
    network, and one over PCIe. Every host has a copy.
    """
    free_at_s: dict[tuple[str, str], float] = defaultdict(float)  # (instance, lane)
    loads = []
    for member, layer in wanted:
        size = shard_bytes(model, range(layer, layer + 1))
        options = [(HOST, [(member, "pcie")], size / rates.host)]
        options += [
            (stage.member, [(stage.member, "out"), (member, "in")], size / rates.peer)
            for stage in _holders(groups, layer)
            if stage.member != member
        ]
        done_s, source, lanes = min(
            (max(free_at_s[lane] for lane in lanes) + seconds, source, lanes)
            for source, lanes, seconds in options
        )
        for lane in lanes:
            free_at_s[lane] = done_s
        loads.append(Load(member, layer, source))
    return loads


def _holders(groups: Sequence[Group], layer: int) -> list[Stage]:
    return [stage for group in groups for stage in group if layer in stage.layers]
