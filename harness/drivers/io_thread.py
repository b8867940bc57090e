"""The thread that all sockets live in: an asyncio loop, whose own lateness is measured.

A read is stamped by the kernel or in the socket's callback, and kept; it is parsed later, in short
slices. What is to be sent goes before both. A heartbeat tells how long the loop could not look at
its sockets: that is how late a stamp of a callback can be. Knows nothing of requests.
"""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any, Protocol

from uvloop import new_event_loop

from harness.clock import WallLoop
from harness.drivers.kernel_stamps import StampedSocket, ask_for_stamps
from harness.records.record import Recorder

SLICE_S = 0.0005  # of parsing, between two looks at the sockets
BEAT_S = 0.001
CLOSING_S = 0.02  # at the end, in which what was dropped is closed
LATE_S = 0.001  # a beat later than this ends a stall; timers go in steps of 1 ms


class Reader(Protocol):
    """What parses the reads of a connection."""

    def parse(self, read_s: float, data: bytes | None, since_s: float) -> None:
        """The last of `data` came at `read_s` of time.monotonic(), the first not before `since_s`;
        None: the connection was lost."""


class Inbox(Protocol):
    """The run's loop, or what stands for it in another process."""

    def post(self, function: Callable[..., None], *args: Any) -> None: ...


@dataclass(slots=True)
class Lateness:
    """How late an I/O thread was, in seconds of time.monotonic(). `stalls`: the last beat before,
    and the late one. `doubts`: (since, stamp) of stamps that may be late. `unstamped_s`: when the
    last read came that the kernel had not stamped. `cpu_wait_s`: for how long it could have run
    and had no core; None: the system does not say."""

    stalls: list[tuple[float, float]]
    doubts: list[tuple[float, float]]
    unstamped_s: float
    cpu_wait_s: float | None


Transport = asyncio.Transport | StampedSocket  # a socket of the thread's: with TLS, or plain


