"""What runs batches, as policies see it: the seam to the engines.

Every operation is awaitable and time passes inside it. Systems see no wall clock, no metric and no
hint of the engine.
"""

from __future__ import annotations

from math import inf
from typing import Protocol

from harness.clock import Event
from harness.device.block_pool import BlockPool
from harness.model_spec import ModelSpec
from harness.request import Batch, Request


class Executor(Protocol):
    """What runs batches that we schedule: an instance, a pooled device or a pipeline."""

    name: str

    async def execute(
        self,
        batch: Batch,
        *,
        max_steps: int | None = None,
        until: float = inf,
        stop: Event | None = None,
    ) -> int:
        """Runs `batch` and returns the number of iterations done (≥ 1).

        With prefill chunks: one iteration. Decodes alone: iterations until the first of: a
        request finishes; `max_steps` are done; the loop's time reaches `until` at a step boundary;
        the pool cannot hold the next iteration's tokens; the step boundary after `stop` is set.
        The caller has grown the pool for the first iteration; `execute` reserves it for further
        ones at its launch, updates computed_tokens and generated_tokens, stamps each token into
        the recorder and releases the blocks of a request that finishes.
        One `execute` at a time per instance. RunError for a batch that breaks one of these rules.
        """
        ...

    def settle(self) -> float:
        """Has the counters of the requests that decode now say what they have by now, but for the
        step that ends a request; returns when the latest iteration ended. Cheap, on demand."""
        ...

    def evict(self, request: Request) -> None:
        """Gives up the KV of `request`: its blocks are free and nothing of it is computed.

        Preemption by recompute (PagedAttention §4.5): its tokens so far are kept, and computing
        them again brings it back. Not while it is part of a running `execute`.
        """
        ...


class Instance(Executor, Protocol):
    """One model replica on its device(s)."""

    model: ModelSpec
    kv: BlockPool
