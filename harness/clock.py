"""Time: one kernel of cooperative tasks, run against virtual or wall time.

System code is `async def` and waits only through a `Loop`. `VirtualLoop` jumps to the next
timer; `WallLoop` waits for it, or for another thread to `post` something. Both are
single-threaded, run tasks in FIFO order at equal times, and abort the whole run on the first
exception in any task: a swallowed error must never become a data point.

Knows nothing of requests, instances or metrics. Times are float seconds since `run` began.
"""

from __future__ import annotations

import gc
import heapq
import queue
import sys
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Generator
from math import inf
from typing import Any, Generic, TypeVar

from mypy_extensions import mypyc_attr

SWITCH_INTERVAL_S = 0.0005  # of Python's threads in a live run; 5 ms by default, too late a stamp


class Event:
    """A level-triggered flag: waiting on a set event returns at once; `clear` re-arms it."""

    __slots__ = ("_is_set", "_loop", "_waiters")

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._is_set = False
        self._waiters: list[tuple[Task, int]] = []

    @property
    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        """Wakes every waiter, in the order in which they began to wait."""
        self._is_set = True
        if self._waiters:
            waiters, self._waiters = self._waiters, []
            for task, wait_id in waiters:
                if task._wait_id == wait_id:
                    self._loop._make_ready(task, True)

    def clear(self) -> None:
        self._is_set = False


class Wait:
    """The only thing that a task awaits in the end: a wake-up by one of `events`, True, or by the
    time `deadline`, False (infinity: none)."""

    __slots__ = ("deadline", "events")

    def __init__(self, events: tuple[Event, ...], deadline: float) -> None:
        self.events = events
        self.deadline = deadline

    def __await__(self) -> Generator[Wait, bool, bool]:
        return (yield self)


class Step:
    """What a loop has go on: a task or a call."""

    __slots__ = ("_wait_id", "done", "name")

    def __init__(self, name: str) -> None:
        self._wait_id = 0  # grows at every wake-up; a timer or waiter with an old id is stale
        self.name = name
        self.done = False


class Task(Step):
    """A running coroutine. `finished` is set when it returns; `result` then holds its value."""

    __slots__ = ("_coro", "finished", "result")

    def __init__(self, loop: Loop, coro: Coroutine[Any, Any, Any], name: str) -> None:
        super().__init__(name)
        self._coro = coro
        self.result: Any = None
        self.finished = Event(loop)


class Call(Step):
    """A function that the loop calls, as it would go on with a task, but without a coroutine."""

    __slots__ = ("_armed_id", "_function", "_loop")

    def __init__(self, loop: Loop, function: Callable[[], None], name: str) -> None:
        super().__init__(name)
        self._loop, self._function = loop, function
        self._armed_id = 0  # `_wait_id`, while nothing has said that it is to be called

    def at(self, deadline: float) -> None:
        """Has it called at that time (infinity: never), unless `soon` is asked for before."""
        self._armed_id = self._wait_id
        self._loop._set_timer(self, deadline)

    def soon(self) -> None:
        """Has it called once, behind what is ready now, and not at the time that was said."""
        if self._armed_id == self._wait_id:
            self._loop._make_ready(self, True)


@mypyc_attr(native_class=False)
class Deadlock(RuntimeError):
    """Virtual time cannot go on: tasks wait and nothing is left that could wake them."""


T = TypeVar("T")


