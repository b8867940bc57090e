"""KV on its way to an instance, page group by page group, while batches that need it already run.

A gated move (`KvMover.move_gated`) makes the target the holder before a byte has come. What has
come is said here: whoever computes a layer waits for the event of its page group.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from harness.clock import Event, Loop
from harness.errors import InstanceLost


class KvArrival:
    """Of one gated move. `numbers`: by page group, what the target's worker knows its copy by.
    `source`: the name of the memory that it comes from."""

    def __init__(
        self, loop: Loop, request_ids: Sequence[int], numbers: Mapping[int, int], source: str
    ) -> None:
        self.request_ids, self.numbers, self.source = request_ids, numbers, source
        self.groups = {group: Event(loop) for group in numbers}  # each set once it is here
        self.lost: InstanceLost | None = None  # why the rest of it never comes
        self.failed = Event(loop)  # set with `lost`
        self.over = Event(loop)  # set once nothing of it is under way any more

    @property
    def is_whole(self) -> bool:
        return all(here.is_set for here in self.groups.values())

    def fail(self, error: InstanceLost) -> None:
        self.lost = error
        self.failed.set()
