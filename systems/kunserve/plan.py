"""Which instances form groups, so that enough memory is freed (§4.1, Algorithm 1, Fig. 16).

There are three strategies of the preprint, and the published code's fixed groups. All merge groups
that exist; no strategy takes a group apart. Plans start from what a death leaves (`recover`, §4.3).
Pure functions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, combinations
from typing import NamedTuple

from harness.model_spec import ModelSpec
from systems.kunserve.group import Group, Stage, dropped_bytes, members
from systems.kunserve.merge import merge

Throughput = Callable[[int], float]  # Thpt_g of §4.1: number of instances -> throughput of a group

EXHAUSTIVE_LIMIT = 8  # groups; there are 4,140 ways to merge eight


@dataclass(slots=True, frozen=True)
class Plan:
    """The groups to be, and what they free."""

    groups: tuple[Group, ...]
    freed_bytes: int  # bytes freed beyond what was dropped before
    short_bytes: int  # bytes required but not freed; above 0: nothing more can be dropped


def throughput_greedy(
    groups: Sequence[Group], required_bytes: int, model: ModelSpec, max_size: int | None = None
) -> Plan:
    """Algorithm 1: merges the two smallest groups until `required_bytes` (R) are free.

    Line 2's "reverse group size" is read as smallest first, as the text says. Among equals the
    first group is taken. If two groups cannot merge without a load (`merge`), or would have more
    than `max_size` instances, the next larger group is tried.
    """
    found = [_Entry(len(group), place, group, (group,)) for place, group in enumerate(groups)]
    before = dropped_bytes(model, groups)
    while dropped_bytes(model, (entry.group for entry in found)) - before < required_bytes:
        for first, second in combinations(sorted(found), 2):
            parts = (*first.parts, *second.parts)
            group = merge(parts) if _allowed(first.size + second.size, max_size) else None
            if group is not None:
                found.remove(first)
                found.remove(second)
                found.append(_Entry(len(group), min(first.place, second.place), group, parts))
                break
        else:
            break
    merged = [entry.group for entry in sorted(found, key=lambda entry: entry.place)]
    return _plan(groups, merged, required_bytes, model)


class _Entry(NamedTuple):
    size: int
    place: int  # place of the first of `parts` in line; differs between entries
    group: Group
    parts: tuple[Group, ...]  # the groups that it is merged from: what its members hold


def memory_greedy(
    groups: Sequence[Group],
    required_bytes: int,
    model: ModelSpec,
    kv_bytes: int,
    max_size: int | None = None,
) -> Plan:
    """Puts as many instances as possible in one group, until the freed memory exceeds `kv_bytes`
    (§4.1) or the next would have more than `max_size` instances.

    kv_bytes: the original KV region of all instances. required_bytes: only for `Plan.short_bytes`.
    """
    found = list(groups)
    before = dropped_bytes(model, groups)
    for count in range(2, len(groups) + 1):
        merged = merge(groups[:count])
        if merged is None or not _allowed(len(merged), max_size):
            break
        if dropped_bytes(model, found) - before > kv_bytes:
            break
        found = [merged, *groups[count:]]
    return _plan(groups, found, required_bytes, model)


def exhaustive(
    groups: Sequence[Group],
    required_bytes: int,
    model: ModelSpec,
    throughput: Throughput,
    max_size: int | None = None,
) -> Plan:
    """Finds, of all ways to merge `groups` into groups of at most `max_size` instances that free
    `required_bytes`, the one with the least `cost`.

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
        if not all(_allowed(len(g), max_size) for g in found if g not in groups):
            continue
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


def fixed_groups(groups: Sequence[Group], parts: Sequence[Sequence[str]], model: ModelSpec) -> Plan:
    """Groups that are set beforehand: each of `parts` merges if all its instances are alone.

    So are the published code's, of one size. Fig. 16's search for the optimum runs each
    configuration so.
    """
    found = list(groups)
    for part in parts:
        alone = [group for group in found if len(group) == 1 and group[0].member in part]
        merged = merge(alone) if len(alone) == len(part) > 1 else None
        if merged is not None:
            found[found.index(alone[0])] = merged
            found = [group for group in found if group not in alone]
    return _plan(groups, found, 0, model)


def in_parts(instances: Sequence[str], sizes: Sequence[int]) -> list[Sequence[str]]:
    """The instances, in order, in parts of these sizes."""
    ends = list(accumulate(sizes))
    return [instances[end - size : end] for end, size in zip(ends, sizes, strict=True)]


def _allowed(size: int, max_size: int | None) -> bool:
    return max_size is None or size <= max_size


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


def recover(groups: Sequence[Group], dead: str) -> list[Group]:
    """The groups without `dead` (§4.3, fault tolerance). Each is a full copy once its members have
    loaded what they lack.

    "We re-plan parameters globally once a failure is detected. By replicating parameters in host
    DRAM, we can always ensure successful parameter restoration." The paper says no more. Here
    survivors close the gap with the fewest layers loaded, and the next plan starts from there.

    The dead member's layers go to its two neighbours in the pipeline, so that these are as equally
    long as possible. An instance that was alone leaves no gap.
    """
    after = []
    for group in groups:
        if dead not in members(group):
            after.append(group)
        elif len(group) > 1:
            after.append(_closed(group, members(group).index(dead)))
    return after


def _closed(group: Group, place: int) -> Group:
    stages = list(group)
    gap = stages.pop(place).layers
    before, behind = stages[:place], stages[place:]
    cut = gap.stop if before else gap.start
    if before and behind:
        middle = (before[-1].layers.start + behind[0].layers.stop) // 2
        cut = min(max(middle, gap.start), gap.stop)
    if before:
        before[-1] = Stage(before[-1].member, range(before[-1].layers.start, cut))
    if behind:
        behind[0] = Stage(behind[0].member, range(cut, behind[0].layers.stop))
    return (*before, *behind)
