"""The stages of a pipeline on real workers: what flies is told to all of them, the last one's
tokens come back, the first one says when it is over."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import inf

from harness.clock import Event, WallLoop
from harness.elastic.instance import ElasticInstance
from harness.elastic.pipeline import FlightPlan, Stage
from harness.engine.commands import Commands
from harness.engine.fabric import TorchFabric
from harness.engine.flight_work import HoldWork, Part, StageWork, pack
from harness.engine.tokens import TokenBook
from harness.engine.transport import Header
from harness.errors import InstanceLost
from harness.records.record import Recorder, Segment
from harness.request import Batch, Request


class UnderWay:
    """What the harness knows of one under way."""

    def __init__(self, loop: WallLoop, plan: FlightPlan, names: set[str]) -> None:
        self.plan, self.names = plan, names
        self.done = Event(loop)
        self.commands: list[tuple[Commands, int]] = []  # to each stage, by number
        self.num_steps = 0
        self.steps_in_all: int | None = None  # known once the first stage has ended it
        self.lost: str | None = None


class TorchPipeline:
    def __init__(
        self, stages: Sequence[Stage], fabric: TorchFabric, loop: WallLoop, recorder: Recorder,
        book: TokenBook,
    ) -> None:  # fmt: skip
        self._stages = stages
        self._fabric, self._loop, self._recorder, self.book = fabric, loop, recorder, book
        self.name = "+".join(instance.name for instance, _ in stages)
        self.last_step_s = 0.0
        fabric.connect(*[instance.name for instance, _ in stages])

    async def fly(self, plan: FlightPlan, until: float, stop: Event | None, halt: Event) -> int:
        number = next(self._fabric.flight_numbers)
        instances = {instance.name: instance for instance, _ in plan.stages}
        holders = {holder.name: holder for each in plan.remote for holder in each}
        involved = instances | holders
        self._fabric.connect(*involved)
        for instance in involved.values():
            assert instance.tables is not None
            instance.tables.reconcile(
                [r for r in plan.batch.requests if r.request_id in instance.kv.held]
            )

        def send(flight: UnderWay) -> None:
            self._send(plan, number, flight, until, stop, halt)

        return await self.follow(plan, number, set(involved), send)

    async def follow(
        self, plan: FlightPlan, number: int, names: set[str], send: Callable[[UnderWay], None]
    ) -> int:
        """Has `send` tell the workers, and counts tokens until the flight is over: iterations.
        InstanceLost where one of `names` dies."""
        flight = UnderWay(self._loop, plan, names)

        def on_death(name: str) -> None:
            if name in flight.names:
                flight.lost = name
                flight.done.set()

        self._fabric.on_death.append(on_death)
        try:
            send(flight)
            await self._loop.wait(flight.done)
        finally:
            self._fabric.on_death.remove(on_death)
            self._end(number, flight)
        if flight.lost is not None:
            raise InstanceLost(flight.lost)
        return flight.num_steps

    def _send(
        self, plan: FlightPlan, number: int, flight: UnderWay, until: float, stop: Event | None,
        halt: Event,
    ) -> None:  # fmt: skip
        for position, elsewhere in enumerate(plan.remote):
            for holder in elsewhere:
                header, payload = pack(self._hold_work(plan, number, position, holder))
                self._fabric.commands[holder.name].worker.send({"op": "hold", **header}, payload)
        for position in reversed(range(len(plan.stages))):  # the first one starts at once
            work = self.stage_work(plan, number, position, until)
            stops = [halt] if stop is None else [halt, stop]
            self.tell(flight, position, work, *(stops if position == 0 and plan.steps > 1 else ()))

    def tell(self, flight: UnderWay, position: int, work: StageWork, *stops: Event) -> None:
        commands = self._fabric.commands[flight.plan.stages[position][0].name]
        header, payload = pack(work)
        seq = commands.send(
            {"op": "flight", **header}, payload,
            partial(self._on_message, flight, commands.worker.clock_offset_s), *stops,
        )  # fmt: skip
        flight.commands.append((commands, seq))

    def stage_work(self, plan: FlightPlan, number: int, position: int, until: float) -> StageWork:
        batch, (instance, layers) = plan.batch, plan.stages[position]
        vocab_size = instance.model.vocab_size
        ids: list[int] = []
        if position == 0:
            for request, n in batch.chunks:
                start = request.computed_tokens
                ids += self.book.known(request, vocab_size, start, start + n)
            ids += [self.book.last(request) for request in batch.decodes]
        last = position == len(plan.stages) - 1
        neighbour = plan.stages[0 if last else position + 1][0]
        deadline_s = until + self._loop.start_monotonic_s if until < inf else None
        paths = {
            holder.name: self._fabric.path(instance.memory, holder.memory)
            for holder in plan.remote[position]
        }
        return StageWork(
            flight=number, model=instance.model.name, layers=(layers.start, layers.stop),
            page_layers=instance.layout.page_layers, steps=plan.steps, deadline_s=deadline_s,
            chunks=chunks_of(batch), decodes=[r.computed_tokens for r in batch.decodes], ids=ids,
            groups={
                group: self._parts(batch, instance, group, plan.remote[position])
                for group in instance.layout.groups(layers)
            },
            previous=plan.stages[position - 1][0].name if position else None,
            following=None if last else neighbour.name, first=plan.stages[0][0].name,
            following_path=self._fabric.path(instance.memory, neighbour.memory),
            holder_paths=paths,
        )  # fmt: skip

    def _hold_work(
        self, plan: FlightPlan, number: int, position: int, holder: ElasticInstance
    ) -> HoldWork:
        instance, layers = plan.stages[position]
        groups: dict[int, list[Part]] = {}
        for group in instance.layout.groups(layers):
            parts = self._parts(plan.batch, instance, group, plan.remote[position])
            mine = [part for part in parts if part.holder == holder.name]
            if mine:
                groups[group] = mine
        return HoldWork(
            flight=number,
            requester_path=self._fabric.path(holder.memory, instance.memory),
            chunks=chunks_of(plan.batch),
            decodes=[r.computed_tokens for r in plan.batch.decodes], groups=groups,
        )  # fmt: skip

    def _parts(
        self, batch: Batch, instance: ElasticInstance, group: int,
        remote: dict[ElasticInstance, dict[int, tuple[int, ...]]],
    ) -> list[Part]:  # fmt: skip
        """Who attends for which requests of the batch, in this page group."""

        def holder_of(request: Request) -> ElasticInstance:
            for holder, requests in remote.items():
                if group in requests.get(request.request_id, ()):
                    return holder
            return instance

        found: dict[str, tuple[ElasticInstance, list[int], list[int]]] = {}
        for i, (request, _) in enumerate(batch.chunks):
            holder = holder_of(request)
            found.setdefault(holder.name, (holder, [], []))[1].append(i)
        for i, request in enumerate(batch.decodes):
            holder = holder_of(request)
            found.setdefault(holder.name, (holder, [], []))[2].append(i)
        parts = []
        for name, (holder, chunks, decodes) in found.items():
            assert holder.tables is not None
            requests = [batch.chunks[i][0] for i in chunks] + [batch.decodes[i] for i in decodes]
            blocks = [holder.tables.ids[r.request_id][group] for r in requests]
            parts.append(Part(name, chunks, decodes, blocks))
        return parts

    def _on_message(self, flight: UnderWay, offset_s: float, header: Header) -> None:
        if header["last"]:
            if "num_steps" in header:
                flight.steps_in_all = header["num_steps"]
        elif not flight.done.is_set:
            self._count(flight, header, offset_s)
        if flight.steps_in_all == flight.num_steps:
            flight.done.set()

    def _count(self, flight: UnderWay, header: Header, offset_s: float) -> None:
        """An iteration's tokens have come out of the last stage."""
        batch = flight.plan.batch
        flight.num_steps += 1
        sampled = [r for r, n in batch.chunks if r.computed_tokens + n == r.known_tokens]
        sampled += batch.decodes
        for request, n in batch.chunks:
            request.computed_tokens += n
        for request in batch.decodes:
            request.computed_tokens += 1
        for request, token_id in zip(sampled, header["tokens"], strict=True):
            request.generated_tokens += 1
            self.book.append(request, token_id)
        self.last_step_s = header["time_s"] - offset_s - self._loop.start_monotonic_s
        token = Segment(self.last_step_s, 1, 0.0, 0.0)
        self._recorder.segment([r for r in sampled if not r.failed], token, self.name)

    def _end(self, number: int, flight: UnderWay) -> None:
        """Nobody waits for anything of it any more."""
        for commands, seq in flight.commands:
            commands.close(seq)
        first = self._stages[0][0].name  # it knows, unless it attends for others
        holders = {holder.name for each in flight.plan.remote for holder in each}
        for name in flight.names - self._fabric.lost:
            if name != first or name in holders or flight.lost is not None:
                worker = self._fabric.commands[name].worker
                broken = flight.lost is not None
                worker.send({"op": "abandon", "flight": number, "broken": broken})


def chunks_of(batch: Batch) -> list[tuple[int, int, bool]]:
    return [
        (r.computed_tokens, n, r.computed_tokens + n == r.known_tokens) for r, n in batch.chunks
    ]
