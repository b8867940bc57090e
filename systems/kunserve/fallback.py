"""The fallback if dropping parameters frees too little memory (§4.3, autoscaling).

"There is a finite amount of memory that can be freed by dropping parameters. Like prior work, we
can automatically start new instances on demand." Standby instances are started first. If there are
none, the engine preempts by recompute, as vLLM does (§2.3 (a)) and the published code does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Fallback(NamedTuple):
    """What the fallback does."""

    started: int  # standby instances
    preempted: list[int]  # request ids, in the order of their preemption


class Candidate(NamedTuple):
    """A running request that may be preempted."""

    request_id: int
    kv_bytes: int
    priority: int  # higher is more important


def fall_back(
    short_bytes: int, standby: int, instance_kv_bytes: int, running: Sequence[Candidate]
) -> Fallback:
    """Covers `short_bytes`, what a plan is short of.

    standby: instances that can be started, each with `instance_kv_bytes`. running: oldest first. As
    few requests as possible are preempted for the rest: the least important first, among equals the
    newest. If all of them do not suffice, all are preempted.
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
