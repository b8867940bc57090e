"""Which instances form groups, so that enough memory is freed (§4.1, Algorithm 1, Fig. 16).

There are three strategies of the preprint, and the published code's fixed groups. All merge groups
that exist; no strategy takes a group apart. Pure functions.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from harness.model_spec import ModelSpec
from systems.kunserve.group import Group, alone, dropped_bytes
from systems.kunserve.merge import equal_groups, merge

Throughput = Callable[[int], float]  # Thpt_g of §4.1: number of instances -> throughput of a group

EXHAUSTIVE_LIMIT = 8  # groups; there are 4,140 ways to merge eight


@dataclass(slots=True, frozen=True)
class Plan:
    """The groups to be, and what they free."""

    groups: tuple[Group, ...]
    freed_bytes: int  # beyond what was dropped before
    short_bytes: int  # required but not freed; above 0: nothing more can be dropped


def throughput_greedy(groups: Sequence[Group], required_bytes: int, model: ModelSpec) -> Plan:
    """Algorithm 1: merges the two smallest groups until `required_bytes` (R) are free.

    Line 2's "reverse group size" is read as smallest first, as the text says. Among equals the
    first group is taken. If two groups cannot merge without a load (`merge`), the next larger group
    is tried.
    """
    heap = [_Entry(len(group), index, group, (group,)) for index, group in enumerate(groups)]
    heapq.heapify(heap)
    before = dropped_bytes(model, groups)
    while dropped_bytes(model, (entry.group for entry in heap)) - before < required_bytes:
        merged = _merge_smallest(heap)
        if merged is None:
            break
        heapq.heappush(heap, merged)
    found = [entry.group for entry in sorted(heap, key=lambda entry: entry.place)]
    return _plan(groups, found, required_bytes, model)


class _Entry(NamedTuple):
    size: int
    place: int  # of the first of `parts` in line; differs between entries
    group: Group
    parts: tuple[Group, ...]  # the groups that it is merged from: what its members hold


def _merge_smallest(heap: list[_Entry]) -> _Entry | None:
    """Removes from `heap` the two smallest groups that can merge, and returns the merged one. None,
    and no change, if no two can."""
    ranked = sorted(heap)
    for i, first in enumerate(ranked):
        for second in ranked[i + 1 :]:
            parts = (*first.parts, *second.parts)
            group = merge(parts)
            if group is not None:
                heap.remove(first)
                heap.remove(second)
                heapq.heapify(heap)
                return _Entry(len(group), min(first.place, second.place), group, parts)
    return None


def memory_greedy(
    groups: Sequence[Group], required_bytes: int, model: ModelSpec, kv_bytes: int
) -> Plan:
    """§4.1: as many instances as possible in one group, until the freed memory exceeds `kv_bytes`.

    kv_bytes: the original KV region of all instances. required_bytes: only for `Plan.short_bytes`.
    """
    found = list(groups)
    before = dropped_bytes(model, groups)
    for count in range(2, len(groups) + 1):
        merged = merge(groups[:count])
        if merged is None or dropped_bytes(model, found) - before > kv_bytes:
            break
        found = [merged, *groups[count:]]
    return _plan(groups, found, required_bytes, model)


def exhaustive(
    groups: Sequence[Group], required_bytes: int, model: ModelSpec, throughput: Throughput
) -> Plan:
    """Of all ways to merge `groups` that free `required_bytes`, the one with the least `cost`.

    If no way frees enough, the one that frees the most. This is Fig. 16's optimum: eight equal
    instances have 22 partitions. Raises ValueError for more than eight groups.
    """
    if len(groups) > EXHAUSTIVE_LIMIT:
        raise ValueError(
            f"{len(groups)} groups are too many for an exhaustive plan; valid: 1 to "
            f"{EXHAUSTIVE_LIMIT}"
        )
    best: tuple[tuple[float, float], Plan] | None = None
    for found in _merged(groups):
        plan = _plan(groups, found, required_bytes, model)
        rank = float(plan.short_bytes), cost([len(g) for g in found], throughput)
        if best is None or rank < best[0]:
            best = rank, plan
    assert best is not None, "doing nothing is one of the ways"
    return best[1]


def cost(sizes: Sequence[int], throughput: Throughput) -> float:
    """§4.1's Cost: the throughput of all instances alone, over the throughput of the groups.

    sizes: instances of each group. At least 1 if a pipeline is slower than its members alone.
    """
    return throughput(1) * sum(sizes) / sum(throughput(size) for size in sizes)


def profiled_throughput(step_s: float, hop_s: float) -> Throughput:
    """Thpt_g from a profile, in micro-batches per second; the paper measures it.

    A stage takes its share of a decode step (`step_s`), then its activations' time on the link
    (`hop_s`).
    """

    def of(size: int) -> float:
        return 1 / (step_s / size + (hop_s if size > 1 else 0.0))

    return of


def fixed_groups(instances: Sequence[str], group_size: int, model: ModelSpec) -> Plan:
    """The published code's plan: groups of one size, set at launch; all groups drop together.

    Raises ValueError if the size does not divide the number of instances.
    """
    found = equal_groups(instances, group_size, model.num_layers)
    return _plan([alone(name, model.num_layers) for name in instances], found, 0, model)


def _plan(
    before: Sequence[Group], after: Sequence[Group], required_bytes: int, model: ModelSpec
) -> Plan:
    freed = dropped_bytes(model, after) - dropped_bytes(model, before)
    return Plan(tuple(after), freed, max(0, required_bytes - freed))


def _merged(groups: Sequence[Group]) -> Iterator[list[Group]]:
    """Every way to merge `groups`; groups with the same stages are interchangeable."""
    seen = set()
    for parts in _set_partitions(len(groups)):
        kind = tuple(sorted(tuple(sorted(_shape(groups[i]) for i in part)) for part in parts))
        if kind in seen:
            continue
        seen.add(kind)
        merged = [merge([groups[i] for i in part]) for part in parts]
        if all(group is not None for group in merged):
            yield [group for group in merged if group is not None]


def _shape(group: Group) -> tuple[tuple[int, int], ...]:
    return tuple((stage.layers.start, stage.layers.stop) for stage in group)


def _set_partitions(count: int) -> Iterator[list[list[int]]]:
    if count == 0:
        yield []
        return
    last = count - 1
    for parts in _set_partitions(last):
        for k in range(len(parts)):
            yield [[*part, last] if i == k else list(part) for i, part in enumerate(parts)]
        yield [*(list(part) for part in parts), [last]]
