"""I/O threads in processes of their own (`client.processes`), for more streams than one Python
process can read.

Such a process has the sockets of its part of the requests, sends as soon as it is told, and stamps
by CLOCK_MONOTONIC, which is one clock for all processes of a host. What it read comes back in
batches. It ends with its parent, however that ends; where it ends before, so does the run.

    python -m harness.drivers.io_process FD

is such a process, which talks to its parent over the socket FD.
"""

from __future__ import annotations

import gc
import os
import queue
import socket
import struct
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing.connection import Connection
from typing import Any, NoReturn

from harness.clock import SWITCH_INTERVAL_S, WallLoop
from harness.drivers.exchange import Line, Listener, Order
from harness.drivers.io_thread import IoThread, Lateness
from harness.errors import RunError

BATCH_S = 0.005  # for which stamps are gathered
MAX_BATCH = 200  # handed over at once: the run's loop may have a request to send meanwhile
ANSWER_S = 60.0  # in which a process begins, and opens its connections
END_S = 10.0


Batch = list[tuple[int, str, tuple[Any, ...]]]  # a line's number, and what its listener is told


class FarLine:
    """A `Line` in another process."""

    def __init__(self, process: IoProcess, number: int) -> None:
        self._process, self._number = process, number

    def send(self, order: Order) -> None:
        self._process.tell("send", self._number, order)

    def want(self, number: int) -> None:
        self._process.tell("want", self._number, number)

    def prepare(self, number: int) -> None:
        self._process.ask("prepare", self._number, number)


class IoProcess:
    """The process, from `with` to its end. `loop` is the run's, which is told of its death."""

    def __init__(self, loop: WallLoop, number: int) -> None:
        self._loop, self._name = loop, f"I/O process {number}"
        self._listeners: list[Listener] = []
        self._answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._ending = False

    def __enter__(self) -> IoProcess:
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "harness.drivers.io_process", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                process_group=0,  # Ctrl-C is for the harness alone
            )
        # A process that reads no more is an error, and no wait without an end.
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", int(END_S), 0))
        self._connection = Connection(ours.detach())
        self._thread = threading.Thread(target=self._read, name=self._name, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending = True
        with suppress(OSError):  # it has died, or reads no more
            self._connection.send(["end"])
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._thread.join()
        self._connection.close()

    def line(self, url: str, listener: Listener) -> FarLine:
        number = len(self._listeners)
        self._listeners.append(listener)
        self.tell("line", number, url)
        return FarLine(self, number)

    def lateness(self) -> Lateness:
        found: Lateness = self.ask("lateness", 0)
        return found

    def tell(self, name: str, number: int, *args: Any) -> None:
        """Has the process do `name` with its line `number`."""
        try:
            self._connection.send((name, number, *args))
        except BlockingIOError:
            raise RunError(f"{self._name} has read nothing for {END_S:g} s") from None
        except OSError:
            self._died()

    def ask(self, name: str, number: int, *args: Any) -> Any:
        """As `tell`; returns, or raises, what came of it."""
        self.tell(name, number, *args)
        try:
            answer = self._answers.get(timeout=ANSWER_S)
        except queue.Empty:
            raise RunError(f"{self._name} has not answered for {ANSWER_S:g} s") from None
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _read(self) -> None:
        with suppress(OSError, EOFError):
            while True:
                content = self._connection.recv()
                if isinstance(content, list):
                    self._loop.post(self._deliver, content)
                else:
                    self._answers.put(content)
        if not self._ending:
            self._answers.put(self._death())
            self._loop.post(self._died)

    def _deliver(self, batch: Batch) -> None:
        for number, name, args in batch:
            getattr(self._listeners[number], name)(*args)

    def _died(self) -> NoReturn:
        raise self._death()

    def _death(self) -> RunError:
        status, pid = self._process.wait(), self._process.pid
        how = f"killed by signal {-status}" if status < 0 else f"exit status {status}"
        return RunError(f"{self._name} (pid {pid}) ended before the run did: {how}")


Io = IoThread | IoProcess


def open_line(io: Io, url: str, listener: Listener) -> Line | FarLine:
    return Line(url, io, listener) if isinstance(io, IoThread) else io.line(url, listener)


@contextmanager
def input_output(loop: WallLoop, processes: int | None) -> Iterator[list[Io]]:
    """A thread of this process, or so many processes."""
    with ExitStack() as held:
        if processes is None:
            yield [held.enter_context(IoThread(loop))]
        else:
            yield [held.enter_context(IoProcess(loop, i)) for i in range(processes)]


class Relay:
    """Stands for a `Listener` in the process of a `Line`: adds what it is told to `batch`."""

    def __init__(self, number: int, batch: Batch) -> None:
        self._number, self._batch = number, batch

    def sent(self, *args: Any) -> None:
        self._batch.append((self._number, "sent", args))

    def tokens(self, *args: Any) -> None:
        self._batch.append((self._number, "tokens", args))

    def ended(self, *args: Any) -> None:
        self._batch.append((self._number, "ended", args))


class Outlet:
    """Stands for the run's loop: what is posted goes to the parent, by a thread."""

    def __init__(self, connection: Connection) -> None:
        self.batch: Batch = []
        self._connection = connection
        self._inbox: queue.SimpleQueue[tuple[Callable[..., None], tuple[Any, ...]]]
        self._inbox = queue.SimpleQueue()
        threading.Thread(target=self._run, name="outlet", daemon=True).start()

    def post(self, function: Callable[..., None], *args: Any) -> None:
        self._inbox.put((function, args))

    def answer(self, content: Any) -> None:
        self.post(self._connection.send, content)

    def _run(self) -> None:
        try:
            while True:
                function, args = self._inbox.get()
                time.sleep(BATCH_S)
                function(*args)
                while not self._inbox.empty():
                    function, args = self._inbox.get()
                    function(*args)
                for first in range(0, len(self.batch), MAX_BATCH):
                    self._connection.send(self.batch[first : first + MAX_BATCH])
                self.batch.clear()
        except OSError:
            os._exit(0)  # the parent has gone
        except Exception:  # our own fault, of which the parent is told by our end
            traceback.print_exc()
            os._exit(1)


def main(descriptor: int) -> None:
    """Does what the parent tells until it says `end`, or has gone."""
    connection, lines = Connection(descriptor), list[Line]()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    outlet = Outlet(connection)
    with IoThread(outlet) as io, suppress(EOFError):
        gc.freeze()
        gc.disable()  # as in the run's own process
        while (told := connection.recv())[0] != "end":
            name, number, *args = told
            if name == "line":
                lines.append(Line(args[0], io, Relay(number, outlet.batch)))
            elif name == "lateness":
                outlet.answer(io.lateness())
            elif name == "prepare":
                outlet.answer(_prepared(lines[number], *args))
            else:
                getattr(lines[number], name)(*args)


def _prepared(line: Line, connections: int) -> OSError | None:
    try:
        line.prepare(connections)
    except OSError as error:
        return error
    return None


if __name__ == "__main__":
    main(int(sys.argv[1]))
