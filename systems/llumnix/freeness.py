"""Virtual usage and freeness (Llumnix §4.4, Algorithm 1), and the public code's load, for dispatch.

Written from the published algorithm as it is known to us; the paper's text was not at hand.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import NamedTuple


class Running(NamedTuple):
    request_id: int
    blocks: int  # of KV in use
    priority: int = 0  # higher is more important


@dataclass(slots=True, frozen=True)
class InstanceLoad:
    name: str
    total_blocks: int
    running: Sequence[Running]
    queued_blocks: Sequence[int] = ()  # that each queued request needs, in order of service
    terminating: bool = False  # to be drained

    @property
    def used_blocks(self) -> int:
        return sum(request.blocks for request in self.running)


def virtual_usage(load: InstanceLoad, headroom_blocks: Mapping[int, int]) -> float:
    """Blocks in use and, so that a load balancer sees them: the demand of the queue's first; an
    infinite one for an instance that is to be drained; and for each priority its headroom, once
    where a request of it runs (Algorithm 1 shares it out over these)."""
    if load.terminating:
        return inf
    headroom = sum(headroom_blocks.get(p, 0) for p in {r.priority for r in load.running})
    return load.used_blocks + sum(load.queued_blocks[:1]) + headroom


def freeness(load: InstanceLoad, headroom_blocks: Mapping[int, int] | None = None) -> float:
    """(M - ΣV) / B: decode steps, in blocks, that the batch could still take; B counts at least 1.

    Below 0 where the queue's first does not fit.
    """
    usage = virtual_usage(load, headroom_blocks or {})
    return (load.total_blocks - usage) / max(1, len(load.running))


def least_loaded(loads: Sequence[InstanceLoad]) -> str:
    """The name of the least loaded instance by `artifact_load`, the first among equals. With the
    whole queue counted, requests that arrive in one iteration do not all go to one instance."""
    return min(loads, key=artifact_load).name


def artifact_load(load: InstanceLoad) -> float:
    """The code's load, higher is busier: free blocks less those that all queued requests need, over
    the running and queued requests, times -1 (AlibabaPAI/llumnix, load_computation.py)."""
    num_requests = len(load.running) + len(load.queued_blocks)
    if not num_requests:
        return -inf
    free = load.total_blocks - load.used_blocks - sum(load.queued_blocks)
    return -free / num_requests
