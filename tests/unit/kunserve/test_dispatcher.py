"""Redistribution: nobody is lost, no target gets more than it can run, order is kept."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from harness.request import Request
from systems.kunserve.dispatcher import Target, by_importance, dispatch_load, redistribute
from systems.serving.load import Load


def queued(number: int, arrival_s: float, tokens: int, priority: int = 0) -> Request:
    return Request(number, arrival_s, "m", tokens, 1, priority=priority)


def load(
    name: str, members: int, total: int, wanted: int, requests: int, lacking: int, batch: int
) -> Load:
    return Load(
        name, total, wanted, requests, members=members, lacking_tokens=lacking, batch_tokens=batch
    )


def least_loaded(loads: list[Load]) -> str:
    return min(loads, key=dispatch_load).name


def ids(queue: list[Request]) -> list[int]:
    return [request.request_id for request in queue]


def test_overflow_goes_to_who_has_seats() -> None:
    queue = [queued(k, float(k), 10) for k in range(5)]
    full = Target(free_seats=2, free_tokens=1000, batch_tokens=999, queue=queue)
    spare, busy = Target(2, 1000, 999), Target(1, 1000, 999)
    assert not redistribute([full, spare, busy])
    assert [ids(target.queue) for target in (full, spare, busy)] == [[0, 1], [2, 4], [3]]


def test_what_is_over_a_batch_goes_elsewhere() -> None:
    """A drop gives memory, not computing power: prompts that wait for it go to who is idle."""
    queue = [queued(k, float(k), 60) for k in range(4)]
    dropped, idle = Target(200, 10_000, batch_tokens=100, queue=queue), Target(9, 200, 100)
    redistribute([dropped, idle])
    assert ids(dropped.queue) == [0, 1]
    assert ids(idle.queue) == [2, 3]


def test_equal_instances_are_told_apart_by_free_memory_for_each_request() -> None:
    few, many = load("a", 1, 100, 60, 4, 0, 99), load("b", 1, 100, 60, 8, 0, 99)
    assert least_loaded([many, few]) == "a"
    assert least_loaded([few, load("c", 1, 100, 0, 0, 0, 99)]) == "c"


def test_a_group_that_has_dropped_does_not_draw_every_request() -> None:
    """Seven times the memory and twice the members: by bytes it would be the freer until it had
    seven times the requests."""
    alone = load("a", 1, 100, 70, 10, 0, 100)
    group = load("b+c", 2, 700, 140, 20, 0, 200)
    assert least_loaded([alone, group]) == "b+c"
    assert least_loaded([alone, load("b+c", 2, 700, 350, 50, 0, 200)]) == "a"
    full = replace(group, lacking_tokens=201)
    assert least_loaded([alone, full]) == "a"
    assert least_loaded([replace(alone, lacking_tokens=102), full]) == "b+c"


def test_memory_counts_and_the_first_without_room_stops_the_rest() -> None:
    queue = [queued(0, 0, 500), queued(1, 1, 10)]
    full, small = Target(0, 1000, 999, queue), Target(9, 100, 999)
    assert ids(redistribute([full, small])) == [0, 1]
    assert not full.queue
    assert not small.queue


def test_the_important_go_first() -> None:
    queue = [queued(0, 0, 1), queued(1, 1, 1, priority=3), queued(2, 0.5, 1)]
    assert ids(by_importance(queue)) == [1, 0, 2]
    other = Target(1, 9, 9)
    redistribute([Target(0, 9, 9, queue), other])
    assert ids(other.queue) == [1]


queues = st.lists(st.tuples(st.floats(0, 9), st.integers(1, 50), st.integers(0, 2)), max_size=6)
targets_of = st.lists(
    st.tuples(
        st.integers(-3, 5),
        st.integers(0, 150),
        st.integers(-20, 150),
        queues,
    ),
    min_size=1,
    max_size=5,
)


@settings(deadline=None)
@given(parts=targets_of)
def test_nobody_is_lost_and_no_target_is_overfull(
    parts: list[tuple[int, int, int, list[tuple[float, int, int]]]],
) -> None:
    targets, number = [], 0
    for seats, tokens, batch, queue in parts:
        named = [queued(number + i, *each) for i, each in enumerate(queue)]
        number += len(queue)
        targets.append(Target(seats, tokens, batch, named))
    before = [replace(target) for target in targets]
    held = redistribute(targets)
    every = [request for target in targets for request in target.queue] + held
    assert sorted(ids(every)) == list(range(number))
    for was, target in zip(before, targets, strict=True):
        part = target.queue
        assert len(part) <= max(0, was.free_seats)
        assert sum(r.known_tokens for r in part) <= max(0, was.free_tokens)
        sizes = sorted(r.known_tokens for r in part)
        assert not sizes or sum(sizes[:-1]) < was.batch_tokens
        assert part == by_importance(part)
    assert held == by_importance(held)
    if held:  # the first has room nowhere
        for was, target in zip(before, targets, strict=True):
            placed = sum(r.known_tokens for r in target.queue)
            full = len(target.queue) >= was.free_seats or placed >= was.batch_tokens
            assert full or was.free_tokens - placed < held[0].known_tokens
