"""The token log: what every instance and endpoint stamps, and the parquet files it becomes.

Stamping is cheap and shared: one segment per macro-step serves every request of its batch, and
is expanded into per-token times only when a table is asked for. Systems never see this.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from mypy_extensions import mypyc_attr

from harness.request import Request

Status = Literal["scheduled", "sent", "completed", "failed", "timeout"]


@dataclass(slots=True)
class Reported:
    """What a server said of one answer beside its tokens, and how it came. None: it did not say."""

    prompt_tokens: int | None = None  # as it counted them
    cached_tokens: int | None = None  # of those, found in its prefix cache
    surplus_tokens: int = 0  # told by the usage at the end alone: when they came is not known
    buffered: bool = False  # more than one token, and all in one event


@mypyc_attr(acyclic=True)
class TokenRecord:
    """One request's log. Times are seconds on the loop's clock; None: has not happened."""

    __slots__ = (
        "error", "instance", "num_preemptions", "reported", "request", "segments", "sent_s",
        "status",
    )  # fmt: skip

    def __init__(self, request: Request) -> None:
        self.request = request
        self.sent_s: float | None = None
        self.status: Status = "scheduled"
        self.error = ""
        self.instance = ""
        self.num_preemptions = 0
        self.reported: Reported | None = None  # None: no server answered
        self.segments: list[Segment] = []

    @property
    def last_token_s(self) -> float:
        """Of a request that has a token."""
        end = self.segments[-1]
        n = end.num_tokens
        return end.start_s + n * end.step_s + end.growth_s * n * (n - 1) / 2

    def token_times_s(self) -> npt.NDArray[np.float64]:
        if not self.segments:
            return np.empty(0)
        return np.concatenate([segment.times_s() for segment in self.segments])


@mypyc_attr(acyclic=True)
class Segment:
    """`num_tokens` tokens, one chunk each, at start_s + k·step_s + growth_s·k(k-1)/2, k = 1, 2, …

    With growth_s = 0 and num_tokens = 1 it is a single token stamped at start_s + step_s.
    """

    __slots__ = ("growth_s", "num_tokens", "start_s", "step_s")

    def __init__(self, start_s: float, num_tokens: int, step_s: float, growth_s: float) -> None:
        self.start_s = start_s
        self.num_tokens = num_tokens
        self.step_s = step_s
        self.growth_s = growth_s

    def times_s(self) -> npt.NDArray[np.float64]:
        k = np.arange(1, self.num_tokens + 1, dtype=np.float64)
        return self.start_s + k * self.step_s + self.growth_s * k * (k - 1) / 2


@mypyc_attr(acyclic=True)
class Chunk(Segment):
    """`num_tokens` tokens that arrived together at start_s."""

    __slots__ = ()

    def __init__(self, time_s: float, num_tokens: int) -> None:
        super().__init__(time_s, num_tokens, 0.0, 0.0)


@mypyc_attr(allow_interpreted_subclasses=True)
class Recorder:
    """Collects a run's records; the counters are what a progress bar shows.

    A request that finishes or fails is final: later stamps for it raise.
    """

    def __init__(self, requests: Iterable[Request]) -> None:
        self.records: dict[int, TokenRecord] = {}  # by request_id
        # The same, by `Request.log_index`: each stamp looks here, and what requests under way need
        # of it is together, which the entries of so large a dict are not.
        self._logs: list[TokenRecord | None] = []
        self.add(requests)
        self.events: list[dict[str, Any]] = []
        self.num_sent = 0
        self.num_started = 0  # requests with a first token
        self.num_done = 0  # completed, failed or timed out
        self.num_started_done = 0  # those of num_started that are done
        self.num_failed = 0
        self.num_tokens = 0
        self.on_done: list[Any] = []  # callables taking the Request

    @property
    def num_running(self) -> int:
        """Requests between first and last token."""
        return self.num_started - self.num_started_done

    @property
    def num_queued(self) -> int:
        """Requests that were sent and have no token yet."""
        return max(0, self.num_sent - self.num_done - self.num_running)

    def add(self, requests: Iterable[Request]) -> None:
        """Keeps a record of these requests from now on."""
        for request in requests:
            request.log_index = len(self._logs)
            record = TokenRecord(request)
            self._logs.append(record)
            self.records[request.request_id] = record

    def forget(self, request: Request) -> None:
        del self.records[request.request_id]
        self._logs[request.log_index] = None

    def _record(self, request: Request) -> TokenRecord:
        """Raises KeyError for a request of which no record is kept."""
        at = request.log_index
        record = self._logs[at] if at < len(self._logs) else None
        if record is None or record.request is not request:  # it is in another recorder too
            return self.records[request.request_id]
        return record

    def sent(self, request: Request, time_s: float) -> None:
        """A driver that writes to a socket later stamps it again, with the later time."""
        record = self._record(request)
        self.num_sent += record.status == "scheduled"
        record.sent_s, record.status = time_s, "sent"

    def segment(self, requests: list[Request], segment: Segment, instance: str) -> None:
        """Stamps the same `segment` into the log of each of `requests`."""
        logs = self._logs
        for request in requests:
            at = request.log_index
            record = logs[at] if at < len(logs) else None
            if record is None or record.request is not request:
                record = self._record(request)
            if not record.segments:
                record.instance = instance
                self.num_started += 1
            record.segments.append(segment)
        self.num_tokens += segment.num_tokens * len(requests)

    def preempted(self, request: Request, instance: str, time_s: float) -> None:
        self._record(request).num_preemptions += 1
        self.event("preempt", instance, time_s, time_s, request_id=request.request_id)

    def reported(self, request: Request, reported: Reported) -> None:
        self._record(request).reported = reported

    def completed(self, request: Request) -> None:
        self._end(request, "completed", "")

    def failed(self, request: Request, error: str, *, timeout: bool = False) -> None:
        """`error` says what happened, in a sentence; a time-out is a failure by its own name."""
        request.failed = True
        self.num_failed += 1
        self._end(request, "timeout" if timeout else "failed", error)

    def event(self, kind: str, instance: str, start_s: float, end_s: float, **fields: Any) -> None:
        """A device event: preempt, switch, load, drop, transfer, scale, …"""
        self.events.append(
            {
                "kind": kind, "instance": instance, "start_s": start_s, "end_s": end_s,
                "fields": fields,
            }
        )  # fmt: skip

    def _end(self, request: Request, status: Status, error: str) -> None:
        record = self._record(request)
        if record.status in ("completed", "failed", "timeout"):
            raise RuntimeError(
                f"request {request.request_id} ended twice: {record.status}, {status}"
            )
        record.status, record.error = status, error
        self.num_done += 1
        self.num_started_done += bool(record.segments)
        for callback in self.on_done:
            callback(request)
