"""A system's plug-in inside vLLM servers: proven to schedule, and what it counted in a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.errors import RunError
from harness.system import ServerPlugin


def require_active(
    plugin: ServerPlugin, server: str, scheduler_cls: object, found: Mapping[str, float]
) -> None:
    """Raises RunError unless `server` has answered a request by the plug-in's scheduler: its
    `scheduler_cls` is that, which has counted (`found`)."""
    asked = plugin.scheduler["scheduler_cls"]
    if scheduler_cls != asked:
        raise RunError(f"{server} schedules by {scheduler_cls or 'its own scheduler'}, not {asked}")
    proof = plugin.proof.removeprefix(plugin.counters).removesuffix("_total")
    if not found.get(proof):
        raise RunError(f"{server} answered a request, and {asked} counted nothing ({plugin.proof})")


def since(now: Mapping[str, float], then: Mapping[str, float]) -> dict[str, Any]:
    """Fields of the event `server_paging`: what was counted in between. `moves`: by purpose."""
    grown = {key: value - then.get(key, 0.0) for key, value in now.items()}
    fields: dict[str, Any] = {}
    moves: dict[str, dict[str, float]] = {}
    for key, value in grown.items():
        name, _, purpose = key.partition("/")
        if purpose:
            moves.setdefault(purpose, {})[name.removeprefix("paged_")] = value
        else:
            fields[name] = int(value)
    return {**fields, "moves": moves}
