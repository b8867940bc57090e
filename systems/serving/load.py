"""The load of an instance, or of a group of instances, as dispatchers and balancers see it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Load:
    """What it holds and what waits for it, in KV blocks."""

    name: str
    total_blocks: int
    used_blocks: int  # of KV that running requests hold
    num_running: int
    num_queued: int = 0
    queued_blocks: int = 0  # that all queued requests need
    first_blocks: int = 0  # of these, what the first in order of service needs
    members: int = 1  # instances
    lacking_tokens: int = 0  # of prompts, still to be computed
    batch_tokens: int = 0  # what its batches compute at once

    @property
    def spare_blocks(self) -> int:
        """Free blocks minus the blocks that the whole queue needs."""
        return self.total_blocks - self.used_blocks - self.queued_blocks

    @property
    def num_requests(self) -> int:
        return self.num_running + self.num_queued
