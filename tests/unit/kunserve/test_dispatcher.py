"""Redistribution: nobody is lost, no target gets more than it can run, order is kept."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from systems.kunserve.dispatcher import (
    Load,
    Queued,
    Target,
    in_order,
    least_loaded,
    redistribute,
)


def test_overflow_goes_to_who_has_seats() -> None:
    queue = [Queued(k, float(k), 10) for k in range(5)]
    full = Target("a", free_seats=2, free_tokens=1000, batch_tokens=999, queue=queue)
    spare, busy = Target("b", 2, 1000, 999), Target("c", 1, 1000, 999)
    found = redistribute([full, spare, busy])
    assert {name: [q.request_id for q in part] for name, part in found.queues.items()} == {
        "a": [0, 1],
        "b": [2, 4],
        "c": [3],
    }
    assert not found.held


def test_what_is_over_a_batch_goes_elsewhere() -> None:
    """A drop gives memory, not computing power: prompts that wait for it go to who is idle."""
    queue = [Queued(k, float(k), 60) for k in range(4)]
    dropped = Target("a+b", 200, 10_000, batch_tokens=100, queue=queue)
    found = redistribute([dropped, Target("c", 9, 200, 100)])
    assert [q.request_id for q in found.queues["a+b"]] == [0, 1]
    assert [q.request_id for q in found.queues["c"]] == [2, 3]


def test_equal_instances_are_told_apart_by_free_memory_for_each_request() -> None:
    few, many = Load("a", 1, 100, 60, 4, 0, 99), Load("b", 1, 100, 60, 8, 0, 99)
    assert least_loaded([many, few]) == "a"
    assert least_loaded([few, Load("c", 1, 100, 0, 0, 0, 99)]) == "c"


def test_a_group_that_has_dropped_does_not_draw_every_request() -> None:
    """Seven times the memory and twice the members: by bytes it would be the freer until it had
    seven times the requests."""
    alone = Load("a", 1, 100, 70, 10, 0, 100)
    group = Load("b+c", 2, 700, 140, 20, 0, 200)
    assert least_loaded([alone, group]) == "b+c"
    assert least_loaded([alone, group._replace(wanted_blocks=350, requests=50)]) == "a"
    queued = group._replace(lacking_tokens=201)
    assert least_loaded([alone, queued]) == "a"
    assert least_loaded([alone._replace(lacking_tokens=102), queued]) == "b+c"


def test_memory_counts_and_the_first_without_room_stops_the_rest() -> None:
    queue = [Queued(0, 0, 500), Queued(1, 1, 10)]
    found = redistribute([Target("a", 0, 1000, 999, queue), Target("b", 9, 100, 999)])
    assert found.queues == {"a": [], "b": []}
    assert [q.request_id for q in found.held] == [0, 1]


def test_the_important_go_first() -> None:
    queue = [Queued(0, 0, 1), Queued(1, 1, 1, priority=3), Queued(2, 0.5, 1)]
    assert [q.request_id for q in in_order(queue)] == [1, 0, 2]
    found = redistribute([Target("a", 0, 9, 9, queue), Target("b", 1, 9, 9)])
    assert [q.request_id for q in found.queues["b"]] == [1]


queued = st.builds(
    Queued, st.integers(0, 10**6), st.floats(0, 9), st.integers(1, 50), st.integers(0, 2)
)
targets_of = st.lists(
    st.tuples(
        st.integers(-3, 5), st.integers(0, 150), st.integers(-20, 150), st.lists(queued, max_size=6)
    ),
    min_size=1,
    max_size=5,
)


@settings(deadline=None)
@given(parts=targets_of)
def test_nobody_is_lost_and_no_target_is_overfull(
    parts: list[tuple[int, int, int, list[Queued]]],
) -> None:
    targets, number = [], 0
    for k, (seats, tokens, batch, queue) in enumerate(parts):
        named = [q._replace(request_id=number + i) for i, q in enumerate(queue)]
        number += len(queue)
        targets.append(Target(f"t{k}", seats, tokens, batch, named))
    found = redistribute(targets)
    every = [q for part in found.queues.values() for q in part] + found.held
    assert sorted(q.request_id for q in every) == list(range(number))
    for target in targets:
        part = found.queues[target.name]
        assert len(part) <= max(0, target.free_seats)
        assert sum(q.kv_tokens for q in part) <= max(0, target.free_tokens)
        sizes = sorted(q.kv_tokens for q in part)
        assert not sizes or sum(sizes[:-1]) < target.batch_tokens
        assert part == in_order(part)
    assert found.held == in_order(found.held)
    if found.held:  # the first has room nowhere
        first = found.held[0]
        for target in targets:
            part = found.queues[target.name]
            placed = sum(q.kv_tokens for q in part)
            full = len(part) >= target.free_seats or placed >= target.batch_tokens
            assert full or target.free_tokens - placed < first.kv_tokens
