"""Counters of a server, off its page in Prometheus' text format. Of a system's plug-in inside vLLM
they prove that it schedules, and tell what it did in a run."""

from __future__ import annotations

import re
from collections.abc import Mapping
from http.client import HTTPException
from typing import Any

from harness.drivers.server import fetch
from harness.errors import RunError
from harness.system import ServerPlugin

TIMEOUT_S = 5.0
SAMPLE = re.compile(  # a label's value may have any character
    r"(?P<name>[\w:]+)_total(\{(?P<labels>.*)\})? (?P<value>\d+(\.\d+)?([eE][-+]?\d+)?)( -?\d+)?$"
)
PURPOSE = re.compile(r'purpose="([^"]*)"')


def counters(root: str, prefix: str, headers: Mapping[str, str]) -> dict[str, float]:
    """The counters of `root`/metrics that begin with `prefix`, since the server's start, of all its
    engines and callers: `parse_counters`. Raises RunError where there is no such page."""
    try:
        page = fetch(f"{root}/metrics", TIMEOUT_S, headers)
    except (OSError, HTTPException, ValueError) as error:
        raise RunError(f"{root} did not answer /metrics: {error}") from error
    return parse_counters(page.decode(errors="replace"), prefix)


def parse_counters(text: str, prefix: str) -> dict[str, float]:
    """The counters by what follows `prefix`, without `_total`, and, where they have one, their
    purpose: "iterations", "paged_bytes/page out to DRAM". A name's samples are added up."""
    found: dict[str, float] = {}
    for line in text.splitlines():
        sample = SAMPLE.match(line)
        if sample is not None and sample["name"].startswith(prefix):
            purpose = PURPOSE.search(sample["labels"] or "")
            key = sample["name"].removeprefix(prefix) + (f"/{purpose[1]}" if purpose else "")
            found[key] = found.get(key, 0.0) + float(sample["value"])
    return found


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
