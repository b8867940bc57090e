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
    RunError. What else it raises is raised here."""
    ended = Event(loop)
    found: T | None = None
    failed: Exception | None = None

    def end(answer: T | None, error: Exception | None) -> None:
        nonlocal found, failed
        found, failed = answer, error
        ended.set()

    def ask() -> None:
        try:
            outcome: tuple[T | None, Exception | None] = question(), None
        except RunError:
            outcome = None, None
        except Exception as error:
            outcome = None, error
        loop.post(end, *outcome)

    threading.Thread(target=ask, name="question", daemon=True).start()
    await loop.wait(ended)
    if failed is not None:
        raise failed
    return found
