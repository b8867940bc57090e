"""An endpoint behind HTTP: requests out, streamed tokens in, each token stamped as it comes.

All sockets live in I/O threads, which stamp, count and post; the harness's loop records. Knows
nothing of where the server came from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from urllib.parse import urlsplit

from harness.clock import WallLoop
from harness.drivers.body import Bodies
from harness.drivers.exchange import Ending, Order
from harness.drivers.io_process import Io, open_line
from harness.errors import RunError
from harness.records.record import Chunk, Recorder
from harness.request import Request


@dataclass(slots=True)
class Target:
    """A server's address, and how to ask it for one completion."""

    root: str  # of the server, which may have a page /metrics
    url: str  # of the completions or chat API itself
    headers: Mapping[str, str]
    bodies: Bodies  # JSON; whatever it takes is the client's lag
    timeout_s: float  # from submission to the stream's end
    allow_early_end: bool  # an answer shorter than asked for is complete
    keep: bool = False  # what all answers say; else of a session's turns alone


class HttpEndpoint:
    """Deals its requests over `ios`, one after the other."""

    def __init__(
        self, name: str, models: Sequence[str], target: Target, ios: Sequence[Io], loop: WallLoop,
        recorder: Recorder,
    ) -> None:  # fmt: skip
        self.name = name
        self.models = models
        self.lost = False  # its server has died, as planned
        self.lines = [open_line(io, target.url, self) for io in ios]
        self.num_corrected = 0  # answers whose usage disagreed with their number of chunks
        self.num_cut = 0  # streams that went far beyond what was asked
        self.target = target
        self._head = _head(target)
        self._next_line = cycle(self.lines)
        self._loop = loop
        self._recorder = recorder
        self._under_way: dict[int, Request] = {}
        self._token_s = 0.0  # when the newest token came, whoever's it was

    def submit(self, request: Request) -> None:
        body, target = self.target.bodies.of(request), self.target
        message = b"%sContent-Length: %d\r\n\r\n%s" % (self._head, len(body), body)
        self._under_way[request.request_id] = request
        next(self._next_line).send(
            Order(
                request.request_id, message, request.output_tokens, target.timeout_s,
                keep=target.keep or request.turn is not None,
            )
        )  # fmt: skip

    # What lines tell, in the run's loop.

    def sent(self, request_id: int, sent_s: float) -> None:
        self._recorder.sent(self._under_way[request_id], sent_s - self._loop.start_monotonic_s)

    def tokens(self, request_id: int, read_s: float, count: int) -> None:
        self._token_s = max(self._token_s, read_s)
        request, time_s = self._under_way[request_id], read_s - self._loop.start_monotonic_s
        self._recorder.segment([request], Chunk(time_s, count), self.name)
        request.generated_tokens += count

    def ended(self, request_id: int, ending: Ending) -> None:
        request, tally = self._under_way.pop(request_id), ending.tally
        error = ending.error
        self.num_corrected += tally.corrected
        self.num_cut += tally.cut is not None
        if tally.keeps:
            request.answer = tally.answer()
        self._recorder.reported(request, tally.reported())
        if ending.status == 404:  # a missing model or path is missing for every request
            raise RunError(
                f"{self.target.url} answered {error}; is engine.url the API's base, and does it "
                "serve engine.model?"
            )
        silent_s = ending.at_s - max(self._token_s, self._loop.start_monotonic_s)
        if ending.timeout and silent_s >= self.target.timeout_s / 2:
            error = f"{error}; {self.name} gave nobody a token for half of that or more"
            now_s = self._loop.now
            self._recorder.event("no_progress", self.name, now_s - silent_s, now_s)
        error = error or tally.fault(self.target.allow_early_end)
        if error is None:
            self._recorder.completed(request)
            self.target.bodies.answered(request)
        else:
            self._recorder.failed(request, error, timeout=ending.timeout)


def _head(target: Target) -> bytes:
    """Request line and headers of every request, but for the length of its body."""
    parts = urlsplit(target.url)
    path = f"{parts.path or '/'}{f'?{parts.query}' if parts.query else ''}"
    host = parts.netloc.rpartition("@")[2]
    headers = {"Host": host, "Accept": "text/event-stream, application/json", **target.headers}
    lines = [f"POST {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
    return "".join(f"{line}\r\n" for line in lines).encode()
