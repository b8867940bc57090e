"""What a fault on purpose strikes: one instance, on whatever engine."""

from __future__ import annotations

from typing import Protocol

from harness.clock import Loop


class Victim(Protocol):
    """What a fault strikes. Most victims need nothing of `expect` and `release`."""

    name: str

    def expect(self) -> None:
        """A fault is planned: this instance's death is the system's to deal with, if it can, and
        no failure of the engine."""
        return

    @property
    def alive(self) -> bool:
        """May wait for another host: for when the run is over."""

    async def lives(self, loop: Loop) -> bool:
        """The same while a run lasts: the loop goes on."""
        return self.alive

    def kill(self) -> None:
        """It dies now, as by SIGKILL; `alive` is false soon after."""

    async def stall(self, for_s: float) -> bool:
        """It computes nothing for `for_s`, and then goes on. False: it did something meanwhile, or
        was dead."""

    def release(self) -> None:
        """Ends a stall under way, if there is one: for a run that ends meanwhile."""
        return