class Loop:
    """The kernel shared by both clocks. Use `VirtualLoop` or `WallLoop`."""

    def __init__(self) -> None:
        self._ready: deque[tuple[Step, bool]] = deque()
        self._timers: list[tuple[float, int, Step, int]] = []
        self._sequence = 0
        self._tasks: dict[Task, None] = {}  # insertion-ordered set, so shutdown order is stable

    @property
    def now(self) -> float:
        raise NotImplementedError

    def spawn(self, coro: Coroutine[Any, Any, Any], *, name: str) -> Task:
        """Starts `coro` at the current time, after the tasks that are already ready."""
        task = Task(self, coro, name)
        self._tasks[task] = None
        self._make_ready(task, True)
        return task

    def start(self, coro: Coroutine[Any, Any, Any], *, name: str) -> None:
        """Starts `coro` now: it has run to where it first waits when this returns."""
        task = Task(self, coro, name)
        self._tasks[task] = None
        task._wait_id = 1
        self._step(task, True)

    def sleep(self, seconds: float) -> Awaitable[bool]:
        """Waits `seconds` (≥ 0); a task that sleeps 0 s goes to the back of the ready queue."""
        if not seconds >= 0:
            raise ValueError(f"sleep needs a time of at least 0 s, got {seconds}")
        return Wait((), self.now + seconds)

    def sleep_until(self, deadline: float) -> Awaitable[bool]:
        return Wait((), deadline)

    def wait(self, event: Event, *others: Event, until: float = inf) -> Awaitable[bool]:
        """Waits for `event` or the first of `others`, at most to the time `until`. False: the time
        came first."""
        return Wait((event, *others) if others else (event,), until)

    def run(self, main: Coroutine[Any, Any, Any], *, name: str = "main") -> Any:
        """Runs until `main` returns, closes every other task, and returns `main`'s result.

        Any exception in any task ends the run and is raised here, with the task's name noted.
        """
        task = self.spawn(main, name=name)
        try:
            while not task.done:
                while self._ready and not task.done:
                    ready, value = self._ready.popleft()
                    self._go_on(ready, value)
                if not task.done:
                    self._advance()
        finally:
            self._close()
        return task.result

    def tasks(self) -> list[str]:
        """The names of the tasks that have begun and not ended, the first to begin first."""
        return [task.name for task in self._tasks]

    def service(self, process: Callable[[WallLoop], T], embedded: Callable[[], T]) -> T:
        """What is to answer the run's tasks: `process` where time is real, from outside of the run,
        by posts. Virtual time cannot wait for that: `embedded`, within the run."""
        raise NotImplementedError

    def _advance(self) -> None:
        """Moves time forward until at least one task is ready."""
        raise NotImplementedError

    def _make_ready(self, step: Step, value: bool) -> None:
        step._wait_id += 1
        self._ready.append((step, value))

    def _set_timer(self, step: Step, deadline: float) -> None:
        if deadline < inf:
            self._sequence += 1
            heapq.heappush(self._timers, (deadline, self._sequence, step, step._wait_id))

    def _go_on(self, step: Step, value: bool) -> None:
        if isinstance(step, Task):
            self._step(step, value)
        elif isinstance(step, Call):
            try:
                step._function()
            except BaseException as error:
                step._armed_id = step._wait_id  # for a later run
                error.add_note(f"in {step.name!r} at {self.now:.6f} s")
                raise

    def _step(self, task: Task, value: bool) -> None:
        try:
            wait: Wait = task._coro.send(value if task._wait_id > 1 else None)
        except StopIteration as stop:
            task.done, task.result = True, stop.value
            del self._tasks[task]
            task.finished.set()
            return
        except BaseException as error:
            del self._tasks[task]
            error.add_note(f"in task {task.name!r} at {self.now:.6f} s")
            raise
        for event in wait.events:
            if event._is_set:
                self._make_ready(task, True)
                return
            event._waiters.append((task, task._wait_id))
        self._set_timer(task, wait.deadline)

    def _fire_timers(self, up_to: float) -> None:
        """Readies every task whose timer is due; timers overtaken by an event are dropped."""
        timers = self._timers
        while timers and timers[0][0] <= up_to:
            _, _, task, wait_id = heapq.heappop(timers)
            if task._wait_id == wait_id and not task.done:
                task._wait_id = wait_id + 1
                self._ready.append((task, False))

    def _drop_stale_timers(self) -> None:
        timers = self._timers
        while timers:
            _, _, task, wait_id = timers[0]
            if task._wait_id == wait_id and not task.done:
                return
            heapq.heappop(timers)

    def _close(self) -> None:
        for step, _ in self._ready:
            if isinstance(step, Call):
                step._armed_id = step._wait_id  # it is not called, and may be in a later run
        self._ready.clear()
        self._timers.clear()
        while self._tasks:
            task, _ = self._tasks.popitem()
            task._coro.close()
            task.done, task._wait_id = True, task._wait_id + 1  # nothing wakes it in a later run


