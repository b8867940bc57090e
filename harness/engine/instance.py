"""`Instance` over a worker process: batches go out, one message per iteration comes back.

Tokens are stamped and counted as they arrive, at the worker's own times. A device that has one
model for good needs no stages: its worker runs the steps of a batch in one loop, 3.3 ms each where
a pipeline of one stage takes 5.2 (64 decodes, this CPU, one thread).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, inf
from typing import Protocol

from harness.clock import Event, WallLoop
from harness.cost.profile import HardwareProfile
from harness.device.base import BaseInstance
from harness.device.block_pool import BlockPool
from harness.engine.commands import Commands
from harness.engine.tokens import TokenBook
from harness.engine.transport import Header
from harness.engine_api import Experiment
from harness.model_spec import ModelSpec
from harness.records.record import Segment
from harness.request import Batch, Request


@dataclass(slots=True, eq=False)
class _Run:
    """An `execute` in flight."""

    batch: Batch
    done: Event
    num_steps: int = 0


class Tables(Protocol):
    """Which blocks of the KV tensors a request holds."""

    ids: dict[int, list[int]]  # request_id -> its blocks, in token order

    def reconcile(self, requests: Sequence[Request]) -> None:
        """Has `ids` agree with the pool, at least for `requests`."""
        ...


class LiveRun:
    """What all instances of a live run share. `profile`: by which the steps until a deadline are
    reserved."""

    def __init__(self, experiment: Experiment) -> None:
        assert isinstance(experiment.loop, WallLoop), "make_loop() made it"
        self.loop, self.recorder = experiment.loop, experiment.recorder
        self.book = TokenBook(experiment.seed)
        self.profile = HardwareProfile(experiment.hardware)

    def stamp(self, batch: Batch, header: Header, name: str) -> float:
        """An iteration's tokens have come from a worker, at `name`: counts and stamps them. Returns
        when the iteration was over."""
        over_s: float = header["time_s"] - self.loop.start_monotonic_s
        sampled = self.book.count(batch, header["tokens"])
        token = Segment(over_s, 1, 0.0, 0.0)
        self.recorder.segment([r for r in sampled if not r.failed], token, name)
        return over_s


class TorchInstance(BaseInstance):
    def __init__(
        self, model: ModelSpec, kv: BlockPool, tables: Tables, commands: Commands, run: LiveRun
    ) -> None:
        super().__init__(commands.worker.name, model, kv, run.loop, run.recorder)
        self.pid = commands.worker.pid
        self.tables = tables
        self.tokens = run.book.generated  # ids by request_id, of all instances of the run
        self._commands, self._live = commands, run
        self._run: _Run | None = None
        self._last_step_s = 0.0

    async def execute(
        self,
        batch: Batch,
        *,
        max_steps: int | None = None,
        until: float = inf,
        stop: Event | None = None,
    ) -> int:
        self._begin(batch, max_steps)
        by_then = inf if batch.chunks else self._steps_until(batch.decodes, until)
        steps, grown = self._steps(batch, max_steps, stop, by_then)
        self.tables.reconcile(batch.requests)
        run = self._start(batch, steps, until, stop)
        await self._loop.wait(run.done)
        self._run, self._running = None, False
        self._end(batch.requests, grown)
        for request in batch.requests:
            if request.finished:
                self._live.book.forget_prompt(request)
        return run.num_steps

    def settle(self) -> float:
        return self._last_step_s

    def _steps_until(self, decodes: Sequence[Request], until: float) -> float:
        """How many steps the profile has end by `until`: should they be faster, the run ends
        early."""
        if until == inf:
            return inf
        context = sum(request.known_tokens for request in decodes)
        step_s = self._live.profile.decode_step_s(self.model, len(decodes), context)
        return max(1, ceil((until - self._loop.now) / step_s))

    async def reload(self) -> None:
        """Brings the weights of all layers anew from host memory: what this takes is measured."""
        await self._commands.call({"op": "reload", "stream": "compute"})

    def _start(self, batch: Batch, max_steps: int, until: float, stop: Event | None) -> _Run:
        work = self._live.book.work(batch, self.model.vocab_size)
        work.blocks = [self.tables.ids[request.request_id] for request in batch.requests]
        header = {
            "op": "execute", "stream": "compute", "model": batch.requests[0].model, "batch": work,
            "max_steps": max_steps, "deadline_s": until + self._live.loop.start_monotonic_s,
        }  # fmt: skip
        self._run = _Run(batch, Event(self._loop))
        stops = [stop] if stop is not None and max_steps > 1 else []
        self._commands.send(header, self._on_step, *stops)
        return self._run

    def _on_step(self, header: Header) -> None:
        """An iteration is done; its tokens are here."""
        run = self._run
        assert run is not None, "a worker answers what it was told"
        run.num_steps += 1
        self._last_step_s = self._live.stamp(run.batch, header, self.name)
        if header["last"]:
            run.done.set()
