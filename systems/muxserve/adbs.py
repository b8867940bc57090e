"""ADBS's decisions (MuxServe §3.4): which job runs next, and how KV quotas follow the load.

Prefills come first, models in turn; then decodes, in turn, while multiprocessors are left. At the
end of each window, models that used most of their quota get more of it from models that did not.
Pure functions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from harness.configuration.checks import at_least

MIN_WINDOW_S = 0.001  # no decode iteration is shorter


@dataclass(kw_only=True, slots=True)
class QuotaConfig:
    """Raises ValueError if the window is shorter than `MIN_WINDOW_S`."""

    window_s: float
    high: float  # a model that uses this share of its quota, or more, gets more
    keep: float  # utilisation of a giver's quota after it gave, at most
    growth: float  # how much more, as a share of the quota

    def __post_init__(self) -> None:
        at_least(self, MIN_WINDOW_S, "quotas", "window_s")


@dataclass(slots=True, frozen=True)
class Quota:
    """A model's part of a mesh's KV memory, and how much of it was used in a window."""

    num_blocks: int
    block_bytes: int
    mean_used_blocks: float
    starved: bool = False  # the next request has no room although no request runs

    @property
    def utilisation(self) -> float:
        """The used share of the quota, from 0 to 1."""
        return 1.0 if self.starved else self.mean_used_blocks / self.num_blocks


def adapt(quotas: Sequence[Quota], config: QuotaConfig) -> list[int]:
    """The number of blocks by which each quota changes. The sum in bytes is 0, except for rounding
    to blocks.

    Models short of KV (utilisation at least `high`) are served in the order of utilisation.
    """
    givers = [i for i, quota in enumerate(quotas) if quota.utilisation < config.high]
    takers = [i for i in range(len(quotas)) if i not in givers]
    takers.sort(key=lambda i: -quotas[i].utilisation)
    spare = {i: int((config.keep - quotas[i].utilisation) * quotas[i].num_blocks) for i in givers}
    left_bytes = sum(blocks * quotas[i].block_bytes for i, blocks in spare.items())
    wanted_bytes = 0
    changes = [0] * len(quotas)
    for i in takers:
        blocks = max(1, int(config.growth * quotas[i].num_blocks))
        blocks = min(blocks, (left_bytes - wanted_bytes) // quotas[i].block_bytes)
        changes[i] = blocks
        wanted_bytes += blocks * quotas[i].block_bytes
    for i, blocks in spare.items():
        size = quotas[i].block_bytes
        share = wanted_bytes * blocks * size / left_bytes if left_bytes else 0.0
        changes[i] = -min(blocks, -int(-share // size))
    return changes


def in_turn(count: int, last: int, ready: Callable[[int], bool]) -> int | None:
    """The first index after `last`, cyclically in 0..count-1, that is ready; None if no index is.

    `last` itself is tried last; -1 starts at 0.
    """
    for step in range(1, count + 1):
        if ready((last + step) % count):
            return (last + step) % count
    return None
