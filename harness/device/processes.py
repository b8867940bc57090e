"""The processes of one instance as a `Victim`: signals, and what the kernel says of those struck.

A stall is SIGSTOP, then SIGCONT. That it struck is seen, not assumed: every process is stopped at
both ends of the stall, and has used no processor time in between.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable
from contextlib import suppress

import psutil

from harness.clock import Loop
from harness.device.victim import Victim

POLL_S = 0.005
STOPS_WITHIN_S = 1.0  # a process in an uninterruptible call stops at its end
DEAD = (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)


class Processes(Victim):
    """`find`: the ids of the instance's processes, asked for when a fault strikes: a restart brings
    others. `expect`: what is to be told that a fault is planned. Linux."""

    def __init__(
        self, name: str, loop: Loop, find: Callable[[], Iterable[int]],
        expect: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        self.name, self._loop, self._find, self._expect = name, loop, find, expect
        self._killed: list[psutil.Process] | None = None
        self._stopped: list[psutil.Process] = []

    def expect(self) -> None:
        self._expect()

    @property
    def alive(self) -> bool:
        found = self._processes() if self._killed is None else self._killed
        return any(_status(process) not in DEAD for process in found)

    def kill(self) -> None:
        self._killed = self._processes()
        _signal(self._killed, signal.SIGKILL)

    async def stall(self, for_s: float) -> bool:
        until_s = self._loop.now + for_s
        self._stopped = found = self._processes()
        _signal(found, signal.SIGSTOP)
        try:
            at_latest_s = min(until_s, self._loop.now + STOPS_WITHIN_S)
            while not _all_stopped(found) and self._loop.now < at_latest_s:
                await self._loop.sleep(POLL_S)
            before_s = [_used_s(process) for process in found]
            stopped = bool(found) and _all_stopped(found)
            await self._loop.sleep_until(until_s)
            used_s = [_used_s(process) for process in found]
            return stopped and _all_stopped(found) and used_s == before_s
        finally:
            self.release()

    def release(self) -> None:
        _signal(self._stopped, signal.SIGCONT)
        self._stopped = []

    def _processes(self) -> list[psutil.Process]:
        found = []
        for pid in self._find():
            with suppress(psutil.NoSuchProcess):
                found.append(psutil.Process(pid))
        return found


def below(pid: int) -> list[int]:
    """The ids of all processes that `pid` has started, and of those which they have."""
    try:
        return [child.pid for child in psutil.Process(pid).children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def _signal(processes: Iterable[psutil.Process], number: signal.Signals) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(number)


def _all_stopped(processes: Iterable[psutil.Process]) -> bool:
    return all(_status(process) == psutil.STATUS_STOPPED for process in processes)


def _status(process: psutil.Process) -> str:
    try:
        return str(process.status())
    except psutil.NoSuchProcess:
        return str(psutil.STATUS_DEAD)


def _used_s(process: psutil.Process) -> float:
    """Processor time since its start."""
    try:
        times = process.cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    return float(times.user + times.system)
