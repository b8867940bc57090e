"""`Instance` over a worker process: batches go out, one message per iteration comes back.

Blocks for all the iterations that an `execute` may take are reserved up front and what was not
used is given back at its end; tokens are stamped as they arrive, at the worker's own times.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from harness.block_pool import BlockPool
from harness.clock import Event, WallLoop
from harness.cluster import ModelSpec
from harness.engine.block_tables import BlockTables
from harness.engine.tokens import TokenBook
from harness.engine.transport import Header
from harness.engine.work import ChunkWork, DecodeWork, pack
from harness.engine.worker_process import WorkerProcess
from harness.errors import RunError
from harness.record import Recorder, Segment
from harness.request import Batch, Request


@dataclass(slots=True, eq=False)
class _Run:
    """An `execute` in flight."""

    seq: int
    advances: list[tuple[Request, int]]  # tokens that an iteration computes
    sampled: list[Request]  # whose next tokens an iteration brings, in this order
    stop: Event | None
    done: Event
    num_steps: int = 0


class TorchInstance:
    def __init__(
        self, model: ModelSpec, kv: BlockPool, worker: WorkerProcess, loop: WallLoop,
        recorder: Recorder, book: TokenBook,
    ) -> None:  # fmt: skip
        self.name = worker.name
        self.model = model
        self.kv = kv
        self.tables = BlockTables(kv)
        self._worker, self._loop, self._recorder, self._book = worker, loop, recorder, book
        self._loaded = set(range(model.num_layers))
        self._seq = 0
        self._run: _Run | None = None
        self._transfers: dict[int, Event] = {}
        self._watched: set[Event] = set()
        worker.listen(loop, self._on_message)

    @property
    def pid(self) -> int:
        """The worker's process id."""
        return self._worker.pid

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
        self._seq += 1
        work = described(batch, self.tables, self._book, self.model.vocab_size)
        header, payload = pack(*work)
        deadline_s = until + self._loop.start_monotonic_s + self._worker.clock_offset_s
        header |= {
            "op": "execute",
            "seq": self._seq,
            "max_steps": max_steps,
            "deadline_s": deadline_s if until < inf else None,
        }
        advances = batch.chunks + [(request, 1) for request in batch.decodes]
        sampled = [r for r, n in batch.chunks if r.computed_tokens + n == r.known_tokens]
        self._run = _Run(self._seq, advances, sampled + batch.decodes, stop, Event(self._loop))
        self._worker.expect_answer()
        self._worker.send(header, payload)
        if stop is not None and max_steps > 1 and stop not in self._watched:
            self._watched.add(stop)
            self._loop.spawn(self._forward(stop), name=f"{self.name}: forward a stop")
        return self._run

    async def _forward(self, stop: Event) -> None:
        """Tells the worker once `stop` is set; one such task per event, over many executes."""
        await self._loop.wait(stop)
        self._watched.discard(stop)
        if stop.is_set and self._run is not None and self._run.stop is stop:
            self._worker.send({"op": "stop", "seq": self._run.seq})

    def _max_steps(self, batch: Batch, stop: Event | None) -> int:
        if batch.chunks or (stop is not None and stop.is_set):
            return 1
        limit = min(request.remaining_tokens for request in batch.decodes)
        return self.kv.growth_steps(batch.decodes, limit)

    def _on_message(self, header: Header) -> None:
        if header["op"] == "done":
            self._worker.answered()
            self._transfers.pop(header["seq"]).set()
        elif header["op"] == "step":
            self._on_step(header)

    def _on_step(self, header: Header) -> None:
        run = self._run
        assert run is not None
        assert run.seq == header["seq"], "a step of another execute"
        run.num_steps += 1
        for request, num_tokens in run.advances:
            request.computed_tokens += num_tokens
        for request, token_id in zip(run.sampled, header["tokens"], strict=True):
            request.generated_tokens += 1
            self._book.append(request, token_id)
        offset_s = self._worker.clock_offset_s + self._loop.start_monotonic_s
        token = Segment(header["time_s"] - offset_s, 1, 0.0, 0.0)
        self._recorder.segment([r for r in run.sampled if not r.failed], token, self.name)
        if header["last"]:
            self._worker.answered()
            run.done.set()

    def _finish(self, requests: Sequence[Request]) -> None:
        for request in requests:
            if request.finished:
                self.kv.release(request)
                self._book.forget_prompt(request)
                if not request.failed:  # a time-out may have come first, and is final
                    self._recorder.completed(request)

    async def _transfer(self, op: str, layers: range) -> None:
        self._seq += 1
        done = self._transfers[self._seq] = Event(self._loop)
        start_s = self._loop.now
        self._worker.expect_answer()
        self._worker.send({"op": op, "seq": self._seq, "layers": list(layers)})
        await self._loop.wait(done)
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
    batch: Batch, tables: BlockTables, book: TokenBook, vocab_size: int
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
