"""What asks the agent of a node: Ray's call of an actor or, in tests, a call."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from harness.clock import Event, WallLoop
from harness.errors import RunError

T = TypeVar("T")
DEAD_S = 2.0  # an agent that does not answer for so long, when its worker has gone, is gone too
ANSWER_S = 20.0


class AgentGone(RunError):
    """The agent's process has ended, for certain."""


class Agent(Protocol):
    def ask(self, method: str, *arguments: Any, timeout_s: float = ANSWER_S) -> Any:
        """The answer. RunError: it failed, or gave none in time; AgentGone: it has ended.
        tcp.Refused, UsageError: it raised one."""

    def tell(self, method: str, *arguments: Any) -> None:
        """Asks for no answer."""


async def answer_of(loop: WallLoop, question: Callable[[], T]) -> T | None:
    """What `question` returns, which waits for it in a thread beside the loop; None: it raised
    RunError."""
    ended, found = Event(loop), None

    def end(answer: T | None) -> None:
        nonlocal found
        found = answer
        ended.set()

    def ask() -> None:
        try:
            answer = question()
        except RunError:
            answer = None
        loop.post(end, answer)

    threading.Thread(target=ask, name="question", daemon=True).start()
    await loop.wait(ended)
    return found
