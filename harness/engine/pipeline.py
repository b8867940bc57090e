"""The stages of a pipeline on real workers: a batch is told to all of them, the last one's tokens
come back, the first one says when it is over."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from harness.clock import Event, WallLoop
from harness.elastic.instance import ElasticInstance
from harness.elastic.pipeline import Remote, Stage, StagedBatch
from harness.engine.commands import Commands
from harness.engine.fabric import TorchFabric
from harness.engine.tokens import TokenBook, batch_work
from harness.engine.transport import Header
from harness.engine.work import HoldWork, Part, StageWork
from harness.errors import InstanceLost
from harness.records.record import Recorder, Segment
from harness.request import Batch


@dataclass(slots=True, eq=False)
class InFlight:
    """What the harness knows of a batch on its workers."""

    number: int
    staged: StagedBatch
    done: Event
    commands: list[tuple[Commands, int]] = field(default_factory=list)  # to stages, by number
    num_steps: int = 0
    steps_in_all: int | None = None  # known once the first stage has ended it
    lost: str | None = None


class TorchPipeline:
    def __init__(
        self, stages: Sequence[Stage], fabric: TorchFabric, loop: WallLoop, recorder: Recorder,
        book: TokenBook,
    ) -> None:  # fmt: skip
        self._fabric, self._loop, self._recorder, self.book = fabric, loop, recorder, book
        self.name = "+".join(instance.name for instance, _ in stages)
        self.last_step_s = 0.0
        fabric.connect(*[instance.name for instance, _ in stages])

    async def run(
        self, staged: StagedBatch, until: float, stop: Event | None, interrupt: Event
    ) -> int:
        self._fabric.connect(*[instance.name for instance in staged.instances])
        stops = [] if staged.steps == 1 else [interrupt] if stop is None else [interrupt, stop]

        def send(flight: InFlight) -> None:
            for position, elsewhere in enumerate(staged.remote):
                for holder in elsewhere:
                    held = self._hold_work(flight, position, holder)
                    worker = self._fabric.commands[holder.name].worker
                    worker.send({"op": "hold", "work": held})
            for position in reversed(range(len(staged.stages))):  # the first one starts at once
                work = self.stage_work(flight, position, until)
                self.tell(flight, position, work, *([] if position else stops))

        return await self.follow(staged, next(self._fabric.batch_numbers), send)

    async def follow(
        self, staged: StagedBatch, number: int, send: Callable[[InFlight], None]
    ) -> int:
        """Has `send` tell the workers, and counts tokens until the batch is over: iterations.
        InstanceLost where one of its instances dies."""
        for instance in staged.instances:
            assert instance.tables is not None
            requests = [r for r in staged.batch.requests if r.request_id in instance.kv.held]
            instance.tables.reconcile(requests)
        flight = InFlight(number, staged, Event(self._loop))

        def on_death(name: str) -> None:
            if name in [instance.name for instance in staged.instances]:
                flight.lost = name
                flight.done.set()

        self._fabric.on_death.append(on_death)
        try:
            send(flight)
            await self._loop.wait(flight.done)
        finally:
            self._fabric.on_death.remove(on_death)
            self._end(flight)
        if flight.lost is not None:
            raise InstanceLost(flight.lost)
        return flight.num_steps

    def tell(self, flight: InFlight, position: int, work: StageWork, *stops: Event) -> None:
        commands = self._fabric.commands[flight.staged.stages[position][0].name]
        on_message = partial(self._on_message, flight, commands.worker.clock_offset_s)
        seq = commands.send({"op": "stage", "work": work}, on_message, *stops)
        flight.commands.append((commands, seq))

    def stage_work(self, flight: InFlight, position: int, until: float) -> StageWork:
        staged = flight.staged
        batch, (instance, layers) = staged.batch, staged.stages[position]
        first = staged.stages[0][0]
        is_last = position == len(staged.stages) - 1
        neighbour = first if is_last else staged.stages[position + 1][0]
        work = batch_work(batch) if position else self.book.work(batch, instance.model.vocab_size)
        return StageWork(
            flight.number, work, layers, instance.layout.page_layers, staged.steps,
            deadline_s=until + self._loop.start_monotonic_s,
            groups={
                group: parts_of(batch, instance, group, staged.remote[position])
                for group in instance.layout.groups(layers)
            },
            previous=staged.stages[position - 1][0].name if position else None,
            following=None if is_last else neighbour.name,
            first=first.name,
            following_path=self._fabric.path(instance.memory, neighbour.memory),
            holder_paths={
                holder.name: self._fabric.path(instance.memory, holder.memory)
                for holder in staged.remote[position]
            },
        )  # fmt: skip

    def _hold_work(self, flight: InFlight, position: int, holder: ElasticInstance) -> HoldWork:
        batch, remote = flight.staged.batch, flight.staged.remote[position]
        instance, layers = flight.staged.stages[position]
        groups = {
            group: part
            for group in instance.layout.groups(layers)
            for part in parts_of(batch, instance, group, remote)
            if part.holder == holder.name
        }
        path = self._fabric.path(holder.memory, instance.memory)
        return HoldWork(flight.number, batch_work(batch), path, groups)

    def _on_message(self, flight: InFlight, offset_s: float, header: Header) -> None:
        if header["last"]:
            flight.steps_in_all = header.get("num_steps", flight.steps_in_all)
        elif not flight.done.is_set:  # an iteration's tokens have come out of the last stage
            flight.num_steps += 1
            sampled = self.book.count(flight.staged.batch, header["tokens"])
            self.last_step_s = header["time_s"] - offset_s - self._loop.start_monotonic_s
            token = Segment(self.last_step_s, 1, 0.0, 0.0)
            self._recorder.segment([r for r in sampled if not r.failed], token, self.name)
        if flight.steps_in_all == flight.num_steps:
            flight.done.set()

    def _end(self, flight: InFlight) -> None:
        """Nobody waits for anything of it any more."""
        for commands, seq in flight.commands:
            commands.close(seq)
        staged, broken = flight.staged, flight.lost is not None
        first = staged.stages[0][0]
        attends = any(first in elsewhere for elsewhere in staged.remote)
        for instance in staged.instances:
            if instance is not first or attends or broken:  # else it knows
                self._fabric.abandon(instance.name, flight.number, broken=broken)


def parts_of(batch: Batch, instance: ElasticInstance, group: int, remote: Remote) -> list[Part]:
    """Who attends for which requests of the batch in this page group, of a stage on `instance`."""
    found: dict[ElasticInstance, Part] = {}
    for number, request in enumerate(batch.requests):
        holders = (h for h, mine in remote.items() if group in mine.get(request.request_id, ()))
        holder = next(holders, instance)
        part = found.setdefault(holder, Part(holder.name))
        num_chunks = len(batch.chunks)
        if number < num_chunks:
            part.chunks.append(number)
        else:
            part.decodes.append(number - num_chunks)
        assert holder.tables is not None
        part.blocks.append(holder.tables.ids[request.request_id][group])
    return list(found.values())
