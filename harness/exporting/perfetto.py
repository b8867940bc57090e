"""A run as a trace for https://ui.perfetto.dev (Chrome's JSON trace format).

A process for each instance, with its events by kind, one for the requests that wait, and a counter
of requests queued and running. Times are microseconds since the schedule's start.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import count
from typing import Any

from harness.exporting.conventions import about
from harness.records.metrics import over_time
from harness.records.run_folder import FinishedRun

REQUESTS = "requests"
LOADS = ("queued", "running")


def trace(run: FinishedRun) -> dict[str, Any]:
    """What the viewer opens; `otherData` says which run it is. Raises UsageError without events."""
    numbers = defaultdict[str, int](count(1).__next__)
    made = [*_requests(run, numbers), *_events(run, numbers), *_counters(run, numbers)]
    named = [
        {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": name}}
        for name, pid in numbers.items()
    ]
    return {"traceEvents": named + made, "displayTimeUnit": "ms", "otherData": about(run)}


def _requests(run: FinishedRun, numbers: defaultdict[str, int]) -> Iterator[dict[str, Any]]:
    """Each request: `client` is its wait for being sent, `prefill` from then to its first token,
    queueing included, `decode` the rest. All are on the instance that finished it. One that failed
    has an instant besides, at its last token or, without one, at its sending: the end is not
    known."""
    for row in run.requests.to_pylist():
        pid = numbers[row["instance"] or REQUESTS]
        times = row["token_times_s"]
        name = {"cat": "request", "id": row["request_id"], "pid": pid, "tid": 0}
        args = {
            key: row[key] for key in ("model", "prompt_tokens", "output_tokens", "status", "error")
        }
        due_s, sent_s = row["arrival_s"], row["sent_s"]
        sent_s = due_s if sent_s is None else max(due_s, sent_s)
        spans = [("client", due_s, sent_s)] if sent_s > due_s else []
        spans += [("prefill", sent_s, times[0])] if times else []
        spans += [("decode", times[0], times[-1])] if len(times) > 1 else []
        for word, begin_s, end_s in spans:
            yield name | {"ph": "b", "name": word, "ts": begin_s * 1e6, "args": args}
            yield name | {"ph": "e", "name": word, "ts": end_s * 1e6}
        if row["error"]:
            at_s = times[-1] if times else sent_s
            yield name | {"ph": "n", "name": "failed", "ts": at_s * 1e6, "args": args}


def _events(run: FinishedRun, numbers: defaultdict[str, int]) -> Iterator[dict[str, Any]]:
    """Slices of what instances did. Those of one kind may overlap, so they are asynchronous."""
    ids = count(1_000_000_000)
    for row in run.event_rows():
        event = {
            "cat": row["kind"], "name": row["kind"], "id": next(ids),
            "pid": numbers[row["instance"]], "tid": 0,
        }  # fmt: skip
        yield event | {"ph": "b", "ts": row["start_s"] * 1e6, "args": row["fields"]}
        yield event | {"ph": "e", "ts": row["end_s"] * 1e6}


def _counters(run: FinishedRun, numbers: defaultdict[str, int]) -> Iterator[dict[str, Any]]:
    columns = over_time(run.requests, interval_s=1.0)
    pid = numbers[REQUESTS]
    for i, at_s in enumerate(columns["time_s"]):
        values = {name: float(columns[name][i]) for name in LOADS}
        yield {"ph": "C", "name": REQUESTS, "pid": pid, "ts": at_s * 1e6, "args": values}
