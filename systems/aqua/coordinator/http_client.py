"""Asks the coordinator's REST endpoints (`app.py`) from another process: the run's, or vLLM's.

It needs only the standard library, so that the plug-in installs beside any vLLM.
"""

from __future__ import annotations

import json
from contextlib import suppress
from http.client import HTTPConnection, HTTPException
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from systems.aqua.coordinator.ledger import Refused
from systems.aqua.coordinator.requests import Allocate, Change, Free, Join, Leave, Offer, Reclaim

Body = dict[str, Any] | None


class Failed(OSError):
    """The coordinator's answer was 5xx."""


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


class HttpCoordinator:
    """A connection for one thread. Every method raises Refused for 4xx, and OSError if no answer
    comes within `timeout_s`; Failed for 5xx."""

    def __init__(self, host: str, port: int, timeout_s: float) -> None:
        self._connection = HTTPConnection(host, port, timeout=timeout_s)

    def make(self, change: Change) -> str | None:
        """Makes a change, as `Coordinator.make` does."""
        answer = self._ask(*request_of(change))
        return answer["lease"] if isinstance(change, Allocate) else None

    def heartbeat(self, holder: str) -> None:
        self._ask("POST", f"/holders/{quote(holder)}/heartbeat")

    def leases(self) -> dict[str, dict[str, Any]]:
        """{lease: its values}, as `Ledger.status` has them."""
        found: dict[str, dict[str, Any]] = self._ask("GET", "/status")["leases"]
        return found

    def close(self) -> None:
        self._connection.close()

    def _ask(self, method: str, path: str, body: Body = None) -> Any:
        """Tries twice: the connection may have ended since the last answer. Sending a request again
        changes nothing more."""
        with suppress(OSError, HTTPException):
            return self._once(method, path, body)
        self.close()
        try:
            return self._once(method, path, body)
        except Failed:
            raise
        except (OSError, HTTPException) as error:
            self.close()
            raise OSError(f"the coordinator does not answer: {error!r}") from error

    def _once(self, method: str, path: str, body: Body) -> Any:
        text = None if body is None else json.dumps(body)
        self._connection.request(method, path, text, {"Content-Type": "application/json"})
        response = self._connection.getresponse()
        content = json.loads(response.read())
        if response.status >= 500:
            raise Failed(f"the coordinator failed: {content.get('detail', response.reason)}")
        if response.status >= 400:
            raise Refused(response.status, str(content["detail"]))
        return content


def coordinator_at(url: str, timeout_s: float) -> HttpCoordinator:
    """Raises ValueError for a url that is not http://HOST:PORT."""
    parts = urlsplit(url)
    if parts.scheme != "http" or parts.hostname is None or parts.port is None:
        raise ValueError(f"coordinator={url!r}; valid: http://HOST:PORT")
    return HttpCoordinator(parts.hostname, parts.port, timeout_s)
