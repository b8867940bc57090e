"""How a run speaks to its coordinator: embedded in simulation, over HTTP to a live process.

Both raise `Refused`, with the reason, for changes that the ledger does not allow. Over HTTP a
thread sends one request after the other, so that the run's loop goes on meanwhile. A request whose
answer was lost is sent again, which changes nothing (`requests.py`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeVar

from harness.clock import Event, Loop, WallLoop
from harness.errors import RunError
from systems.aqua.config import Coordination
from systems.aqua.coordinator.coordinator import Coordinator
from systems.aqua.coordinator.http_client import Failed, HttpCoordinator
from systems.aqua.coordinator.process import HOST, CoordinatorProcess
from systems.aqua.coordinator.requests import Change
from systems.aqua.coordinator.topology import Topology

ANSWER_TIMEOUT_S = 30.0  # timeout of one request, on a loaded machine
PATIENCE_S = 60.0  # time until a coordinator that does not answer ends the run
PAUSE_S = 0.05  # pause between two tries

Answer = TypeVar("Answer")


class Embedded:
    """A coordinator within the run; it answers at once. All methods may raise Refused."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator

    async def make(self, change: Change) -> str | None:
        """Makes a change, as `Coordinator.make` does."""
        return self._coordinator.make(change)

    async def heartbeat(self, holder: str) -> None:
        self._coordinator.heartbeat(holder)

    async def leases(self) -> dict[str, dict[str, Any]]:
        """{lease: its values}, as `Ledger.status` has them."""
        return self._coordinator.leases()

    def close(self) -> None:
        pass


class Remote:
    """A coordinator process, with `Embedded`'s methods. If it has died, it is started again."""

    def __init__(self, process: CoordinatorProcess, loop: WallLoop) -> None:
        self.process = process
        self._loop = loop
        self._http = HttpCoordinator(HOST, process.port, ANSWER_TIMEOUT_S)
        self._closed = threading.Event()
        self._thread = ThreadPoolExecutor(1, "coordinator client")

    async def make(self, change: Change) -> str | None:
        return await self._ask(lambda: self._http.make(change))

    async def heartbeat(self, holder: str) -> None:
        await self._ask(lambda: self._http.heartbeat(holder))

    async def leases(self) -> dict[str, dict[str, Any]]:
        return await self._ask(self._http.leases)

    def close(self) -> None:
        """Ends the connection and the process."""
        self._closed.set()
        self.process.stop()
        with suppress(RuntimeError):  # the interpreter ends
            self._thread.submit(self._http.close)
        self._thread.shutdown(wait=False)

    async def _ask(self, question: Callable[[], Answer]) -> Answer:
        done = Event(self._loop)
        answer = self._thread.submit(self._answer, question)
        answer.add_done_callback(lambda _: self._loop.post(done.set))
        await self._loop.wait(done)
        return answer.result()

    def _answer(self, question: Callable[[], Answer]) -> Answer:
        """What the thread does. Raises Refused for 4xx, RunError if no answer comes."""
        began_s = self._loop.now
        while not self._closed.is_set():
            try:
                return question()
            except Failed as error:
                raise RunError(str(error)) from error
            except OSError as error:
                if self._closed.is_set():  # its process was stopped meanwhile
                    break
                self.process.revive()
                if self._loop.now - began_s > PATIENCE_S:
                    raise RunError(str(error)) from error
                self._closed.wait(PAUSE_S)
        raise RunError("the run is over")


CoordinatorClient = Embedded | Remote


def open_coordinator(topology: Topology, config: Coordination, loop: Loop) -> CoordinatorClient:
    """A process of its own where time is real (section 8), unless it is to be embedded."""
    timeout_s = config.heartbeat_timeout_s

    def process(wall: WallLoop) -> CoordinatorClient:
        return Remote(CoordinatorProcess(topology, config.port, timeout_s), wall)

    def embedded() -> CoordinatorClient:
        return Embedded(
            Coordinator(topology, None, lambda: loop.now, heartbeat_timeout_s=timeout_s)
        )

    return loop.service(process, embedded) if config.process else embedded()
