"""A simulated device's compute: one batch's or one stage's at a time, first come first served."""

from __future__ import annotations

from collections import deque

from harness.clock import Event, Loop
from harness.device.base import Arriving


class Compute:
    """`interrupt`: of the run under way, if it can give way at its next step boundary; of the last
    one, where nobody computes. `lent_s`: what attention for others has taken in all."""

    __slots__ = (
        "_attends_until_s", "_booked_by", "_loop", "booked_until_s", "busy", "interrupt", "lent_s",
        "turns",
    )  # fmt: skip

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self.turns = deque[Event]()  # of those who wait
        self._booked_by: object = None
        self.booked_until_s = 0.0
        self.busy = False
        self.interrupt: Event | None = None
        self.lent_s = self._attends_until_s = 0.0

    def is_free_for(self, executor: object) -> bool:
        """Whether `executor` may `book` ahead: nobody else computes here, or will."""
        if self.busy or self.turns:
            return False
        return self._booked_by is executor or self.booked_until_s <= self._loop.now

    def book(self, at_s: float, time_s: float, executor: object) -> float:
        """Computes `time_s` for `executor`, from `at_s` on or once what was booked is over; its
        end."""
        self._booked_by = executor
        self.booked_until_s = max(at_s, self.booked_until_s) + time_s
        return self.booked_until_s

    async def enter(self) -> None:
        """Waits for its turn, which `leave` ends; a run of decodes gives way at its next step."""
        if self.busy or self.turns:
            if self.interrupt is not None:
                self.interrupt.set()
            turn = Event(self._loop)
            self.turns.append(turn)
            await self._loop.wait(turn)
        self.busy = True
        while self.booked_until_s > self._loop.now:
            await self._loop.sleep_until(self.booked_until_s)

    async def work(self, time_s: float) -> None:
        """Computes for `time_s`, in one's turn; attention for others meanwhile comes on top."""
        self.booked_until_s = max(self._loop.now, self.booked_until_s) + time_s
        while self.booked_until_s > self._loop.now:
            await self._loop.sleep_until(self.booked_until_s)

    async def attend(self, time_s: float) -> None:
        """Attention for another instance: at once, one after the other. Work here that goes on or
        has been booked loses the time, a run of decodes from its next step on. It never waits for
        a turn: instances that wait for each other's attention hold theirs."""
        now = self._loop.now
        self._attends_until_s = max(now, self._attends_until_s) + time_s
        self.booked_until_s = max(now, self.booked_until_s) + time_s
        self.lent_s += time_s
        if self.busy and self.interrupt is not None:
            self.interrupt.set()
        await self._loop.sleep_until(self._attends_until_s)

    def leave(self) -> None:
        self.interrupt = None
        self.busy = bool(self.turns)  # the next one's already
        if self.turns:
            self.turns.popleft().set()


async def through(loop: Loop, arriving: Arriving, time_s: float) -> None:
    """Computes layers of which some are still on their way, which takes `time_s` without waiting.
    Layer k begins at the later of the end of layer k - 1 and its own arrival: an event for each
    that is late, none for the others. Returns at once where something that they need is gone."""
    share_s, over_s, gone = time_s / len(arriving.layers), loop.now, arriving.gone
    for here in arriving.layers:
        if not here.is_set:
            if await loop.wait(*gone, until=over_s):
                return
            if not here.is_set:
                await loop.wait(here, *gone)
                if not here.is_set:
                    return
                over_s = loop.now
        over_s += share_s
    await loop.wait(*gone, until=over_s)
