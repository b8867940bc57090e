"""The thread that all sockets live in: an asyncio loop, whose own lateness is measured.

A read is stamped in the socket's callback and kept; it is parsed later, in short slices, so that
no stamp waits for more than a slice. A heartbeat tells how long the loop could not look at its
sockets: that is how late a stamp can be. Knows nothing of requests.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Protocol

from harness.clock import WallLoop
from harness.record import Recorder

try:
    from uvloop import new_event_loop
except ImportError:  # a faster loop, where there is one
    from asyncio import new_event_loop

SLICE_S = 0.0005  # of parsing, between two looks at the sockets
BEAT_S = 0.001
CLOSING_S = 0.02  # at the end, in which what was dropped is closed
LATE_S = 0.001  # a beat later than this ends a stall; timers go in steps of 1 ms


class Reader(Protocol):
    """What parses the reads of a connection."""

    def parse(self, read_s: float, data: bytes | None) -> None:
        """`data` was read at `read_s` of time.monotonic(); None: the connection was lost."""
        ...


class IoThread:
    """From `with` to its end. Other threads reach it through `call` alone."""

    def __init__(self, run_loop: WallLoop) -> None:
        """What was parsed is posted to `run_loop`, and so is any error that is our own."""
        self._run_loop = run_loop
        self._unparsed: deque[tuple[Reader, float, bytes | None]] = deque()
        self._outbox: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self._working = False  # a call of _work is under way
        self._tasks: set[asyncio.Task[None]] = set()
        self.transports: set[asyncio.Transport] = set()  # open; dropped at the end
        self._beat_s = 0.0  # when the last beat came
        self._stalls: list[tuple[float, float]] = []  # the last beat before, and the late one

    def __enter__(self) -> IoThread:
        self._ready: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, name="http", daemon=True)
        self._thread.start()
        self._ready.result()
        return self

    def __exit__(self, *_: object) -> None:
        self.loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def call(self, function: Callable[..., None], *args: Any) -> None:
        """Thread-safe: has the thread call `function(*args)`; returns at once."""
        self.loop.call_soon_threadsafe(function, *args)

    def start(self, coro: Coroutine[Any, Any, None]) -> None:
        """In the thread alone."""
        task = self.loop.create_task(coro)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def keep(self, reader: Reader, data: bytes | None) -> None:
        """In the thread alone: stamps `data` now and has `reader` parse it when there is time."""
        self._unparsed.append((reader, time.monotonic(), data))
        if not self._working:
            self._working = True
            self.loop.call_soon(self._work)

    def post(self, function: Callable[..., None], *args: Any) -> None:
        """In the thread alone: has the run's loop call `function(*args)`, in order, soon."""
        self._outbox.append((function, args))
        if not self._working:
            self._working = True
            self.loop.call_soon(self._work)

    def record_stalls(self, recorder: Recorder) -> None:
        """After the run: a device event of each time at which this thread was late, and one of the
        time that its heartbeat covers, with how long the thread could have run and had no core."""
        start_s, now_s = self._run_loop.start_monotonic_s, time.monotonic()
        recorder.event(
            "heartbeat", "client", 0.0, now_s - start_s,
            beat_s=BEAT_S, cpu_wait_s=_cpu_wait_s(self._thread.native_id),
        )  # fmt: skip
        for before_s, late_s in list(self._stalls):
            if before_s >= start_s:
                recorder.event("stall", "client", before_s - start_s, late_s - start_s)

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            runner.run(self._main())

    async def _main(self) -> None:
        self.loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        self.loop.set_exception_handler(self._fail)
        self._beat_s = time.monotonic()
        self.loop.call_later(BEAT_S, self._beat)
        self._ready.set_result(None)
        await self._stop.wait()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for transport in list(self.transports):
            transport.abort()
        await asyncio.sleep(CLOSING_S)

    def _work(self) -> None:
        """Parses for a slice and hands over what came of it; the rest after a look at the
        sockets."""
        until_s = time.monotonic() + SLICE_S
        try:
            while self._unparsed:
                reader, read_s, data = self._unparsed.popleft()
                reader.parse(read_s, data)
                if time.monotonic() >= until_s:
                    break
        except Exception as bug:  # ends the run: not a fault of a server
            self._outbox.append((_raise, (bug,)))
        if self._outbox:
            outbox, self._outbox = self._outbox, []
            self._run_loop.post(_call_all, outbox)
        self._working = bool(self._unparsed)
        if self._working:
            self.loop.call_soon(self._work)

    def _beat(self) -> None:
        now_s = time.monotonic()
        if now_s - self._beat_s > BEAT_S + LATE_S:
            self._stalls.append((self._beat_s, now_s))
        self._beat_s = now_s
        self.loop.call_later(BEAT_S, self._beat)

    def _fail(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """What asyncio would print and forget: an exception in a callback of ours."""
        error = context.get("exception")
        if isinstance(error, Exception) and not isinstance(error, OSError):
            self._run_loop.post(_raise, error)


def _cpu_wait_s(thread: int | None) -> float | None:
    """Since the thread began; None where the system does not say (Linux does)."""
    try:
        waited_ns = Path(f"/proc/self/task/{thread}/schedstat").read_text().split()[1]
    except (OSError, IndexError):
        return None
    return int(waited_ns) / 1e9


def _call_all(calls: list[tuple[Callable[..., None], tuple[Any, ...]]]) -> None:
    for function, args in calls:
        function(*args)


def _raise(error: Exception) -> None:
    raise error
