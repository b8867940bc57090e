"""Batches over several real workers: each stage's worker is told its part, the last one's tokens
come back, the first one says when a batch is over.

A run of a few layers is a batch of one stage, whose worker keeps the activations until the harness
says who gets them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf

from harness.clock import Event, WallLoop
from harness.elastic.instance import ElasticInstance
from harness.elastic.layerwise import LayerRun
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
class SentBatch:
    """What the harness knows of a batch on its workers."""

    number: int
    staged: StagedBatch
    done: Event
    commands: list[tuple[Commands, int]] = field(default_factory=list)  # to stages, by number
    num_steps: int = 0
    steps_in_all: int | None = None  # known once the first stage has ended it
    lost: str | None = None
    paced_s: float = 0.0  # what the last stage's layers were to take at least; 0: no pace
    behind_s: float = 0.0  # what they took beyond it


class TorchPipeline:
    def __init__(
        self, stages: Sequence[Stage], fabric: TorchFabric, loop: WallLoop, recorder: Recorder,
        book: TokenBook,
    ) -> None:  # fmt: skip
        self._fabric, self._loop, self._recorder, self.book = fabric, loop, recorder, book
        self.name = "+".join(instance.name for instance, _ in stages)
        self.last_step_s = 0.0

    async def run(
        self, staged: StagedBatch, until: float, stop: Event | None, interrupt: Event
    ) -> int:
        stops = [each for each in (interrupt, stop) if each is not None and staged.steps > 1]

        def send(sent: SentBatch) -> None:
            for position, elsewhere in enumerate(staged.remote):
                for holder in elsewhere:
                    held = self._hold_work(sent, position, holder)
                    worker = self._fabric.commands[holder.name].worker
                    worker.send({"op": "hold", "work": held})
            for position in reversed(range(len(staged.stages))):  # the first one starts at once
                work = self.stage_work(sent, position, until)
                self.tell(sent, position, work, *([] if position else stops))

        return await self.follow(staged, next(self._fabric.batch_numbers), send)

    async def follow(
        self, staged: StagedBatch, number: int, send: Callable[[SentBatch], None]
    ) -> int:
        """Has `send` tell the workers, and counts tokens until the batch is over: iterations.
        InstanceLost where one of its instances dies."""
        for instance in staged.instances:
            assert instance.tables is not None
            requests = [r for r in staged.batch.requests if r.request_id in instance.kv.held]
            instance.tables.reconcile(requests)
        sent, start_s = SentBatch(number, staged, Event(self._loop)), self._loop.now

        def on_death(name: str) -> None:
            if name in [instance.name for instance in staged.instances]:
                sent.lost = name
                sent.done.set()

        self._fabric.on_death.append(on_death)
        try:
            send(sent)
            await self._loop.wait(sent.done)
        finally:
            self._fabric.on_death.remove(on_death)
            self._end(sent)
        if sent.paced_s:
            paced = {"paced_s": sent.paced_s, "behind_s": sent.behind_s}
            self._recorder.event("pace", self.name, start_s, self._loop.now, **paced)
        if sent.lost is not None:
            raise InstanceLost(sent.lost)
        return sent.num_steps

    def tell(self, sent: SentBatch, position: int, work: StageWork, *stops: Event) -> None:
        commands = self._fabric.commands[sent.staged.stages[position][0].name]
        on_message = partial(self._on_message, sent)
        seq = commands.send({"op": "stage", "work": work}, on_message, *stops)
        sent.commands.append((commands, seq))

    def stage_work(self, sent: SentBatch, position: int, until: float) -> StageWork:
        staged = sent.staged
        batch, (instance, layers) = staged.batch, staged.stages[position]
        first = staged.stages[0][0]
        clock_offset_s = self._fabric.commands[instance.name].worker.clock.offset_s
        is_last = position == len(staged.stages) - 1
        neighbour = first if is_last else staged.stages[position + 1][0]
        work = batch_work(batch) if position else self.book.work(batch, instance.model.vocab_size)
        return StageWork(
            sent.number, work, layers, instance.layout.page_layers, staged.steps,
            deadline_s=until + self._loop.start_monotonic_s + clock_offset_s,
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

    def _hold_work(self, sent: SentBatch, position: int, holder: ElasticInstance) -> HoldWork:
        batch, remote = sent.staged.batch, sent.staged.remote[position]
        instance, layers = sent.staged.stages[position]
        groups = {
            group: part
            for group in instance.layout.groups(layers)
            for part in parts_of(batch, instance, group, remote)
            if part.holder == holder.name
        }
        path = self._fabric.path(holder.memory, instance.memory)
        return HoldWork(sent.number, batch_work(batch), path, groups)

    def _on_message(self, sent: SentBatch, header: Header) -> None:
        if header["last"]:
            sent.steps_in_all = header.get("num_steps", sent.steps_in_all)
        elif not sent.done.is_set:  # an iteration's tokens have come out of the last stage
            sent.num_steps += 1
            sent.paced_s += header["paced_s"]
            sent.behind_s += header["behind_s"]
            sampled = self.book.count(sent.staged.batch, header["tokens"])
            self.last_step_s = header["time_s"] - self._loop.start_monotonic_s
            token = Segment(self.last_step_s, 1, 0.0, 0.0)
            self._recorder.segment([r for r in sampled if not r.failed], token, self.name)
        if sent.steps_in_all == sent.num_steps:
            sent.done.set()

    def _end(self, sent: SentBatch) -> None:
        """Nobody waits for anything of it any more."""
        for commands, seq in sent.commands:
            commands.close(seq)
        staged, broken = sent.staged, sent.lost is not None
        first = staged.stages[0][0]
        attends = any(first in elsewhere for elsewhere in staged.remote)
        for instance in staged.instances:
            if instance is not first or attends or broken:  # else it knows
                self._fabric.abandon(instance.name, sent.number, broken=broken)


def parts_of(batch: Batch, instance: ElasticInstance, group: int, remote: Remote) -> list[Part]:
    """Tells who attends for which requests of the batch in this page group, of a stage on
    `instance`."""
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


class TorchLayerwise:
    def __init__(
        self, pipeline: Callable[[Sequence[Stage]], TorchPipeline], fabric: TorchFabric
    ) -> None:
        self._pipeline, self._fabric = pipeline, fabric
        self._kept: tuple[ElasticInstance, int] | None = None  # where activations rest, and whose
        self._ahead: int | None = None  # the run that they have been sent to
        self._numbers: list[tuple[str, int]] = []  # worker, number: of all runs and sends

    async def run(self, run: LayerRun) -> None:
        instance, previous = run.instance, run.previous
        if previous is not None and not run.sent:
            self.send(run.batch, previous, instance)
        number = next(self._fabric.batch_numbers) if previous is None else self._ahead
        assert number is not None
        self._numbers.append((instance.name, number))
        stages = [(instance, run.layers)]
        pipeline = self._pipeline(stages)

        def send(sent: SentBatch) -> None:
            work = pipeline.stage_work(sent, 0, inf)
            work.keeps, work.previous = not run.last, None if previous is None else previous.name
            if previous is not None:
                work.batch = replace(work.batch, ids=())
            pipeline.tell(sent, 0, work)

        staged = StagedBatch(run.batch, 1, stages, [{}], [instance, *run.others])
        await pipeline.follow(staged, number, send)
        self._kept, self._ahead = (instance, number), None

    def send(self, batch: Batch, source: ElasticInstance, target: ElasticInstance) -> None:
        """Passes the kept activations on, under the number of the run that is to have them."""
        assert self._kept is not None
        assert self._kept[0] is source
        self._ahead = next(self._fabric.batch_numbers)
        self._numbers.append((target.name, self._ahead))
        self._fabric.commands[source.name].worker.send(
            {
                "op": "pass", "kept": self._kept[1], "batch": self._ahead, "to": target.name,
                "path": self._fabric.path(source.memory, target.memory),
            }
        )  # fmt: skip

    def end(self) -> None:
        for name, number in self._numbers:
            self._fabric.abandon(name, number, broken=False)
