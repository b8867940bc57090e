"""`Instance` over a worker process: batches go out, one message per iteration comes back.

Tokens are stamped and counted as they arrive, at the worker's own times.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, inf
from typing import Protocol

from harness.clock import Event, WallLoop
from harness.device.base import BaseInstance
from harness.device.block_pool import BlockPool
from harness.engine.commands import Commands
from harness.engine.tokens import TokenBook
from harness.engine.transport import Header
from harness.engine.work import ChunkWork, DecodeWork, pack
from harness.model_spec import ModelSpec
from harness.placement import Profile
from harness.records.record import Recorder, Segment
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


class TorchInstance(BaseInstance):
    def __init__(
        self, model: ModelSpec, kv: BlockPool, tables: Tables, commands: Commands,
        loop: WallLoop, recorder: Recorder, book: TokenBook, profile: Profile,
    ) -> None:  # fmt: skip
        super().__init__(commands.worker.name, model, kv, loop, recorder)
        self.tables = tables
        self._commands, self._wall, self._book, self._profile = commands, loop, book, profile
        self._run: _Run | None = None
        self._last_step_s = 0.0

    @property
    def pid(self) -> int:
        """The worker's process id."""
        return self._commands.worker.pid

    @property
    def tokens(self) -> dict[int, list[int]]:
        """Generated ids by request_id, of all instances of the run."""
        return self._book.generated

    async def execute(
        self,
        batch: Batch,
        *,
        max_steps: int | None = None,
        until: float = inf,
        stop: Event | None = None,
    ) -> int:
        self._begin(batch, max_steps)
        steps, grown = 1, list[tuple[Request, int]]()
        if not batch.chunks:
            at_once = stop is not None and stop.is_set
            by_then = self._steps_until(batch.decodes, until)
            steps, grown, _ = self._reserve(batch.decodes, 1 if at_once else max_steps, by_then)
        self.tables.reconcile(batch.requests)
        run = self._start(batch, steps, until, stop)
        await self._loop.wait(run.done)
        self._run, self._running = None, False
        self._return_unused(grown)
        self._finish(batch.requests)
        return run.num_steps

    def settle(self) -> float:
        return self._last_step_s

    def _steps_until(self, decodes: Sequence[Request], until: float) -> float:
        """As many as the profile has end by `until`: should they be faster, the run ends early."""
        if until == inf:
            return inf
        context = sum(request.known_tokens for request in decodes)
        step_s = self._profile.decode_step_s(self.model, len(decodes), context)
        return max(1, ceil((until - self._loop.now) / step_s))

    async def load(self, layers: range) -> None:
        await self._transfer("load", layers)
        self._missing -= set(layers)

    async def drop(self, layers: range) -> None:
        self._missing |= set(layers)
        await self._transfer("drop", layers)

    def _start(self, batch: Batch, max_steps: int, until: float, stop: Event | None) -> _Run:
        work = described(batch, self.tables, self._book, self.model.vocab_size)
        header, payload = pack(*work)
        deadline_s = until + self._wall.start_monotonic_s + self._commands.worker.clock_offset_s
        header |= {
            "op": "execute",
            "lane": "compute",
            "model": batch.requests[0].model,
            "max_steps": max_steps,
            "deadline_s": deadline_s if until < inf else None,
        }
        advances = batch.chunks + [(request, 1) for request in batch.decodes]
        sampled = [r for r, n in batch.chunks if r.computed_tokens + n == r.known_tokens]
        self._run = _Run(advances, sampled + batch.decodes, Event(self._loop))
        self._commands.send(
            header, payload, self._on_step, *([stop] if stop is not None and max_steps > 1 else ())
        )
        return self._run

    def _on_step(self, header: Header) -> None:
        run = self._run
        assert run is not None
        run.num_steps += 1
        for request, num_tokens in run.advances:
            request.computed_tokens += num_tokens
        for request, token_id in zip(run.sampled, header["tokens"], strict=True):
            request.generated_tokens += 1
            self._book.append(request, token_id)
        offset_s = self._commands.worker.clock_offset_s + self._wall.start_monotonic_s
        self._last_step_s = header["time_s"] - offset_s
        token = Segment(self._last_step_s, 1, 0.0, 0.0)
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
        await self._commands.call({"op": op, "lane": "compute", "layers": list(layers)})
        self._recorder.event(op, self.name, start_s, self._loop.now, layers=list(layers))


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
