"""The published code's thresholds for drop and restore (`variant=artifact`).

From SJTU-IPADS/kunserve@ba746905, kunserve/flash_backend.py (`vote_for`), the code of the
EuroSys'26 version. It looks at the present; the preprint looks one second ahead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(kw_only=True, slots=True)
class ThresholdConfig:
    """Raises ValueError unless 0 < restore_usage < drop_usage <= 1, with two samples or more."""

    drop_usage: float  # share of the KV blocks in use, from which a drop may be due; 0.95
    restore_usage: float  # share up to which a restore may be due; 0.5
    falling_samples: int  # samples of the arrival rate; 30

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
    """KV blocks of one group of the fixed plan."""

    total_blocks: int
    free_blocks: int
    pending_blocks: int  # of all queued requests

    @property
    def usage(self) -> float:
        """The share of blocks in use."""
        return 1 - self.free_blocks / self.total_blocks


def votes_to_drop(load: GroupLoad, config: ThresholdConfig) -> bool:
    """Whether a group is full, and its queue needs at least the blocks that are free."""
    return load.usage >= config.drop_usage and load.pending_blocks >= load.free_blocks


def drop_due(loads: Sequence[GroupLoad], config: ThresholdConfig) -> bool:
    """Whether all groups must drop: one group's vote is enough. (In the code, the rule that half of
    them must vote is commented out.)"""
    return any(votes_to_drop(load, config) for load in loads)


def restore_due(
    loads: Sequence[GroupLoad], rates: Sequence[float], config: ThresholdConfig
) -> bool:
    """Whether all groups are little used, no request is queued, and the arrival rate is falling.

    rates: samples of the arrival rate, oldest first. "Falling" is read as: of the last
    `falling_samples`, the later half has a lower mean than the earlier half.
    """
    calm = all(load.usage <= config.restore_usage and not load.pending_blocks for load in loads)
    return calm and _falling(rates, config.falling_samples)


def _falling(rates: Sequence[float], num_samples: int) -> bool:
    if len(rates) < num_samples:
        return False
    last = rates[-num_samples:]
    half = num_samples // 2
    return sum(last[:half]) / half > sum(last[-half:]) / half
