"""A system's plug-in inside vLLM servers: proven to schedule, and its counters read."""

from __future__ import annotations

import re
import urllib.error
from collections.abc import Mapping
from typing import Any

from harness.drivers.fleet import OPENER
from harness.errors import RunError
from harness.system import ServerPlugin

TIMEOUT_S = 10.0
MAX_BYTES = 8 << 20
SAMPLE = re.compile(r"(?P<name>[\w:]+)\{(?P<labels>[^}]*)\} (?P<value>\S+)")
PURPOSE = re.compile(r'purpose="([^"]*)"')


def counters(root: str, prefix: str) -> dict[str, float]:
    """Those of `root`/metrics that begin with `prefix`, by what follows it without `_total`, and,
    where they have one, their purpose: "iterations", "paged_bytes/page out to DRAM". Raises
    RunError where there is no such page."""
    try:
        with OPENER.open(f"{root}/metrics", timeout=TIMEOUT_S) as answer:
            return parse_counters(answer.read(MAX_BYTES).decode(errors="replace"), prefix)
    except (urllib.error.URLError, OSError) as error:
        raise RunError(f"{root} did not answer /metrics: {error}") from error


def parse_counters(text: str, prefix: str) -> dict[str, float]:
    found: dict[str, float] = {}
    for line in text.splitlines():
        sample = SAMPLE.match(line)
        if sample is None or not sample["name"].startswith(prefix):
            continue
        name = sample["name"].removeprefix(prefix)
        if not name.endswith("_total"):  # when each counter was made
            continue
        purpose = PURPOSE.search(sample["labels"])
        key = name.removesuffix("_total") + (f"/{purpose[1]}" if purpose else "")
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
