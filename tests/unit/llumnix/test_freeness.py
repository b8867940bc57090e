"""Virtual usage, freeness and dispatch."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from systems.kunserve.instance_load import InstanceLoad, Running
from systems.llumnix.freeness import artifact_load, freeness, least_loaded


def load(
    name: str = "a", used: list[int] | None = None, queued: list[int] | None = None
) -> InstanceLoad:
    running = [Running(k, blocks) for k, blocks in enumerate(used or [])]
    return InstanceLoad(name, 100, running, queued or [])


def test_freeness_is_what_is_left_for_each_request_of_the_batch() -> None:
    assert freeness(load(used=[30, 20])) == 25
    assert freeness(load()) == 100
    assert freeness(load(used=[30, 20], queued=[60, 500])) == -5  # of the queue, its first alone


def test_the_codes_load_counts_the_whole_queue() -> None:
    assert artifact_load(load(used=[30, 20], queued=[10, 20])) == -20 / 4
    assert artifact_load(load(used=[30, 20], queued=[60, 20])) == 30 / 4
    assert artifact_load(load()) == -inf


loads = st.lists(
    st.tuples(st.lists(st.integers(1, 20), max_size=6), st.lists(st.integers(1, 50), max_size=3)),
    min_size=1,
    max_size=6,
)


@settings(deadline=None)
@given(parts=loads)
def test_dispatch_finds_the_least_loaded(parts: list[tuple[list[int], list[int]]]) -> None:
    every = [load(f"i{k}", used, queued) for k, (used, queued) in enumerate(parts)]
    chosen = least_loaded(every)
    least = min(artifact_load(each) for each in every)
    assert next(artifact_load(e) for e in every if e.name == chosen) == pytest.approx(least)


def test_requests_that_come_at_once_are_spread() -> None:
    """The queue's first alone would have all of them go to one instance."""
    queues: dict[str, list[int]] = {"a": [], "b": [], "c": []}
    for _ in range(9):
        queues[least_loaded([load(n, [10], queue) for n, queue in queues.items()])].append(5)
    assert [len(queue) for queue in queues.values()] == [3, 3, 3]