class VirtualLoop(Loop):
    """Simulated time: jumps to the next timer, so a run takes as long as its Python code."""

    now: float = 0.0  # read at every step: a property costs as much as what is done with it

    def run(self, main: Coroutine[Any, Any, Any], *, name: str = "main") -> Any:
        """Runs as `Loop.run` does; time 0 is now, whatever ran before. Cyclic garbage, of which
        tasks leave none, is not looked for meanwhile: a log of millions of objects would be
        searched again and again."""
        self.now = 0.0
        was_enabled = gc.isenabled()
        gc.disable()
        try:
            return super().run(main, name=name)
        finally:
            if was_enabled:
                gc.enable()

    def service(self, process: Callable[[WallLoop], T], embedded: Callable[[], T]) -> T:
        return embedded()

    def _advance(self) -> None:
        timers = self._timers
        while timers:
            deadline, _, task, wait_id = heapq.heappop(timers)
            if task._wait_id == wait_id and not task.done:
                if deadline > self.now:
                    self.now = deadline
                task._wait_id = wait_id + 1
                self._ready.append((task, False))
                self._fire_timers(self.now)  # those of others
                return
        waiting = ", ".join(sorted(self.tasks()))
        raise Deadlock(f"no timer is left at {self.now:.6f} s; waiting: {waiting}")


class WallLoop(Loop):
    """Real time (`time.monotonic`). Other threads reach the loop through `post` alone."""

    def __init__(self) -> None:
        super().__init__()
        self.start_monotonic_s = time.monotonic()
        self._inbox: queue.SimpleQueue[tuple[Callable[..., None], tuple[Any, ...]]]
        self._inbox = queue.SimpleQueue()

    @property
    def now(self) -> float:
        return time.monotonic() - self.start_monotonic_s

    def run(self, main: Coroutine[Any, Any, Any], *, name: str = "main") -> Any:
        """Runs as `Loop.run` does; time 0 is now, whatever was set up before.

        Meanwhile cyclic garbage is not looked for: one pass over what is there when a run starts
        takes some 100 ms. And no thread waits long for its turn to run: others stamp tokens.
        """
        was_enabled, interval_s = gc.isenabled(), sys.getswitchinterval()
        gc.freeze()
        gc.disable()
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        try:
            self.start_monotonic_s = time.monotonic()
            return super().run(main, name=name)
        finally:
            sys.setswitchinterval(interval_s)
            gc.unfreeze()
            if was_enabled:
                gc.enable()

    def service(self, process: Callable[[WallLoop], T], embedded: Callable[[], T]) -> T:
        return process(self)

    def post(self, function: Callable[..., None], *args: Any) -> None:
        """Thread-safe: has the loop thread call `function(*args)` as soon as it can."""
        self._inbox.put((function, args))

    def _advance(self) -> None:
        while True:
            self._drain_inbox()
            self._fire_timers(self.now)
            if self._ready:
                return
            self._drop_stale_timers()
            timeout = self._timers[0][0] - self.now if self._timers else None
            if timeout is None or timeout > 0:
                self._wait_for_post(timeout)

    def _wait_for_post(self, timeout: float | None) -> None:
        # A bounded wait keeps Ctrl-C prompt: a lock without a time-out ignores signals.
        try:
            function, args = self._inbox.get(timeout=min(timeout, 0.5) if timeout else 0.5)
        except queue.Empty:
            return
        function(*args)

    def _drain_inbox(self) -> None:
        """Makes the calls in the inbox until a timer is due: requests are sent in time, however
        much there is to record. It makes at least one, for a task may sleep 0 s again and again."""
        due_s = self._timers[0][0] if self._timers else inf
        while True:
            try:
                function, args = self._inbox.get_nowait()
            except queue.Empty:
                return
            function(*args)
            if self.now >= due_s:
                return


class Queue(Generic[T]):
    """An unbounded FIFO between tasks of one loop."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._items: deque[T] = deque()
        self._nonempty = Event(loop)

    def __len__(self) -> int:
        return len(self._items)

    def put(self, item: T) -> None:
        self._items.append(item)
        self._nonempty.set()

    async def get(self) -> T:
        while not self._items:
            await self._loop.wait(self._nonempty)
        item = self._items.popleft()
        if not self._items:
            self._nonempty.clear()
        return item
