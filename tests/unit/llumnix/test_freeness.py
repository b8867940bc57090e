"""Virtual usage, freeness and dispatch."""

from __future__ import annotations

from collections import deque
from math import inf
from typing import Any

from systems.kunserve.group_manager import GroupManager
from systems.llumnix.freeness import artifact_load, freeness
from systems.serving.load import Load


def load(name: str = "a", used: list[int] | None = None, queued: list[int] | None = None) -> Load:
    used = used or []
    queued = queued or []
    return Load(name, 100, sum(used), len(used), len(queued), sum(queued), sum(queued[:1]))


def test_freeness_is_what_is_left_for_each_request_of_the_batch() -> None:
    assert freeness(load(used=[30, 20])) == 25
    assert freeness(load()) == 100
    assert freeness(load(used=[30, 20], queued=[60, 500])) == -5  # of the queue, its first alone


def test_the_codes_load_counts_the_whole_queue() -> None:
    assert artifact_load(load(used=[30, 20], queued=[10, 20])) == -20 / 4
    assert artifact_load(load(used=[30, 20], queued=[60, 20])) == 30 / 4
    assert artifact_load(load()) == -inf


def test_requests_that_come_at_once_are_spread() -> None:
    """The queue's first alone would have all of them go to one instance."""
    queues: dict[str, list[int]] = {"a": [], "b": [], "c": []}
    for _ in range(9):
        least = min((load(n, [10], queue) for n, queue in queues.items()), key=artifact_load)
        queues[least.name].append(5)
    assert [len(queue) for queue in queues.values()] == [3, 3, 3]


def test_a_request_goes_to_the_least_loaded_group_the_first_among_equals() -> None:
    got: list[tuple[str, object]] = []

    class Group:
        def __init__(self, name: str, used: int) -> None:
            self.name, self.used = name, used

        def load(self) -> Load:
            return load(self.name, [self.used])

        def submit(self, request: object) -> None:
            got.append((self.name, request))

    manager: Any = GroupManager.__new__(GroupManager)
    manager._load, manager._unserved, manager.servers = artifact_load, deque(), []
    manager.dispatch("early")
    assert list(manager._unserved) == ["early"]  # no group is formed yet
    manager.servers = [Group("a", 40), Group("b", 20), Group("c", 20)]
    manager.dispatch("late")
    assert got == [("b", "late")]
