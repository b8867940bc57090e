"""Errors that a user is told in one sentence, without a traceback."""

from __future__ import annotations


class UsageError(ValueError):
    """The command asks for something that cannot be; exit status 2, nothing left on disk."""


class RunError(RuntimeError):
    """A run broke: an engine died, a disk is full; exit status 1, what was recorded is kept."""


class InstanceLost(RunError):
    """An instance died: what was under way on it has failed. A system that expects this goes on
    without it; elsewhere it ends the run."""

    def __init__(self, name: str, reason: str = "") -> None:
        super().__init__(f"instance {name} is lost{': ' + reason if reason else ''}")
        self.name = name
