"""How a run speaks to its coordinator: embedded in simulation, over HTTP to a live process.

Both raise `Refused`, with the reason, for changes that the ledger does not allow. Over HTTP a
thread sends one request after the other, so that the run's loop goes on meanwhile. A request whose
answer was lost is sent again, which changes nothing (`requests.py`).
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from http.client import HTTPConnection, HTTPException
from queue import SimpleQueue
from typing import Any, Protocol
from urllib.parse import quote, urlencode

from harness.clock import Event, WallLoop
from harness.errors import RunError
from systems.aqua.coordinator.coordinator import Coordinator
from systems.aqua.coordinator.process import CoordinatorProcess
from systems.aqua.coordinator.requests import (
    Allocate,
    Change,
    Free,
    Join,
    Leave,
    Offer,
    Reclaim,
    Refused,
)

HOST = "127.0.0.1"
ANSWER_TIMEOUT_S = 30.0  # of one request, on a loaded machine
PATIENCE_S = 60.0  # until a coordinator that does not answer ends the run
PAUSE_S = 0.05  # between two tries


class CoordinatorClient(Protocol):
    """A coordinator, wherever it runs. All methods may raise Refused."""

    async def make(self, change: Change) -> None:
        """Makes a change."""
        ...

    async def allocate(self, change: Allocate) -> str | None:
        """Allocates; returns the lease. None: no lease has room."""
        ...

    async def heartbeat(self, holder: str) -> None:
        """Tells that `holder` lives."""
        ...

    async def leases(self) -> dict[str, dict[str, Any]]:
        """{lease: its values}, as `Ledger.status` has them."""
        ...

    def close(self) -> None:
        """Ends the connection."""
        ...


class Embedded:
    """A coordinator within the run; it answers at once."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator

    async def make(self, change: Change) -> None:
        self._coordinator.make(change)

    async def allocate(self, change: Allocate) -> str | None:
        self._coordinator.make(change)
        found = self._coordinator.allocation(change.allocation)
        return None if found is None else found.lease

    async def heartbeat(self, holder: str) -> None:
        self._coordinator.heartbeat(holder)

    async def leases(self) -> dict[str, dict[str, Any]]:
        found: dict[str, dict[str, Any]] = self._coordinator.status()["leases"]
        return found

    def close(self) -> None:
        pass


Words = tuple[str, str, dict[str, Any] | None]  # method, path and body


def request_of(change: Change) -> Words:
    """The endpoint of `app.py` that makes `change`."""
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
    """A coordinator process. If it has died, it is started again."""

    def __init__(self, process: CoordinatorProcess, loop: WallLoop) -> None:
        self.process = process
        self._loop = loop
        self._asked: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._connection = HTTPConnection(HOST, process.port, timeout=ANSWER_TIMEOUT_S)
        self._closed = threading.Event()
        threading.Thread(target=self._serve, name="coordinator client", daemon=True).start()

    async def make(self, change: Change) -> None:
        await self._ask(request_of(change))

    async def allocate(self, change: Allocate) -> str | None:
        lease: str | None = (await self._ask(request_of(change)))["lease"]
        return lease

    async def heartbeat(self, holder: str) -> None:
        await self._ask(("POST", f"/holders/{quote(holder)}/heartbeat", None))

    async def leases(self) -> dict[str, dict[str, Any]]:
        found: dict[str, dict[str, Any]] = (await self._ask(("GET", "/status", None)))["leases"]
        return found

    def close(self) -> None:
        """Ends the connection and the process."""
        self._closed.set()
        self._asked.put(None)
        self.process.stop()

    async def _ask(self, words: Words) -> Any:
        done, found = Event(self._loop), list[Any]()

        def send() -> None:
            try:
                found.append(self._answer(words))
            except Exception as error:  # raised again where the answer is awaited
                found.append(error)
            self._loop.post(done.set)

        self._asked.put(send)
        await self._loop.wait(done)
        if isinstance(found[0], Exception):
            raise found[0]
        return found[0]

    # In the thread

    def _serve(self) -> None:
        while (send := self._asked.get()) is not None:
            send()
        self._connection.close()

    def _answer(self, words: Words) -> Any:
        """The answer's JSON. Raises Refused for 4xx, RunError if no answer comes."""
        began_s = self._loop.now
        while not self._closed.is_set():
            try:
                return self._once(*words)
            except (OSError, HTTPException) as error:
                self._connection.close()
                self.process.revive()
                if self._loop.now - began_s > PATIENCE_S:
                    raise RunError(f"the coordinator does not answer: {error}") from error
                self._closed.wait(PAUSE_S)
        raise RunError("the run is over")

    def _once(self, method: str, path: str, body: dict[str, Any] | None) -> Any:
        text = None if body is None else json.dumps(body)
        self._connection.request(method, path, text, {"Content-Type": "application/json"})
        response = self._connection.getresponse()
        content = json.loads(response.read())
        if response.status >= 500:
            raise RunError(f"the coordinator failed: {content.get('detail', response.reason)}")
        if response.status >= 400:
            raise Refused(response.status, str(content["detail"]))
        return content
