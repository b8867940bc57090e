"""How full an instance is: virtual usage and freeness (Llumnix §4.4, Algorithm 1), and the public
code's load, by which requests are dispatched.

Written from memory of the published algorithm; the paper's text was not available.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from systems.kunserve.instance_load import InstanceLoad


def virtual_usage(load: InstanceLoad) -> int:
    """Blocks in use, and the demand of the first queued request, which only a load balancer counts
    (Algorithm 1, without the headroom of priorities)."""
    return load.used_blocks + sum(load.queued_blocks[:1])


def freeness(load: InstanceLoad) -> float:
    """(M - ΣV) / B: free blocks for each request of the batch; B is at least 1.

    M: blocks of the instance; V: `virtual_usage`; B: running requests. Below 0 if the first queued
    request does not fit.
    """
    return (load.total_blocks - virtual_usage(load)) / max(1, len(load.running))


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
