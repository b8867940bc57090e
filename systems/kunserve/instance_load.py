"""What a balancer of load sees of an instance: running and queued requests, in KV blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple


class Running(NamedTuple):
    """A running request."""

    request_id: int
    blocks: int  # of KV in use
    priority: int = 0  # higher is more important


@dataclass(slots=True, frozen=True)
class InstanceLoad:
    """What one instance holds and what waits for it, in KV blocks."""

    name: str
    total_blocks: int
    running: Sequence[Running]
    queued_blocks: Sequence[int] = ()  # that each queued request needs, in order of service

    @property
    def used_blocks(self) -> int:
        return sum(request.blocks for request in self.running)