class IoThread:
    """The thread of the run's sockets, from `with` to its end. Other threads reach it through
    `call` alone."""

    def __init__(self, inbox: Inbox) -> None:
        """What was parsed is posted to `inbox`, and so is any error that is our own."""
        self._inbox = inbox
        self._unparsed: deque[tuple[Reader, float, bytes | None, float]] = deque()
        self._urgent: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self._outbox: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self._working = False  # a call of _work is under way
        self._tasks: set[asyncio.Task[None]] = set()
        self.transports: set[Transport] = set()  # open; dropped at the end
        self._beat_s = 0.0  # when the last beat came
        self._beat_before_s = 0.0
        self._offset_s = _clocks_apart_s()
        self._late = Lateness([], [], -inf, None)

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

    def urge(self, function: Callable[..., None], *args: Any) -> None:
        """Has the thread call `function(*args)` as `call` does, but before all else that it has to
        do."""
        self._urgent.append((function, args))
        self.loop.call_soon_threadsafe(self._call_urgent)

    def start(self, coro: Coroutine[Any, Any, None]) -> None:
        """Starts `coro` as a task; in the thread alone."""
        task = self.loop.create_task(coro)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def keep(
        self,
        reader: Reader,
        data: bytes | None,
        *,
        real_s: float | None = None,
        after_s: float = 0.0,
    ) -> float:
        """Has `reader` parse `data` when there is time; in the thread alone. Returns its stamp:
        `real_s`, the kernel's, on the clock of time.monotonic(), else now. `after_s`: the stamp
        before it, or when the request was sent."""
        if self._urgent:
            self._call_urgent()
        read_s = since_s = now_s = time.monotonic()
        if real_s is not None:
            read_s = max(after_s, min(now_s, real_s - self._offset_s))
            # The sockets were looked at after the beat before the last one, and this had nothing.
            since_s = max(after_s, self._beat_before_s)
            since_s = since_s if since_s <= read_s else after_s
        elif data is not None:
            self._late.unstamped_s = now_s
        self._unparsed.append((reader, read_s, data, since_s))
        if not self._working:
            self._working = True
            self.loop.call_soon(self._work)
        return read_s

    def doubt(self, since_s: float, read_s: float) -> None:
        """Notes, in the thread alone: what is stamped `read_s` may have come since `since_s`."""
        if read_s - since_s > BEAT_S + LATE_S:
            self._late.doubts.append((since_s, read_s))

    def post(self, function: Callable[..., None], *args: Any) -> None:
        """Has the inbox's owner call `function(*args)`, in order, soon; in the thread alone."""
        self._outbox.append((function, args))
        if not self._working:
            self._working = True
            self.loop.call_soon(self._work)

    def lateness(self) -> Lateness:
        """Until now."""
        self._late.cpu_wait_s = _cpu_wait_s(self._thread.native_id)
        return self._late

    def _run(self) -> None:
        with socket.socket(type=socket.SOCK_DGRAM) as idle:
            ask_for_stamps(idle)  # so that they come from the first read on
            with asyncio.Runner(loop_factory=new_event_loop) as runner:
                runner.run(self._main())

    async def _main(self) -> None:
        self.loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        self.loop.set_exception_handler(self._fail)
        self._beat_s = self._beat_before_s = time.monotonic()
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
                if self._urgent:
                    self._call_urgent()
                reader, read_s, data, since_s = self._unparsed.popleft()
                reader.parse(read_s, data, since_s)
                if time.monotonic() >= until_s:
                    break
        except Exception as bug:  # ends the run: not a fault of a server
            self._outbox.append((_raise, (bug,)))
        if self._outbox:
            outbox, self._outbox = self._outbox, []
            self._inbox.post(_call_all, outbox)
        self._working = bool(self._unparsed)
        if self._working:
            self.loop.call_soon(self._work)

    def _beat(self) -> None:
        now_s = time.monotonic()
        if now_s - self._beat_s > BEAT_S + LATE_S:
            self._late.stalls.append((self._beat_s, now_s))
        self._beat_before_s, self._beat_s = self._beat_s, now_s
        self._offset_s = _clocks_apart_s()
        self.loop.call_later(BEAT_S, self._beat)

    def _call_urgent(self) -> None:
        while self._urgent:
            function, args = self._urgent.popleft()
            function(*args)

    def _fail(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """What asyncio would print and forget: an exception in a callback of ours."""
        error = context.get("exception")
        if isinstance(error, Exception) and not isinstance(error, OSError):
            self._inbox.post(_raise, error)


def record_lateness(found: Iterable[Lateness], loop: WallLoop, recorder: Recorder) -> None:
    """Records, after the run, a device event of each time at which an I/O thread was late, one of
    the stamps that may be, and one of the time that the heartbeats cover, with who stamped and the
    longest wait for a core. Times at which several threads were late are one, from the first's
    beginning to the last's end."""
    found, start_s = [*found], loop.start_monotonic_s
    waits_s = [each.cpu_wait_s for each in found if each.cpu_wait_s is not None]
    recorder.event(
        "heartbeat", "client", 0.0, loop.now,
        beat_s=BEAT_S, cpu_wait_s=max(waits_s, default=None),
        stamped_by="client" if any(e.unstamped_s >= start_s for e in found) else "kernel",
        num_readers=len(found),
    )  # fmt: skip
    stalls = list[tuple[float, float]]()
    for before_s, late_s in sorted(each for one in found for each in one.stalls):
        if stalls and before_s < stalls[-1][1]:
            before_s, late_s = stalls[-1][0], max(stalls.pop()[1], late_s)
        stalls.append((before_s, late_s))
    for before_s, late_s in stalls:
        if late_s > start_s:
            began_s = max(before_s, start_s) - start_s
            recorder.event("stall", "client", began_s, late_s - start_s)
    doubts = [(since - start_s, came - start_s) for one in found for since, came in one.doubts]
    if doubts:
        since_s, came_s = zip(*doubts, strict=True)
        recorder.event(
            "late_stamps", "client", min(since_s), max(came_s), since_s=since_s, came_s=came_s
        )


def _clocks_apart_s() -> float:
    """time.time() less time.monotonic(), by which the kernel's stamps differ from ours. Never too
    large, so that no stamp is early; the closest of three, for the thread may lose its core."""
    tries = []
    for _ in range(3):
        before_s, real_s, after_s = time.monotonic(), time.time(), time.monotonic()
        tries.append((after_s - before_s, real_s - after_s))
    return min(tries)[1]


def _cpu_wait_s(thread: int | None) -> float | None:
    """How long the thread has waited for a core since it began; None where the system does not say
    (Linux does)."""
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
