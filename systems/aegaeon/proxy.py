"""The proxy layer of §3.3: requests pass it on their way to an instance. It can die.

What a new proxy needs is in the shared store: every request, from before its dispatch until it has
finished, and the instance where it is. Instances keep KV and generated tokens. A request whose
instance is gone too starts anew. When an instance dies, its requests are submitted again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from harness.request import Request
from systems.aegaeon.store import Store, Value

REQUEST, INSTANCE = "request/", "instance/"


class Proxy:
    """Keeps requests in the store and submits them. dispatch: chooses an instance, queues the
    request there and returns its name; None: the request has failed, as none is left."""

    def __init__(self, store: Store, dispatch: Callable[[Request], str | None]) -> None:
        self.store, self._dispatch = store, dispatch

    def register(self, instance: str, role: str, node: int) -> None:
        """Enters an instance into the store. role: prefill, decode or both."""
        self.store.put(INSTANCE + instance, {"role": role, "node": node})

    def lost(self, instance: str) -> None:
        """Removes an instance that has died from the store."""
        self.store.delete(INSTANCE + instance)

    def submit(self, request: Request) -> None:
        """Stores the request that has arrived, then dispatches it."""
        self.submit_again(request)

    def submit_again(self, request: Request) -> None:
        """Does so with a request that has lost its place."""
        self.accept(request)
        self.moved(request, self._dispatch(request))

    def accept(self, request: Request) -> None:
        """Enters the request into the store, before any instance has it."""
        self.store.put(key(request), described(request, None))

    def moved(self, request: Request, instance: str | None) -> None:
        """Tells that the request is queued at `instance` now; None: it has failed."""
        if instance is None:
            self.finished(request)
        elif not request.finished:
            self.store.put(key(request), described(request, instance))

    def finished(self, request: Request) -> None:
        """Removes the request from the store."""
        self.store.delete(key(request))

    def close(self) -> None:
        """Ends the run: removes its instances from the store. Requests that are left in the store
        were not served."""
        for name in self.store.items():
            if name.startswith(INSTANCE):
                self.store.delete(name)
        self.store.close()

    def recover(self, ask: Callable[[int], str | None]) -> None:
        """Submits the requests again that no instance has after a restart, in order of arrival.

        ask: request_id -> name of the instance that has the request, or None.

        A request at a registered instance stays there, since instances live on. If the store names
        no instance, or one that is gone, the instances are asked: the old proxy may have died
        between queuing the request and storing where. (Storing the place first would lose requests
        that were never queued.) If the old proxy died before it removed a finished request, the
        entry remains at its instance; the request is not served twice.
        """
        stored = self.store.items()
        registered = {key.removeprefix(INSTANCE) for key in stored if key.startswith(INSTANCE)}
        lost = []
        for name, value in stored.items():
            if not name.startswith(REQUEST) or value["instance"] in registered:
                continue
            request = restored(name, value)
            instance = ask(request.request_id)
            if instance is None:
                lost.append(request)
            else:
                self.moved(request, instance)
        for request in sorted(lost, key=lambda request: (request.arrival_s, request.request_id)):
            self.submit_again(request)


def key(request: Request) -> str:
    return f"{REQUEST}{request.request_id}"


def described(request: Request, instance: str | None) -> Value:
    return {
        "arrival_s": request.arrival_s, "model": request.model,
        "prompt_tokens": request.prompt_tokens, "output_tokens": request.output_tokens,
        "instance": instance,
    }  # fmt: skip


def restored(name: str, value: Value) -> Request:
    stored: dict[str, Any] = {key: of for key, of in value.items() if key != "instance"}
    return Request(int(name.removeprefix(REQUEST)), **stored)
