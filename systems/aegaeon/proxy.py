"""The proxy layer of §3.3: requests pass it on their way to an instance, and it can die.

Whatever it would need again is in the shared store before it matters: a request from before it
is dispatched until it has finished, and where it is meanwhile. KV and tokens so far are the
instances'; a request whose instance is gone too starts anew.
"""

from __future__ import annotations

from collections.abc import Callable

from harness.request import Request
from systems.aegaeon.store import Store, Value

REQUEST, INSTANCE = "request/", "instance/"


class Proxy:
    """dispatch: chooses an instance, queues the request there and returns its name."""

    def __init__(self, store: Store, dispatch: Callable[[Request], str]) -> None:
        self.store, self._dispatch = store, dispatch

    def register(self, instance: str, role: str, node: int) -> None:
        self.store.put(INSTANCE + instance, {"role": role, "node": node})

    def submit(self, request: Request) -> None:
        self.accept(request)
        self.moved(request, self._dispatch(request))

    def accept(self, request: Request) -> None:
        """From here on the request is not lost, though no instance has it yet."""
        self.store.put(key(request), described(request, None))

    def moved(self, request: Request, instance: str) -> None:
        """The request is queued at `instance` now."""
        if not request.finished:
            self.store.put(key(request), described(request, instance))

    def finished(self, request: Request) -> None:
        self.store.delete(key(request))

    def close(self) -> None:
        """At the end of a run: its instances are gone. Requests that are left were not served."""
        for name in self.store.items():
            if name.startswith(INSTANCE):
                self.store.delete(name)
        self.store.close()

    def recover(self, ask: Callable[[int], str | None]) -> None:
        """After a restart: submits again, in order of arrival, the requests that no instance has.

        A request at a registered instance is that instance's, which has lived on. Where the store
        names no instance or one that is gone, the instances are asked for this request: its
        proxy may have died between queuing it and writing down where. (Writing that first would
        lose the requests that were written down and never queued.) `ask`: by request_id, the name
        of the instance that has it.

        A finish that was not written down leaves an entry at its instance: not served twice.
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
            self.submit(request)


def key(request: Request) -> str:
    return f"{REQUEST}{request.request_id}"


def described(request: Request, instance: str | None) -> Value:
    return {
        "arrival_s": request.arrival_s,
        "model": request.model,
        "prompt_tokens": request.prompt_tokens,
        "output_tokens": request.output_tokens,
        "instance": instance,
    }


def restored(name: str, value: Value) -> Request:
    return Request(
        request_id=int(name.removeprefix(REQUEST)),
        arrival_s=float(value["arrival_s"] or 0.0),
        model=str(value["model"]),
        prompt_tokens=int(value["prompt_tokens"] or 0),
        output_tokens=int(value["output_tokens"] or 0),
    )
