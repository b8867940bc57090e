"""Buddy groups (§4.1): instances that together hold one full copy of the model.

A group is its pipeline: which member holds which layers, stage by stage. Plain data.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import NamedTuple

from harness.elastic.device_layout import layer_weight_bytes
from harness.model_spec import ModelSpec


class Stage(NamedTuple):
    """One member's part of a pipeline; also a place of KV: which layers at which member."""

    member: str  # the instance's name
    layers: range  # the member holds their weights, and their KV of new requests


Group = tuple[Stage, ...]  # in pipeline order: the first stage has layer 0


def alone(member: str, num_layers: int) -> Group:
    """An instance with all parameters: "each instance operates as its own buddy group"."""
    return (Stage(member, range(num_layers)),)


def members(group: Group) -> list[str]:
    """Names, in pipeline order."""
    return [stage.member for stage in group]


def names(groups: Iterable[Group]) -> set[str]:
    """All members of `groups`."""
    return {stage.member for group in groups for stage in group}


@cache
def shard_bytes(model: ModelSpec, layers: range) -> int:
    """Bytes of the weights of `layers` on one instance, all its devices together."""
    return model.tp * sum(layer_weight_bytes(model, layer) for layer in layers)


def dropped_bytes(model: ModelSpec, groups: Iterable[Group]) -> int:
    """Bytes of a full copy of the model (P) that members of `groups` do not hold, summed over
    members: (members - 1)·P for a group (§4.1)."""
    whole = shard_bytes(model, range(model.num_layers))
    return sum(whole - shard_bytes(model, stage.layers) for group in groups for stage in group)
