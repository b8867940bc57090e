"""What a run's device events add up to: model switches and how busy each instance was.

Reads what pooled instances stamp (`harness.pool.instance`); a run without such events has neither.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from harness.percentiles import distribution

Event = Mapping[str, Any]  # a row of Recorder.events


def summarise_events(events: Iterable[Event], duration_s: float) -> dict[str, Any]:
    """`switches` and `busy_share`, as far as `events` tell of them: keys of summary.json."""
    events = list(events)
    latencies_s, hidden = switches(events)
    busy = busy_s(events)
    found: dict[str, Any] = {}
    if latencies_s:
        found["switches"] = {
            "count": len(latencies_s),
            "latency_s": distribution(np.array(latencies_s)),
            "hidden_share": sum(hidden) / len(hidden),
        }
    if busy and duration_s > 0:
        shares = {name: seconds / duration_s for name, seconds in sorted(busy.items())}
        found["busy_share"] = {"mean": float(np.mean(list(shares.values()))), "instances": shares}
    return found


def switches(events: Iterable[Event]) -> tuple[list[float], list[bool]]:
    """Each switch's latency, from the decision to the start of the next model's work (Aegaeon
    Fig. 15), and whether prefetching hid the load: it was complete when the switch began."""
    made = [event for event in events if event["kind"] == "switch"]
    latencies_s = [event["end_s"] - event["start_s"] for event in made]
    return latencies_s, [event["fields"]["hidden"] for event in made]


def busy_s(events: Iterable[Event]) -> dict[str, float]:
    """Seconds that each instance spent running batches."""
    total: dict[str, float] = {}
    for event in events:
        if event["kind"] == "run":
            spent_s = event["end_s"] - event["start_s"]
            total[event["instance"]] = total.get(event["instance"], 0.0) + spent_s
    return total
