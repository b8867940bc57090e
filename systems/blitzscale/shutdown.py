"""How an instance ends and may come back (§5.3; the states are the artifact's).

    serving -> shutting (ends its requests) -> null (idle, still has its weights) -> released

A scale-up first takes back shutting instances of its role, then null ones, and only then loads. In
the paper's variant an instance is released once it has drained, without being null. There, taking
back a draining instance is our reading.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from systems.blitzscale.role import Role


class State(Enum):
    """Of an instance that has, or gets, weights."""

    LOADING = "loading"
    SERVING = "serving"
    SHUTTING = "shutting"
    NULL = "null"


@dataclass(kw_only=True, slots=True, frozen=True)
class Member:
    """An instance as the decisions here see it."""

    name: str
    role: Role  # of a null instance: its last one
    state: State
    since_s: float  # when it entered this state
    tokens: int  # queued and in KV


def revived(members: Iterable[Member], role: Role, count: int) -> list[str]:
    """Names of up to `count` instances that can serve as `role` at once, without a load.

    Draining prefills need a decode for their KV. So if deaths leave no decode, a draining prefill
    may become one.
    """
    each = list(members)
    draining = [m for m in each if m.state is State.SHUTTING and m.role is role]
    null = [m for m in each if m.state is State.NULL]
    latest_first = sorted(null, key=lambda m: (-m.since_s, m.name))
    ready = sorted(draining, key=lambda m: (-m.tokens, m.name)) + latest_first
    if role is Role.DECODE and not any(m.role is role for m in each if m.state is not State.NULL):
        ready += [m for m in each if m.state is State.SHUTTING and m.role is Role.PREFILL]
    return [member.name for member in ready[:count]]


def stopped(members: Iterable[Member], role: Role, count: int) -> list[str]:
    """Names of up to `count` serving instances to shut down: those with the fewest tokens, which
    drain first."""
    serving = [m for m in members if m.state is State.SERVING and m.role is role]
    return [m.name for m in sorted(serving, key=lambda m: (m.tokens, m.name))[:count]]


def mutated(members: Iterable[Member], count: int) -> list[str]:
    """Names of prefills that become decodes: those with the fewest tokens to prefill."""
    return stopped(members, Role.PREFILL, count)


def drained(members: Iterable[Member]) -> list[str]:
    """Names of shutting instances without requests; they become null."""
    return [m.name for m in members if m.state is State.SHUTTING and m.tokens == 0]


def released(members: Iterable[Member], now_s: float, null_s: float) -> list[str]:
    """Names of null instances whose time is over. null_s: 0 in the paper's variant; in the
    artifact's, its scale-down threshold."""
    return [m.name for m in members if m.state is State.NULL and now_s - m.since_s >= null_s]
