"""Keys that a command gives and that nothing would read: a run must not be other than it says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from harness.configuration.config import class_of
from harness.errors import UsageError


def refuse_ignored(
    engine: Mapping[str, Any], system: Mapping[str, Any], overrides: Sequence[str]
) -> None:
    """Raises UsageError for a key of the system that an engine whose servers schedule by themselves
    does not pass on (`scheduler_keys` of its class), nor the system's plug-in in them (`heeded`).
    `engine`, `system`: their configurations."""
    kind = class_of(engine, "engine")
    heeded: tuple[str, ...] | None = getattr(kind, "scheduler_keys", None)  # None: all are read
    if heeded is None:
        return
    inside = getattr(class_of(system, "system"), "in_vllm", None) if kind.name == "vllm" else None
    if inside is not None:
        heeded = inside.heeded
    for word in overrides:
        key = word.lstrip("+~").partition("=")[0]
        group, _, name = key.partition(".")
        if group == "system" and name and not any(f"{name}.".startswith(f"{h}.") for h in heeded):
            those = f": only {', '.join(f'system.{each}' for each in heeded)}" if heeded else ""
            raise UsageError(
                f"{key} is not heeded with engine={kind.name}, whose servers schedule by "
                f"{'the plug-in' if inside else 'themselves'}{those}"
            )
