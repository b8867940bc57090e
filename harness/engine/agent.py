"""What asks the agent of a node: Ray's call of an actor or, in tests, a call."""

from __future__ import annotations

from typing import Any, Protocol

from harness.errors import RunError

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
