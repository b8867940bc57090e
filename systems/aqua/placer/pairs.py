"""What a placement and its matching come to for a run: which consumers borrow of which lender, node
by node, as `system.pairs` has them. Pure.

The placer matches shard by shard, so that a model's shards may have producers of several models
(section 9.3: those of Llama-3.1-70B have Llama-3.1-8B and AudioGen). A run has a consumer borrow of
one lender that serves, or of `lenders`, of which each is its alone. What fits neither is left over,
as is a model without a producer.
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
    or audio, which a run does not serve: they lend alone."""
    found = Placed()
    for node, row in enumerate(counts):
        models = [each for each, number in zip(types, row, strict=True) for _ in range(number)]
        matched = match(models)
        borrowing: dict[int, list[str]] = {}  # consumers' names by lender, counted from 0
        lending: set[int] = set()  # lenders of one consumer that has several, or that serve nothing
        borrowers: dict[int, set[int]] = {}
        for shard, producer in matched.items():
            borrowers.setdefault(producer.model, set()).add(shard.model)
        for consumer, each in enumerate(models):
            if each.memory_bytes >= 0:
                continue
            producers = [matched.get(Shard(consumer, k)) for k in range(each.shards)]
            lenders = list(dict.fromkeys(shard.model for shard in producers if shard is not None))
            own = [models[k] for k in lenders if borrowers[k] == {consumer}]
            if None in producers:
                reason = "not all of its shards have a producer"
            elif len(lenders) == 1 and models[lenders[0]].name not in generators:
                borrowing.setdefault(lenders[0], []).append(each.name)
                continue
            elif len(own) < len(lenders) or sum(one.shards for one in own) != each.shards:
                reason = "a producer of its shards has other devices or other consumers"
            else:
                told = [_lender(one, generators) for one in own]
                found.pairs.append({"consumer": each.name, "lenders": told, "node": node})
                lending.update(lenders)
                continue
            found.left.append(Left(each.name, node, reason))
        for lender, names in sorted(borrowing.items()):
            who: dict[str, Any] = {"consumers": names} if names[1:] else {"consumer": names[0]}
            found.pairs.append({**who, "lender": models[lender].name, "node": node})
        found.left += [
            Left(each.name, node, "nobody borrows of it")
            for lender, each in enumerate(models)
            if each.memory_bytes >= 0 and lender not in borrowing and lender not in lending
        ]
    return found


def _lender(model: ModelType, generators: Collection[str]) -> dict[str, Any]:
    """One of a pair's lenders, with what its profile says that it can lend."""
    told: dict[str, Any] = {"model": model.name, "free_bytes": model.memory_bytes}
    return told if model.name not in generators else {**told, "serves": False}
