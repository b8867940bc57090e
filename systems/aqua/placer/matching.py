"""Producers to consumers within a server, one to one (section 5): stable matching. Pure.

The paper names no preferences. Here a consumer prefers the producer that covers most of its need;
among equals, the one with the least to spare. A producer prefers the consumer that takes most of
what it lends. Consumers propose (Gale and Shapley). Ties go to the first in the input.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from systems.aqua.placer.assignment import ModelType

C = TypeVar("C", bound=Hashable)  # consumers
P = TypeVar("P", bound=Hashable)  # producers


class Shard(NamedTuple):
    """One shard of a model on a server."""

    model: int  # index among the server's models
    shard: int  # index among the model's shards


def match(models: Sequence[ModelType]) -> dict[Shard, Shard]:
    """{consuming shard: its producing shard}, for the models of one server.

    A consuming shard without a producer is left out. Shards are matched one by one: the shards of a
    model may have producers of different models (section 9.3).
    """
    lends = {
        Shard(i, j): each.memory_bytes for i, each in enumerate(models) for j in range(each.shards)
    }
    needs = {shard: -size for shard, size in lends.items()}
    return stable_matching(*preferences(lends, needs))


def preferences(
    lends_bytes: Mapping[P, int], needs_bytes: Mapping[C, int]
) -> tuple[dict[C, list[P]], dict[P, list[C]]]:
    """({consumer: producers, best first}, {producer: consumers, best first}).

    Producers that lend nothing and consumers that need nothing are left out.
    """
    lends = {name: size for name, size in lends_bytes.items() if size > 0}
    needs = {name: size for name, size in needs_bytes.items() if size > 0}
    of_consumers = {
        consumer: sorted(lends, key=lambda p: (-min(lends[p], need), lends[p]))
        for consumer, need in needs.items()
    }
    of_producers = {
        producer: sorted(needs, key=lambda c: -min(needs[c], lent))
        for producer, lent in lends.items()
    }
    return of_consumers, of_producers


def stable_matching(
    of_consumers: Mapping[C, Sequence[P]], of_producers: Mapping[P, Sequence[C]]
) -> dict[C, P]:
    """{consumer: its producer}; consumers without a producer are left out and page to DRAM."""
    consumer_of: dict[P, C] = {}
    proposals = {consumer: iter(order) for consumer, order in of_consumers.items()}
    free = deque(of_consumers)
    while free:
        consumer = free.popleft()
        producer = next(proposals[consumer], None)
        if producer is not None:
            rivals = {consumer, consumer_of.get(producer, consumer)}
            best, *others = sorted(rivals, key=of_producers[producer].index)
            consumer_of[producer] = best
            free.extendleft(others)
    return {consumer: producer for producer, consumer in consumer_of.items()}
