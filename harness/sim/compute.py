"""A simulated device's compute: one batch's or one stage's at a time, first come first served."""

from __future__ import annotations

from collections import deque

from harness.clock import Event, Loop


class Compute:
    """`halt`: of the run under way, if it can give way at its next step boundary; of the last one,
    where nobody computes."""

    __slots__ = ("_booked_by", "_loop", "booked_until_s", "busy", "halt", "turns")

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self.turns = deque[Event]()  # of those who wait
        self._booked_by: object = None
        self.booked_until_s = 0.0
        self.busy = False
        self.halt: Event | None = None

    def is_free_for(self, line: object) -> bool:
        """Whether `line` may `book` ahead: nobody else computes here, or will."""
        if self.busy or self.turns:
            return False
        return self._booked_by is line or self.booked_until_s <= self._loop.now

    def book(self, at_s: float, time_s: float, line: object) -> float:
        """Computes `time_s` for `line`, from `at_s` on or once what was booked is over; its end."""
        self._booked_by = line
        self.booked_until_s = max(at_s, self.booked_until_s) + time_s
        return self.booked_until_s

    async def enter(self) -> None:
        """Waits for its turn, which `leave` ends; a run of decodes gives way at its next step."""
        if self.busy or self.turns:
            if self.halt is not None:
                self.halt.set()
            turn = Event(self._loop)
            self.turns.append(turn)
            await self._loop.wait(turn)
        self.busy = True
        if self.booked_until_s > self._loop.now:
            await self._loop.sleep_until(self.booked_until_s)

    def leave(self) -> None:
        self.halt = None
        self.busy = bool(self.turns)  # the next one's already
        if self.turns:
            self.turns.popleft().set()
