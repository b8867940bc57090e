"""What a run under a closed loop kept in flight, from its token log."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from harness.records.device_events import Event
from harness.records.token_log import TokenLog

CLOSED_LOOP = "closed_loop"  # an event's kind; its field `concurrency` is what was asked for


@dataclass(frozen=True, slots=True)
class Kept:
    """mean_in_flight: over the time from the sending that filled the concurrency to the last
    sending. late_s: the mean time from the end of a request to the sending of the next. None: the
    log does not tell, for the `reason`."""

    concurrency: int
    mean_in_flight: float | None
    late_s: float | None
    reason: str = ""


def concurrency_of(events: Iterable[Event]) -> int | None:
    """What was asked for; None: the run was an open loop."""
    asked = (event["fields"] for event in events if event["kind"] == CLOSED_LOOP)
    return next((int(fields["concurrency"]) for fields in asked), None)


def kept(log: TokenLog, concurrency: int) -> Kept:
    """A request is in flight from its sending to its last token. The log does not have the ends of
    requests that failed."""
    sent_s = np.sort(log.sent_s[np.isfinite(log.sent_s)])
    num_next = len(sent_s) - concurrency  # those that the end of another sent
    if num_next < 1:
        return Kept(concurrency, None, None, "no more requests than were to be in flight")
    if not log.completed[np.isfinite(log.sent_s)].all():
        return Kept(concurrency, None, None, "requests failed, and the log does not say when")
    first_s, last_s = float(sent_s[concurrency - 1]), float(sent_s[-1])
    if last_s <= first_s:
        return Kept(concurrency, None, None, "no time passed between the sendings")
    done = log.completed
    inside_s = np.minimum(log.last_s[done], last_s) - np.maximum(log.sent_s[done], first_s)
    total_s = float(np.clip(inside_s, 0.0, None).sum())
    span_s = last_s - first_s
    return Kept(concurrency, total_s / span_s, (concurrency * span_s - total_s) / num_next)
