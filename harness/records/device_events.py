"""What a run's device events add up to: model switches, how busy each instance was, and how long
hosts had no room for KV.

Reads what pooled instances stamp (`harness.pooled.instance`); a run without such events has
neither.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import inf
from typing import Any

import numpy as np

from harness.records.percentiles import distribution

Event = Mapping[str, Any]  # a row of Recorder.events


OF_EVENTS = (  # keys of summary.json
    "switches", "busy_share", "host_full", "slot_gpu_seconds", "moved_bytes", "kv_moves",
    "lease_seconds", "pace", "faults", "scrapes_failed", "plugin",
)  # fmt: skip


def summarise_events(events: Iterable[Event], duration_s: float) -> dict[str, Any]:
    """OF_EVENTS, as far as `events` tell of them."""
    of = _grouped(events, lambda event: event["kind"])
    found: dict[str, Any] = {
        "switches": _switches(of["switch"]),
        "busy_share": _busy_share(of["run"], duration_s),
        "host_full": host_full(of["host_full"]),
        # By role: seconds that slots were held for it, times their devices.
        "slot_gpu_seconds": _totals(
            (each["fields"]["role"], _length_s(each) * each["fields"]["num_devices"])
            for each in of["slot"]
        ),
        # By purpose: bytes of weights and KV that moved between memories, of each device.
        "moved_bytes": _totals(
            (_purpose(each), each["fields"]["bytes"]) for each in [*of["transfer"], *of["kv_move"]]
        ),
        "kv_moves": _kv_moves(of["kv_move"], of["server_paging"]),
        "lease_seconds": _lease_seconds(of["lease"]),
        # Seconds that the last stages' layers were to take by a pace, and what they took beyond it.
        "pace": _totals(part for each in of["pace"] for part in each["fields"].items()),
    }
    # Each fault on purpose: whom it was to strike, when it did, and whether.
    found["faults"] = [
        {"instance": each["instance"], "start_s": each["start_s"], "end_s": each["end_s"]}
        | each["fields"]
        for each in of["fault"]
    ]
    # By server: how many of its pages of metrics failed, and the last error.
    found["scrapes_failed"] = {
        each["instance"]: each["fields"] for each in of["scrapes"] if each["fields"]["num_failed"]
    }
    for event in of["server_paging"]:  # one server has a plug-in
        names = ("iterations", "slices", "preemptions", "lost_blocks")
        found["plugin"] = {name: event["fields"][name] for name in names}
    return {key: value for key, value in found.items() if value}


def _grouped(events: Iterable[Event], by: Callable[[Event], str]) -> defaultdict[str, list[Event]]:
    """The events by what `by` says of each."""
    groups: defaultdict[str, list[Event]] = defaultdict(list)
    for event in events:
        groups[by(event)].append(event)
    return groups


def _length_s(event: Event) -> Any:
    return event["end_s"] - event["start_s"]


def _purpose(event: Event) -> str:
    return str(event["fields"]["purpose"])


def _totals(parts: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    total: dict[str, Any] = {}
    for name, part in parts:
        total[name] = total.get(name, 0) + part
    return dict(sorted(total.items()))


def _switches(made: Sequence[Event]) -> dict[str, Any]:
    """The switches' latencies, from the decision to the start of the next model's work (Aegaeon
    Fig. 15), and how often prefetching hid the load: it was complete when the switch began."""
    if not made:
        return {}
    return {
        "count": len(made),
        "latency_s": distribution(np.array([_length_s(event) for event in made])),
        "hidden_share": sum(event["fields"]["hidden"] for event in made) / len(made),
    }


def _busy_share(batches: Sequence[Event], duration_s: float) -> dict[str, Any]:
    """The share of the run's time that each instance spent running batches."""
    if not batches or duration_s <= 0:
        return {}
    busy_s = _totals((event["instance"], _length_s(event)) for event in batches)
    shares = {name: seconds / duration_s for name, seconds in busy_s.items()}
    return {"mean": float(np.mean(list(shares.values()))), "instances": shares}


def _kv_moves(moves: Sequence[Event], of_servers: Sequence[Event]) -> dict[str, dict[str, float]]:
    """Counts, by purpose, how many requests' KV moved in how many copies, its bytes (of each
    device), and seconds in which some such copy was under way. A server's plug-in counts them
    itself."""
    counted = {
        purpose: {
            "copies": int(moved["copies"]),
            "requests": int(moved["pages"]),
            "bytes": int(moved["bytes"]),
            "seconds": moved["seconds"],
        }
        for event in of_servers
        for purpose, moved in event["fields"]["moves"].items()
    }
    return counted | {
        purpose: {
            "copies": len(copies),
            "requests": sum(len(each["fields"]["requests"]) for each in copies),
            "bytes": sum(each["fields"]["bytes"] for each in copies),
            "seconds": covered_s(copies),
        }
        for purpose, copies in sorted(_grouped(moves, _purpose).items())
    }


def _lease_seconds(leases: Sequence[Event]) -> dict[str, float]:
    """Counts the leases of memory lent by one device to another, and sums their durations."""
    if not leases:
        return {}
    return {
        "leases": len(leases),
        "seconds": sum(map(_length_s, leases)),
        "byte_seconds": sum(_length_s(each) * each["fields"]["bytes"] for each in leases),
    }


def host_full(events: Iterable[Event]) -> dict[str, dict[str, float]]:
    """Tells of each node whose host KV cache had no room for KV that was to leave a device: how
    often, and the seconds in which anybody waited for it, to the run's end where it never came."""
    waits = _grouped(events, lambda event: event["kind"])["host_full"]
    return {
        node: {
            "num_waits": len(of_node),
            "seconds": covered_s(of_node),
            "host_kv_bytes": of_node[0]["fields"]["host_kv_bytes"],
        }
        for node, of_node in sorted(_grouped(waits, lambda event: event["instance"]).items())
    }


def standstills_s(events: Iterable[Event]) -> dict[str, float]:
    """The longest time for which each server gave nobody a token while requests timed out."""
    of = _grouped(events, lambda event: event["kind"])
    waits = _grouped(of["no_progress"], lambda event: event["instance"])
    return {name: max(map(_length_s, of_server)) for name, of_server in waits.items()}


def faults_struck(faults: Sequence[Event]) -> tuple[str, list[str]]:
    """How many of a run's faults on purpose struck, and a sentence for each that did not."""
    missed = [
        f"a fault did not strike: {each['fault']} of {each['planned']}: {each['why_not']}"
        for each in faults
        if not each["struck"]
    ]
    return f"{len(faults) - len(missed)} of {len(faults)}", missed


def covered_s(events: Iterable[Event]) -> float:
    """Seconds in which one of `events` at least was under way."""
    total_s, until_s = 0.0, -inf
    for start_s, end_s in sorted((event["start_s"], event["end_s"]) for event in events):
        total_s += max(end_s - max(start_s, until_s), 0.0)
        until_s = max(until_s, end_s)
    return total_s
