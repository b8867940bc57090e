"""What every instance does before and after a batch runs, once for all engines.

Checks: a batch that the instance cannot run is a fault of the system, named in a sentence, in the
simulator as on a real engine. Reservation, one rule: a run of decodes holds the blocks of every
step that it may take from its launch on, so what `kv` shows as free meanwhile is free; what it
did not use is given back at its end.

    steps = min(first end, max_steps, what the pool holds, ceil((until - now) / step_s))
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from math import inf
from typing import NamedTuple

from mypy_extensions import mypyc_attr

from harness.clock import Event, Loop
from harness.device.block_pool import BlockPool
from harness.errors import RunError
from harness.model_spec import ModelSpec
from harness.records.record import Recorder
from harness.request import Batch, Request

_numbers = count(1)  # of instances, of all runs of this process

Grown = list[tuple[Request, int]]  # who got blocks for further steps, and how many it held before


def advance(batch: Batch) -> list[Request]:
    """Moves the counters of the batch's requests by one iteration. Those of its chunks that have a
    new token, as all decodes have: what they know is computed."""
    sampled = list[Request]()
    for request, num_tokens in batch.chunks:
        request.computed_tokens += num_tokens
        if request.computed_tokens == request.known_tokens:
            sampled.append(request)
            request.generated_tokens += 1
    for request in batch.decodes:
        request.computed_tokens += 1
        request.generated_tokens += 1
    return sampled


class Arriving(NamedTuple):
    """Layers of which a batch waits for each when its turn comes. `layers`: of one instance, in
    order, the event that the weights of each are there. `gone`: each set once something that the
    batch needs is lost."""

    layers: Sequence[Event]
    gone: Sequence[Event]


@mypyc_attr(allow_interpreted_subclasses=True)
class BaseInstance:
    """Checks and reservation; an engine adds how a batch runs."""

    def __init__(
        self, name: str, model: ModelSpec, kv: BlockPool, loop: Loop, recorder: Recorder
    ) -> None:
        self.name = name
        self.model = model
        self.kv = kv
        self._loop, self._recorder = loop, recorder
        self._running = False
        self._number: int = next(_numbers)

    def evict(self, request: Request) -> None:
        """Evicts `request`, as `Instance.evict` says."""
        request.decodes_on = 0
        self.kv.release(request)
        request.computed_tokens = 0
        self._recorder.preempted(request, self.name, self._loop.now)

    def _begin(self, batch: Batch, max_steps: int | None) -> None:
        """Raises RunError for a batch that cannot run now; else the instance is running."""
        chunks, decodes = batch.chunks, batch.decodes
        few = max_steps is not None and max_steps < 1
        if self._running or few or not (chunks or decodes):
            self._refuse(batch, max_steps)
        if chunks:
            self._check_chunks(chunks)
        if decodes:
            self._check_decodes(batch)
        self._running = True

    # Simulations spend their time in these two: the usual is looked at in place, the rest below.

    def _check_chunks(self, chunks: Sequence[tuple[Request, int]]) -> None:
        held, size, most = self.kv.held, self.kv.block_tokens, self.model.max_position
        for request, num_tokens in chunks:
            after = request.computed_tokens + num_tokens
            if not (
                num_tokens >= 1
                and after <= request.prompt_tokens + request.generated_tokens
                and after <= held.get(request.request_id, 0) * size
                and request.prompt_tokens + request.output_tokens <= most + 1
            ):
                self._check_chunk(request, num_tokens)

    def _check_decodes(self, batch: Batch) -> None:
        number, held, size = self._number, self.kv.held, self.kv.block_tokens
        most = self.model.max_position
        context, first_end = 0, batch.decodes[0].output_tokens
        for request in batch.decodes:
            known = request.computed_tokens + 1
            remaining = request.output_tokens - request.generated_tokens
            context += known
            if remaining < first_end:
                first_end = remaining
            # Requests that have run here may go on until they end.
            if request.decodes_on != number or remaining <= 0:
                if not (
                    known == request.prompt_tokens + request.generated_tokens
                    and 0 < request.generated_tokens < request.output_tokens
                    and known <= held.get(request.request_id, 0) * size
                    and request.prompt_tokens + request.output_tokens <= most + 1
                ):
                    self._check_decode(request)
                request.decodes_on = number
        batch.context_tokens, batch.first_end = context, first_end

    def _refuse(self, batch: Batch, max_steps: int | None) -> None:
        if self._running:
            raise RunError(f"{self.name}: execute was called while another one is running")
        if not (batch.chunks or batch.decodes):
            raise RunError(f"{self.name}: execute was called with an empty batch")
        raise RunError(f"{self.name}: max_steps={max_steps} must be at least 1")

    def _reserve(
        self, batch: Batch, max_steps: int | None, steps_until: float = inf
    ) -> tuple[int, Grown, bool]:
        """How many steps the batch's decodes may take; who got blocks for them; whether the last
        step ends a request. `steps_until`: by the run's deadline."""
        first_end = batch.first_end
        steps = first_end if max_steps is None else min(first_end, max_steps)
        if steps_until < steps:
            steps = int(steps_until)
        steps = self.kv.growth_steps(batch.decodes, steps)
        grown = self.kv.grow_steps(batch.decodes, steps)
        if grown is None:
            raise RunError(f"{self.name}: no KV blocks were grown for the first step of a decode")
        return steps, grown, steps == first_end

    def _steps(
        self, batch: Batch, max_steps: int | None, stop: Event | None, steps_until: float = inf
    ) -> tuple[int, Grown]:
        """Reserves as `_reserve` does, for any batch, for an engine that looks at `stop` between
        two steps."""
        if batch.chunks:
            return 1, []
        at_once = stop is not None and stop.is_set
        steps, grown, _ = self._reserve(batch, 1 if at_once else max_steps, steps_until)
        return steps, grown

    def _end(self, requests: Sequence[Request], grown: Grown) -> None:
        """Gives back what was reserved and not used, and all that requests held which are over."""
        self.kv.shrink_to_computed(grown)
        for request in requests:
            if request.finished:
                self.kv.release(request)
                if not request.failed:  # a time-out may have come first, and is final
                    self._recorder.completed(request)

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
