"""From a plan to loads: which instance gets which layers from which source.

A chain's node gets each layer from the node before it as the layer arrives there. If a node has
several instances with NICs of their own, each gets its part of the layers over the network, and the
other layers over NVLink: Fig. 14's sharded transfer with AllGather, by whole layers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from systems.blitzscale.chains import Chain, Hop, Medium, Plan, Target


@dataclass(slots=True, frozen=True)
class Pull:
    """One load: some layers, from one source to one target."""

    target: str
    layers: tuple[int, ...]  # in the order of loading
    medium: Medium
    source: int  # an instance's first device; the node of a host's memory or SSD


def pulls(plan: Plan, num_layers: int) -> list[Pull]:
    """The loads of all chains."""
    return [pull for chain in plan.chains for pull in _of_chain(chain, num_layers)]


def _of_chain(chain: Chain, num_layers: int) -> Iterator[Pull]:
    medium = chain.sources[0].medium
    heads = [s.devices[0] if s.medium is Medium.GPU else s.node for s in chain.sources]
    owners = {device: s.devices[0] for s in chain.sources for device in s.devices}
    for hop in chain.hops:
        yield from _of_hop(hop, medium, heads, owners, num_layers)
        medium = Medium.GPU
        heads = [target.devices[0] for target in hop.targets]
        owners = {device: target.devices[0] for target in hop.targets for device in target.devices}


def _of_hop(
    hop: Hop, medium: Medium, heads: Sequence[int], owners: dict[int, int], num_layers: int
) -> Iterator[Pull]:
    every = tuple(range(num_layers))
    wired = [target for target in hop.targets if _sender(hop, target) is not None]
    for i, target in enumerate(hop.targets):
        sender = _sender(hop, target)
        from_ = heads[i % len(heads)] if sender is None else owners.get(sender, heads[0])
        if not wired:
            yield Pull(target.name, every, medium, from_)
            continue
        for j, other in enumerate(wired):
            part = every[j :: len(wired)]
            if other is target:
                yield Pull(target.name, part, medium, from_)
            elif part:
                yield Pull(target.name, part, Medium.GPU, other.devices[0])


def _sender(hop: Hop, target: Target) -> int | None:
    """The GPU whose NIC sends to the target; None: the hop crosses no network."""
    return next((lane.sender for lane in hop.lanes if lane.receiver in target.devices), None)
