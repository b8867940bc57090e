"""What a server's prefix cache had of the prompts, by its own counters."""

from __future__ import annotations

import urllib.error
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.request import Request

from harness.drivers.fleet import OPENER

# Prometheus counters of vLLM 0.32 (vllm/v1/metrics/loggers.py), both in tokens.
QUERIES = "vllm:prefix_cache_queries_total"
HITS = "vllm:prefix_cache_hits_total"
TIMEOUT_S = 5.0
MAX_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class PrefixCounters:
    """Tokens since the server's start, of all its engines and callers."""

    queried_tokens: float
    hit_tokens: float


def read_counters(root: str, headers: Mapping[str, str]) -> PrefixCounters | None:
    """From `root`/metrics; None where the server has no such page or not these counters."""
    question = Request(f"{root}/metrics", headers=dict(headers))
    try:
        with OPENER.open(question, timeout=TIMEOUT_S) as answer:
            return parse_counters(answer.read(MAX_BYTES).decode(errors="replace"))
    except (urllib.error.URLError, OSError, ValueError):
        return None


def parse_counters(text: str) -> PrefixCounters | None:
    """Of a page in Prometheus' text format, whose samples are `name{labels} value`."""
    found: dict[str, float] = {}
    for line in text.splitlines():
        name = line.partition("{")[0].partition(" ")[0]
        if name in (QUERIES, HITS):
            try:
                value = float(line.rpartition(" ")[2])
            except ValueError:
                continue
            found[name] = found.get(name, 0.0) + value
    if len(found) < 2:
        return None
    return PrefixCounters(found[QUERIES], found[HITS])
