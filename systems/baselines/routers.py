"""Which replica gets a request: decisions on plain data. This file is not compiled, as
`systems.baselines.config` is not.

Round robin needs no decision, so that it is not here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.configuration.checks import at_least, require

ROUTERS = ("round_robin", "least_loaded", "prefix_aware")
WAITING = 4  # how many running requests weigh as much as one that waits


@dataclass(kw_only=True, slots=True)
class PrefixConfig:
    """When `prefix_aware` looks at prefixes. Values: conf/system/vllm.yaml."""

    cache_threshold: float  # least share of a prompt's tokens that a replica has, to be preferred
    balance_abs_threshold: int  # replicas are out of balance where their requests differ by more …
    balance_rel_threshold: float  # … and the most is more than so many times the least

    def __post_init__(self) -> None:
        at_least(self, 0, "system.prefix", "cache_threshold", "balance_abs_threshold")
        at_least(self, 1, "system.prefix", "balance_rel_threshold")
        share = self.cache_threshold
        require(share <= 1, f"system.prefix.cache_threshold={share:g} must be at most 1")


def least_loaded(waiting: Sequence[int], running: Sequence[int]) -> int:
    """The replica with the least WAITING x waiting + running requests, the first of equals: the
    weights of vLLM's data-parallel balancer (vllm/v1/engine/core_client.py)."""
    scores = [WAITING * w + r for w, r in zip(waiting, running, strict=True)]
    return scores.index(min(scores))


def prefix_aware(
    prompt_tokens: int,
    cached_tokens: Sequence[int],
    num_requests: Sequence[int],
    config: PrefixConfig,
) -> int:
    """The replica that has most of a prompt's first tokens; the one with the fewest requests if
    that is too little, or if replicas are out of balance (the rule of SGLang's gateway, policy
    cache_aware). Of equals the one with the fewest requests, and then the first.

    cached_tokens, num_requests: of each replica. SGLang's gateway keeps a copy of what it sent
    where; here a replica's own cache is looked at.
    """
    most, least = max(num_requests), min(num_requests)
    apart = most - least > config.balance_abs_threshold
    unbalanced = apart and most > config.balance_rel_threshold * least
    longest = max(cached_tokens)
    if unbalanced or longest <= config.cache_threshold * prompt_tokens:
        return num_requests.index(least)
    having = [i for i, tokens in enumerate(cached_tokens) if tokens == longest]
    return min(having, key=lambda i: num_requests[i])
