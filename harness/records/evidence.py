"""What a run is judged by, gathered from its requests table and its device events."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from harness.records import certificate
from harness.records.answers import early_ends_allowed, summarise_answers
from harness.records.closed_loop import Kept, concurrency_of, kept
from harness.records.device_events import Event, standstills_s, summarise_events
from harness.records.littles_law import littles_law
from harness.records.receive_lag import receive_lag
from harness.records.sessions import summarise_sessions
from harness.records.steady import Course
from harness.records.token_log import Floats, TokenLog

MAX_LAG_S = 0.005  # P99 of the send lag, of the receive lag, and of both together
MAX_PROMPT_MISS = 0.1  # of the prompts' tokens, by the server's count
MAX_FAILED_SHARE = 0.1  # of the requests: more is noted
BUSY = "busy"  # the kind of the event that has what other processes used of this machine
MAX_SURPLUS_SHARE = 0.01  # of the answers: more, and no metric of single tokens is given


@dataclass(slots=True, eq=False)
class Evidence:
    """What a run is judged by.

    `errors` holds the error text of each request; empty: none was given. `law` is `littles_law` of
    the run; on a real engine its gap is the client's lag, which is judged by itself. `devices`:
    what `summarise_events` found; `others`: the other processes that were the busiest during a live
    run, with `name`, `pid` and `cores`. `receive_lag`, `answers`: what the functions of these names
    found of a server behind a socket; `standstills`: seconds for which a server gave nobody a token
    while requests timed out; `uncertified`: what `certificate.beyond` says; `sessions`: what
    `summarise_sessions` found.
    """

    log: TokenLog
    errors: list[str]
    law: Mapping[str, Any]
    devices: Mapping[str, Any]
    receive_lag: Mapping[str, Any] | None
    answers: Mapping[str, Any] | None
    standstills: Mapping[str, float]
    simulated: bool
    course: Course
    kept: Kept | None  # of a closed loop; None: the loop was open
    uncertified: Sequence[str] = ()
    sessions: Mapping[str, Any] | None = None  # None: no request waited for another's answer
    others: Sequence[Mapping[str, Any]] = ()  # none: not known, or simulated
    crowded: str = ""  # what `certificate.crowded` says

    @staticmethod
    def of(table: pa.Table, events: Iterable[Event], *, simulated: bool) -> Evidence:
        """Gathers the evidence from a run's requests table and its device events."""
        events = list(events)
        log = TokenLog.from_table(table)
        others = [
            each for event in events if event["kind"] == BUSY for each in event["fields"]["others"]
        ]
        many = concurrency_of(events)
        log = log.as_ended() if early_ends_allowed(events) else log
        return Evidence(
            log, table["error"].to_pylist(), littles_law(log),
            summarise_events(events, log.duration_s), receive_lag(log, events),
            summarise_answers(table, events), standstills_s(events), simulated,
            Course.of(log), None if many is None else kept(log, many),
            certificate.beyond(log, events), summarise_sessions(table, log),
            others, certificate.crowded(log, events),
        )  # fmt: skip

    @property
    def asks_rate(self) -> bool:
        """Whether arrivals were scheduled, and not at the end of others."""
        return self.kept is None and self.sessions is None

    @property
    def failed_share(self) -> float:
        return float(self.log.failed.mean())


def rate_per_s(times_s: Floats) -> float | None:
    """(n − 1) / (last − first) of finite `times_s`; None where that says nothing."""
    if len(times_s) < 2:
        return None
    span_s = float(times_s.max() - times_s.min())
    return (len(times_s) - 1) / span_s if span_s > 0 else None
