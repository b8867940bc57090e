"""What a placement and its matching come to for a run: which consumers borrow of which lender, node
by node, as `system.pairs` has them. Pure.

The placer matches shard by shard, so that a model's shards may have producers of several models. A
run has a consumer borrow of one lender: such a model is left over, as is one without a producer.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from systems.aqua.placer.assignment import ModelType
from systems.aqua.placer.matching import Shard, match


class Left(NamedTuple):
    """A model that is in no pair."""

    model: str
    node: int
    reason: str


@dataclass(slots=True)
class Placed:
    pairs: list[dict[str, Any]] = field(default_factory=list)  # as `system.pairs`
    left: list[Left] = field(default_factory=list)


def placed(
    counts: Sequence[Sequence[int]], types: Sequence[ModelType], generators: Collection[str]
) -> Placed:
    """`counts[s][t]`: models of type t on server s. `generators`: names of those that make images
    or audio, which a run does not serve."""
    found = Placed()
    for node, row in enumerate(counts):
        models = [each for each, number in zip(types, row, strict=True) for _ in range(number)]
        matched = match(models)
        borrowing: dict[int, list[str]] = {}  # consumers' names by lender, counted from 0
        for consumer, each in enumerate(models):
            if each.memory_bytes >= 0:
                continue
            producers = [matched.get(Shard(consumer, k)) for k in range(each.shards)]
            lenders = sorted({shard.model for shard in producers if shard is not None})
            if None in producers:
                reason = "not all of its shards have a producer"
            elif len(lenders) > 1:
                reason = "its shards have producers of several models"
            elif models[lenders[0]].name in generators:
                reason = f"its producer {models[lenders[0]].name} makes images or audio"
            else:
                borrowing.setdefault(lenders[0], []).append(each.name)
                continue
            found.left.append(Left(each.name, node, reason))
        for lender, names in sorted(borrowing.items()):
            who: dict[str, Any] = {"consumers": names} if names[1:] else {"consumer": names[0]}
            found.pairs.append({**who, "lender": models[lender].name, "node": node})
        found.left += [
            Left(each.name, node, "nobody borrows of it")
            for lender, each in enumerate(models)
            if each.memory_bytes >= 0 and lender not in borrowing
        ]
    return found
