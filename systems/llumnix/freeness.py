"""How full an instance is: freeness (Llumnix §4.4, Algorithm 1), and the public code's load, by
which requests are dispatched.

Written from memory of the published algorithm; the paper's text was not available.
"""

from __future__ import annotations

from math import inf

from systems.serving.load import Load


def freeness(load: Load) -> float:
    """(M - ΣV) / B: free blocks for each request of the batch; B is at least 1.

    M: blocks of the instance; B: running requests. V, virtual usage: blocks in use, and the demand
    of the first queued request, which only a load balancer counts (Algorithm 1, without the
    headroom of priorities). Below 0 if the first queued request does not fit.
    """
    virtual_usage = load.used_blocks + load.first_blocks
    return (load.total_blocks - virtual_usage) / max(1, load.num_running)


def artifact_load(load: Load) -> float:
    """The public code's load; a new request goes to the instance with the least
    (AlibabaPAI/llumnix, load_computation.py).

    -(free blocks - blocks that all queued requests need) / (running + queued requests). It counts
    the whole queue, so that requests of one iteration spread over instances.
    """
    return -load.spare_blocks / load.num_requests if load.num_requests else -inf
