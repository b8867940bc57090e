"""Commands to a worker process, any number of them in flight at once, told apart by number.

A worker answers a command with messages that carry its `seq`, the last of which says `last`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from harness.clock import Event, WallLoop
from harness.engine.transport import Header
from harness.engine.worker_process import WorkerProcess

OnMessage = Callable[[Header], None]


def ignore(message: Header) -> None:
    """Ignores the answer: another worker's answers count."""


class Commands:
    """`ranks`: of the other ranks of an instance whose first one is `worker`. They are told what it
    is told, but for stops, which it passes on."""

    def __init__(
        self, worker: WorkerProcess, loop: WallLoop, ranks: Sequence[Commands] = ()
    ) -> None:
        self.worker, self._ranks = worker, ranks
        self.workers = [worker, *(each.worker for each in ranks)]
        self._loop = loop
        self._last_seq = 0
        self._in_flight: dict[int, tuple[OnMessage, tuple[Event, ...]]] = {}  # seq -> …, its stops
        self._patient = set[int]()  # of them, those that may take as long as they like
        self._watched: set[Event] = set()
        self._idle = Event(loop)
        worker.listen(loop, self._on_message)

    def send(
        self, header: Header, on_message: OnMessage, *stops: Event, patient: bool = False
    ) -> int:
        """`on_message` gets every answer. The worker is told once one of `stops` is set. Its
        number, to `close` it. `patient`: a worker that makes no progress with it is not stuck."""
        seq = self._register(on_message, stops, patient)
        self.worker.send({**header, "seq": seq})
        for rank in self._ranks:
            rank.send(header, ignore, patient=patient)
        for stop in stops:
            if stop not in self._watched:
                self._watched.add(stop)
                self._loop.spawn(self._forward(stop), name=f"{self.worker.name}: forward a stop")
        return seq

    def expect(self, on_message: OnMessage) -> int:
        """The number of answers that the worker gives without being asked, to what a peer of it is
        told to do."""
        return self._register(on_message, (), patient=True)

    def _register(self, on_message: OnMessage, stops: tuple[Event, ...], patient: bool) -> int:
        self._last_seq += 1
        self._in_flight[self._last_seq] = (on_message, stops)
        self._idle.clear()
        if patient:
            self._patient.add(self._last_seq)
        else:
            self.worker.expect_answer()
        return self._last_seq

    async def call(self, header: Header, stop: Event | None = None) -> Header:
        """Sends a command that is answered once, and returns the answer."""
        answered = Event(self._loop)
        answer: Header = {}

        def on_message(message: Header) -> None:
            answer.update(message)
            answered.set()

        self.send(header, on_message, *(() if stop is None else (stop,)))
        await self._loop.wait(answered)
        return answer

    async def drain(self) -> None:
        """Waits until no command is in flight."""
        if self._in_flight:
            await self._loop.wait(self._idle)

    def close(self, seq: int) -> None:
        """No more answers of the command are waited for; one that has ended is left alone."""
        if self._in_flight.pop(seq, None) is not None:
            if seq in self._patient:
                self._patient.remove(seq)
            else:
                self.worker.answered()
            if not self._in_flight:
                self._idle.set()

    def fail(self) -> None:
        """The worker has died: every command in flight ends, incomplete."""
        for seq, (on_message, _) in list(self._in_flight.items()):
            self.close(seq)
            on_message({"seq": seq, "last": True, "complete": False})

    def _on_message(self, header: Header) -> None:
        seq = header["seq"]
        if seq not in self._in_flight:
            return  # closed meanwhile
        on_message, _ = self._in_flight[seq]
        if header["last"]:
            self.close(seq)
        on_message(header)

    async def _forward(self, stop: Event) -> None:
        """Tells the worker once `stop` is set; one such task per event, over many commands."""
        await self._loop.wait(stop)
        self._watched.discard(stop)
        if stop.is_set:
            for seq, (_, stops) in self._in_flight.items():
                if stop in stops:
                    self.worker.send({"op": "stop", "seq": seq})
