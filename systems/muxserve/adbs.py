"""ADBS's decisions (MuxServe §3.4): which job runs next, and how KV quotas follow the load.

Prefills first, models in turn; then decodes, in turn, while there are multiprocessors left. At the
end of each window a model that used most of its quota gets more, from those that did not. Pure
functions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

MIN_WINDOW_S = 0.001  # no decode iteration ends sooner: there is nothing to adapt to


@dataclass(kw_only=True, slots=True)
class QuotaConfig:
    window_s: float
    high: float  # share of its quota from which a model is short of it
    keep: float  # share of its quota up to which a giver may be used afterwards
    growth: float  # of its quota, for a model that is short of it

    def __post_init__(self) -> None:
        if not self.window_s >= MIN_WINDOW_S:
            raise ValueError(f"quotas.window_s={self.window_s} must be at least {MIN_WINDOW_S}")


@dataclass(slots=True, frozen=True)
class Quota:
    num_blocks: int
    block_bytes: int
    mean_used_blocks: float
    starved: bool = False  # the next request has no room although nothing else runs

    @property
    def utilisation(self) -> float:
        return 1.0 if self.starved else self.mean_used_blocks / self.num_blocks


def adapt(quotas: Sequence[Quota], config: QuotaConfig) -> list[int]:
    """By how many blocks each quota changes. Bytes are neither made nor lost beyond a block."""
    givers = [i for i, quota in enumerate(quotas) if quota.utilisation < config.high]
    takers = [i for i in range(len(quotas)) if i not in givers]
    takers.sort(key=lambda i: -quotas[i].utilisation)
    spare = {
        i: int((config.keep - quotas[i].utilisation) * quotas[i].num_blocks) for i in givers
    }  # fmt: skip
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
    """The first after `last`, going round, that is ready."""
    for step in range(1, count + 1):
        if ready((last + step) % count):
            return (last + step) % count
    return None
