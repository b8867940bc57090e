"""The one place where a task gives way to the kernel of `harness.clock`.

Stays Python where the rest is compiled: mypyc knows no `types.coroutine`.
"""

from __future__ import annotations

from collections.abc import Generator
from types import coroutine
from typing import TypeVar

Events = TypeVar("Events")


@coroutine
def suspend(events: Events, deadline: float) -> Generator[tuple[Events, float], bool, bool]:
    """Yields the only thing that a task yields: a tuple of events, and a deadline (inf: none)."""
    return (yield events, deadline)
