"""An endpoint behind HTTP: requests out, streamed tokens in, each token stamped as it comes.

All sockets live in the I/O thread; it stamps, counts and posts, and the harness's loop records.
Knows nothing of where the server came from.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from urllib.parse import urlsplit

from harness.drivers.connections import Connections
from harness.drivers.exchange import Exchange
from harness.drivers.io_thread import IoThread
from harness.errors import RunError
from harness.records.record import Chunk, Recorder
from harness.request import Request


@dataclass(slots=True)
class Target:
    """A server's address, and how to ask it for one completion."""

    root: str  # of the server, which may have a page /metrics
    url: str  # of the completions or chat API itself
    headers: Mapping[str, str]
    body: Callable[[Request], bytes]  # JSON; whatever it takes is the client's lag
    timeout_s: float  # from submission to the stream's end
    allow_early_end: bool  # an answer shorter than asked for is complete


class HttpEndpoint:
    def __init__(
        self, name: str, models: Sequence[str], target: Target, io: IoThread, recorder: Recorder
    ) -> None:
        self.name = name
        self.models = models
        self.lost = False  # its server has died, as planned
        self.connections = Connections(target.url, io)
        self.num_corrected = 0  # answers whose usage disagreed with their number of chunks
        self.num_cut = 0  # streams that went far beyond what was asked
        self.target = target
        self._head = _head(target)
        self._io = io
        self._loop = io.run_loop
        self._recorder = recorder
        self._token_s = 0.0  # when the newest token came, whoever's it was

    def submit(self, request: Request) -> None:
        self._io.urge(self._send, request)

    def _send(self, request: Request) -> None:
        body = self.target.body(request)
        message = b"%sContent-Length: %d\r\n\r\n%s" % (self._head, len(body), body)
        exchange = Exchange(request, message, self, self.connections, self._io)
        exchange.begin(self.target.timeout_s)

    # What an exchange tells, in the I/O thread.

    def sent(self, exchange: Exchange, sent_s: float) -> None:
        """What came before is the client's lag, a wait for a connection too: one was to be open."""
        self._io.post(self._sent, exchange.request, sent_s)

    def tokens(self, exchange: Exchange, read_s: float, count: int) -> None:
        self._token_s = read_s
        self._io.post(self._record, exchange.request, read_s, count)

    def ended(self, exchange: Exchange, error: str | None, *, timeout: bool) -> None:
        request, tally = exchange.request, exchange.tally
        self.num_corrected += tally.corrected
        self.num_cut += tally.cut is not None
        if request.turn is not None:
            request.answer = tally.answer()
        self._io.post(self._recorder.reported, request, tally.reported())
        if exchange.status == 404:
            self._io.post(_stop, f"{self.target.url} answered {error}")
        silent_s = time.monotonic() - max(self._token_s, self._loop.start_monotonic_s)
        if timeout and silent_s >= self.target.timeout_s / 2:
            error = f"{error}; {self.name} gave nobody a token for half of that or more"
            self._io.post(self._no_progress, silent_s)
        if error is None:
            error = tally.fault(self.target.allow_early_end)
        if error is None:
            self._io.post(self._recorder.completed, request)
        else:
            self._io.post(partial(self._recorder.failed, request, error, timeout=timeout))

    # What the run's loop then does.

    def _sent(self, request: Request, sent_s: float) -> None:
        self._recorder.sent(request, sent_s - self._loop.start_monotonic_s)

    def _record(self, request: Request, read_s: float, tokens: int) -> None:
        time_s = read_s - self._loop.start_monotonic_s
        self._recorder.segment([request], Chunk(time_s, tokens), self.name)
        request.generated_tokens += tokens

    def _no_progress(self, silent_s: float) -> None:
        now_s = self._loop.now
        self._recorder.event("no_progress", self.name, now_s - silent_s, now_s)


def _head(target: Target) -> bytes:
    """Request line and headers of every request, but for the length of its body."""
    parts = urlsplit(target.url)
    path = f"{parts.path or '/'}{f'?{parts.query}' if parts.query else ''}"
    host = parts.netloc.rpartition("@")[2]
    headers = {"Host": host, "Accept": "text/event-stream, application/json", **target.headers}
    lines = [f"POST {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
    return "".join(f"{line}\r\n" for line in lines).encode()


def _stop(reason: str) -> None:
    """Ends the run for `reason`: a missing model or path is missing for every request."""
    raise RunError(f"{reason}; is engine.url the API's base, and does it serve engine.model?")
