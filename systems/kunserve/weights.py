"""Where weights come from that members lack: "peer instances or the host memory" (§4.2, §4.3).

Members lack layers after a drop that is taken back, and after the death of a neighbour. Pure.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from harness.model_spec import ModelSpec
from systems.kunserve.group import Group, shard_bytes

HOST = "host"  # the copy in the member's own host memory (§4.3, fault tolerance)


class LayerLoad(NamedTuple):
    """The load of one layer's weights to one member."""

    member: str
    layer: int
    source: str  # an instance's name, or HOST


class Rates(NamedTuple):
    """Bytes per second to or from one instance."""

    peer: float  # rate over the network
    host: float  # rate over PCIe


EQUAL_RATES = Rates(1.0, 1.0)


def missing(group: Group, num_layers: int) -> list[tuple[str, int]]:
    """(member, layer) pairs whose weights a restore of `group` loads, in the order of layers."""
    return [
        (stage.member, layer)
        for layer in range(num_layers)
        for stage in group
        if layer not in stage.layers
    ]


def restore_loads(
    wanted: Iterable[tuple[str, int]], groups: Sequence[Group], rates: Rates, model: ModelSpec
) -> list[LayerLoad]:
    """The loads of the weights `wanted`, each with its source, in the order to ask for them.

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
            for group in groups
            for stage in group
            if layer in stage.layers and stage.member != member
        ]
        done_s, source, lanes = min(
            (max(free_at_s[lane] for lane in lanes) + seconds, source, lanes)
            for source, lanes, seconds in options
        )
        for lane in lanes:
            free_at_s[lane] = done_s
        loads.append(LayerLoad(member, layer, source))
    return loads
