"""Calls the coordinator's REST endpoints from the plug-in's processes.

It needs only the standard library, so that the plug-in installs beside any vLLM.
"""

from __future__ import annotations

import json
import threading
from http.client import HTTPConnection, HTTPException
from typing import Any
from urllib.parse import quote, urlsplit

TIMEOUT_S = 2.0  # of an answer; an iteration waits for it


class Refused(Exception):
    """The coordinator's answer was 4xx; the message is its reason."""


class CoordinatorHttp:
    """Every method raises OSError if no answer comes, Refused if the coordinator refuses. Raises
    ValueError for a url that is not http://HOST:PORT."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme != "http" or parts.hostname is None or parts.port is None:
            raise ValueError(f"coordinator={url!r}; valid: http://HOST:PORT")
        self._host, self._port = parts.hostname, parts.port
        self._lock = threading.Lock()
        self._connection = HTTPConnection(self._host, self._port, timeout=TIMEOUT_S)

    def join(self, holder: str, device: str) -> None:
        self._ask("PUT", f"/holders/{quote(holder)}", {"device": device})

    def heartbeat(self, holder: str) -> None:
        self._ask("POST", f"/holders/{quote(holder)}/heartbeat")

    def leave(self, holder: str) -> None:
        self._ask("DELETE", f"/holders/{quote(holder)}")

    def offer(self, lease: str, holder: str, num_bytes: int) -> None:
        self._ask("PUT", f"/leases/{quote(lease)}", {"holder": holder, "num_bytes": num_bytes})

    def allocate(self, allocation: str, holder: str, num_bytes: int) -> str | None:
        """The lease that has the allocation; None: no lease has room."""
        body = {"holder": holder, "num_bytes": num_bytes}
        lease: str | None = self._ask("PUT", f"/allocations/{quote(allocation)}", body)["lease"]
        return lease

    def free(self, allocation: str, holder: str) -> None:
        self._ask("DELETE", f"/allocations/{quote(allocation)}?holder={quote(holder)}")

    def leases(self) -> dict[str, dict[str, Any]]:
        """{lease: offered_bytes, overdrawn_bytes and more}, as `Ledger.status` has them."""
        found: dict[str, dict[str, Any]] = self._ask("GET", "/status")["leases"]
        return found

    def _ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        """Tries twice: the connection may have ended since the last answer. Sending a request again
        changes nothing more."""
        with self._lock:
            try:
                return self._once(method, path, body)
            except (OSError, HTTPException):
                self._connection.close()
            try:
                return self._once(method, path, body)
            except (OSError, HTTPException) as error:
                self._connection.close()
                raise OSError(f"the coordinator does not answer: {error!r}") from error

    def _once(self, method: str, path: str, body: dict[str, Any] | None) -> Any:
        text = None if body is None else json.dumps(body)
        self._connection.request(method, path, text, {"Content-Type": "application/json"})
        response = self._connection.getresponse()
        content = json.loads(response.read())
        if response.status >= 500:
            raise OSError(f"the coordinator failed: {content}")
        if response.status >= 400:
            raise Refused(str(content["detail"]))
        return content
