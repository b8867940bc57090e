"""What is left when dropping parameters frees too little (§4.3, autoscaling).

"There is a finite amount of memory that can be freed by dropping parameters. Like prior work, we
can automatically start new instances on demand": standby instances first. Where there are none the
engine preempts and computes again, as vLLM does (§2.3 (a); the published code's preemption).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Fallback(NamedTuple):
    started: int  # standby instances
    preempted: list[int]  # requests, in the order of their preemption


class Candidate(NamedTuple):
    """A running request that may be preempted."""

    request_id: int
    kv_bytes: int
    priority: int  # higher is more important


def fall_back(
    short_bytes: int, standby: int, instance_kv_bytes: int, running: Sequence[Candidate]
) -> Fallback:
    """For what a plan is short of. running: oldest first.

    Each standby instance brings its whole KV memory. Requests go the least important first, and
    among equals the newest, as few as cover what is still lacking, or all.
    """
    started = min(standby, -(-short_bytes // instance_kv_bytes)) if short_bytes > 0 else 0
    lacking = short_bytes - started * instance_kv_bytes
    newest_first = sorted(enumerate(running), key=lambda pair: (pair[1].priority, -pair[0]))
    preempted = []
    for _, candidate in newest_first:
        if lacking <= 0:
            break
        lacking -= candidate.kv_bytes
        preempted.append(candidate.request_id)
    return Fallback(started, preempted)
