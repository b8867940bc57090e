"""A warm prefix cache: every request finds equally many of its prompt's tokens in memory.

What follows is exact where all prompts of a point are equally long and each has been seen before:
the tokens that are left are computed, and attend to the whole prompt; decodes read it. The
cached blocks are held once, beside the pool of what requests own.
"""

from __future__ import annotations

from collections.abc import Iterable

from harness.cost.hardware import Hardware
from harness.cost.model import CostModel
from harness.errors import UsageError
from harness.model_spec import ModelSpec
from harness.sim.engine import SimEngine

MOST_HELD = 0.5  # of the KV blocks, by cached prompts: with more, what is evicted matters


class WarmCost(CostModel):
    """`cost` of requests of which `cached_tokens` more are in memory than they know."""

    def __init__(self, cost: CostModel, cached_tokens: int) -> None:
        self.source, self.turnaround_s = cost.source, cost.turnaround_s
        self.path_s, self.layer_load_s = cost.path_s, cost.layer_load_s
        self._cost, self._cached = cost, cached_tokens

    def decode_step(self, num_requests: int, context_tokens: int) -> tuple[float, float]:
        return self._cost.decode_step(num_requests, context_tokens + num_requests * self._cached)

    def mixed_step(
        self, chunks: Iterable[tuple[int, int]], num_decodes: int, context_tokens: int
    ) -> float:
        behind = [(before + self._cached, tokens) for before, tokens in chunks]
        context = context_tokens + num_decodes * self._cached
        return self._cost.mixed_step(behind, num_decodes, context)


class WarmEngine(SimEngine):
    """Of replicas that hold `distinct_prompts` prompts' first `cached_tokens`."""

    def __init__(
        self, config: SimEngine.Config, *, cached_tokens: int, distinct_prompts: int
    ) -> None:
        super().__init__(config)
        self._cached, self._held = cached_tokens, cached_tokens * distinct_prompts

    def _cost(
        self, model: ModelSpec, hardware: Hardware, compute_share: float = 1.0, rivals: float = 0.0
    ) -> CostModel:
        cost = super()._cost(model, hardware, compute_share, rivals)
        return WarmCost(cost, self._cached) if self._cached else cost

    def _kv_blocks(self, model: ModelSpec, hardware: Hardware, memory_share: float) -> int:
        blocks = super()._kv_blocks(model, hardware, memory_share)
        held = self._held // self._config.block_tokens
        if held > MOST_HELD * blocks:
            raise UsageError(
                f"the distinct prompts' cached blocks, {held} of the {blocks} that there are, "
                "would be evicted when others need memory: a warm prefix cache does not show that"
            )
        return blocks - held
