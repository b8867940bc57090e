"""Keys that a command gives and that nothing would read: a run must not be other than it says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from harness.config import class_of
from harness.errors import UsageError


def refuse_ignored(engine: Mapping[str, Any], overrides: Sequence[str]) -> None:
    """Raises UsageError for a key of the system that an engine whose servers schedule by themselves
    does not pass on (`scheduler_keys` of its class). `engine`: its configuration."""
    kind = class_of(engine, "engine")
    heeded: tuple[str, ...] | None = getattr(kind, "scheduler_keys", None)  # None: all are read
    if heeded is None:
        return
    for word in overrides:
        key = word.lstrip("+~").partition("=")[0]
        group, _, name = key.partition(".")
        if group == "system" and name and name.partition(".")[0] not in heeded:
            those = f": only {', '.join(f'system.{each}' for each in heeded)}" if heeded else ""
            raise UsageError(
                f"{key} is not heeded with engine={kind.name}, whose servers schedule by "
                f"themselves{those}"
            )
