"""`Instance` over a worker process: batches go out, one message per iteration comes back.

Tokens are counted as they arrive, at the worker's own times, or from another host at that of their
arrival (`WorkerProcess`). A device that has one model for good needs no stages: its worker runs the
steps of a batch in one loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, inf

from harness.clock import Event, WallLoop
from harness.device.base import BaseInstance
from harness.device.block_pool import BlockPool
from harness.engine.block_tables import BlockTables, SlabTables
from harness.engine.commands import Commands
from harness.engine.tokens import TokenBook
from harness.engine.transport import Header
from harness.errors import InstanceLost, RunError, first_line
from harness.model_spec import ModelSpec
from harness.placement import Profile
from harness.records.record import Recorder, Segment
from harness.request import Batch, Request


@dataclass(slots=True, eq=False)
class _Run:
    """An `execute` in flight."""

    batch: Batch
    done: Event
    num_steps: int = 0
    broken: bool = False  # the worker died before its end


@dataclass(slots=True, frozen=True)
class LiveRun:
    """What all instances of a live run share. `profile`: by which the steps until a deadline are
    reserved."""

    loop: WallLoop
    recorder: Recorder
    book: TokenBook
    profile: Profile


class TorchInstance(BaseInstance):
    def __init__(
        self, model: ModelSpec, kv: BlockPool, tables: BlockTables | SlabTables,
        commands: Commands, run: LiveRun,
    ) -> None:  # fmt: skip
        super().__init__(commands.worker.name, model, kv, run.loop, run.recorder)
        self.tables = tables
        self._commands, self._wall, self._book = commands, run.loop, run.book
        self._profile = run.profile
        self._run: _Run | None = None
        self._last_step_s = 0.0
        self._lost: InstanceLost | None = None

    def pids(self) -> list[int]:
        return [worker.pid for worker in self._commands.workers]

    async def execute(
        self,
        batch: Batch,
        *,
        max_steps: int | None = None,
        until: float = inf,
        stop: Event | None = None,
    ) -> int:
        if self._lost is not None:
            raise self._lost
        self._begin(batch, max_steps)
        by_then = inf if batch.chunks else self._steps_until(batch.decodes, until)
        steps, grown = self._steps(batch, max_steps, stop, by_then)
        self.tables.reconcile(batch.requests)
        run = self._start(batch, steps, until, stop)
        await self._loop.wait(run.done)
        self._run, self._running = None, False
        if run.broken:
            raise InstanceLost(self.name, "its worker died")
        self._end(batch.requests, grown)
        for request in batch.requests:
            if request.finished:
                self._book.forget_prompt(request)
        return run.num_steps

    def may_fail(self) -> None:
        """A fault is planned: the worker's death raises InstanceLost, where it would end the
        run."""
        for worker in self._commands.workers:
            worker.on_failure = self._lose

    def _lose(self, error: RunError) -> None:
        """A rank that dies takes the others along."""
        if self._lost is not None:
            return
        for worker in self._commands.workers:
            worker.kill()
        self._lost = InstanceLost(self.name, first_line(error))
        self._recorder.event("lost", self.name, self._loop.now, self._loop.now)
        self._commands.fail()

    def settle(self) -> float:
        return self._last_step_s

    def _steps_until(self, decodes: Sequence[Request], until: float) -> float:
        """How many steps the profile has end by `until`: should they be faster, the run ends
        early."""
        if until == inf:
            return inf
        context = sum(request.known_tokens for request in decodes)
        step_s = self._profile.decode_step_s(self.model, len(decodes), context)
        return max(1, ceil((until - self._loop.now) / step_s))

    async def reload(self) -> None:
        """Brings the weights of all layers anew from host memory: what this takes is measured."""
        await self._commands.call({"op": "reload", "stream": "compute"})

    def _start(self, batch: Batch, max_steps: int, until: float, stop: Event | None) -> _Run:
        work = self._book.work(batch, self.model.vocab_size)
        work.blocks = [self.tables.ids[request.request_id] for request in batch.requests]
        offset_s = self._wall.start_monotonic_s + self._commands.worker.clock.offset_s
        header = {
            "op": "execute", "stream": "compute", "model": batch.requests[0].model, "batch": work,
            "max_steps": max_steps, "deadline_s": until + offset_s,
        }  # fmt: skip
        self._run = _Run(batch, Event(self._loop))
        stops = [stop] if stop is not None and max_steps > 1 else []
        self._commands.send(header, self._on_step, *stops)
        return self._run

    def _on_step(self, header: Header) -> None:
        """An iteration is done; its tokens are here."""
        run = self._run
        assert run is not None, "a worker answers what it was told"
        if self._lost is not None:
            run.broken = True
            run.done.set()
            return
        run.num_steps += 1
        sampled = self._book.count(run.batch, header["tokens"])
        self._last_step_s = header["time_s"] - self._wall.start_monotonic_s
        token = Segment(self._last_step_s, 1, 0.0, 0.0)
        self._recorder.segment([r for r in sampled if not r.failed], token, self.name)
        if header["last"]:
            run.done.set()
