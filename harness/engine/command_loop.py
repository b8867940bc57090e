"""The one command loop of a worker process: it reads what the harness asks for and hands it out.

A command names its stream, a thread that does one kind of work, in order, beside the others;
commands of one stream wait for one another. It is answered with messages that carry its number,
`seq`. This thread never computes, copies or waits for a peer, so the harness never waits for it.
"""

from __future__ import annotations

import os
import queue
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial

import torch

from harness.engine.cuda import stream_of_its_own
from harness.engine.runner import Runner
from harness.engine.transport import Connection, Header, of_kind
from harness.engine.work import BatchWork

Work = Callable[[Header], None]


class CommandLoop:
    def __init__(self, connection: Connection, device: torch.device) -> None:
        self._connection, self.device = connection, device
        self._streams: dict[str, Stream] = {}
        self._opening = threading.Lock()  # peers' threads ask for streams, too
        self._stops: dict[int, threading.Event] = {}  # by seq, of commands that have not ended
        self._on_stop: dict[int, Callable[[], None]] = {}  # of those of them that wait

    def serve(self, in_streams: Mapping[str, Work], at_once: Mapping[str, Work]) -> None:
        """Serves commands, by their `op`, until the harness closes the socket: EOFError. Each of
        `in_streams` runs in the stream that its header names, each of `at_once`, which only hand
        something over, on the reading thread."""
        while True:
            header, _ = self._connection.receive()
            match header["op"]:
                case "ping":
                    pong = {"op": "pong", "sent_s": header["sent_s"], "time_s": time.monotonic()}
                    self._connection.send(pong)
                case "stop":
                    if (stop := self._stops.get(header["seq"])) is not None:  # else it has ended
                        stop.set()
                    if (wake := self._on_stop.get(header["seq"])) is not None:
                        wake()
                case op if op in at_once:
                    at_once[op](header)
                case op:
                    self.begin(header["seq"])
                    work = partial(in_streams[op], header)
                    self.stream(header["stream"]).put(work)

    def stream(self, name: str) -> Stream:
        with self._opening:
            if name not in self._streams:
                self._streams[name] = Stream(name, self.device, self.fail)
            return self._streams[name]

    def begin(self, seq: int, on_stop: Callable[[], None] | None = None) -> threading.Event:
        """Lets the command be stopped from now on, and returns what is set then; `on_stop` is told
        on the reading thread."""
        self._stops[seq] = threading.Event()
        if on_stop is not None:
            self._on_stop[seq] = on_stop
        return self._stops[seq]

    def end(self, seq: int) -> None:
        """The command is over, answered or not."""
        self._stops.pop(seq, None)
        self._on_stop.pop(seq, None)

    def stop_of(self, seq: int) -> threading.Event:
        return self._stops[seq]

    def answer(self, seq: int, *, last: bool = True, **values: object) -> None:
        if last:
            self.end(seq)
        self._connection.send({"op": "answer", "seq": seq, "last": last, **values})

    def execute(self, header: Header, runner: Runner) -> None:
        """Runs a batch whose weights and KV are all here: an answer for each iteration."""
        seq, max_steps, deadline_s = header["seq"], header["max_steps"], header["deadline_s"]
        stop, batch = self.stop_of(seq), of_kind(BatchWork, header["batch"])
        for number, tokens in enumerate(runner.steps(batch, max_steps), start=1):
            now = time.monotonic()
            late = deadline_s is not None and now >= deadline_s
            last = number == max_steps or runner.agreed(late or stop.is_set())
            self.answer(seq, last=last, time_s=now, tokens=tokens)
            if last:
                return

    def fail(self, error: BaseException) -> None:
        """Ends the process: a thread cannot raise for the others."""
        traceback.print_exception(error)
        with suppress(OSError):  # the harness may be gone
            self._connection.send(failure(error))
        os._exit(1)


def failure(error: BaseException) -> Header:
    """What a worker that cannot go on tells the harness."""
    return {"op": "error", "message": f"{type(error).__name__}: {error}"}


Job = Callable[[], None]


class Stream:
    """Does jobs in order, on a GPU with a CUDA stream of its own, so that copies run beside
    kernels. An exception in a job goes to `fail`, and ends the stream."""

    def __init__(
        self, name: str, device: torch.device, fail: Callable[[BaseException], None]
    ) -> None:
        self._device, self._fail = device, fail
        self._jobs: queue.SimpleQueue[Job] = queue.SimpleQueue()
        threading.Thread(target=self._work, name=name, daemon=True).start()

    def put(self, job: Job) -> None:
        self._jobs.put(job)

    def _work(self) -> None:
        try:
            with stream_of_its_own(self._device):
                while True:
                    self._jobs.get()()
        except BaseException as error:
            self._fail(error)
