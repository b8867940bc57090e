"""variant=artifact: what the published code does where the preprint says nothing or other things.

From SJTU-IPADS/kunserve@ba746905, the code of the EuroSys'26 version. Drop and restore are by
thresholds (kunserve/flash_backend.py, `vote_for`), which look at the present; the preprint looks
one second ahead. Before a drop, prompts run whole and before decodes; after it they are cut into
chunks. Pure functions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from harness.configuration.checks import at_least
from systems.serving.iteration import Limits
from systems.serving.load import Load


@dataclass(kw_only=True, slots=True)
class ArtifactConfig:
    """Raises ValueError unless 0 < restore_usage < drop_usage <= 1, or for too small values."""

    drop_usage: float  # share of the KV blocks in use, from which a drop may be due; 0.95
    restore_usage: float  # share up to which a restore may be due; 0.5
    falling_samples: int  # samples of the arrival rate; 30
    group_size: int  # instances of a group
    victims: int  # requests that are exchanged at a time
    whole_tokens: int  # of prompts in an iteration before a drop; 131,072
    chunk_tokens: int  # of prompts in an iteration after a drop; 4,096

    def __post_init__(self) -> None:
        if not 0 < self.restore_usage < self.drop_usage <= 1:
            raise ValueError(
                f"system.artifact.restore_usage={self.restore_usage} and "
                f"system.artifact.drop_usage={self.drop_usage} must be in this order, "
                "above 0 and at most 1"
            )
        at_least(self, 2, "system.artifact", "falling_samples", "group_size")
        at_least(self, 1, "system.artifact", "victims", "whole_tokens", "chunk_tokens")


def usage(load: Load) -> float:
    """The share of blocks in use."""
    return 1 - free_blocks(load) / load.total_blocks


def free_blocks(load: Load) -> int:
    return max(0, load.total_blocks - load.used_blocks)


def votes_to_drop(load: Load, config: ArtifactConfig) -> bool:
    """Whether a group is full, and its queue needs at least the blocks that are free."""
    return usage(load) >= config.drop_usage and load.queued_blocks >= free_blocks(load)


def drop_due(loads: Sequence[Load], config: ArtifactConfig) -> bool:
    """Whether all groups must drop: one group's vote is enough. (In the code, the rule that half of
    them must vote is commented out.)"""
    return any(votes_to_drop(load, config) for load in loads)


def restore_due(loads: Sequence[Load], rates: Sequence[float], config: ArtifactConfig) -> bool:
    """Whether all groups are little used, no request is queued, and the arrival rate is falling.

    rates: samples of the arrival rate, oldest first. "Falling" is read as: of the last
    `falling_samples`, the later half has a lower mean than the earlier half.
    """
    calm = all(usage(load) <= config.restore_usage and not load.num_queued for load in loads)
    num_samples = config.falling_samples
    if not calm or len(rates) < num_samples:
        return False
    last, half = rates[-num_samples:], num_samples // 2
    return sum(last[:half]) > sum(last[-half:])


def limits_of(limits: Limits, stages: int, config: ArtifactConfig) -> Limits:
    """What an iteration of a group may have. Before a drop the engine is vLLM's of the time: whole
    prompts run alone and first. A pipeline cuts prompts into chunks, whatever was set before."""
    if stages > 1:
        return replace(
            limits, max_num_batched_tokens=config.chunk_tokens, enable_chunked_prefill=True
        )
    return replace(
        limits, max_num_batched_tokens=config.whole_tokens, enable_chunked_prefill=False,
        prompts_first=True,
    )  # fmt: skip


def balanced_tokens(limits: Limits, prompt_tokens: int, stages: int) -> int:
    """The tokens of an iteration of a pipeline's micro-batch.

    Waiting prompts are spread over the stages' micro-batches, so that none is empty while another
    is full; this is our reading of the code's balanced micro-batches. One token for each seat is
    left for decodes. prompt_tokens: of all waiting prompts.
    """
    share = -(-prompt_tokens // stages)
    return min(limits.max_num_batched_tokens, max(share, limits.max_num_seqs))
