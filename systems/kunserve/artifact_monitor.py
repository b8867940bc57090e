"""The published code's thresholds for drop and restore (`variant=artifact`).

From SJTU-IPADS/kunserve@ba746905, kunserve/flash_backend.py (`vote_for`). That code is of the
EuroSys'26 version. It looks at one moment, where the preprint looks one second ahead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(kw_only=True, slots=True)
class ThresholdConfig:
    drop_usage: float  # 0.95
    restore_usage: float  # 0.5
    falling_samples: int  # 30

    def __post_init__(self) -> None:
        if not 0 < self.restore_usage < self.drop_usage <= 1:
            raise ValueError(
                f"system.artifact.restore_usage={self.restore_usage} and "
                f"system.artifact.drop_usage={self.drop_usage} must be in this order, "
                "above 0 and at most 1"
            )
        if self.falling_samples < 2:
            raise ValueError(
                f"system.artifact.falling_samples={self.falling_samples} must be at least 2"
            )


@dataclass(slots=True, frozen=True)
class GroupLoad:
    """KV blocks of one group of the fixed plan, all members alike."""

    total_blocks: int
    free_blocks: int
    pending_blocks: int  # of all queued requests

    @property
    def usage(self) -> float:
        return 1 - self.free_blocks / self.total_blocks


def votes_to_drop(load: GroupLoad, config: ThresholdConfig) -> bool:
    return load.usage >= config.drop_usage and load.pending_blocks >= load.free_blocks


def drop_due(loads: Sequence[GroupLoad], config: ThresholdConfig) -> bool:
    """Any group's vote makes all groups drop; the rule that half of them must is commented out."""
    return any(votes_to_drop(load, config) for load in loads)


def restore_due(
    loads: Sequence[GroupLoad], rates: Sequence[float], config: ThresholdConfig
) -> bool:
    """All groups little used, nothing queued, and the load falling.

    rates: the last samples of the arrival rate, oldest first. "Falling" is read as: the later half
    of the last `falling_samples` has a lower mean than the earlier one.
    """
    calm = all(load.usage <= config.restore_usage and not load.pending_blocks for load in loads)
    return calm and _falling(rates, config.falling_samples)


def _falling(rates: Sequence[float], num_samples: int) -> bool:
    if len(rates) < num_samples:
        return False
    last = rates[-num_samples:]
    half = num_samples // 2
    return sum(last[:half]) / half > sum(last[-half:]) / half
