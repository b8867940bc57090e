"""How full an instance is: virtual usage and freeness (Llumnix §4.4, Algorithm 1), and the public
code's load, by which requests are dispatched.

Written from memory of the published algorithm; the paper's text was not available.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
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
    terminating: bool = False  # to be drained

    @property
    def used_blocks(self) -> int:
        return sum(request.blocks for request in self.running)


def virtual_usage(load: InstanceLoad, headroom_blocks: Mapping[int, int]) -> float:
    """Blocks in use, and blocks that only a load balancer counts (Algorithm 1).

    Those are the demand of the first queued request, and the headroom of every priority of which a
    request runs. Algorithm 1 divides a headroom among the requests of its priority; here it counts
    once. Infinite for an instance that is to be drained. headroom_blocks: {priority: blocks}.
    """
    if load.terminating:
        return inf
    headroom = sum(headroom_blocks.get(p, 0) for p in {r.priority for r in load.running})
    return load.used_blocks + sum(load.queued_blocks[:1]) + headroom


def freeness(load: InstanceLoad, headroom_blocks: Mapping[int, int] | None = None) -> float:
    """(M - ΣV) / B: free blocks for each request of the batch; B is at least 1.

    M: blocks of the instance; V: `virtual_usage`; B: running requests. Below 0 if the first queued
    request does not fit.
    """
    usage = virtual_usage(load, headroom_blocks or {})
    return (load.total_blocks - usage) / max(1, len(load.running))


def least_loaded(loads: Sequence[InstanceLoad]) -> str:
    """The name of the least loaded instance by `artifact_load`, the first among equals.

    That load counts the whole queue, so that requests of one iteration spread over instances.
    """
    return min(loads, key=artifact_load).name


def artifact_load(load: InstanceLoad) -> float:
    """The public code's load; higher is busier (AlibabaPAI/llumnix, load_computation.py).

    -(free blocks - blocks that all queued requests need) / (running + queued requests).
    """
    num_requests = len(load.running) + len(load.queued_blocks)
    if not num_requests:
        return -inf
    free = load.total_blocks - load.used_blocks - sum(load.queued_blocks)
    return -free / num_requests
