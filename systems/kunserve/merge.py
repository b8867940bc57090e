"""Which layers each member keeps when groups merge (§4.1; the paper only halves a model).

A drop is instant because it loads nothing: a member keeps a part of what it holds. If two groups of
two merge, two members can only keep early layers and two members only late ones. The split is
chosen whose largest stage has the fewest layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from systems.kunserve.group import Group, Stage, alone

Shape = tuple[range, ...]  # a group without names: what each member holds


class Kept(NamedTuple):
    """What one member keeps."""

    group: int  # index of its group before
    stage: int  # index of its stage there
    layers: range


def merge(groups: Sequence[Group]) -> Group | None:
    """Makes one group of all members of `groups`, each with at least one layer.

    None if that needs a load, because two members hold the same single layer.
    """
    kept = split(tuple(tuple(stage.layers for stage in group) for group in groups))
    if kept is None:
        return None
    return tuple(Stage(groups[k.group][k.stage].member, k.layers) for k in kept)


def equal_groups(instances: Sequence[str], size: int, num_layers: int) -> list[Group]:
    """Instances with all parameters, in order, in groups of `size`. Raises ValueError unless `size`
    divides their number and is at most the number of layers."""
    most = min(len(instances), num_layers)
    valid = [k for k in range(1, most + 1) if len(instances) % k == 0]
    if size not in valid:
        raise ValueError(
            f"{len(instances)} instances of {num_layers} layers cannot form groups of {size}; "
            f"valid: {', '.join(map(str, valid))}"
        )
    found = []
    for first in range(0, len(instances), size):
        group = merge([alone(name, num_layers) for name in instances[first : first + size]])
        assert group is not None, "whole instances always merge"
        found.append(group)
    return found


@lru_cache(maxsize=4096)
def split(shapes: tuple[Shape, ...]) -> tuple[Kept, ...] | None:
    """Does `merge` without names: for every stage of the result, whose it was and what it keeps."""
    num_layers = shapes[0][-1].stop
    num_members = sum(len(shape) for shape in shapes)
    for most in range(-(-num_layers // num_members), num_layers + 1):
        reached = _reachable(shapes, most)
        end = tuple(len(shape) for shape in shapes)
        if reached.get(end, 0) >> num_layers & 1:
            return _path(shapes, reached, most, num_layers)
    return None


State = tuple[int, ...]  # how many stages of each group stand in the new pipeline


def _reachable(shapes: tuple[Shape, ...], most: int) -> dict[State, int]:
    """{state: the layers, as bits, before which the pipeline so far can end}.

    No stage has more than `most` layers. The members of one group keep their order.
    """
    start = (0,) * len(shapes)
    reached = {start: 1}
    frontier = [start]
    while frontier:
        following: dict[State, None] = {}
        for state in frontier:
            for group in _next_groups(shapes, state):
                held = shapes[group][state[group]]
                ends = _ends(reached[state], held, most)
                if ends:
                    after = _moved(state, group, 1)
                    reached[after] = reached.get(after, 0) | ends
                    following[after] = None
        frontier = list(following)
    return reached


def _next_groups(shapes: tuple[Shape, ...], state: State) -> list[int]:
    """Groups with a stage left. Groups of one shape are interchangeable, so not all their orders
    are tried: an earlier group never lags behind."""
    return [
        i
        for i, shape in enumerate(shapes)
        if state[i] < len(shape)
        and not any(shapes[j] == shape and state[j] <= state[i] for j in range(i))
    ]


def _moved(state: State, group: int, by: int) -> State:
    return tuple(count + by * (i == group) for i, count in enumerate(state))


def _ends(starts: int, held: range, most: int) -> int:
    """The places, as bits, where a stage can end that is inside `held` and begins at one of
    `starts`."""
    starts &= (1 << held.stop) - (1 << held.start)
    ends = 0
    for size in range(1, most + 1):
        ends |= starts << size
    return ends & ((1 << held.stop + 1) - 1)


def _path(
    shapes: tuple[Shape, ...], reached: dict[State, int], most: int, num_layers: int
) -> tuple[Kept, ...]:
    """The stages, found backwards from the end. Each takes as nearly as possible an equal share of
    the layers before its end."""
    state, stop = tuple(len(shape) for shape in shapes), num_layers
    kept: list[Kept] = []
    while stop:
        ideal = stop / sum(state)
        options = [
            (abs(stop - start - ideal), group, start)
            for group in range(len(shapes))
            if state[group]
            for before in [_moved(state, group, -1)]
            for held in [shapes[group][state[group] - 1]]
            if held.stop >= stop and group in _next_groups(shapes, before)
            for start in range(max(held.start, stop - most), stop)
            if reached.get(before, 0) >> start & 1
        ]
        _, group, start = min(options)
        kept.append(Kept(group, state[group] - 1, range(start, stop)))
        state = _moved(state, group, -1)
        stop = start
    return tuple(reversed(kept))
