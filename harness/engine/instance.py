"""`Instance` over a worker process: batches go out, one message per iteration comes back.

Blocks for all the iterations that an `execute` may take are reserved up front and what was not
used is given back at its end; tokens are stamped as they arrive, at the worker's own times.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Protocol

from harness.clock import Event, WallLoop
from harness.device.block_pool import BlockPool
from harness.engine.commands import Commands
from harness.engine.tokens import TokenBook
from harness.engine.transport import Header
from harness.engine.work import ChunkWork, DecodeWork, pack
from harness.errors import RunError
from harness.model_spec import ModelSpec
from harness.record import Recorder, Segment
from harness.request import Batch, Request


@dataclass(slots=True, eq=False)
class _Run:
    """An `execute` in flight."""

    advances: list[tuple[Request, int]]  # tokens that an iteration computes
    sampled: list[Request]  # whose next tokens an iteration brings, in this order
    done: Event
    num_steps: int = 0


class Tables(Protocol):
    """Which blocks of the KV tensors a request holds."""

    ids: dict[int, list[int]]  # request_id -> its blocks, in token order

    def reconcile(self, requests: Sequence[Request]) -> None:
        """Has `ids` agree with the pool, at least for `requests`."""
        ...


class TorchInstance:
    def __init__(
        self, model: ModelSpec, kv: BlockPool, tables: Tables, commands: Commands,
        loop: WallLoop, recorder: Recorder, book: TokenBook,
    ) -> None:  # fmt: skip
        self.name = commands.worker.name
        self.model = model
        self.kv = kv
        self.tables = tables
        self._commands, self._loop, self._recorder, self._book = commands, loop, recorder, book
        self._loaded = set(range(model.num_layers))
        self._run: _Run | None = None

    @property
    def pid(self) -> int:
        """The worker's process id."""
        return self._commands.worker.pid

    @property
    def tokens(self) -> dict[int, list[int]]:
        """Generated ids by request_id, of all instances of the run."""
        return self._book.generated

    async def execute(self, batch: Batch, *, until: float = inf, stop: Event | None = None) -> int:
        self._check(batch)
        max_steps = self._max_steps(batch, stop)
        held = {r.request_id: self.kv.held[r.request_id] for r in batch.requests}
        for request in batch.decodes:
            self.kv.grow(request, request.computed_tokens + max_steps)
        self.tables.reconcile(batch.requests)
        run = self._start(batch, max_steps, until, stop)
        await self._loop.wait(run.done)
        self._run = None
        for request in batch.requests:
            kept = held[request.request_id] * self.kv.block_tokens
            self.kv.shrink(request, max(kept, request.computed_tokens))
        self._finish(batch.requests)
        return run.num_steps

    def evict(self, request: Request) -> None:
        self.kv.release(request)
        request.computed_tokens = 0
        self._recorder.preempted(request, self.name, self._loop.now)

    async def load(self, layers: range) -> None:
        await self._transfer("load", layers)
        self._loaded |= set(layers)

    async def drop(self, layers: range) -> None:
        self._loaded -= set(layers)
        await self._transfer("drop", layers)

    def _start(self, batch: Batch, max_steps: int, until: float, stop: Event | None) -> _Run:
        work = described(batch, self.tables, self._book, self.model.vocab_size)
        header, payload = pack(*work)
        deadline_s = until + self._loop.start_monotonic_s + self._commands.worker.clock_offset_s
        header |= {
            "op": "execute",
            "model": batch.requests[0].model,
            "max_steps": max_steps,
            "deadline_s": deadline_s if until < inf else None,
        }
        advances = batch.chunks + [(request, 1) for request in batch.decodes]
        sampled = [r for r, n in batch.chunks if r.computed_tokens + n == r.known_tokens]
        self._run = _Run(advances, sampled + batch.decodes, Event(self._loop))
        self._commands.send(header, payload, self._on_step, stop if max_steps > 1 else None)
        return self._run

    def _max_steps(self, batch: Batch, stop: Event | None) -> int:
        if batch.chunks or (stop is not None and stop.is_set):
            return 1
        limit = min(request.remaining_tokens for request in batch.decodes)
        return self.kv.growth_steps(batch.decodes, limit)

    def _on_step(self, header: Header) -> None:
        run = self._run
        assert run is not None
        run.num_steps += 1
        for request, num_tokens in run.advances:
            request.computed_tokens += num_tokens
        for request, token_id in zip(run.sampled, header["tokens"], strict=True):
            request.generated_tokens += 1
            self._book.append(request, token_id)
        offset_s = self._commands.worker.clock_offset_s + self._loop.start_monotonic_s
        token = Segment(header["time_s"] - offset_s, 1, 0.0, 0.0)
        self._recorder.segment([r for r in run.sampled if not r.failed], token, self.name)
        if header["last"]:
            run.done.set()

    def _finish(self, requests: Sequence[Request]) -> None:
        for request in requests:
            if request.finished:
                self.kv.release(request)
                self._book.forget_prompt(request)
                if not request.failed:  # a time-out may have come first, and is final
                    self._recorder.completed(request)

    async def _transfer(self, op: str, layers: range) -> None:
        start_s = self._loop.now
        await self._commands.call({"op": op, "layers": list(layers)})
        self._recorder.event(op, self.name, start_s, self._loop.now, layers=list(layers))

    def _check(self, batch: Batch) -> None:
        """Raises RunError for a batch that the instance cannot run: a fault of the system."""
        if self._run is not None:
            raise RunError(f"{self.name}: execute was called while another one is running")
        if not batch.requests:
            raise RunError(f"{self.name}: execute was called with an empty batch")
        if len(self._loaded) < self.model.num_layers:
            missing = sorted(set(range(self.model.num_layers)) - self._loaded)
            raise RunError(f"{self.name}: execute needs all layers; not loaded: {missing}")
        for request, num_tokens in batch.chunks:
            if not 1 <= num_tokens <= request.known_tokens - request.computed_tokens:
                raise RunError(
                    f"{self.name}: a chunk of {num_tokens} tokens for request"
                    f" {request.request_id}, which has {request.computed_tokens} of"
                    f" {request.known_tokens} known tokens computed"
                )
            self._check_room(request, request.computed_tokens + num_tokens)
        for request in batch.decodes:
            if not request.decoding or request.finished:
                raise RunError(f"{self.name}: request {request.request_id} cannot decode now")
            self._check_room(request, request.computed_tokens + 1)

    def _check_room(self, request: Request, tokens: int) -> None:
        longest = request.prompt_tokens + request.output_tokens - 1
        if longest > self.model.max_position:
            raise RunError(
                f"{self.name}: request {request.request_id} needs {longest} positions,"
                f" model {self.model.name!r} has {self.model.max_position}"
            )
        held = self.kv.held.get(request.request_id, 0)
        if held < self.kv.blocks_for(tokens):
            raise RunError(
                f"{self.name}: request {request.request_id} holds {held} KV blocks,"
                f" {tokens} tokens need {self.kv.blocks_for(tokens)}"
            )


def described(
    batch: Batch, tables: Tables, book: TokenBook, vocab_size: int
) -> tuple[list[ChunkWork], list[DecodeWork]]:
    """The batch in token ids, positions and block ids."""
    chunks = []
    for request, num_tokens in batch.chunks:
        start, stop = request.computed_tokens, request.computed_tokens + num_tokens
        ids = book.known(request, vocab_size, start, stop)
        samples = stop == request.known_tokens
        chunks.append(ChunkWork(ids, start, samples, tables.ids[request.request_id]))
    decodes = [
        DecodeWork(book.last(request), request.computed_tokens, tables.ids[request.request_id])
        for request in batch.decodes
    ]
    return chunks, decodes
