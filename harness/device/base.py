"""What every instance does before and after a batch runs, once for all worlds.

Checks: a batch that the instance cannot run is a fault of the system, named in a sentence, in the
simulator as on a real engine. Reservation, one rule: a run of decodes holds the blocks of every
step that it may take from its launch on, so what `kv` shows as free meanwhile is free; what it
did not use is given back at its end.

    steps = min(first end, max_steps, what the pool holds, ceil((until - now) / step_s))
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from harness.clock import Loop
from harness.device.block_pool import BlockPool
from harness.errors import RunError
from harness.model_spec import ModelSpec
from harness.record import Recorder
from harness.request import Batch, Request


class BaseInstance:
    """Checks and reservation; a world adds how a batch runs."""

    def __init__(
        self, name: str, model: ModelSpec, kv: BlockPool, loop: Loop, recorder: Recorder
    ) -> None:
        self.name = name
        self.model = model
        self.kv = kv
        self._loop, self._recorder = loop, recorder
        self._running = False
        self._missing = set[int]()  # layers whose weights are not here
        self._decoded = frozenset[Request]()  # the decodes last run: they have been checked

    def evict(self, request: Request) -> None:
        """`Instance.evict`."""
        self.kv.release(request)
        request.computed_tokens = 0
        self._recorder.preempted(request, self.name, self._loop.now)

    def _begin(self, batch: Batch, max_steps: int | None) -> None:
        """Raises RunError for a batch that cannot run now; else the instance is running."""
        if self._running:
            raise RunError(f"{self.name}: execute was called while another one is running")
        if not (batch.chunks or batch.decodes):
            raise RunError(f"{self.name}: execute was called with an empty batch")
        if self._missing:
            raise RunError(
                f"{self.name}: execute needs all layers; not loaded: {sorted(self._missing)}"
            )
        if max_steps is not None and max_steps < 1:
            raise RunError(f"{self.name}: max_steps={max_steps} must be at least 1")
        for request, num_tokens in batch.chunks:
            self._check_chunk(request, num_tokens)
        for request in batch.decodes:
            if request not in self._decoded:
                self._check_decode(request)
        self._decoded = frozenset(batch.decodes)
        self._running = True

    def _reserve(
        self, decodes: Sequence[Request], max_steps: int | None, steps_until: float = inf
    ) -> tuple[int, list[tuple[Request, int]], bool]:
        """How many steps `decodes` may take; who got blocks for them, as (request, the blocks that
        it held); whether the last step ends a request. `steps_until`: by the run's deadline."""
        first_end = min([r.output_tokens - r.generated_tokens for r in decodes])
        steps = int(min(first_end, first_end if max_steps is None else max_steps, steps_until))
        steps = self.kv.growth_steps(decodes, steps)
        grown = self.kv.grow_steps(decodes, steps)
        if grown is None:
            raise RunError(f"{self.name}: no KV blocks were grown for the first step of a decode")
        return steps, grown, steps == first_end

    def _return_unused(self, grown: Sequence[tuple[Request, int]]) -> None:
        for request, held in grown:
            self.kv.shrink(request, max(held * self.kv.block_tokens, request.computed_tokens))

    def _check_chunk(self, request: Request, num_tokens: int) -> None:
        if not 1 <= num_tokens <= request.known_tokens - request.computed_tokens:
            raise RunError(
                f"{self.name}: a chunk of {num_tokens} tokens for request {request.request_id}, "
                f"which has {request.computed_tokens} of {request.known_tokens} known tokens "
                "computed"
            )
        self._check_room(request, request.computed_tokens + num_tokens)

    def _check_decode(self, request: Request) -> None:
        if not request.decoding or request.finished:
            raise RunError(f"{self.name}: request {request.request_id} cannot decode now")
        self._check_room(request, request.computed_tokens + 1)

    def _check_room(self, request: Request, tokens: int) -> None:
        longest = request.prompt_tokens + request.output_tokens - 1
        if longest > self.model.max_position:
            raise RunError(
                f"{self.name}: request {request.request_id} needs {longest} positions, model "
                f"{self.model.name!r} has {self.model.max_position}"
            )
        held = self.kv.held.get(request.request_id, 0)
        if held < self.kv.blocks_for(tokens):
            raise RunError(
                f"{self.name}: request {request.request_id} holds {held} KV blocks, {tokens} "
                f"tokens need {self.kv.blocks_for(tokens)}"
            )
