"""How a run speaks to its coordinator: embedded in simulation, over HTTP to a live process.

Both raise `Refused`, with the reason, for changes that the ledger does not allow. Over HTTP a
thread sends one request after the other, so that the run's loop goes on meanwhile. A request whose
answer was lost is sent again, which changes nothing (`requests.py`).
"""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from http.client import HTTPConnection, HTTPException
from typing import Any
from urllib.parse import quote, urlencode

from harness.clock import Event, Loop, WallLoop
from harness.errors import RunError
from systems.aqua.config import Coordination
from systems.aqua.coordinator.coordinator import Coordinator
from systems.aqua.coordinator.ledger import Refused
from systems.aqua.coordinator.process import HOST, CoordinatorProcess
from systems.aqua.coordinator.requests import (
    Allocate,
    Change,
    Free,
    Join,
    Leave,
    Offer,
    Reclaim,
)
from systems.aqua.coordinator.topology import Topology

ANSWER_TIMEOUT_S = 30.0  # timeout of one request, on a loaded machine
PATIENCE_S = 60.0  # time until a coordinator that does not answer ends the run
PAUSE_S = 0.05  # pause between two tries


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


Body = dict[str, Any] | None


def request_of(change: Change) -> tuple[str, str, Body]:
    """Method, path and body by which the endpoints of `app.py` make `change`."""
    match change:
        case Join():
            return "PUT", f"/holders/{quote(change.holder)}", {"device": change.device}
        case Leave():
            return "DELETE", f"/holders/{quote(change.holder)}", None
        case Offer():
            body = {"holder": change.holder, "num_bytes": change.num_bytes}
            return "PUT", f"/leases/{quote(change.lease)}", body
        case Reclaim():
            body = {"holder": change.holder, "keep_bytes": change.keep_bytes}
            return "POST", f"/leases/{quote(change.lease)}/reclaim", body
        case Allocate():
            body = {"holder": change.holder, "num_bytes": change.num_bytes}
            return "PUT", f"/allocations/{quote(change.allocation)}", body
        case Free():
            query = urlencode({"holder": change.holder})
            return "DELETE", f"/allocations/{quote(change.allocation)}?{query}", None


class Remote:
    """A coordinator process, with `Embedded`'s methods. If it has died, it is started again."""

    def __init__(self, process: CoordinatorProcess, loop: WallLoop) -> None:
        self.process = process
        self._loop = loop
        self._connection = HTTPConnection(HOST, process.port, timeout=ANSWER_TIMEOUT_S)
        self._closed = threading.Event()
        self._thread = ThreadPoolExecutor(1, "coordinator client")

    async def make(self, change: Change) -> str | None:
        answer = await self._ask(*request_of(change))
        return answer["lease"] if isinstance(change, Allocate) else None

    async def heartbeat(self, holder: str) -> None:
        await self._ask("POST", f"/holders/{quote(holder)}/heartbeat")

    async def leases(self) -> dict[str, dict[str, Any]]:
        found: dict[str, dict[str, Any]] = (await self._ask("GET", "/status"))["leases"]
        return found

    def close(self) -> None:
        """Ends the connection and the process."""
        self._closed.set()
        self.process.stop()
        with suppress(RuntimeError):  # the interpreter ends
            self._thread.submit(self._connection.close)
        self._thread.shutdown(wait=False)

    async def _ask(self, method: str, path: str, body: Body = None) -> Any:
        done = Event(self._loop)
        answer = self._thread.submit(self._answer, method, path, body)
        answer.add_done_callback(lambda _: self._loop.post(done.set))
        await self._loop.wait(done)
        return answer.result()

    # What the thread does

    def _answer(self, method: str, path: str, body: Body) -> Any:
        """The answer's JSON. Raises Refused for 4xx, RunError if no answer comes."""
        began_s = self._loop.now
        while not self._closed.is_set():
            try:
                return self._once(method, path, body)
            except (OSError, HTTPException) as error:
                self._connection.close()
                if self._closed.is_set():  # its process was stopped meanwhile
                    break
                self.process.revive()
                if self._loop.now - began_s > PATIENCE_S:
                    raise RunError(f"the coordinator does not answer: {error}") from error
                self._closed.wait(PAUSE_S)
        raise RunError("the run is over")

    def _once(self, method: str, path: str, body: Body) -> Any:
        text = None if body is None else json.dumps(body)
        self._connection.request(method, path, text, {"Content-Type": "application/json"})
        response = self._connection.getresponse()
        content = json.loads(response.read())
        if response.status >= 500:
            raise RunError(f"the coordinator failed: {content.get('detail', response.reason)}")
        if response.status >= 400:
            raise Refused(response.status, str(content["detail"]))
        return content


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
